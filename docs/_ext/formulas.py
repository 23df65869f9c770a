"""Formulas as docstrings and pages write them, in backticks and plain text, turned into LaTeX.

The notation is what one would type: Greek letters and signs as they are, `_` and `^` for a symbol or a group in braces.
So a formula reads well in `help()` and on GitHub, and becomes mathematics on the site. Whatever does not look like a
formula, because it has a word that no formula has, stays code.
"""

import re

FUNCTIONS = {"log", "exp", "sinh", "cos"}
NAMES = {"KL", "Exp", "max", "min", "sigmoid"}
WORDS = {
    "above", "and", "at", "below", "earlier", "end", "for", "high", "length", "low", "mask", "mass", "nothing", "of",
    "order", "position", "rang", "score", "start", "strictly", "survival", "tokens", "turns", "where", "with",
}  # fmt: skip
"""Words that may occur in a formula."""
SIGNS = {
    "·": r"\cdot ", "~": r"\sim ", "->": r"\to ", "||": r"\parallel ", "…": r"\ldots ", "Σ": r"\sum ", "∫": r"\int ",
    "∇": r"\nabla ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∈": r"\in ", "∝": r"\propto ",
    "×": r"\times ", "∞": r"\infty ", "→": r"\to ", "←": r"\leftarrow ", "⁻¹": "^{-1}", "ᵀ": r"^{\mathsf{T}}",
    "²": "^2", "³": "^3", "|": r"\mid ", "'": "'",
}  # fmt: skip
ACCENTS = {"\u0304": r"\overline", "\u0302": r"\hat"}
TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<accented>[^\W\d_][\u0302\u0304])|(?P<word>log2|[A-Za-z]+)|(?P<greek>[α-ωΓΔΘΛΞΠΦΨΩε])"
    r"|(?P<number>\d+(?:[.,]\d+)*(?:e-?\d+)?)|(?P<script>[_^])|(?P<sign>->|\|\||⁻¹|[·~…Σ∫∇≤≥≠≈∈∝×∞→←ᵀ²³|'])"
    r"|(?P<plain>[-+=<>/(),;:!\[\]])"
)
INDEX = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|[A-Za-z]+|\d+|[α-ωΓΔΘΛΞΠΦΨΩ]")
"""What follows `_` or `^`."""
CODE = re.compile(r"-\w|--.*|\[(?=.*[A-Za-z])[\w, +…-]*\]|\w+=.*|.*([A-Za-z]{2}_|\[:|//).*|_.*|-?[a-z]{2,}|[\da-f]{6,}")
"""Flags, shapes, keyword arguments, names in snake case, slices, single words, digests."""


def to_tex(text: str) -> str | None:
    r"""The LaTeX of a formula; None if the text is no formula.

    >>> to_tex("p_{t|0}(v|x) = D_v")
    'p_{t{|}0}(v\\mid x) = D_v'
    >>> to_tex("-log(1 - s^p)"), to_tex("Σ_{k>x} a_k"), to_tex("σ̄(t)")
    ('-\\log (1 - s^p)', '\\sum _{k>x} a_k', '\\overline{σ}(t)')
    >>> to_tex("J_score"), to_tex("x_t^i"), to_tex("a log b")
    ('J_{\\mathrm{score}}', 'x_t^i', 'a \\,\\log \\, b')
    >>> [to_tex(code) for code in ("x.npy", "alpha[:, k-1]", "[b, d, n]", "-n", "log_prob", "start", "order=up", "a_")]
    [None, None, None, None, None, None, None, None]
    """
    if CODE.fullmatch(text) or not any(c.isalpha() for c in text):
        return None
    return _converted(text)


def _converted(text: str) -> str | None:
    parts, place = list[str](), 0
    while place < len(text):
        found = TOKEN.match(text, place)
        if found is None:
            return None
        place = found.end()
        if found.lastgroup == "script":
            index = INDEX.match(text, place)
            inner = None if index is None else _index(index[0])
            if index is None or inner is None:
                return None
            parts.append(found[0] + inner)
            place = index.end()
            continue
        part = _token(found.lastgroup or "", found[0])
        if part is None:
            return None
        parts.append(_spaced(part, found[0], text[: found.start()], text[place:]))
    return "".join(parts)


def _spaced(part: str, word: str, before: str, after: str) -> str:
    """A function or a word with the spaces around it that MathML leaves out."""
    if word in FUNCTIONS | NAMES:
        left = r"\," if re.search(r"[\w)\]}']\s*$", before) else ""
        return left + part + (r"\," if after.startswith(" ") else "")
    if word in WORDS:
        return (r"\ " if before.endswith(" ") else "") + part + (r"\ " if after.startswith(" ") else "")
    return part


def _index(text: str) -> str | None:
    """The LaTeX of an index."""
    if text[0] == "{":
        inner = _converted(text[1:-1])
        return None if inner is None else f"{{{inner.replace(SIGNS['|'], '{|}')}}}"
    if len(text) > 2 and text.isalpha():
        return rf"{{\mathrm{{{text}}}}}"
    return text if len(text) == 1 else f"{{{text}}}"


def _token(kind: str, text: str) -> str | None:
    if kind == "space":
        return r" \quad " if len(text) > 1 else " "
    if kind == "accented":
        return f"{ACCENTS[text[1]]}{{{text[0]}}}"
    if kind == "sign":
        return SIGNS[text]
    if kind == "number" and "e" in text:
        factor, _, power = text.partition("e")
        return f"10^{{{power}}}" if factor == "1" else rf"{factor} \cdot 10^{{{power}}}"
    if text == "log2":
        return r"\log_2 "
    if kind == "word" and len(text) > 1:
        if text in FUNCTIONS:
            return rf"\{text} "
        if text in NAMES:
            return rf"\operatorname{{{text}}}"
        if text in WORDS:
            return rf"\text{{{text}}}"
        return f"d{text[1]}" if re.fullmatch("d[A-Za-z]", text) else None
    return text
