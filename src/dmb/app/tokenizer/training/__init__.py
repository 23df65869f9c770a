"""Training a VQ-VAE: images to codes and back, before a bridge learns the codes."""

from dmb.app.tokenizer.training.report import AutoencoderReport as AutoencoderReport
from dmb.app.tokenizer.training.settings import AutoencoderSettings as AutoencoderSettings
from dmb.app.tokenizer.training.trainer import picture_of as picture_of
from dmb.app.tokenizer.training.trainer import refuse_unfit_autoencoder as refuse_unfit_autoencoder
from dmb.app.tokenizer.training.trainer import train_autoencoder as train_autoencoder
