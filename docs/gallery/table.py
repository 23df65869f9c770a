# %%
# # A table
#
# `dmb.TableModel` learns the joint distribution of a data frame's columns: draw rows, fill gaps, predict any column
# from any others ([data frames](../data.md#data-frames)). Here: 178 wines of three growers, with some measurements.

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from sklearn.datasets import load_wine

import dmb

wine = load_wine(as_frame=True).frame
frame = wine[["alcohol", "flavanoids", "color_intensity", "proline"]].copy()
frame["grower"] = np.array(["A", "B", "C"])[wine["target"]]
held_out = frame.iloc[::5]
model = dmb.TableModel(steps=500, width=96, blocks=2, bins=16, random_state=0).fit(frame.drop(held_out.index))
print(*model.codec_.describe(), sep="\n")

# %%
# ## Draw rows
#
# New rows look like the data, column by column and together.

rows = model.sample(400, random_state=0)
print(rows.head(5).to_string(index=False))
figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharex=True, sharey=True)
for part, name, table in zip(axes, ["data", "samples"], [frame, rows], strict=True):
    for grower, colour in zip("ABC", ["tab:blue", "tab:orange", "tab:green"], strict=True):
        some = table[table["grower"] == grower]
        part.scatter(some["flavanoids"], some["color_intensity"], s=10, c=colour, alpha=0.6, label=f"grower {grower}")
    part.set(title=name, xlabel="flavanoids", ylabel="color_intensity")
axes[0].legend()

# %%
# ## Ask about the columns you do not know
#
# What is given is given exactly, whichever columns it is.

given = pd.DataFrame({"flavanoids": [0.6, 1.9, 3.2]})
chances = model.predict_proba(given, "grower")
for amount, row in zip(given["flavanoids"], chances, strict=True):
    words = ", ".join(f"{name} {p:.2f}" for name, p in zip(model.classes("grower"), row, strict=True))
    print(f"flavanoids {amount}: grower {words}")
gaps = held_out.drop(columns="grower")
guess = np.array(model.classes("grower"))[model.predict_proba(gaps, "grower").argmax(1)]
print(f"growers of {len(held_out)} wines that were held out: {np.mean(guess == held_out['grower']):.0%} right")

# %%
# ## Judge rows
#
# `log_prob` is the log-density of a row. A row with its grower exchanged is less likely than the row itself.

swapped = held_out.assign(grower=held_out["grower"].map({"A": "C", "B": "A", "C": "B"}))
for name, table in [("held-out rows", held_out), ("with another grower", swapped)]:
    print(f"{name}: {model.log_prob(table).value.mean():.1f} nats per row")
