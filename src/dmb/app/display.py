"""What a training run looks like in a terminal."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dmb import data, training

notes = Console(stderr=True)
"""Everything but results, so that results can be piped."""


class Display:
    """A live picture of a run in a terminal; elsewhere (a file, a pipe) one line per report.

    Args:
        console: where to print.
        codec: decodes the sample.
        baseline: printed beside the figure that models are chosen by.
    """

    def __init__(self, console: Console, codec: "data.Codec", baseline: "training.Fact | None" = None):
        self.console, self.codec, self.baseline = console, codec, baseline
        self._latest: dict[str, training.Report] = {}
        self._last: tuple[training.Report, float] | None = None  # and when it came
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator["Display"]:
        """While the block runs."""
        if not self.console.is_terminal:
            yield self
            return
        with Live(
            console=self.console, refresh_per_second=4, transient=False, get_renderable=self._picture
        ) as self._live:
            yield self

    def update(self, report: "training.Report") -> None:
        """Show what `report` says."""
        self._latest[report.phase] = report
        self._last = report, time.monotonic()
        if self._live is None:
            say(self.console, report.line() + ("" if report.phase == "validation" else _left(report.seconds_left)))

    def _picture(self) -> Group:
        """What is known now: between two reports the bar moves on."""
        if self._last is None:
            return Group("")
        last, came = self._last
        table = Table.grid(padding=(0, 2))
        latest = [self._latest[phase] for phase in last.phases if phase in self._latest]
        where = [*last.place(), training.Fact("phase", last.phases[last.phase])]
        for facts in (where, *map(self._facts, latest)):
            table.add_row(*(cell for fact in facts for cell in (fact.name, _value(fact))))
        samples = [
            Panel(Text(report.shown(self.codec)), title=f"a sample at step {report.step}", title_align="left")
            for report in latest
            if report.sample is not None
        ]
        return Group(table, self._bar(last, time.monotonic() - came), *samples)

    def _facts(self, report: "training.Report") -> "list[training.Fact]":
        facts = report.facts()
        return [*facts, self.baseline] if self.baseline is not None and any(fact.main for fact in facts) else facts

    def _bar(self, report: "training.Report", since: float) -> Progress:
        bar = Progress(BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
        left = None if report.seconds_left is None else max(0.0, report.seconds_left - since)
        share = 0.0 if left is None else 1 - left / max(report.seconds + since + left, 1e-9)
        # with --minutes, time may be up long before the last step
        total = f"/{report.total_steps}" if report.step >= 0.9 * share * report.total_steps else ""
        bar.add_task(f"step {report.step}{total}{_left(left)}", total=1000, completed=round(1000 * share))
        return bar


def of_first_process(console: Console) -> Console:
    """`console` in the first of several processes, and one that prints nothing in the others."""
    return console if os.environ.get("LOCAL_RANK", "0") == "0" else Console(quiet=True)


def say(console: Console, line: str) -> None:
    """Print a line as it is: not wrapped, and without colours or markup."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def tabulated(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table to a terminal."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in header:
        table.add_column(escape(name))
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def side_by_side(blocks: Sequence[str], width: int) -> str:
    r"""Blocks of equally many lines, as many beside each other as fit into a line.

    >>> side_by_side(["ab\ncd", "ef\ngh", "ij\nkl"], 6)
    'ab  ef\ncd  gh\n\nij\nkl'
    """
    each = [block.splitlines() for block in blocks]
    wide = max(len(line) for lines in each for line in lines)
    across = max(1, (width + 2) // (2 + wide))
    rows = (zip(*each[first : first + across], strict=True) for first in range(0, len(each), across))
    return "\n\n".join("\n".join("  ".join(line.ljust(wide) for line in lines) for lines in row) for row in rows)


def _left(seconds: float | None) -> str:
    """Time to go, if it is known."""
    return "" if seconds is None else f"  {duration(seconds)} left"


def _value(fact: "training.Fact") -> str:
    return f"{f'[bold]{fact.value}[/]' if fact.main else fact.value} {fact.unit}".rstrip()


def progress_bar(console: Console) -> Progress:
    """A bar with an ETA that vanishes when it ends; only in a terminal."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


@contextmanager
def counting(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar with an ETA for anything else that takes more than a few seconds: call it with (done, total)."""
    with progress_bar(console) as bar:
        task = bar.add_task(what, total=None)
        shown = time.monotonic() - 25  # without a terminal: one line after 5 seconds, then every 30

        def advance(done: int, total: int) -> None:
            nonlocal shown
            bar.update(task, completed=done, total=total)
            if not console.is_terminal and time.monotonic() - shown > 30:
                console.print(f"{what}: {done} of {total}", highlight=False)
                shown = time.monotonic()

        yield advance


def duration(seconds: float) -> str:
    """A time to read.

    >>> duration(75.0), duration(7300.0)
    ('1 min 15 s', '2 h 01 min')
    """
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
