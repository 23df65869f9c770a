"""What a training run looks like in a terminal."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dmb.data import Codec
from dmb.training import Report

PHASES = {"matrix": "Matrix-learning", "score": "Score-learning", "validation": "validation"}


class Display:
    """A live picture of a run in a terminal; elsewhere (a file, a pipe) one line a report.

    Args:
        console: where to.
        codec: shows the sample.
        unigram_bits: the baseline, shown beside the bound.
        minutes: the time limit, if there is one: the end is then whichever comes first.
    """

    def __init__(self, console: Console, codec: Codec, unigram_bits: float, minutes: float | None = None):
        self.console, self.codec, self.unigram_bits, self.minutes = console, codec, unigram_bits, minutes
        self._latest: dict[str, Report] = {}
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator["Display"]:
        """While the block runs."""
        if not self.console.is_terminal:
            yield self
            return
        with Live(console=self.console, refresh_per_second=4, transient=False) as self._live:
            yield self

    def update(self, report: Report) -> None:
        """Show what `report` says."""
        self._latest[report.phase] = report
        self._latest["last"] = report
        if self._live is not None:
            self._live.update(self._picture())
        else:
            self.console.print(self._line(report), highlight=False, markup=False, soft_wrap=True)

    def _line(self, report: Report) -> str:
        head = f"cycle {report.cycle}  step {report.step:>6}/{report.total_steps}  {PHASES[report.phase]:<15}"
        if report.validation is not None:
            bound = report.validation
            best = "  best so far" if report.improved else ""
            return f"{head}  bound {bound.bits_per_token:.4f} ± {bound.stderr:.4f} bits a token{best}"
        if report.score_bits is None:
            return f"{head}  J_Q {report.prior_bits:.5f} bits a token"
        speed = f"{report.tokens_per_second or 0:,.0f} tokens/s"
        return f"{head}  loss {report.bits:.4f}  {speed}  {self._left(report)}"

    def _left(self, report: Report) -> str:
        """Time to go at the pace so far, if there is one."""
        return f"{duration(self._seconds_left(report))} left" if report.step else ""

    def _seconds_left(self, report: Report) -> float:
        by_steps = report.seconds / max(1, report.step) * (report.total_steps - report.step)
        return by_steps if self.minutes is None else max(0.0, min(by_steps, 60 * self.minutes - report.seconds))

    def _picture(self) -> Group:
        last = self._latest["last"]
        table = Table.grid(padding=(0, 2))
        table.add_row("cycle", f"{last.cycle}", "phase", PHASES[last.phase])
        score, matrix, validation = (self._latest.get(phase) for phase in ("score", "matrix", "validation"))
        if score is not None:
            table.add_row("loss", f"{score.bits:.4f} bits", "speed", f"{score.tokens_per_second or 0:,.0f} tokens/s")
        if matrix is not None:
            table.add_row("J_Q", f"{matrix.prior_bits:.5f} bits", "", "")
        parts: list[Table | Progress | Panel] = [table, self._bar(last)]
        if validation is not None and validation.validation is not None:
            bound = validation.validation
            table.add_row(
                "bound", f"[bold]{bound.bits_per_token:.4f} ± {bound.stderr:.4f}[/] bits",
                "marginals alone", f"{self.unigram_bits:.4f} bits",
            )  # fmt: skip
            if validation.sample is not None:
                text = self.codec.decode(validation.sample)[0]
                parts.append(Panel(Text(text), title=f"a sample at step {validation.step}", title_align="left"))
        return Group(*parts)

    def _bar(self, report: Report) -> Progress:
        bar = Progress(BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
        left = self._seconds_left(report)
        share = report.seconds / (report.seconds + left) if report.step else 0.0
        steps = f"step {report.step}/{report.total_steps}  {self._left(report)}"
        bar.add_task(steps, total=1000, completed=round(1000 * share))
        return bar


@contextmanager
def counting(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar with an ETA for anything else that takes more than a few seconds: call it with (done, total)."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task(what, total=None)
        shown = -math.inf

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
