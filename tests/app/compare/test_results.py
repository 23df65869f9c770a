import json
import math
import re

import pytest

from dmb._core.files import to_json
from dmb.app.compare.results import page, results, table
from dmb.app.records import bits_after


@pytest.fixture
def found(planned, made_up):
    """Two seeds of mdlm, one of mean-natural, whose other one failed; none of sedd-uniform."""
    plan = planned("mdlm", "sedd-uniform", "mean-natural")
    jobs = {(job.row.name, job.seed): job for job in plan.jobs()}
    made_up(jobs["mdlm", 0], bits=2.0, stderr=0.03, speeds=(10.0, 400.0, 200.0), minutes=3.0, validation=(2.1, 2.3),
            cpu_minutes=(1.0, 5.0))  # fmt: skip
    made_up(jobs["mdlm", 1], bits=2.2, stderr=0.04, speeds=(100.0,), minutes=5.0, validation=(2.6, 2.2),
            cpu_minutes=(2.0, 6.0))  # fmt: skip
    made_up(jobs["mean-natural", 0], bits=1.5, stderr=0.02, prior=0.004, validation=(1.8, 1.4), cpu_minutes=(1.5, 3.0))
    made_up(jobs["sedd-uniform", 0], validation=(1.0,))
    return results(plan, {jobs["mean-natural", 1].path: "exit code 1: no `luck`"})


def test_rows_come_best_first_and_those_without_runs_last(found):
    assert [row.name for row in found.rows] == ["mean-natural", "mdlm", "sedd-uniform"]
    assert [len(row.runs) for row in found.rows] == [1, 2, 0]


def test_means_errors_and_spread_over_seeds(found):
    mdlm = found.rows[1]
    assert mdlm.bits == pytest.approx(2.1)
    assert mdlm.stderr == pytest.approx(0.035)  # the mean of 0.03 and 0.04
    assert mdlm.deviation == pytest.approx(0.2 / math.sqrt(2))
    assert mdlm.relative == pytest.approx(40.0)
    assert mdlm.prior_bits == pytest.approx(0.002)
    assert mdlm.validation_at_end == pytest.approx(2.25)  # of 2.3 and 2.2
    assert mdlm.cpu_minutes == pytest.approx(5.5)
    assert math.isnan(found.rows[0].deviation)  # of one seed
    assert found.rows[0].relative == 0


def test_the_figures_of_a_run(found, planned):
    first, second = found.rows[1].runs
    assert (first.seed, first.test.bits, first.test.stderr, first.test.prior_bits) == (0, 2.0, 0.03, 0.002)
    assert first.test.score_bits == pytest.approx(1.998)
    assert [record.improved for record in first.curve] == [True, False]
    assert (first.test.step, second.test.step) == (5, 10)
    assert (first.last.tokens, first.last.seconds, first.last.cpu_seconds) == (10 * 128 * 64, 180.0, 300.0)
    points = [(record.tokens, record.cpu_seconds, record.bits) for record in first.curve]
    assert points == [(5 * 128 * 64, 60.0, 2.1), (10 * 128 * 64, 300.0, 2.3)]
    network = planned("mdlm").jobs()[0].recipe.build(found.plan.data).network
    assert first.parameters == sum(parameter.numel() for parameter in network.parameters())


def test_the_json_holds_it_all(found):
    written = json.loads(to_json(found.to_json()))
    best, mdlm, none = written["rows"]
    assert (mdlm["name"], mdlm["bits"], mdlm["runs"][1]["test"]["stderr"]) == ("mdlm", pytest.approx(2.1), 0.04)
    assert best["failures"] == {"1": "exit code 1: no `luck`"}
    assert (mdlm["cpu_minutes"], written["least_cpu_minutes"]) == (5.5, 3.0)
    assert mdlm["validation_bits_at_equal_cpu_time"] == pytest.approx(2.3)
    point = {"tokens": 10 * 128 * 64, "cpu_seconds": 360.0, "bits": 2.2}
    assert point.items() <= mdlm["runs"][1]["curve"][1].items()
    assert none["bits"] is none["validation_bits_at_equal_cpu_time"] is None
    assert none["runs"] == []
    assert written["comparison"]["steps"] == 10


def test_the_table_says_it_in_markdown(found):
    lines = table(found).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:5]]
    assert {len(row) for row in cells} == {9}
    assert cells[0][-2:] == ["CPU minutes per run", "validation bits at equal CPU time"]
    assert cells[2] == ["mean-natural", "as mean-live, in natural order", "1.5000 ± 0.0200", "–", "0.00 %", "0.00400", "1 of 2", "3.0", "1.4000"]  # fmt: skip
    assert cells[3][2:] == ["2.1000 ± 0.0350", "0.1414", "40.00 %", "0.00200", "2 of 2", "5.5", "2.3000"]
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
    for said in ("digits: 64 positions, 17 states", "10 steps", "81,920 tokens", "seeds 0 to 1", "32 of 180 test", "1 draw of time", "mean of the runs' standard errors",
                 "after 3.0 CPU minutes", "still had a higher learning rate"):  # fmt: skip
        assert said in text
    [command] = re.findall(r"```sh\n(.*)\n```", text)
    assert command == "dmb compare digits"


