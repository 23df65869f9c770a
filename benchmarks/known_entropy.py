"""Train on a language whose entropy is known exactly: the bound approaches it from above, and never passes below.

A process that is learned on the bound has every reason to cheat here, and must not.

python benchmarks/known_entropy.py [SEEDS] [learned]
"""

import time
from typing import Any, Literal

import tyro

from dmb import data, train
from dmb.app import recipes
from dmb.app.evaluation import likelihood

LENGTH = 16
STEPS = (250, 500, 1000)
FIXED: dict[str, dict[str, Any]] = {
    "descending": {"order": "descending"},
    "ascending, all clocks alike": {"order": "ascending", "init": "uniform"},
    "masked": {"mask": True, "floor": 0},
}
JOINT = {"matrix_objective": "joint", "schedule": "canonical"}
LEARNED: dict[str, dict[str, Any]] = {
    "learned, descending": {**JOINT, "order": "descending", "floor": 0.02},
    "learned, all clocks alike": {**JOINT, "order": "ascending", "init": "uniform"},
    "learned, varying, with mask": {**JOINT, "order": "ascending", "process": "varying", "mask": True, "floor": 0.02},
    "learned, in stages": {**JOINT, "init": "nested", "floor": 0.001},
    "learned, tree": {**JOINT, "process": "tree"},
    "learned, tokenwise": {**JOINT, "process": "tokenwise"},
}


def main(seeds: tyro.conf.Positional[int] = 1, which: tyro.conf.Positional[Literal["all", "learned"]] = "all") -> None:
    language = data.markov(length=LENGTH)
    truth = data.markov_bits(LENGTH)
    print(f"entropy {truth:.4f} bits per letter; marginals alone {language.unigram_bits(language.test):.4f}")
    lowest = float("inf")
    for name, settings in (LEARNED if which == "learned" else FIXED | LEARNED).items():
        for seed in range(seeds):
            began = time.perf_counter()
            shared: dict[str, Any] = {
                "source": "markov", "length": LENGTH, "cycles": 1, "score_steps": STEPS[-1], "tied": False,
                "seed": seed, "width": 64, "blocks": 2, "dropout": 0.0, "learning_rate": 2e-3, "evaluate_every": 250,
            }  # fmt: skip
            recipe = recipes.recipe("text_gather").changed(**shared | settings)
            bridge = recipe.build(language)
            for report in train(bridge, language, recipe.training):
                if report.validation is not None and report.step in STEPS:
                    result = likelihood(bridge, language, "test", seed=seed)
                    sigmas = (result.bits - truth) / result.stderr
                    lowest = min(lowest, sigmas)
                    print(
                        f"{name:28s} seed {seed}  step {report.step:5d}  {result.bits:.4f} ± {result.stderr:.4f}  "
                        f"{result.bits - truth:+.4f} bits = {sigmas:+.1f} s.e.  {time.perf_counter() - began:.0f} s",
                        flush=True,
                    )
    print(f"lowest of all: {lowest:+.1f} standard errors from the entropy")
    if lowest < -3:
        raise SystemExit("a bound below the entropy")


if __name__ == "__main__":
    tyro.cli(main)
