"""Samplers: generators of the states on the way from noise to data."""

from dmb.sampling.base import (
    Decoding as Decoding,
    Denoiser as Denoiser,
    Sampler as Sampler,
    State as State,
    draw_prior as draw_prior,
    legal_states as legal_states,
    share_grid as share_grid,
    split_template as split_template,
    time_grid as time_grid,
)
from dmb.sampling.first_hitting import first_hitting as first_hitting
from dmb.sampling.in_order import in_order as in_order
from dmb.sampling.marginals import arrivals as arrivals, estimate_marginals as estimate_marginals
from dmb.sampling.speculative import speculative as speculative
from dmb.sampling.step_by_step import (
    StepSampler as StepSampler,
    ancestral as ancestral,
    euler as euler,
    tweedie as tweedie,
)

SAMPLERS: dict[str, Sampler] = {
    "ancestral": ancestral,
    "first_hitting": first_hitting,
    "euler": euler,
    "tweedie": tweedie,
}
