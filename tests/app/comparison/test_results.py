import json
import math
import re

import pytest

from dmb.app.comparison.results import results
from dmb.app.comparison.table import page, table
from dmb.files import to_json


@pytest.fixture
def found(planned, made_up):
    """Two seeds of mdlm, one of mean-natural, whose other one failed; none of sedd-uniform."""
    plan = planned("mdlm", "sedd-uniform", "mean-natural")
    jobs = {(job.row.name, job.seed): job for job in plan.jobs()}
    made_up(jobs["mdlm", 0], bits=2.0, stderr=0.03, speeds=(10.0, 400.0, 200.0), minutes=3.0, validation=(2.1, 2.3))
    made_up(jobs["mdlm", 1], bits=2.2, stderr=0.04, speeds=(100.0,), minutes=5.0, validation=(2.6, 2.2))
    made_up(jobs["mean-natural", 0], bits=1.5, stderr=0.02, prior=0.004, validation=(1.8, 1.4))
    made_up(jobs["sedd-uniform", 0], validation=(1.0,))
    return results(plan, {jobs["mean-natural", 1].path: "exit code 1: no `luck`"})


def test_rows_come_best_first_and_those_without_runs_last(found):
    assert [row.row.name for row in found.rows] == ["mean-natural", "mdlm", "sedd-uniform"]
    assert [len(row.runs) for row in found.rows] == [1, 2, 0]


def test_means_errors_and_spread_over_seeds(found):
    mdlm = found.rows[1]
    assert mdlm.bits == pytest.approx(2.1)
    assert mdlm.stderr == pytest.approx(0.035)  # the mean of 0.03 and 0.04
    assert mdlm.deviation == pytest.approx(0.2 / math.sqrt(2))
    assert found.relative(mdlm) == pytest.approx(40.0)
    assert mdlm.mean("tokens_per_second") == pytest.approx(150.0)  # of the medians 200 and 100
    assert mdlm.mean("minutes") == pytest.approx(4.0)
    assert math.isnan(found.rows[0].deviation)  # of one seed
    assert found.relative(found.rows[0]) == 0


def test_the_figures_of_a_run(found, planned):
    first, second = found.rows[1].runs
    assert (first.seed, first.bits, first.stderr, first.prior_bits) == (0, 2.0, 0.03, 0.002)
    assert first.score_bits == pytest.approx(1.998)
    assert (first.validation_bits, first.step) == (2.1, 5)
    assert (second.validation_bits, second.step) == (2.2, 10)
    assert first.tokens == 10 * 128 * 64
    assert first.curve == ((5 * 128 * 64, 2.1), (10 * 128 * 64, 2.3))
    network = planned("mdlm").jobs()[0].recipe.build(found.plan.data).network
    assert first.parameters == sum(parameter.numel() for parameter in network.parameters())


def test_the_json_holds_it_all(found):
    written = json.loads(to_json(found.to_json()))
    best, mdlm, none = written["rows"]
    assert (mdlm["name"], mdlm["bits"], mdlm["runs"][1]["stderr"]) == ("mdlm", pytest.approx(2.1), 0.04)
    assert best["failures"] == {"1": "exit code 1: no `luck`"}
    assert none["bits"] is None
    assert none["runs"] == []
    assert written["comparison"]["steps"] == 10


def test_the_table_says_it_in_markdown(found):
    lines = table(found).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:5]]
    assert {len(row) for row in cells} == {9}
    assert cells[2] == ["mean-natural", "bridge, natural order, J_Q, mean head", "1.5000 ± 0.0200", "–", "0.00 %", "0.00400", "1 of 2", "1.0", "1,000"]  # fmt: skip
    assert cells[3][2:] == ["2.1000 ± 0.0350", "0.1414", "40.00 %", "0.00200", "2 of 2", "4.0", "150"]
    assert cells[4][2:] == ["not yet", "–", "–", "–", "0 of 2", "–", "–"]
    assert lines[5:] == ["", "- mean-natural, seed 1, failed: `exit code 1: no 'luck'`"]


def test_a_row_that_only_failed_is_shown_as_failed(planned):
    plan = planned("mdlm")
    shown = table(results(plan, {job.path: "exit code 1: oh" for job in plan.jobs()}))
    assert "| failed |" in shown
    assert shown.count("exit code 1: oh") == 2


def test_below_the_table_is_what_was_run_and_how(found):
    text = page(found)
    assert text.startswith(table(found))
    for said in ("digits: 64 positions, 17 states", "10 steps", "81,920 tokens", "seeds 0 to 1", "32 of 180 test", "1 draw of time", "mean of the runs' standard errors"):  # fmt: skip
        assert said in text
    [command] = re.findall(r"```sh\n(.*)\n```", text)
    assert command == found.plan.command()


def test_a_bound_that_is_not_finite_comes_last(planned, made_up):
    plan = planned("mdlm", "mean-natural", seeds=2)
    for job in plan.jobs():
        made_up(job, **({"bits": math.nan, "stderr": math.nan} if job.name == "mdlm seed 1" else {}))
    rows = results(plan, {}).rows
    assert [row.row.name for row in rows] == ["mean-natural", "mdlm"]
    assert "| – ± – |" in table(results(plan, {}))
