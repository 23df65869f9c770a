"""What users hand in is checked once, at the door: a `ValueError` names the argument, the rule and the value."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def tokens(
    name: str, x: Tensor, shape: tuple[int, int], legal: Bool[Tensor, "g n"] | None = None
) -> Int[Tensor, "b d"]:
    """Return `x` as int64 `[b, d]`, every entry a legal state of its position; `shape` is `(d, n)`."""
    num_positions, num_states = shape
    if x.dtype not in _INTEGERS:
        raise ValueError(f"{name} must be an integer tensor, got {x.dtype}")
    if x.ndim != 2 or x.shape[1] != num_positions:
        raise ValueError(f"{name} must have shape [batch, {num_positions}], got {list(x.shape)}")
    x = x.long()
    if x.numel() == 0:
        return x
    low, high = torch.aminmax(x)
    if low < 0 or high >= num_states:
        row, position = ((x < 0) | (x >= num_states)).nonzero()[0].tolist()
        value = int(x[row, position])
        raise ValueError(f"{name} must lie in [0, {num_states}), got {value} at row {row}, position {position}")
    if legal is None:
        return x
    legal = legal.expand(num_positions, -1)
    allowed = legal[torch.arange(num_positions, device=x.device), x]
    if not allowed.all():
        row, position = (~allowed).nonzero()[0].tolist()
        states = int(legal[position].sum())
        raise ValueError(
            f"{name} must be one of the {states} states of its position, "
            f"got {int(x[row, position])} at row {row}, position {position}"
        )
    return x


def times(name: str, t: Tensor | float, batch: int, device: torch.device) -> Float[Tensor, " b"]:
    """Return `t` as a float64 tensor `[b]` of values in [0, 1]; one number serves the whole batch."""
    if not isinstance(t, Tensor):
        if not 0 <= t <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {t}")
        return torch.full((batch,), t, dtype=torch.float64, device=device)
    t = t.to(device, torch.float64)
    if t.ndim > 1 or (t.ndim == 1 and t.shape[0] not in (1, batch)):
        raise ValueError(f"{name} must be one time or one time per row ({batch}), got shape {list(t.shape)}")
    inside = (t >= 0) & (t <= 1)
    if not inside.all():
        raise ValueError(f"{name} must lie in [0, 1], got {t[~inside].flatten()[0].item()}")
    return t.expand(batch)


def distribution(name: str, p: Tensor, shape: tuple[int, ...]) -> Float[Tensor, "*s n"]:
    """Return `p` if its last axis holds probability vectors that sum to 1 within rounding."""
    if not p.is_floating_point():
        raise ValueError(f"{name} must be a floating-point tensor, got {p.dtype}")
    if tuple(p.shape) != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(p.shape)}")
    if not (p >= 0).all():  # written so that nan fails too
        worst = p[~(p >= 0)].flatten()[0].item()
        raise ValueError(f"{name} must hold probabilities, got {worst}")
    total = p.sum(-1, dtype=torch.float64).flatten()
    tolerance = 1e-5 if p.dtype.itemsize < 8 else 1e-6
    off = (total - 1).abs() > tolerance
    if off.any():
        row = int(off.nonzero()[0])
        raise ValueError(f"{name} must sum to 1, got {total[row].item():.8g} in row {row}")
    return p


def rates(name: str, alpha: Tensor) -> Float[Tensor, "*s k"]:
    """Return `alpha` if it is a floating-point tensor of finite, non-negative rates."""
    if not alpha.is_floating_point():
        raise ValueError(f"{name} must be a floating-point tensor, got {alpha.dtype}")
    bad = ~((alpha >= 0) & alpha.isfinite())
    if bad.any():
        raise ValueError(f"{name} must hold finite rates ≥ 0, got {alpha[bad].flatten()[0].item()}")
    return alpha


def choice(name: str, value: str, options: tuple[str, ...]) -> str:
    """Return `value` if it is one of `options`."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}, got {value!r}")
    return value


def at_least(least: int, **numbers: int) -> None:
    """Raise a ValueError if one of these numbers is below `least`; their names are those of the user's arguments."""
    if min(numbers.values()) < least:
        given = " and ".join(map(str, numbers.values()))
        raise ValueError(f"{' and '.join(numbers)} must be at least {least}, got {given}")


def labels(label: Tensor, count: int, num_classes: int) -> Int[Tensor, " b"]:
    """Return `label`, one class for each of `count` rows, or -1 for none."""
    if label.shape != (count,):
        raise ValueError(f"label must have shape [{count}], got {list(label.shape)}")
    if not num_classes:
        raise ValueError("label needs a network made with num_classes > 0")
    if label.min() < -1 or label.max() >= num_classes:
        worst = label[(label < -1) | (label >= num_classes)][0].item()
        raise ValueError(f"label must lie in [0, {num_classes}), or be -1 for none, got {worst}")
    return label


def known_options(method: Callable[P, R]) -> Callable[P, R]:
    """The method, with a ValueError for an option that it does not have: the error names the one that may be meant."""
    known = inspect.signature(method).parameters

    @wraps(method)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        for name in options.keys() - known.keys():
            owner = args[0] if isinstance(args[0], type) else type(args[0])
            raise ValueError(_unknown_option(owner, method.__name__, name, [*known]))
        return method(*args, **options)

    return checked


def _unknown_option(kind: type, method: str, option: str, known: list[str]) -> str:
    """What to say of it: a class beside this one has it, or one that is spelt alike is meant, or these are all."""
    base: type[object] = [each for each in kind.mro() if hasattr(each, method)][-1]
    parameters = {each: inspect.signature(getattr(each, method)).parameters for each in base.__subclasses__()}
    having = [each.__name__ for each, names in parameters.items() if option in names]
    if having:
        cure = f"{' and '.join(having)} has it"
    elif like := get_close_matches(option, known, 1):
        cure = f"did you mean {like[0]}?"
    else:
        cure = f"it has {', '.join(known[1:])}"
    return f"{kind.__name__}.{method} has no option {option}: {cure}"
