"""Training a bridge by Algorithm 1."""

from dmb.training.engine import Engine as Engine, engine as engine
from dmb.training.reporting import Fact as Fact, Report as Report, TrainingReport as TrainingReport
from dmb.training.settings import TrainingSettings as TrainingSettings
from dmb.training.state import BridgeLearner as BridgeLearner
from dmb.training.trainer import Trainer as Trainer, check_trainable as check_trainable, train as train
