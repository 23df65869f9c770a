import numpy as np
import pytest

from dmb.app.comparison.curves import curves
from dmb.app.comparison.results import results

TOKENS = 5 * 128 * 64  # between evaluations


def drawn(plan):
    """The axes, and the lines by their names."""
    axes = curves(results(plan, {})).axes[0]
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
