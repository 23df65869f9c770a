"""Evaluation: the bound beside the baseline that models must beat; samples; quality of images, rows and records."""

from dmb.app.evaluation.drawing import draw as draw
from dmb.app.evaluation.images import (
    ImageQuality as ImageQuality,
    RealImages as RealImages,
    features as features,
    fid as fid,
    image_qualities as image_qualities,
    image_quality as image_quality,
    inception_score as inception_score,
    precision_recall as precision_recall,
)
from dmb.app.evaluation.inception import Inception as Inception
from dmb.app.evaluation.likelihood import (
    Likelihood as Likelihood,
    SamplerBound as SamplerBound,
    at_calls as at_calls,
    likelihood as likelihood,
    order_used as order_used,
    sampler_bound as sampler_bound,
    token_costs as token_costs,
)
from dmb.app.evaluation.samples import (
    RecordQuality as RecordQuality,
    TableQuality as TableQuality,
    record_quality as record_quality,
    table_quality as table_quality,
)
