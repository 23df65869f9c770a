# %%
# # A forward process of your own
#
# How data turn into noise is yours to choose: a hierarchy of your own with clocks, or any matrix of rates. Whatever you
# choose, all that follows works: the bound, training, sampling. ([Architecture](../architecture.md) says how to write a
# new class.)
#
# As an example, take the weather of four days in a row, of six kinds from sun to storm.

import torch
from matplotlib import pyplot as plt
from torch import Tensor

import dmb

WEATHER = ["sun", "haze", "cloud", "drizzle", "rain", "storm"]


def weather(count: int, generator: torch.Generator) -> Tensor:
    """Days that drift: the weather changes by one step per day at most."""
    days = [torch.randint(6, (count,), generator=generator)]
    for _ in range(3):
        step = torch.randint(-1, 2, (count,), generator=generator)
        days.append((days[-1] + step).clamp(0, 5))
    return torch.stack(days, 1)


generator = torch.Generator().manual_seed(0)
train, test = weather(4000, generator), weather(1000, generator)
marginals = torch.nn.functional.one_hot(train, 6).float().mean(0)

# %%
# ## Three ways to say what noise is
#
# - a **line** in an order of your own: here everything becomes cloudy;
# - a **tree** of your own: weather is first known as *dry* or *wet*, then not at all;
# - a **matrix of rates** of your own: a random walk, from each weather to its neighbours.

order = torch.tensor([5, 0, 4, 3, 1, 2])  # from the bottom, storm, to the top, cloud
rank = order.argsort()[None]
line = dmb.BridgeProcess(
    dmb.Line(rank), dmb.Steady(torch.ones(1, 5)), num_positions=4, marginals=marginals, schedule=dmb.Canonical()
)

DRY, WET, ANY = 6, 7, 8
tree = dmb.Tree(torch.tensor([[DRY, DRY, DRY, WET, WET, WET, ANY, ANY, ANY]]), names=3)
named = torch.cat([marginals, torch.zeros(4, 3)], 1)
clusters = dmb.BridgeProcess(
    tree, dmb.Steady(tree.level_rates(4.0)), num_positions=4, marginals=named, schedule=dmb.Canonical()
)

rates = torch.diag(torch.ones(5), 1) + torch.diag(torch.ones(5), -1)
rates = rates - torch.diag(rates.sum(1))
walk = dmb.DenseProcess(rates, num_positions=4, marginals=marginals, schedule=dmb.Linear(4.0, 4.0))
processes: dict[str, dmb.ForwardProcess] = {"line": line, "tree": clusters, "walk": walk}

# %%
# ## What each of them destroys when
#
# Transition matrices: from the weather of the data (rows) to that at time `t` (columns). The tree has three more
# states, the names of its clusters.

figure, axes = plt.subplots(3, 4, figsize=(9, 6), layout="constrained")
for line_of_axes, (name, process) in zip(axes, processes.items(), strict=True):
    for part, t in zip(line_of_axes, [0.1, 0.3, 0.6, 1.0], strict=True):
        part.imshow(process.to_dense(t)[0].detach()[:6], cmap="Blues", vmin=0, vmax=1)
        columns = WEATHER + ["dry", "wet", "any"][: process.num_states - 6]
        part.set_xticks(range(process.num_states), columns, rotation=90, fontsize=7)
        part.set_yticks(range(6), WEATHER, fontsize=7)
        part.set_title(f"{name}, t = {t}", fontsize=9)

# %%
# ## The same network for all of them
#
# `bridge.loss` is a number per sequence, so a training loop is your own, too.

for name, process in processes.items():
    torch.manual_seed(0)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=64, blocks=1))
    optimiser = torch.optim.AdamW(bridge.network.parameters(), lr=3e-3)
    for _ in range(200):
        rows = torch.randint(len(train), (128,), generator=generator)
        optimiser.zero_grad()
        bridge.loss(train[rows], generator=generator).mean().backward()
        optimiser.step()
    bound = bridge.bound(test, generator=generator)
    x = bridge.sample(200, calls=16, generator=generator)
    possible = (x.diff(dim=1).abs() <= 1).all(1).float().mean()
    print(f"{name}: {bound}; {possible:.0%} of samples are possible")

# %%
# A sample is possible if it changes by one step per day at most. The walk forgets least, so that its prior costs most,
# and it learns slowest. No bound can fall below the entropy of the data, which is known: the first day has one of six
# kinds; then down, same and up have a third each, and at both ends two thirds stay.

first, stays = torch.full((6,), 1 / 6, dtype=torch.float64), torch.zeros(6, 6, dtype=torch.float64)
for state in range(6):
    for step in (-1, 0, 1):
        stays[state, min(max(state + step, 0), 5)] += 1 / 3
entropy = -(first * first.log2()).sum()
for _ in range(3):
    entropy += -(first[:, None] * torch.special.xlogy(stays, stays)).sum() / torch.log(torch.tensor(2.0))
    first = first @ stays
print(f"entropy: {entropy / 4:.4f} bits per day")
