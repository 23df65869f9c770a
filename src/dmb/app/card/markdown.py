"""Text of the user's in a Markdown file: nothing in it is markup."""

import re


class Markdown(str):
    """Text that is Markdown already."""


def escaped(text: str) -> str:
    r"""Text of the user's as Markdown of one line, in which nothing is markup.

    >>> print(escaped("a|b\n# <i>*c*</i>"))
    a\|b \# \<i\>\*c\*\</i\>
    """
    return re.sub(r"([\\`*_{}\[\]<>()#|~&$!])", r"\\\1", one_line(text))


def code(text: str) -> Markdown:
    """Text as a code span, whatever it holds.

    >>> print(code("a `b` c"))
    `` a `b` c ``
    """
    ticks = "`" * (1 + _longest_run(text))
    space = " " if "`" in text else ""
    return Markdown(f"{ticks}{space}{one_line(text)}{space}{ticks}")


def block(text: str, language: str) -> Markdown:
    """Text as a block of code, whatever it holds."""
    fence = "`" * max(3, 1 + _longest_run(text))
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def one_line(text: str) -> str:
    """Text without line breaks and other characters that cannot be printed."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
