"""Settings that all tests share."""

import jaxtyping
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def no_type_checks():
    """The shape checks of the test suite would speak first; a user does not have them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
