"""The report of a VQ-VAE: how well images come back, and which codes they become."""

from dmb.reports.autoencoder.contents import STEPS as STEPS
from dmb.reports.autoencoder.contents import gather as gather
from dmb.reports.autoencoder.parts import codebook as codebook
from dmb.reports.autoencoder.parts import configuration as configuration
from dmb.reports.autoencoder.parts import headline as headline
from dmb.reports.autoencoder.parts import over_time as over_time
from dmb.reports.autoencoder.parts import reconstructions as reconstructions
from dmb.reports.autoencoder.parts import results as results
