"""Do samples of a class look like it? A classifier of real digits judges digits drawn by their label.

python benchmarks/guidance.py [SAMPLES_PER_CLASS]
"""

import torch
import tyro
from sklearn.svm import SVC
from torch import Tensor

from dmb import data, train
from dmb._core.seeding import seeded
from dmb.app import recipes
from dmb.data import Split

GUIDANCE = (1.0, 1.5, 2.0, 3.0)


def _labelled(split: Split) -> tuple[Tensor, Tensor]:
    labels = split.labels(slice(None))
    assert labels is not None
    return split[:], labels


def main(each: tyro.conf.Positional[int] = 100) -> None:
    digits = data.digits()
    judge = SVC(gamma=0.002).fit(*_labelled(digits.train))
    right = judge.score(*_labelled(digits.test))
    print(f"the classifier agrees with {right:.1%} of the labels of {len(digits.test)} test digits")
    recipe = recipes.recipe("digits").changed(classes=True)
    bridge = recipe.build(digits)
    for report in train(bridge, digits, recipe.training):
        if report.validation is not None:
            print(f"step {report.step:5d}  {report.bits:.3f} bits per pixel on validation digits", flush=True)
    label = torch.arange(digits.num_classes).repeat_interleave(each)
    for guidance in GUIDANCE:
        samples = bridge.sample(label=label, guidance=guidance, generator=seeded(0, "guidance"))
        agreed = (judge.predict(samples.numpy()) == label.numpy()).mean()
        print(f"guidance {guidance:3.1f}  {agreed:6.1%} of {len(label)} samples are what was asked for", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
