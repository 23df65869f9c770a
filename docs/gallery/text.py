# %%
# # Text
#
# A small model of English letters, trained in a few seconds. Letters are masked one by one in a random order, and a
# transformer that follows such an order learns all of its terms in one pass: [whole paths](../bridge.md#whole-paths).
# The text is the documentation that every Python brings along.

import torch
from matplotlib import pyplot as plt

import dmb

torch.manual_seed(0)
data = dmb.data.load("pydocs", length=32)
print(*data.codec.decode(data.test[:3]), sep="\n")

# %%
# All orders of writing are equally likely.

states = dmb.States.with_mask(data.num_positions, data.num_states)
network = dmb.OrderedTransformer(states, width=64, heads=4, blocks=2, dropout=0.0)
bridge = dmb.OrderedBridge(dmb.orders.Random(data.num_positions), network, states)
settings = dmb.TrainingSettings(
    cycles=1, score_steps=300, matrix_steps=0, batch_size=48, learning_rate=4e-3, ema=0.98, decay="cosine"
)
for report in dmb.train(bridge, data, settings):
    if report.phase == "validation":
        print(f"step {report.step}: {report.bits:.2f} bits per letter on validation data")
generator = torch.Generator().manual_seed(0)
bound = bridge.bound(data.test[:500], generator=generator)
unigram = data.unigram_bits(data.test)
print(f"test data: {bound.bits_per_token:.2f} ± {bound.stderr:.2f} bits per letter; frequencies alone: {unigram:.2f}")

# %%
# ## Fill in the blanks
#
# The letters of a template stay; the model writes the others, in an order that it draws.

template = data.codec.template("the ___ction ret____ a ____ of  ", data.num_positions)
print(*data.codec.decode(bridge.sample(5, template=template, generator=generator)), sep="\n")

# %%
# ## Watch it write
#
# Each row is a state of one sample, from masks to text; letters that have just been written are red. After a few
# seconds of training they look like English, but few of them are words.

path = [state.x[0] for state in bridge.trajectory(1, calls=16, generator=generator)]
mask = states.num_states - 1
figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
for row, x in enumerate(path):
    for place, token in enumerate(x.tolist()):
        if token == mask:
            axes.text(place, row, "·", ha="center", va="center", color="silver")
        else:
            new = row > 0 and path[row - 1][place] == mask
            letter = data.codec.decode(x[place : place + 1][None])[0]
            axes.text(
                place, row, letter.replace(" ", "␣"), ha="center", va="center", family="monospace",
                color="tab:red" if new else "grey", weight="bold" if new else "normal",
            )  # fmt: skip
axes.set(xlim=(-1, len(path[0])), ylim=(len(path), -1), xlabel="position", ylabel="step of the reverse process")
