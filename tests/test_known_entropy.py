"""A language whose entropy is known: no honest bound lies below it."""

import pytest
import torch

import dmb
from dmb.app.evaluation import likelihood
from dmb.training import engine

LENGTH = 4


@pytest.mark.long
@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("options", "objective"),
    [({"order": "descending"}, "prior"), ({"mask": True, "floor": 0.0}, "prior"), ({"init": "uniform"}, "joint")],
    ids=["descending", "masked", "learned"],
)
def test_the_bound_approaches_a_known_entropy_from_above(options, objective):
    data, truth = dmb.data.markov(length=LENGTH), dmb.data.markov_bits(LENGTH)
    schedule = dmb.Canonical() if objective == "joint" else None
    process = dmb.BridgeProcess.from_marginals(data.marginals(), schedule=schedule, **options)
    torch.manual_seed(0)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process.num_states, LENGTH, width=128, blocks=2, dropout=0.0))
    settings = {"cycles": 1, "score_steps": 100, "evaluate_every": 50, "evaluate_sequences": 500, "matrix_steps": 5}
    settings |= {"matrix_objective": objective, "learning_rate": 1e-2, "warmup": 20, "ema": 0.9}
    above = []
    for report in dmb.train(bridge, data, fabric=engine(accelerator="cpu"), **settings):
        if report.validation is not None:
            result = likelihood(bridge, data, "test", sequences=4000)
            assert result.bits > truth - 3 * result.stderr
            above.append(result.bits - truth)
    assert above[-1] < 0.5 * (result.unigram_bits - truth)
    assert above[-1] < above[0]
