import math

import numpy as np
import pytest
import torch

from dmb.app.images import perplexity, psnr


def test_psnr_is_the_formula_over_all_values():
    a, b = (
        torch.randint(256, (3, 4, 4, 3), generator=torch.Generator().manual_seed(s), dtype=torch.uint8) for s in (0, 1)
    )
    error = a.numpy().astype(np.float64) - b.numpy()
    assert psnr(a, b) == pytest.approx(20 * np.log10(255) - 10 * np.log10((error**2).mean()), rel=1e-12)
    assert psnr(a, b) == psnr(b, a)
    assert psnr(a, a) == math.inf


def test_black_against_white_is_0_dB():
    black = torch.zeros(1, 2, 2, 1, dtype=torch.uint8)
    assert psnr(black, 255 - black) == 0.0


def test_perplexity_counts_codes_in_use():
    assert perplexity(torch.full((4, 4), 7), 512) == 1.0
    assert perplexity(torch.arange(512), 512) == pytest.approx(512, rel=1e-12)
    # shares 1/2, 1/4, 1/4: an entropy of 1.5 bits
    assert perplexity(torch.tensor([3, 3, 0, 1]), 4) == pytest.approx(2**1.5, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: perplexity(torch.tensor([0, 4]), 4), r"tokens must lie in \[0, 4\) and not be empty, got \[0, 4\]"),
        (lambda: perplexity(torch.tensor([0, -1]), 4), r"tokens must lie in \[0, 4\) and not be empty, got \[0, -1\]"),
        (lambda: perplexity(torch.zeros(0, 4).long(), 4), r"tokens must lie in \[0, 4\) and not be empty, got \[\]"),
        (lambda: psnr(*[torch.zeros(0, 2, 2, 1, dtype=torch.uint8)] * 2), "a and b must have the same shape, and not be empty"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
