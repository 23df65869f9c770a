"""What is minimised: score entropy, whole paths, and the bound with its error."""

from dmb.objectives import (
    bound as bound,
    calls as calls,
    ordered as ordered,
    score_entropy as score_entropy,
    variance as variance,
)
