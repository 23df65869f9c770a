"""Samplers: one algorithm per file, each a generator of the states on its way from noise to data."""

from dmb.sampling.ancestral import ancestral as ancestral
from dmb.sampling.base import Decoding as Decoding
from dmb.sampling.base import Denoiser as Denoiser
from dmb.sampling.base import Sampler as Sampler
from dmb.sampling.base import State as State
from dmb.sampling.base import draw_prior as draw_prior
from dmb.sampling.base import legal_states as legal_states
from dmb.sampling.base import share_grid as share_grid
from dmb.sampling.base import split_template as split_template
from dmb.sampling.base import time_grid as time_grid
from dmb.sampling.euler import euler as euler
from dmb.sampling.first_hitting import first_hitting as first_hitting
from dmb.sampling.in_order import in_order as in_order
from dmb.sampling.marginals import arrivals as arrivals
from dmb.sampling.marginals import estimate_marginals as estimate_marginals
from dmb.sampling.tweedie import tweedie as tweedie

SAMPLERS: dict[str, Sampler] = {
    "ancestral": ancestral,
    "first_hitting": first_hitting,
    "euler": euler,
    "tweedie": tweedie,
}
