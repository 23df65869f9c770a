"""Evaluation: the bound with its standard error, beside the baseline that models must beat; samples; FID of images."""

from dmb.evaluation.drawing import draw as draw
from dmb.evaluation.images import feature_cache as feature_cache
from dmb.evaluation.images import features as features
from dmb.evaluation.images import fid as fid
from dmb.evaluation.images import inception_score as inception_score
from dmb.evaluation.inception import Inception as Inception
from dmb.evaluation.likelihood import Likelihood as Likelihood
from dmb.evaluation.likelihood import likelihood as likelihood
from dmb.evaluation.quality import CodecQuality as CodecQuality
from dmb.evaluation.quality import ImageQuality as ImageQuality
from dmb.evaluation.quality import RealImages as RealImages
from dmb.evaluation.quality import codec_quality as codec_quality
from dmb.evaluation.quality import image_quality as image_quality
from dmb.evaluation.reconstruction import Reconstruction as Reconstruction
from dmb.evaluation.reconstruction import reconstruction as reconstruction
