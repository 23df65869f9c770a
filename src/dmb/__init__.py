"""Discrete Markov Bridge: generative modelling of discrete data with a learned forward process.

Names are imported on first use, so that `dmb --help` does not wait for torch. `__init__.pyi` lists them.
"""

import lazy_loader

from dmb.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
