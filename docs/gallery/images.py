# %%
# # Images
#
# Digits of 8 × 8 pixels in 17 shades. The forward process knows that shades are ordered: its clocks lift dark pixels
# to brighter ones (`order="natural"`), and noise is white.

import torch
from matplotlib import pyplot as plt
from torch import Tensor

import dmb

torch.manual_seed(0)
data = dmb.data.load("digits")
process = dmb.BridgeProcess.from_marginals(data.marginals(), order="natural")
bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=256, blocks=1, dropout=0.1))
settings = dmb.TrainingSettings(
    cycles=1, score_steps=300, matrix_steps=20, batch_size=64, learning_rate=4e-3, ema=0.98, decay="cosine"
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
# Three digits of the test data on their way to noise.


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

states = list(bridge.trajectory(3, calls=64, generator=generator))[::8]
sheet([torch.stack([state.x[row] for state in states]) for row in range(3)], [f"t = {s.t:.2f}" for s in states], "back")

# %%
# ## Fill in the other half
#
# The upper half of a digit is given, the rest is new. (A network that was trained with `infill` knows given pixels from
# noise, and does this better.)

template = data.test[:3].clone()
template[:, 32:] = -1
halves = [torch.where(row < 0, 8, row) for row in template]
filled = [bridge.sample(7, template=row, calls=32, generator=generator) for row in template]
rows = [torch.stack([x, half, *more]) for x, half, more in zip(data.test[:3], halves, filled, strict=True)]
sheet(rows, ["data", "given", *["sample"] * 7], "fill in")
