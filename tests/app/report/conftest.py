import pytest

from dmb.app.report import contents, sampling


@pytest.fixture(autouse=True, scope="module")
def few_samples():
    """Pages need no good samples: at most 64, in 16 steps."""

    def little(bridge):
        samples, steps = sampling.effort(bridge)
        return min(samples, 64), min(steps, 16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "effort", little)
        yield
