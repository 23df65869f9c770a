"""The table of a comparison, in Markdown."""

import math

from dmb.app.comparison.results import Results, RowResult
from dmb.version import __version__

HEADER = ("row", "what", "test bits per token", "s.d. over seeds", "above the best", "prior part", "runs",
          "CPU minutes per run", "validation bits at equal CPU time")  # fmt: skip


def table(results: Results) -> str:
    """One line per row, best first; below it, what is missing and why."""
    lines = [HEADER, ("---", "---", *["---:"] * (len(HEADER) - 2)), *(_line(results, row) for row in results.rows)]
    failed = [
        f"- {row.row.name}, seed {seed}, failed: `{reason.replace('`', chr(39))}`"
        for row in results.rows
        for seed, reason in row.failures.items()
    ]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + (["", *failed] if failed else [])) + "\n"


def page(results: Results) -> str:
    """The table, what its figures mean, and the command that makes them."""
    plan = results.plan
    data, batch = plan.data, plan.recipe.training.batch_size
    tokens = plan.steps * batch * data.num_positions
    seeds = "the seed 0" if plan.seeds == 1 else f"the seeds 0 to {plan.seeds - 1}"
    notes = (
        f"{data.name}: {data.num_positions} positions, {data.num_states} states. Every run: {plan.steps:,} steps of "
        f"Score-learning, {tokens:,} tokens; every row with {seeds}. Test bits: an upper bound on bits per token, of "
        f"the weights that did best on validation data, on {plan.test_sequences:,} of {len(data.test):,} test "
        f"sequences, with {plan.samples} draw{'s' if plan.samples > 1 else ''} of time and noise for each; the mean "
        "over seeds ± the mean of the runs' standard errors over sequences, which are the same for all. "
        "How much seeds differ is the standard deviation beside it. "
        f"Marginals alone: {data.unigram_bits(data.test):.4f} bits.\n\n{_cpu_note(results)}"
    )
    return f"{table(results)}\n{notes}\n\nMade with dmb {__version__} by\n\n```sh\n{plan.command()}\n```\n"


def _line(results: Results, row: RowResult) -> tuple[str, ...]:
    runs = f"{len(row.runs)} of {results.plan.seeds}"
    name, title = row.row.name, row.row.title.replace("|", r"\|")
    if not row.runs:
        return (name, title, "failed" if row.failures else "not yet", *["–"] * 3, runs, "–", "–")
    return (
        name,
        title,
        f"{_shown(row.bits, '.4f')} ± {_shown(row.stderr, '.4f')}",
        _shown(row.deviation, ".4f"),
        _shown(results.relative(row), ".2f", " %"),
        _shown(row.mean("prior_bits"), ".5f"),
        runs,
        _shown(row.mean("cpu_minutes"), ".1f"),
        _shown(results.validation_bits_at_equal_cpu_time(row), ".4f"),
    )


def _cpu_note(results: Results) -> str:
    """What the two columns of processor time mean."""
    if math.isnan(results.least_cpu_minutes):
        return "CPU time: not recorded by any row so far."
    note = (
        "CPU minutes: processor time of training, including evaluations on validation data. Validation bits at equal "
        "CPU time: the best bound on validation data that a run had reached after "
        f"{results.least_cpu_minutes:.1f} CPU minutes, the mean of the row that used least; interpolated linearly in "
        "time between two evaluations, then averaged over seeds. A dash: not evaluated by then, or times not recorded."
    )
    if results.plan.recipe.training.decay == "cosine":
        note += " Because of the cosine decay, slower rows still had a higher learning rate at that time."
    return note


def _shown(value: float, how: str, unit: str = "") -> str:
    return f"{value:{how}}{unit}" if math.isfinite(value) else "–"
