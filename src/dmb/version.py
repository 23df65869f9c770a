"""The version of the library; run folders remember which one wrote them."""

__version__ = "0.1.0"
