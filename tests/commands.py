"""The command line, called as a user calls it but in this process."""

from dmb.app.cli import main
from dmb.app.recipes import as_flags


def dmb_(*arguments):
    """Exit code of a command."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as exit:
        return exit.code or 0
    return 0


def flags(**settings):
    """Settings as a command line has them."""
    return as_flags(settings)
