"""VQ-VAEs: images as grids of codes, so that the bridge models a hundred tokens instead of thousands of pixels."""

from dmb.app.tokenizer.autoencoder import VQVAE as VQVAE
from dmb.app.tokenizer.codec import Codes as Codes
from dmb.app.tokenizer.losses import perplexity as perplexity
from dmb.app.tokenizer.losses import psnr as psnr
from dmb.app.tokenizer.quantizer import Quantizer as Quantizer
from dmb.app.tokenizer.settings import TokenizerSettings as TokenizerSettings
from dmb.app.tokenizer.training import train_tokenizer as train_tokenizer
