"""Runs to report on."""

import csv
import json

import numpy as np
import torch
from PIL import Image

import dmb
from dmb.app.evaluation import likelihood
from dmb.app.recipes import DataChoice, NetworkChoice, OrderChoice, ProcessChoice, Recipe
from dmb.app.runs import Run


def recipe(**choices):
    return Recipe(
        name=choices.pop("name", "tiny"),
        data=DataChoice(source=choices.pop("source", "array")),
        head=choices.pop("head", "mean"),
        network=NetworkChoice(
            network=choices.pop("network", "mlp"), width=8, heads=1, blocks=1, conditioning=8,
            classes=choices.pop("classes", False),
        ),
        training=dmb.TrainingSettings(
            cycles=2, score_steps=4, matrix_steps=2, batch_size=8, log_every=2, evaluate_every=2, evaluate_sequences=16,
            chains=8, chain_calls=4, matrix_objective=choices.pop("objective", "prior"),
        ),
        order=OrderChoice(write_order=choices.pop("write_order", None)),
        process=ProcessChoice(**choices),
    )  # fmt: skip


def trained(path, chosen, data, evaluate=True):
    run, bridge = Run.create(path, chosen, data), chosen.build(data)
    for report in dmb.train(bridge, data, chosen.training, folder=path):
        run.log(report)
    if evaluate:
        run.add_evaluation(likelihood(bridge, data, "test"), run.best())
    return run


def untrained(path, chosen, data, records=(), change=None):
    """A run whose model is as it was made, but for what `change` does to it, and whose log says `records`."""
    run, bridge = Run.create(path, chosen, data), chosen.build(data)
    if change is not None:
        with torch.no_grad():
            change(bridge)
    bridge.write(path)
    lines = [
        {"phase": "validation", "step": 1000 * k, "bits": 2.0, "improved": True} | r for k, r in enumerate(records)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def text(folder, length=10, symbols="ab c", count=400):
    file = folder / "letters.txt"
    file.write_text("".join(np.random.default_rng(0).choice([*symbols], count)))
    return dmb.data.text(file, length=length)


def table(folder, header, rows, name="table.csv"):
    file = folder / name
    with file.open("w", newline="") as lines:
        csv.writer(lines).writerows([header, *rows])
    return dmb.data.table(file)


def photographs(folder, count=40, size=(2, 4, 3)):
    rng = np.random.default_rng(4)
    folder.mkdir()
    for index in range(count):
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(folder / f"{index}.png")
    return folder
