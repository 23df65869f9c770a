# %%
# # Images
#
# Digits of 8 × 8 pixels in 17 shades. The forward process knows that shades are ordered: its clocks lift dark pixels
# to brighter ones (`order="natural"`), and their rates are learned.

import torch
from matplotlib import pyplot as plt
from torch import Tensor

import dmb

torch.manual_seed(0)
data = dmb.data.load("digits")
process = dmb.BridgeProcess.from_marginals(data.marginals(), order="natural", init="uniform", schedule=dmb.Canonical())
bridge = dmb.Bridge(process, dmb.MLP.for_process(process, width=256, blocks=1))
settings = dmb.TrainingSettings(
    cycles=1, score_steps=500, matrix_objective="joint", batch_size=64, learning_rate=3e-3, ema=0.98, decay="cosine"
)
for report in dmb.train(bridge, data, settings):
    if report.phase == "validation":
        print(f"step {report.step}: {report.bits:.2f} bits per pixel on validation data")
generator = torch.Generator().manual_seed(0)
bound = bridge.bound(data.test[:], generator=generator)
unigram = data.unigram_bits(data.test)
print(f"test data: {bound.bits_per_token:.2f} ± {bound.stderr:.2f} bits per pixel; marginals alone: {unigram:.2f}")


# %%
# ## What the forward process destroys when
#
# Three digits of the test data on their way to noise. With canonical time, an equal share of pixels changes in each
# interval.


def sheet(rows: list[Tensor], titles: list[str], label: str) -> None:
    """Show rows of images; the titles are those of the columns."""
    figure, axes = plt.subplots(len(rows), len(titles), figsize=(9, 1.15 * len(rows) + 0.3), layout="constrained")
    for line, images in zip(axes, rows, strict=True):
        for part, image in zip(line, images, strict=True):
            part.imshow(image.view(8, 8), cmap="gray", vmin=0, vmax=16)
            part.set(xticks=[], yticks=[])
    for part, title in zip(axes[0], titles, strict=True):
        part.set_title(title, fontsize=9)
    figure.supylabel(label, fontsize=9)


times = torch.linspace(0, 1, 9)
noisy = [process.sample(x.expand(9, -1), times, generator=generator) for x in data.test[:3]]
sheet(noisy, [f"t = {t:.2f}" for t in times], "forward")

# %%
# ## And back again
#
# Samples of the model, from noise to digits.

states = list(bridge.trajectory(3, steps=64, generator=generator))[::8]
sheet([torch.stack([state.x[row] for state in states]) for row in range(3)], [f"t = {s.t:.2f}" for s in states], "back")

# %%
# ## What was learned
#
# The rates of all clocks, averaged over positions: how often pixels are lifted to each shade.

figure, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
before = torch.ones(process.num_states - 1)
after = process.alpha.detach().mean(0)
axes.bar(torch.arange(1, 17) - 0.2, before / before.sum(), width=0.4, color="silver", label="at the start")
axes.bar(torch.arange(1, 17) + 0.2, after / after.sum(), width=0.4, label="learned")
axes.set(xlabel="shade", ylabel="share of all rates")
axes.legend()
