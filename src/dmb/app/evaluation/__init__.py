"""Evaluation: the bound beside the baseline that models must beat; samples; quality of images, rows and records."""

from dmb.app.evaluation.drawing import draw as draw
from dmb.app.evaluation.images import features as features
from dmb.app.evaluation.images import fid as fid
from dmb.app.evaluation.images import inception_score as inception_score
from dmb.app.evaluation.inception import Inception as Inception
from dmb.app.evaluation.likelihood import Likelihood as Likelihood
from dmb.app.evaluation.likelihood import likelihood as likelihood
from dmb.app.evaluation.quality import ImageQuality as ImageQuality
from dmb.app.evaluation.quality import RealImages as RealImages
from dmb.app.evaluation.quality import image_quality as image_quality
from dmb.app.evaluation.sequences import RecordQuality as RecordQuality
from dmb.app.evaluation.sequences import record_quality as record_quality
from dmb.app.evaluation.tables import RealRows as RealRows
from dmb.app.evaluation.tables import TableQuality as TableQuality
from dmb.app.evaluation.tables import table_quality as table_quality
