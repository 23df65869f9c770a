"""What is compared: one row a way to noise, a head, and a way to learn the forward process."""

from dataclasses import dataclass

from dmb.data import DataSet
from dmb.data.codecs import Columns, Grid, Picture, Text


@dataclass(frozen=True)
class Row:
    """One way to do it, as settings that are put on top of a recipe."""

    name: str
    title: str
    """What it is, for the table."""
    settings: tuple[str, ...]
    """`name=value`, as `--set` takes them. Whatever they do not name is the same in every row."""


def rows_for(data: DataSet, steps: int) -> list[Row]:
    """All rows that make sense for `data`, each of `steps` steps of Score-learning in all.

    Rows that learn on the bound start from a process that gathers on top, but for a share of their rates that mixes:
    from nothing at all a clock would not learn to run.

    Args:
        data: its number of states says how fast each of those clocks is; only ordinal values get the rows in natural
            order, only three states or more have clocks to weigh against each other, and only four or more gather in
            stages.
        steps: of Score-learning.
    """
    once = (f"score_steps={steps}", "cycles=1", "matrix_steps=0")
    masked = (*once, "mask=true", "init=gather", "floor=0", "head=mean")
    published = (f"score_steps={steps // 2}", "cycles=2")  # Algorithm 1 as printed, on J_Q
    joint = (*once, "matrix_objective=joint", "schedule=canonical", "head=mean")
    turns = (f"score_steps={steps // 10}", f"matrix_steps={max(1, steps // 100)}", "cycles=10", "reestimate=false",
             "matrix_objective=bound", "schedule=canonical", "head=mean")  # fmt: skip

    def mixing(share: float) -> str:
        return f"floor={share / (1 - share) / max(1, data.num_states - 2):.3g}"

    placed = () if isinstance(data.codec, Text) else ("placed=true",)  # windows of text begin anywhere
    little, much = mixing(0.03), mixing(0.3)
    rows = [
        Row("sedd-uniform", "uniform noise, score head, even times (SEDD)",
            (*once, "process=uniform", "head=score", "adapt_times=false")),
        Row("sedd-absorb", "mask, score head, even times (SEDD)", (*masked[:-1], "head=score", "adapt_times=false")),
        Row("mean-uniform", "uniform noise, mean head", (*once, "process=uniform", "head=mean")),
        Row("mdlm", "mask, mean head (MDLM, MD4)", masked),
        Row("tokenwise", "mask, each state by a schedule of its own, learned on the bound (GenMD4)",
            (*joint, "process=tokenwise")),
        Row("dmb-printed", "bridge, descending, J_Q, score head as printed",
            (*published, "order=descending", "head=unscaled_score")),
        Row("dmb-published", "bridge, descending, J_Q, score head as printed, even times: as published",
            (*published, "order=descending", "head=unscaled_score", "adapt_times=false")),
        Row("dmb-descending", "bridge, descending, J_Q, score head", (*published, "order=descending", "head=score")),
        Row("dmb-ascending", "bridge, ascending, J_Q, score head", (*published, "order=ascending", "head=score")),
        Row("mean-descending", "bridge, descending, J_Q, mean head", (*published, "order=descending", "head=mean")),
        Row("mean-ascending", "bridge, ascending, J_Q, mean head", (*published, "order=ascending", "head=mean")),
        Row("mean-nested", "bridge, gathering in stages, fixed, mean head",
            (*once, "init=nested", "schedule=canonical", "head=mean")),
        Row("learned-descending", "bridge, descending, learned on the bound", (*joint, "order=descending", little)),
        Row("learned-ascending", "bridge, ascending, learned on the bound", (*joint, "order=ascending", much)),
        Row("learned-turns", "bridge, descending, learned on the bound in turns, on 10 % more batches",
            (*turns, "order=descending", little)),
        Row("learned-varying", "bridge, ascending, clocks that vary in time, learned on the bound",
            (*joint, "process=varying", "order=ascending", much)),
        Row("learned-nested", "bridge, gathering in stages, learned on the bound", (*joint, "init=nested")),
        Row("learned-mask", "bridge, descending, mask on top, learned on the bound",
            (*joint, "order=descending", "mask=true", little)),
        Row("paths", "mask, whole paths, any order, ordered transformer", (*masked, *placed, "network=ordered")),
        Row("paths-learned", "mask, whole paths, order learned on the bound, ordered transformer",
            (*masked, *placed, "network=ordered", "speeds=true", "matrix_objective=joint", "orders=2",
             "matrix_learning_rate=0.1")),
        Row("autoregressive", "from left to right, causal transformer", (*masked, *placed, "network=causal")),
    ]  # fmt: skip
    ordinal = isinstance(data.codec, Grid | Picture)
    if not isinstance(data.codec, Columns):  # whose columns have values of their own each
        by = "value" if ordinal else "cooccurrence"
        rows.append(
            Row("mean-tree", f"bridge, tree of clusters by {by}, fixed, mean head",
                (*once, "process=tree", f"grouping={by}", "schedule=canonical", "head=mean"))
        )  # fmt: skip
    if ordinal:
        natural = "order=natural"
        rows += [
            Row("mean-natural", "bridge, natural order, J_Q, mean head", (*published, natural, "head=mean")),
            Row("learned-natural", "bridge, natural order, learned on the bound", (*joint, natural, much)),
        ]
    if data.num_states < 4:  # too few for two stages
        rows = [row for row in rows if not row.name.endswith("-nested")]
    if data.num_states < 3:  # one clock per position
        rows = [row for row in rows if not row.name.startswith("learned-") or row.name == "learned-mask"]
    return rows
