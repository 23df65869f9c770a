import json
import os
import threading
from dataclasses import replace

import pytest

from dmb.app import recipes
from dmb.app.compare import plan
from dmb.app.evaluation import Likelihood
from dmb.app.records import read_evaluations
from dmb.app.runs import Run

TOKENS = 128 * 64  # of a step


@pytest.fixture
def planned(tmp_path):
    """A small comparison on digits: two rows, two seeds, ten steps, 32 test sequences; or otherwise, as asked."""

    def make(*rows, network=(), training=(), **options):
        options = {
            "out": tmp_path / "out",
            "command": "dmb compare digits",
            "seeds": 2,
            "steps": 10,
            "sequences": 32,
        } | options
        small = {"evaluate_every": 5, "evaluate_sequences": 32, "chains": 4, "chain_calls": 2}
        recipe = recipes.recipe("digits").changed(patience=0)
        recipe = replace(recipe, network=replace(recipe.network, **{"width": 16, "blocks": 1} | dict(network)))
        recipe = replace(recipe, training=replace(recipe.training, **small | dict(training)))
        return plan(recipe, rows=rows or ("mdlm", "mean-natural"), **options)

    return make


@pytest.fixture
def made_up(planned):
    """Write the run folder of a job with figures of one's choice; validation bounds come at steps 5 and 10.

    `cpu_minutes` has the time of each bound, or None for a record of an older version (default: 1, 2, …).
    """
    data = planned().data

    def make(
        job,
        *,
        validation=(3.0, 2.5),
        evaluated=32,
        bits=2.6,
        stderr=0.01,
        of_step=None,
        prior=0.002,
        speeds=(1e3,),
        minutes=1.0,
        cpu_minutes=None,
        seed=0,
    ):
        run = Run.create(job.path, job.recipe, data)
        job.recipe.build(data).write(job.path)
        records = [{"phase": "score", "step": 5, "tokens_per_second": speed} for speed in speeds]
        for index, bound in enumerate(validation):
            best = bound == min(validation[: index + 1])
            records.append({"phase": "validation", "step": 5 * (index + 1), "bits": bound, "improved": best})
        for record in records:
            index = record["step"] // 5 - 1
            time = index + 1 if cpu_minutes is None else cpu_minutes[index]
            record |= {} if time is None else {"cpu_seconds": 60.0 * time}
        records = [{"cycle": 0, "tokens": TOKENS * record["step"], "seconds": 60 * minutes, "prior_bits": prior} | record
                   for record in records]  # fmt: skip
        (job.path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        if evaluated:
            result = Likelihood(split="test", bits=bits, stderr=stderr, score_bits=bits - prior, prior_bits=prior,
                                unigram_bits=2.45, sequences=evaluated, of_sequences=180, tokens=evaluated * 64, samples=1, seed=seed)  # fmt: skip
            run.add_evaluation(result, run.best())
        if of_step is not None:
            found = read_evaluations(run.path)
            found["test"]["step"] = of_step
            (job.path / "evaluation.json").write_text(json.dumps(found))

    return make


@pytest.fixture
def interrupted():
    """Send this process a signal as soon as all these files are there; never once the test is over."""
    over = threading.Event()
    threads = []

    def when(number, files):
        def wait():
            while not over.wait(0.02):
                if all(file.exists() for file in files):
                    os.kill(os.getpid(), number)
                    return

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield when
    over.set()
    for thread in threads:
        thread.join()
