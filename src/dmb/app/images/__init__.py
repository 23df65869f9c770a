"""VQ-VAEs: images as grids of codes, so that the bridge models a hundred tokens instead of thousands of pixels."""

from dmb.app.images.autoencoder import VQVAE as VQVAE
from dmb.app.images.codes import Codes as Codes
from dmb.app.images.losses import perplexity as perplexity, psnr as psnr
from dmb.app.images.quantizer import Quantizer as Quantizer
from dmb.app.images.training import TokenizerSettings as TokenizerSettings, train_tokenizer as train_tokenizer
