"""Training a bridge by Algorithm 1."""

from dmb.training.engine import Engine as Engine, engine as engine
from dmb.training.fitness import refuse_unfit as refuse_unfit
from dmb.training.phases import matrix_phase as matrix_phase, score_phase as score_phase
from dmb.training.reporting import Fact as Fact, Report as Report
from dmb.training.settings import TrainingSettings as TrainingSettings
from dmb.training.trainer import TrainingReport as TrainingReport, train as train
