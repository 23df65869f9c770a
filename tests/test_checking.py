"""Calls that look alike are checked once, and whatever jaxtyping's own decorator catches is caught."""

from dataclasses import dataclass

import jaxtyping
import numpy as np
import pytest
import torch
from beartype import beartype
from jaxtyping import Float, Int
from torch import Tensor

import checking

theirs = checking.in_one_scope(typechecker=beartype)


def pick(x: Float[Tensor, "*b n"], index: Int[Tensor, "*b"], scale: float = 1.0) -> Float[Tensor, "*b"]:
    if scale == 2.0:
        return x  # a mistake that the arguments do not show
    if scale == 3.0:
        return x.gather(-1, index[..., None])[..., 0].long()
    return x.gather(-1, index[..., None])[..., 0]


def total(*parts: Float[np.ndarray, " n"], **named: "Float[np.ndarray, ' n']") -> "Float[np.ndarray, ' n']":
    return sum(parts) + sum(named.values())


def named(names: list[str], pair: tuple[int, str] | None = None) -> "Nowhere":
    return len(names)


X, INDEX = torch.rand(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)
CALLS = [
    (pick, (X, INDEX), {}),
    (pick, (X, INDEX), {"scale": 2.0}),
    (pick, (X, INDEX), {"scale": 3.0}),
    (pick, (X, INDEX[0]), {}),
    (pick, (X, INDEX.float()), {}),
    (pick, (X.long(), INDEX), {}),
    (pick, (X, INDEX), {"scale": "1"}),
    (pick, (X, None), {}),
    (pick, (X[0], INDEX[0]), {}),
    (total, (np.ones(3), np.ones(3)), {"last": np.ones(3)}),
    (total, (np.ones(3), np.ones(2)), {}),
    (total, (np.ones(3),), {"last": np.ones(2)}),
    (total, (np.ones(3),), {"last": np.ones(3, dtype=int)}),
    (named, (["a"],), {}),
    (named, ([1],), {}),
    (named, ([1], (1, "a")), {}),
    (named, (["a"], (1, "a")), {}),
    (named, (["a"], (1, 2)), {}),
    (named, ("a",), {}),
]


def is_caught(function, args, options):
    try:
        function(*args, **options)
    except Exception:
        return True
    return False


def test_what_jaxtyping_catches_is_caught_the_first_time_and_the_second():
    ours = {function: checking.checked(function) for function, _, _ in CALLS}
    expected = [is_caught(theirs(function), args, options) for function, args, options in CALLS]
    assert sum(expected) == len(CALLS) - 5
    for _ in range(2):
        assert [is_caught(ours[function], args, options) for function, args, options in CALLS] == expected


def test_a_call_that_looks_like_one_before_is_not_checked_again(monkeypatch):
    checks = []
    monkeypatch.setattr(checking, "die_if_unbearable", lambda value, hint: checks.append(hint))
    ours = checking.checked(pick)
    ours(X, INDEX)
    first = len(checks)
    ours(X + 1, INDEX + 1)
    assert len(checks) == first > 0
    ours(X.double(), INDEX)
    assert len(checks) == 2 * first


def test_a_dataclass_checks_its_fields():
    @checking.checked
    @dataclass
    class Pair:
        one: Float[Tensor, " n"]
        other: Float[Tensor, " n"]

    Pair(torch.ones(2), torch.ones(2))
    with pytest.raises(Exception, match=r"Float\[Tensor"):
        Pair(torch.ones(2), torch.ones(3))


def test_checks_can_be_turned_off(no_type_checks):
    assert checking.checked(named)([1]) == 1


def test_the_library_is_checked():
    import dmb

    assert jaxtyping.jaxtyped is checking.jaxtyped
    with pytest.raises(Exception, match=r"Float\[Tensor"):
        dmb.numerics.log1mexp(torch.ones(3, dtype=torch.long))
