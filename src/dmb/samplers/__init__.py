"""Samplers: one algorithm per file, each a generator of the states on its way from noise to data."""

from dmb.samplers.ancestral import ancestral as ancestral
from dmb.samplers.base import Decoding as Decoding
from dmb.samplers.base import Denoiser as Denoiser
from dmb.samplers.base import Sampler as Sampler
from dmb.samplers.base import State as State
from dmb.samplers.base import draw_prior as draw_prior
from dmb.samplers.base import legal_states as legal_states
from dmb.samplers.base import share_grid as share_grid
from dmb.samplers.base import split_template as split_template
from dmb.samplers.base import time_grid as time_grid
from dmb.samplers.euler import euler as euler
from dmb.samplers.first_hitting import first_hitting as first_hitting
from dmb.samplers.in_order import in_order as in_order
from dmb.samplers.marginals import arrivals as arrivals
from dmb.samplers.marginals import estimate_marginals as estimate_marginals
from dmb.samplers.tweedie import tweedie as tweedie

SAMPLERS: dict[str, Sampler] = {
    "ancestral": ancestral,
    "first_hitting": first_hitting,
    "euler": euler,
    "tweedie": tweedie,
}
