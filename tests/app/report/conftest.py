import pytest

from dmb.app.report import contents


@pytest.fixture(autouse=True, scope="module")
def few_samples():
    """Pages need no good samples: at most 64, in 16 steps."""

    effort = contents.effort

    def little(bridge):
        samples, steps = effort(bridge)
        return min(samples, 64), min(steps, 16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "effort", little)
        yield