def test_a_bound_that_is_not_finite_comes_last(planned, made_up):
    plan = planned("mdlm", "mean-natural", seeds=2)
    for job in plan.jobs():
        made_up(job, **({"bits": math.nan, "stderr": math.nan} if str(job) == "mdlm seed 1" else {}))
    rows = results(plan, {}).rows
    assert [row.name for row in rows] == ["mean-natural", "mdlm"]
    assert "| – ± – |" in table(results(plan, {}))


@pytest.fixture
def run_of(planned, made_up):
    """The records of one run of mdlm with figures of one's choice."""

    def make(**figures):
        plan = planned("mdlm", seeds=1, steps=5 * len(figures["validation"]))
        made_up(plan.jobs()[0], **figures)
        [[run]] = [row.runs for row in results(plan, {}).rows]
        return run.curve

    return make


@pytest.mark.parametrize(
    ("minutes", "bits"),
    [
        (1.9, math.nan),  # before the first evaluation
        (2.0, 3.0),
        (3.0, 2.75),  # a quarter of the way from 3.0 to 2.0
        (6.0, 2.0),
        (8.0, 2.0),  # the evaluation at minute 10 is worse, and does not count
        (16.0, 1.8),  # halfway between minutes 10 and 22, from 2.0 to 1.6
        (22.0, 1.6),
        (99.0, 1.6),
        (math.nan, math.nan),
    ],
)
def test_the_best_bound_so_far_is_linear_in_time_between_evaluations(run_of, minutes, bits):
    curve = run_of(validation=(3.0, 2.0, 2.4, 1.6), cpu_minutes=(2.0, 6.0, 10.0, 22.0))
    assert bits_after(curve, 60 * minutes) == pytest.approx(bits, nan_ok=True)


def test_an_evaluation_that_is_not_finite_is_passed_over(run_of):
    curve = run_of(validation=(3.0, math.nan, 2.0), cpu_minutes=(1.0, 2.0, 5.0))
    assert bits_after(curve, 120.0) == pytest.approx(2.75)


def test_equal_time_is_the_least_of_the_means_and_not_of_the_runs(planned, made_up):
    """mdlm takes 4 and 8 minutes; mean-natural 5 and 5, the least mean; its own runs end then."""
    plan = planned("mdlm", "mean-natural")
    times = {"mdlm seed 0": (2.0, 4.0), "mdlm seed 1": (4.0, 8.0), "mean-natural seed 0": (1.0, 5.0), "mean-natural seed 1": (2.0, 5.0)}  # fmt: skip
    bounds = {"mdlm seed 0": (3.0, 2.0), "mdlm seed 1": (2.8, 1.6)}
    for job in plan.jobs():
        made_up(job, cpu_minutes=times[str(job)], validation=bounds.get(str(job), (3.0, 2.5)))
    found = results(plan, {})
    rows = {row.name: row for row in found.rows}
    assert found.least_cpu_minutes == pytest.approx(5.0)
    # seed 0 had ended at 2.0; seed 1 was a quarter of the way from 2.8 to 1.6, at 2.5
    assert rows["mdlm"].validation_bits_at_equal_cpu_time == pytest.approx(2.25)
    assert rows["mean-natural"].validation_bits_at_equal_cpu_time == pytest.approx(2.5)


def test_a_row_not_evaluated_by_the_equal_time_has_no_figure(planned, made_up):
    plan = planned("mdlm", "mean-natural", seeds=1)
    for job, times in zip(plan.jobs(), [(1.0, 2.0), (2.5, 5.0)], strict=True):
        made_up(job, cpu_minutes=times, bits=job.seed + times[0])
    assert [line.split(" | ")[-2:] for line in table(results(plan, {})).splitlines()[2:]] == [["2.0", "2.5000 |"], ["5.0", "– |"]]  # fmt: skip


@pytest.mark.parametrize("old", [(None, None), (None, 0.1)], ids=["old", "begun old and resumed"])
def test_runs_without_processor_time_have_a_dash_and_set_no_time_for_others(planned, made_up, old):
    plan = planned("mdlm", "mean-natural", seeds=1)
    for job, times in zip(plan.jobs(), [(1.0, 3.0), old], strict=True):
        made_up(job, cpu_minutes=times, bits=times[0] or 5.0)
    found = results(plan, {})
    assert found.least_cpu_minutes == 3.0
    assert math.isnan(found.rows[1].runs[0].last.cpu_seconds)
    lines = table(found).splitlines()
    assert lines[2].endswith("| 3.0 | 2.5000 |")
    assert lines[3].endswith("| – | – |")
    assert json.loads(to_json(found.to_json()))["rows"][1]["runs"][0]["curve"][0]["cpu_seconds"] is None


def test_without_any_processor_time_the_page_says_so(planned, made_up):
    plan = planned("mdlm", seeds=1)
    made_up(plan.jobs()[0], cpu_minutes=(None, None))
    assert "CPU time: not recorded" in page(results(plan, {}))


def test_the_cosine_is_mentioned_only_if_there_is_one(planned, made_up):
    plan = planned("mdlm", seeds=1, training={"decay": "constant"})
    made_up(plan.jobs()[0])
    text = page(results(plan, {}))
    assert "after 2.0 CPU minutes" in text
    assert "learning rate" not in text
