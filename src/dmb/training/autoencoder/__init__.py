"""Training a VQ-VAE: images to codes and back, before a bridge learns the codes."""

from dmb.training.autoencoder.report import AutoencoderReport as AutoencoderReport
from dmb.training.autoencoder.settings import AutoencoderSettings as AutoencoderSettings
from dmb.training.autoencoder.trainer import picture_of as picture_of
from dmb.training.autoencoder.trainer import refuse_unfit_autoencoder as refuse_unfit_autoencoder
from dmb.training.autoencoder.trainer import train_autoencoder as train_autoencoder
