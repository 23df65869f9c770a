"""Small numeric routines that are exact where the naive form is not: log space, suffix sums, draws by inverse CDF."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


def log1mexp(x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """`log(1 - exp(-x))` for `x ≥ 0`, accurate to the last digits at both ends (Mächler 2012).

    At `x = 0` it is `-inf` with gradient zero: a clock that is switched off stays off and poisons nothing.

    >>> log1mexp(torch.tensor([1e-30, 50.0], dtype=torch.float64))
    tensor([-6.9078e+01, -1.9287e-22], dtype=torch.float64)
    """
    off = x == 0
    safe = torch.where(off, 1.0, x)
    # each branch is fed a harmless value where the other is used, so that no 0 · inf reaches the gradient
    small = torch.log(-torch.expm1(-safe.clamp(max=1.0)))
    large = torch.log1p(-torch.exp(-safe.clamp(min=0.5)))
    return torch.where(off, -math.inf, torch.where(safe < math.log(2), small, large))


def log_or_off(x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """`log x` for `x ≥ 0`; at 0 it is `-inf` with gradient zero, as for `log1mexp`.

    >>> log_or_off(torch.tensor([0.0, 1.0]))
    tensor([-inf, 0.])
    """
    off = x == 0
    return torch.where(off, -math.inf, torch.where(off, 1.0, x).log())


def exp_or_zero(x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """`exp x`, and 0 where normal numbers end: `torch.exp` takes ten times as long where many results are below them.

    >>> exp_or_zero(torch.tensor([-1000.0, -100.0, 0.0]))
    tensor([0., 0., 1.])
    """
    tiny = torch.finfo(x.dtype).tiny
    return F.threshold(x.clamp(min=math.log(2 * tiny)).exp(), 3 * tiny, 0.0)


def log_x_over_1mexp(x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """`log(x / (1 - exp(-x)))` for `x ≥ 0`; it is 0 at `x = 0`.

    >>> log_x_over_1mexp(torch.tensor([0.0, 2.0]))
    tensor([0.0000, 0.8386])
    """
    safe = torch.where(x == 0, 1.0, x)
    return torch.where(x == 0, 0.0, safe.log() - log1mexp(safe))


def suffix_sum(x: Float[Tensor, "*s n"]) -> Float[Tensor, "*s n"]:
    """`Σ_{k>i} x_k`, the entry itself left out; computed by adding only, never as a difference of totals.

    >>> suffix_sum(torch.tensor([1.0, 2.0, 4.0]))
    tensor([6., 4., 0.])
    """
    inclusive = x.flip(-1).cumsum(-1).flip(-1)
    return F.pad(inclusive[..., 1:], (0, 1))


def prefix_sum(x: Float[Tensor, "*s n"]) -> Float[Tensor, "*s n"]:
    """`Σ_{k<i} x_k`, the entry itself left out.

    >>> prefix_sum(torch.tensor([1.0, 2.0, 4.0]))
    tensor([0., 1., 3.])
    """
    return F.pad(x.cumsum(-1)[..., :-1], (1, 0))


def pick(table: Tensor, index: Int[Tensor, "b d *k"]) -> Tensor:
    """`table[b, i, index[b, i]]`, where either leading axis of the table may be 1."""
    if table.ndim == 3 and table.shape[:2] == (1, 1):
        return table.take(index)  # twice as fast
    if table.ndim == 3 and table.shape[:2] == index.shape[:2]:  # twice as fast, and its gradient four times
        return table.gather(-1, index.flatten(2) if index.ndim > 2 else index[..., None]).view(index.shape)
    batch, positions, *others = index.shape
    inner = (1,) * len(others)
    rows = torch.arange(batch, device=index.device).view(-1, 1, *inner) if len(table) != 1 else 0
    columns = torch.arange(positions, device=index.device).view(-1, *inner) if table.shape[1] != 1 else 0
    return table[rows, columns, index]


def permute(values: Tensor, index: Int[Tensor, "h n"]) -> Tensor:
    """`values[..., i, index[i, j]]`; the axis of positions may be 1 on either side."""
    shape = (*values.shape[:-2], max(values.shape[-2], len(index)))  # torch.broadcast_shapes takes longer than gather
    return values.expand(*shape, -1).gather(-1, index.expand(*shape, -1))


def times_log_ratio(log_a: Tensor, log_b: Tensor) -> Tensor:
    """`a log(a / b)`, 0 at `a = 0` and wherever `a` is so small that `b` may have underflowed before it.

    That is below the square root of the smallest number, 1e-19 in float32. A bound stays one, but for rounding: it is
    that of a prior `b` with so much of `a` mixed in.
    """
    positive = log_a > math.log(torch.finfo(log_a.dtype).tiny) / 2
    log_a = torch.where(positive, log_a, 0.0)
    return torch.where(positive, log_a.exp() * (log_a - torch.where(positive, log_b, 0.0)), 0.0)


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """`torch.logaddexp` whose gradient at `(-inf, -inf)` is 0 rather than nan."""
    nothing = (a == -torch.inf) & (b == -torch.inf)
    return torch.where(nothing, -torch.inf, torch.logaddexp(a.masked_fill(nothing, 0.0), b))


def exponential(
    shape: tuple[int, ...], *, generator: torch.Generator | None = None, device: torch.device | None = None
) -> Float[Tensor, "..."]:
    """Draws from Exp(1) in float64, where an event of chance 1e-12 still happens once in 10¹² draws.

    Float32 uniforms are multiples of 2⁻²⁴ and would turn such an event into one of chance 6e-8 or 0.
    """
    return -torch.log1p(-torch.rand(shape, generator=generator, device=device, dtype=torch.float64))


def categorical(weights: Float[Tensor, "*s n"], *, generator: torch.Generator | None = None) -> Int[Tensor, "*s"]:
    """Index drawn in proportion to non-negative `weights`, by inverse CDF in float64.

    Gumbel noise in float32 cannot reach the tails and acts like a lower temperature (arXiv 2409.02908).

    >>> categorical(torch.tensor([0.0, 0.0, 3.0]))
    tensor(2)
    """
    cdf = weights.cumsum(-1, dtype=torch.float64)
    total = cdf[..., -1:]
    check_total(total)
    uniform = torch.rand(total.shape, generator=generator, device=weights.device, dtype=torch.float64)
    # right=True skips leading zeros (u = 0); the minimum keeps u·total, rounded up to total, on a positive weight
    last = (cdf < total).sum(-1)
    return torch.minimum(torch.searchsorted(cdf, uniform * total, right=True).squeeze(-1), last)


def first_to_arrive(weights: Float[Tensor, "*s n"], arrivals: Float[Tensor, "*s n"]) -> Int[Tensor, "*s"]:
    """Index drawn in proportion to non-negative `weights` if `arrivals` are independent draws from Exp(1).

    `argmin_k E_k / w_k`. The same arrivals often give the same index for other weights that differ little.

    >>> first_to_arrive(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([0.0, 1.0, 2.0]))
    tensor(2)
    """
    return torch.where(weights > 0, arrivals / weights, torch.inf).argmin(-1)


def check_total(total: Float[Tensor, "*s"]) -> None:
    """Raise a ValueError unless these are sums of weights that something can be drawn in proportion to."""
    if not ((total > 0) & total.isfinite()).all():
        raise ValueError("weights must be finite, not negative, and not all 0 in a row: is the network's output nan?")


def on_host(x: Tensor) -> bool:
    """Whether the values of `x` can be looked at without waiting for a device."""
    return x.device.type == "cpu"


def stratified_times(
    count: int, *, generator: torch.Generator | None = None, device: torch.device | None = None
) -> Float[Tensor, " b"]:
    """One uniform time in each of `count` equal strata of `(0, 1]`, in random order (float64).

    The estimate of `∫ f(t) dt` stays unbiased and its variance falls from O(1/b) to O(1/b³) for smooth `f`; with one
    offset common to all strata it would be O(1/b²). The order is random so that a time says nothing about its row.
    """
    jitter = torch.rand(count, generator=generator, device=device, dtype=torch.float64)
    strata = torch.randperm(count, generator=generator, device=device)
    return (strata + 1 - jitter) / count


def log_normalise(log_weights: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """Logarithms of weights as those of probabilities. (torch's `log_softmax` loses digits in float32 at large n.)

    >>> log_normalise(torch.tensor([0.0, 0.0])).exp()
    tensor([0.5000, 0.5000])
    """
    return log_weights - log_weights.logsumexp(-1, keepdim=True)


def at_least_float32(x: Tensor) -> torch.dtype:
    """The dtype in which to normalise numbers that may come out of a network in half precision."""
    return torch.promote_types(x.dtype, torch.float32)


def rate_exponential(Q: Float[Tensor, "*s n n"]) -> Float[Tensor, "*s n n"]:
    r"""`exp(Q)` of a rate matrix without a single subtraction, so that tiny entries are as exact as large ones.

    `exp(Q) = (exp(-λ) exp(Q/2^k + λ I))^(2^k)` with `λ` large enough that `Q/2^k + λ I ≥ 0`: a Taylor series of
    non-negative terms, then squarings of non-negative matrices.

    >>> rate_exponential(torch.tensor([[-1e-9, 1e-9], [0.0, 0.0]], dtype=torch.float64))[0, 1]
    tensor(1.0000e-09, dtype=torch.float64)
    """
    fastest = float(-Q.detach().diagonal(dim1=-2, dim2=-1).min()) if Q.numel() else 0.0
    squarings = max(0, math.ceil(math.log2(fastest))) if fastest > 0 else 0
    identity = torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device)
    scaled = Q / 2**squarings
    shift = -scaled.detach().diagonal(dim1=-2, dim2=-1).amin(-1)[..., None, None]
    positive = scaled + shift * identity
    term = total = identity.expand_as(Q)
    for order in range(1, 25):  # entries of `positive` sum to at most 1 per row: 1/25! is below rounding
        term = term @ positive / order
        total = total + term
    total = total * torch.exp(-shift)
    for _ in range(squarings):
        total = total @ total
    return total
