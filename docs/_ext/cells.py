"""Scripts as pages: prose in comments, code, what it prints and the pictures it draws, made when the site is built.

A script is divided into cells by lines that begin with `# %%`. A cell's first comment, if it begins right there, is
Markdown; the rest is code. Printed text and open figures follow the code.
"""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx


CELL = re.compile(r"^# %%.*\n", re.MULTILINE)


def setup(app: "Sphinx") -> dict[str, bool]:
    """Read `.py` files as pages."""
    app.add_source_suffix(".py", "markdown")
    app.connect("source-read", _replaced)
    return {"parallel_read_safe": False, "parallel_write_safe": True}


def _replaced(app: "Sphinx", name: str, source: list[str]) -> None:
    path = Path(app.env.doc2path(name))
    if path.suffix == ".py":
        pictures = Path(app.srcdir) / "_build" / "pictures"
        pictures.mkdir(parents=True, exist_ok=True)
        source[0] = "\n".join(pieces(source[0], path, pictures))


def split(script: str) -> Iterator[tuple[str, str]]:
    """Prose and code of each cell.

    >>> list(split("# %%\\n# # Title\\n# prose\\n\\nx = 1\\n# %%\\nprint(x)  # one\\n"))
    [('# Title\\nprose', 'x = 1'), ('', 'print(x)  # one')]
    """
    for cell in CELL.split(script)[1:]:
        prose, lines = list[str](), cell.splitlines()
        while lines and lines[0].startswith("#"):
            prose.append(lines.pop(0).removeprefix("#").removeprefix(" "))
        yield "\n".join(prose), "\n".join(lines).strip()


def pieces(script: str, path: Path, pictures: Path) -> Iterator[str]:
    """Markdown of a page, while the script runs."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names, count = {"__name__": "__main__", "__file__": str(path)}, 0
    for prose, code in split(script):
        yield prose + "\n"
        if not code:
            continue
        yield f"```python\n{code}\n```\n"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, path, "exec"), names)
        if printed.getvalue():
            yield f"```text\n{printed.getvalue().rstrip()}\n```\n"
        for number in plt.get_fignums():
            picture, count = pictures / f"{path.stem}-{count}.svg", count + 1
            plt.figure(number).savefig(picture)
            plt.close(number)
            yield f"![{prose.splitlines()[0].lstrip('# ') if prose else path.stem}](/_build/pictures/{picture.name})\n"
    yield f"The script: {{download}}`{path.name} <{path.name}>`."
