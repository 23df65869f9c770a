"""VQ-VAEs: images as grids of codes, so that the bridge models a hundred tokens instead of thousands of pixels."""

from dmb.vqvae.autoencoder import VQVAE as VQVAE
from dmb.vqvae.losses import Losses as Losses
from dmb.vqvae.metrics import perplexity as perplexity
from dmb.vqvae.metrics import psnr as psnr
from dmb.vqvae.quantizer import Quantizer as Quantizer
