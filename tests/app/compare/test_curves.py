import numpy as np
import pytest

from dmb.app.compare.curves import curves
from dmb.app.compare.results import results
from dmb.app.report.figures import to_png

TOKENS = 5 * 128 * 64  # between evaluations


def drawn(plan, panel=0):
    """The axes of the first panel (tokens) or the second (processor time), and the lines by their names."""
    axes = curves(results(plan, {})).axes[panel]
    return axes, {line.get_label().split("  ")[0]: line for line in axes.get_lines()}


def test_a_line_is_the_mean_over_seeds_and_its_band_their_range(planned, made_up):
    plan = planned("mdlm")
    for job, bounds in zip(plan.jobs(), [(3.0, 2.0), (3.4, 2.1)], strict=True):
        made_up(job, validation=bounds)
    axes, lines = drawn(plan)
    np.testing.assert_allclose(lines["mdlm"].get_xydata(), [[TOKENS, 3.2], [2 * TOKENS, 2.05]])
    band = axes.collections[0].get_paths()[0].vertices
    assert set(band[band[:, 0] == TOKENS][:, 1]) == {3.0, 3.4}
    assert set(band[band[:, 0] == 2 * TOKENS][:, 1]) == {2.0, 2.1}


def test_rows_are_named_by_how_they_end_and_their_colours_differ(planned, made_up):
    plan = planned("mdlm", "sedd-uniform", "mean-natural", seeds=1)
    for job, end in zip(plan.jobs(), (2.2, 2.1, 2.3), strict=True):
        made_up(job, validation=(3.0, end))
    _, lines = drawn(plan)
    names = [name for name in lines if not name.startswith("marginals")]
    assert names == ["sedd-uniform", "mdlm", "mean-natural"]
    assert len({lines[name].get_color() for name in names}) == 3


def test_the_last_half_fills_the_picture_whatever_came_before_or_lies_far_off(planned, made_up):
    plan = planned("mdlm", "sedd-uniform", "mean-natural", seeds=1, steps=20)
    for job, bounds in zip(plan.jobs(), [(9.0, 2.0, 1.9, 1.8), (9.5, 2.1, 2.0, 1.9), (60.0, 50.0, 40.0, 30.0)], strict=True):  # fmt: skip
        made_up(job, validation=bounds)
    low, high = drawn(plan)[0].get_ylim()
    assert 1.7 < low < 1.8
    assert 2.1 < high < 2.2


@pytest.mark.parametrize(("end", "shown"), [(2.2, True), (1.2, False)])
def test_the_baseline_is_there_if_it_is_in_range(planned, made_up, end, shown):
    plan = planned("mdlm", seeds=1)
    made_up(plan.jobs()[0], validation=(end + 0.5, end))
    _, lines = drawn(plan)
    assert ("marginals" in lines) == shown


def test_before_the_first_run_has_ended_there_is_an_empty_figure(planned):
    assert drawn(planned())[1] == {}


def test_over_processor_time_runs_are_interpolated_where_all_have_values(planned, made_up):
    """Evaluations at minutes 1, 3, 5 and 2, 3.5, 6: common are the times from 2 to 5."""
    plan = planned("mdlm", steps=15)
    for job, times, bounds in zip(plan.jobs(), [(1, 3, 5), (2, 3.5, 6)], [(3.0, 2.0, 1.6), (4.0, 2.5, 2.0)], strict=True):  # fmt: skip
        made_up(job, cpu_minutes=times, validation=bounds)
    axes = drawn(plan, 1)[0]
    first, second = [2.5, 2.0, 1.9, 1.6], [4.0, 3.0, 2.5, 2.2]
    times = [2.0, 3.0, 3.5, 5.0]
    means = [(one + other) / 2 for one, other in zip(first, second, strict=True)]
    np.testing.assert_allclose(axes.get_lines()[0].get_xydata(), np.stack([times, means], 1))
    band = axes.collections[0].get_paths()[0].vertices
    for time, *ends in zip(times, first, second, strict=True):
        np.testing.assert_allclose(np.unique(band[np.isclose(band[:, 0], time), 1]), ends)


def test_both_panels_share_colours_limits_and_one_legend(planned, made_up):
    plan = planned("mdlm", "sedd-uniform", seeds=1)
    for job, end, minutes in zip(plan.jobs(), (2.2, 2.1), (3.0, 4.0), strict=True):
        made_up(job, validation=(3.0, end), cpu_minutes=(1.0, minutes))
    figure = curves(results(plan, {}))
    left, right = figure.axes
    assert [line.get_color() for line in left.get_lines()[:2]] == [line.get_color() for line in right.get_lines()[:2]]
    assert left.get_ylim() == right.get_ylim()
    [legend] = figure.legends
    assert not left.get_legend()
    assert not right.get_legend()
    best, other, baseline, time = (text.get_text() for text in legend.get_texts())
    assert (best, other, time) == ("sedd-uniform  2.1000", "mdlm  2.2000", "equal CPU time  3.0 min")
    assert baseline.startswith("marginals")


def test_a_row_without_processor_time_is_in_the_first_panel_only(planned, made_up):
    plan = planned("mdlm", "sedd-uniform", seeds=1)
    for job, times in zip(plan.jobs(), [(None, None), (1.0, 2.0)], strict=True):
        made_up(job, cpu_minutes=times)
    _, lines = drawn(plan)
    assert {"mdlm", "sedd-uniform"} <= set(lines)
    colour = lines["mdlm"].get_color()
    assert [len(line.get_xdata()) for line in drawn(plan, 1)[0].get_lines() if line.get_color() == colour] == [0]


def test_without_any_processor_time_the_second_panel_says_so(planned, made_up):
    plan = planned("mdlm", seeds=1)
    made_up(plan.jobs()[0], cpu_minutes=(None, None))
    axes = drawn(plan, 1)[0]
    assert axes.get_xlabel().endswith("not recorded")
    assert to_png(axes.figure)
