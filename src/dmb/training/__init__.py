"""Training: a bridge by Algorithm 1, or a VQ-VAE whose codes a bridge can learn."""

from dmb.training.autoencoder import AutoencoderReport as AutoencoderReport
from dmb.training.autoencoder import AutoencoderSettings as AutoencoderSettings
from dmb.training.autoencoder import refuse_unfit_autoencoder as refuse_unfit_autoencoder
from dmb.training.autoencoder import train_autoencoder as train_autoencoder
from dmb.training.engine import engine as engine
from dmb.training.phases import matrix_phase as matrix_phase
from dmb.training.phases import score_phase as score_phase
from dmb.training.reporting import AnyReport as AnyReport
from dmb.training.reporting import Fact as Fact
from dmb.training.settings import Settings as Settings
from dmb.training.trainer import Report as Report
from dmb.training.trainer import refuse_unfit as refuse_unfit
from dmb.training.trainer import train as train
