"""The two models, and what they share."""

from dmb.bridges.base import Bridge as Bridge, Estimator as Estimator
from dmb.bridges.markov import HEADS as HEADS, MarkovBridge as MarkovBridge, TemplateWarning as TemplateWarning
from dmb.bridges.ordered import OrderedBridge as OrderedBridge, put_together as put_together
