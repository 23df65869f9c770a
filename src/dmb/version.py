"""The version of the library; run folders remember which one wrote them."""

__version__ = "0.2.0"
