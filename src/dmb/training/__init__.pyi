"""The names of this package; `__init__` imports each on first use."""

from .devices import Engine as Engine, engine as engine
from .reporting import Fact as Fact, Report as Report, TrainingReport as TrainingReport
from .settings import TrainingSettings as TrainingSettings
from .state import BridgeLearner as BridgeLearner
from .trainer import Trainer as Trainer, check_trainable as check_trainable, train as train
