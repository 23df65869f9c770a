"""The report of a VQ-VAE: how well images come back, and which codes they become."""

from dmb.app.reports.autoencoder.contents import STEPS as STEPS
from dmb.app.reports.autoencoder.contents import gather as gather
from dmb.app.reports.autoencoder.parts import codebook as codebook
from dmb.app.reports.autoencoder.parts import configuration as configuration
from dmb.app.reports.autoencoder.parts import headline as headline
from dmb.app.reports.autoencoder.parts import over_time as over_time
from dmb.app.reports.autoencoder.parts import reconstructions as reconstructions
from dmb.app.reports.autoencoder.parts import results as results
