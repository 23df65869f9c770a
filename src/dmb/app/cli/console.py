"""Where commands speak."""

from rich.console import Console

notes = Console(stderr=True)
"""Everything but results, so that results can be piped."""
