"""The table of a comparison, in Markdown."""

import math

from dmb.app.comparison.results import Results
from dmb.version import __version__

HEADER = ("row", "what", "test bits per token", "s.d. over seeds", "above the best", "prior part", "runs",
          "CPU minutes per run", "validation bits at equal CPU time")  # fmt: skip


def table(results: Results) -> str:
    """One line per row, best first; below it, what failed and why."""
    lines, failed = [HEADER, ("---", "---", *["---:"] * (len(HEADER) - 2))], list[str]()
    for row in results.rows:
        bits = f"{_shown(row.bits, '.4f')} ± {_shown(row.stderr, '.4f')}"
        lines.append((
            row.name, row.title, bits if row.runs else "failed" if row.failures else "not yet",
            _shown(row.deviation, ".4f"), _shown(row.relative, ".2f", " %"), _shown(row.prior_bits, ".5f"),
            f"{len(row.runs)} of {results.plan.seeds}", _shown(row.cpu_minutes, ".1f"),
            _shown(row.validation_bits_at_equal_cpu_time, ".4f"),
        ))  # fmt: skip
        reasons = {seed: reason.replace("`", "'") for seed, reason in row.failures.items()}
        failed += [f"- {row.name}, seed {seed}, failed: `{reason}`" for seed, reason in reasons.items()]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + (["", *failed] if failed else [])) + "\n"


def page(results: Results) -> str:
    """The table, what its figures mean, and the commands that make them."""
    plan, data, minutes = results.plan, results.plan.data, results.least_cpu_minutes
    tokens = plan.steps * plan.recipe.training.batch_size * data.num_positions
    seeds = "the seed 0" if plan.seeds == 1 else f"the seeds 0 to {plan.seeds - 1}"
    notes = (
        f"{data.name}: {data.num_positions} positions, {data.num_states} states. Every run: {plan.steps:,} steps of "
        f"Score-learning, {tokens:,} tokens; every row with {seeds}. Test bits: an upper bound on bits per token, of "
        f"the weights that did best on validation data, on {plan.sequences:,} of {len(data.test):,} test sequences, "
        f"with {plan.samples} draw{'s' if plan.samples > 1 else ''} of time and noise for each; the mean over seeds ± "
        "the mean of the runs' standard errors over sequences, which are the same for all. How much seeds differ is "
        f"the standard deviation beside it. Marginals alone: {data.unigram_bits(data.test):.4f} bits.\n\n"
    )
    if math.isnan(minutes):
        notes += "CPU time: not recorded by any row so far."
    else:
        notes += (
            "CPU minutes: processor time of training, including evaluations on validation data. Validation bits at "
            f"equal CPU time: the best bound on validation data that a run had reached after {minutes:.1f} CPU minutes, "
            "the mean of the row that used least; interpolated linearly in time between two evaluations, then averaged "
            "over seeds. A dash: not evaluated by then, or times not recorded."
        )
        if plan.recipe.training.decay == "cosine":
            notes += " Because of the cosine decay, slower rows still had a higher learning rate at that time."
    commands = "\n".join(plan.commands)
    return f"{table(results)}\n{notes}\n\nMade with dmb {__version__} by\n\n```sh\n{commands}\n```\n"


def _shown(value: float, how: str, unit: str = "") -> str:
    return f"{value:{how}}{unit}" if math.isfinite(value) else "–"
