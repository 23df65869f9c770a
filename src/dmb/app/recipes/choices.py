"""The sections of a recipe: which data, which forward process, which network; each builds what it describes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Fixed

import dmb.data
import dmb.tables
from dmb.data.kinds import HeldOut, Kind
from dmb.training.settings import TrainingSettings

if TYPE_CHECKING:
    import torch

MOST_TILT, MOST_WIDTH, MOST_BLOCKS = 10, 1 << 14, 1 << 10
"""Maximum of settings that would otherwise overflow, or use up the memory before they are refused."""

SIZES = ("blocks", "width", "dropout")
CONDITIONED = (*SIZES, "conditioning", "classes")
ATTENTION = (*CONDITIONED, "heads", "placed")
TIMES = ("process", "head", "adapt_times", "start", "reestimate")
PATHS = ("write_order", "tied", "orders", "singles", "any_order")
READ_BY: dict[str, dict[Any, tuple[str, ...]]] = {
    "network": {
        "mlp": (*CONDITIONED, *TIMES),
        "transformer": (*ATTENTION, *TIMES),
        "ordered": (*ATTENTION, *PATHS),
        "causal": (*ATTENTION, *PATHS),
        "columns": (*SIZES, *TIMES, *PATHS),  # one network for many columns draws times
    },
    "write_order": {
        "learned": ("tilt",), "learned_streams": ("tilt",), "blocks": ("block_size",), "random": (), "streams": (),
        "fixed": (), None: (),
    },
    "process": {
        "bridge": ("schedule", "tied", "learn", "mask", "init"),
        "varying": ("schedule", "tied", "learn", "mask", "init"),
        "tree": ("schedule", "tied", "learn", "ratio", "grouping"),
        "tokenwise": ("schedule", "tied"),
        "uniform": ("schedule",),
    },
    "init": {"gather": ("order", "floor"), "nested": ("floor", "stages"), "uniform": ("order",), "match": ()},
    "grouping": {
        "cooccurrence": ("clusters",), "value": (), "frequency": ("stages",), "vectors": ("clusters",),
    },
}  # fmt: skip
"""The settings that each choice reads; those that are in no list are always read."""

LEARNED: dict[str, Any] = {"matrix_objective": "joint", "matrix_learning_rate": 0.1, "orders": 2, "singles": 6}
UNLEARNED = {name: getattr(TrainingSettings(), name) for name in LEARNED}
BY_TIMES = {**UNLEARNED, "write_order": None, "any_order": None}
BY_PATHS = {**BY_TIMES, "process": "bridge", "init": "gather", "mask": True, "floor": 0.0, "learn": "log",
            "schedule": "loglinear", "head": "mean"}  # fmt: skip
IN_ONE_ORDER = {**BY_PATHS, "write_order": "fixed"}
BROUGHT_BY: dict[str, dict[Any, dict[str, Any]]] = {
    "network": {
        "mlp": BY_TIMES, "transformer": BY_TIMES, "ordered": BY_PATHS, "causal": IN_ONE_ORDER, "columns": IN_ONE_ORDER,
    },
    "write_order": {
        "learned": LEARNED, "learned_streams": LEARNED, "random": UNLEARNED, "streams": UNLEARNED,
        "blocks": UNLEARNED, "fixed": UNLEARNED, None: UNLEARNED,
    },
}  # fmt: skip
"""The settings that come with a choice, where a choice of another kind was made before."""


def meaningful(values: Mapping[str, Any]) -> set[str]:
    """The names in `READ_BY` that matter where settings have these values, from the choice of a network on.

    >>> {"order", "floor", "stages"} & meaningful({"network": "mlp", "process": "bridge", "init": "uniform"})
    {'order'}
    """
    found, names = set[str](), ["network"]
    while names:
        name = names.pop()
        found.add(name)
        choices = READ_BY.get(name, {})
        names += choices.get(values.get(name), chain(*choices.values()))  # a class of the user's own may read all
    return found


def meaningless(values: Mapping[str, Any]) -> dict[str, str]:
    """The settings that mean nothing where settings have these values, each with the reason.

    >>> meaningless({"network": "mlp", "write_order": None, "process": "bridge", "init": "gather"})["heads"]
    'means nothing with --network mlp, only with transformer, ordered, causal'
    """
    matter, reasons = meaningful(values), dict[str, str]()
    for choice, choices in READ_BY.items():  # those that other choices read come after them
        for name in set(chain(*choices.values())) - matter:
            if choice in matter:
                others = ", ".join(other for other in choices if name in choices[other])
                flag = f"--{choice.replace('_', '-')}"
                reasons[name] = f"means nothing with {flag} {values[choice]}, only with {others}"
            else:
                reasons.setdefault(name, reasons[choice])
    return reasons


@dataclass(frozen=True, kw_only=True)
class DataChoice:
    """How the data are read.

    Args:
        source: The name of built-in data; a file: text, `.npy`, `.npz`, `.csv`, `.parquet`, `.fasta`, `.smi`, `.jsonl`;
            a folder of images; or a folder of codes from `dmb tokenize`.
        read_as: Read a file as this kind of data; None: as its extension says.
        length: Tokens per sequence, for text; for records, symbols of the longest one to keep.
        encoding: How text becomes tokens: characters, bytes, or the path of a Hugging Face tokenizer.json.
        held_out: Where validation and test text of a text file come from: up to 50 places spread over it, or its last
            tenth (end).
        levels: Levels per channel of an image; None: 256.
        size: Crop each image to a square and resize it to this many pixels a side; None: use images of one size
            unchanged.
        most_states: Maximum number of states of an array; None: 65,536.
        kinds: Kinds of columns of a table, where the rules are wrong: zip=category,born=date,age=number,id=drop.
        bins: Maximum number of states of a column of numbers or dates; None: one for every 50 training rows, from 64 to
            1,024.
    """

    source: Annotated[str, Fixed]
    read_as: Kind | None = None
    length: int | None = None
    encoding: str = "characters"
    held_out: HeldOut = "spread"
    levels: int | None = None
    size: int | None = None
    most_states: int | None = None
    kinds: str = ""
    bins: int | None = None

    def load(
        self,
        source: str | None = None,
        *,
        codec: "dmb.data.Codec | None" = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> "dmb.data.DataSet":
        """The data, or another file read the way they are; see `dmb.app.loading.load`."""
        from dmb.app.loading import load  # with torch, for which help does not wait

        parts = [part.rpartition("=") for part in self.kinds.split(",") if part.strip()]
        if not all(name.strip() and equals for name, equals, _ in parts):
            raise ValueError(f"kinds must read column=kind,column=kind, got {self.kinds!r}")
        options = vars(self) | {"kinds": {name.strip(): kind.strip() for name, _, kind in parts}}
        own, kind = options.pop("source"), options.pop("read_as")
        return load(source or own, kind=kind, codec=codec, progress=progress, **options)


@dataclass(frozen=True, kw_only=True)
class ProcessChoice:
    """The forward process.

    Args:
        process: The kind of noise: a bridge on a line, a bridge whose clocks vary in time, a bridge on a tree of
            clusters, masking with a learned schedule for each state (GenMD4), or uniform noise.
        order: Which states lie on top: frequent ones (as in the paper), rare ones (as in its code), or large values.
        init: Initial rates: everything gathers in the top state, at once (gather) or in stages (nested); all clocks
            have the same rate (uniform); or rates that lead from the data's marginals to uniform ones (match).
        floor: Rate of all other clocks for init gather and nested; 0 switches them off, until a step of learn=linear.
        learn: What Matrix-learning changes: the logarithms of the rates, which leaves slow clocks slow; or the rates,
            as the paper's authors do, which wakes all clocks.
        stages: Number of stages, from fine to coarse, for init nested and grouping frequency.
        tied: Share one set of rates among all positions.
        mask: Add a mask: one more state, on top, that data never visit.
        grouping: How the clusters of a tree are formed: by neighbours (text, codes), by value (shades), by frequency
            (in stages), or by codebook vectors (codes).
        clusters: Number of clusters on each level of a tree by co-occurrence or vectors, from fine to coarse; levels
            with as many clusters as states, or more, are left out.
        ratio: How many times faster each level of a tree is than the level above it.
        schedule: How fast clock time runs. With canonical and paced the share of changed tokens grows evenly, whatever
            the rates; with canonical until 0.1 % are left, with paced until clocks have run as long as with loglinear.
    """

    process: Literal["bridge", "varying", "tree", "tokenwise", "uniform"] = "bridge"
    order: Literal["ascending", "descending", "natural"] = "ascending"
    init: Literal["gather", "nested", "uniform", "match"] = "gather"
    floor: float = 1e-5
    learn: Literal["log", "linear"] = "log"
    stages: int = 3
    tied: bool = False
    mask: bool = False
    grouping: Literal["cooccurrence", "value", "frequency", "vectors"] = "cooccurrence"
    clusters: str = "12,5"
    ratio: float = 5.0
    schedule: Literal["loglinear", "geometric", "linear", "canonical", "paced"] = "loglinear"

    def build(self, data: "dmb.data.DataSet", generator: "torch.Generator | None" = None) -> "dmb.ForwardProcess":
        """The process for `data`; one of your own may take its random numbers from `generator`."""
        schedules: dict[str, Callable[[], Any]] = {
            "loglinear": dmb.LogLinear, "geometric": dmb.processes.time.Geometric, "linear": dmb.Linear,
            "canonical": dmb.Canonical,
            "paced": lambda: dmb.Canonical(end=math.log(1000)),
        }  # fmt: skip
        options = _options(self, "process")
        options |= {"schedule": schedules[self.schedule](), "state_counts": data.state_counts}
        marginals = data.marginals()
        if self.process == "uniform":
            return dmb.UniformProcess(data.num_positions, data.num_states, marginals=marginals, **options)
        if self.process == "tokenwise":
            return dmb.TokenwiseMasking.from_marginals(marginals, **options)
        if self.process == "tree":
            return dmb.BridgeProcess.from_marginals(
                marginals, tree=self._tree(data, options.pop("grouping")), **options
            )
        options["clocks"] = dmb.Varying if self.process == "varying" else dmb.Steady
        return dmb.BridgeProcess.from_marginals(marginals, **options, **_options(self, "init"))

    def _tree(self, data: "dmb.data.DataSet", how: str) -> "dmb.Tree":
        if how == "value":
            return dmb.processes.grouping.by_value(data.num_states)
        if how == "frequency":
            return dmb.processes.grouping.by_frequency(data.marginals().mean(0), self.stages)
        try:
            clusters = [int(size) for size in self.clusters.split(",")]
        except ValueError:
            raise ValueError(f"clusters must be whole numbers separated by commas, got {self.clusters!r}") from None
        clusters = [size for size in clusters if size < data.num_states]
        if how == "cooccurrence":
            return dmb.processes.grouping.by_cooccurrence(data.train.bigrams(), clusters)
        vectors = getattr(data.codec, "vectors", None)
        if vectors is None:
            raise ValueError(f"grouping=vectors needs codes from dmb tokenize, got {data.name}: choose another")
        return dmb.processes.grouping.by_vectors(vectors(), clusters)


@dataclass(frozen=True, kw_only=True)
class OrderChoice:
    """The order in which positions are written, for networks that follow one.

    Args:
        write_order: The order of writing, for networks ordered, causal and columns: random; learned, by a speed for
            each position that is smooth along texts and images (each column of a table has its own); fixed, from left
            to right, columns in turn; blocks, from left to right, and any order within each; or for few calls, an order
            for each of 4, 8, 16, 32 and 64 and for one call per position, in which texts and images are written as
            several streams side by side (streams), whose slope is learned (learned_streams). Tables with more than 32
            columns have one network that writes in any order. None: fixed for network causal, otherwise random.
        tilt: Initial differences between learned speeds: standard deviation of their random weights.
        block_size: Positions per block of the order blocks.
    """

    write_order: Literal["random", "learned", "fixed", "blocks", "streams", "learned_streams"] | None = None
    tilt: float = 0.003
    block_size: int = 8

    def build(
        self, data: "dmb.data.DataSet", generator: "torch.Generator | None" = None
    ) -> "dmb.orders.WriteOrder | None":
        """The order for `data`, its random weights drawn from `generator`; None if the network decides."""
        if not 0 <= self.tilt <= MOST_TILT:
            raise ValueError(f"tilt must lie in [0, {MOST_TILT}], got {self.tilt}")
        wide = isinstance(data.codec, dmb.data.Columns) and not dmb.tables.is_narrow(data.num_positions)
        if self.write_order is None or (self.write_order == "fixed" and wide):
            return None
        if self.write_order == "fixed":
            return dmb.orders.Fixed.left_to_right(data.num_positions)
        if self.write_order == "random":
            return dmb.orders.Random(data.num_positions)
        if self.write_order == "blocks":
            return dmb.orders.Blocks(data.num_positions, self.block_size)
        axes = axes_of(data)
        order: dmb.orders.Free | dmb.orders.Smooth | dmb.orders.Streams
        if self.write_order == "learned":
            order = dmb.orders.Free(data.num_positions) if axes is None else dmb.orders.Smooth(dmb.orders.waves(axes))
        elif axes is None:
            raise ValueError(f"write_order={self.write_order} is for texts and images: choose learned for columns")
        else:
            budgets = (*dmb.orders.BUDGETS, data.num_positions)  # the last is that of samples and bounds without calls
            order = dmb.orders.Streams(axes, budgets, learned=self.write_order == "learned_streams")
        if order.weights is not None:
            order.weights.detach().normal_(std=self.tilt, generator=generator)
        return order


def axes_of(data: "dmb.data.DataSet") -> tuple[int, ...] | None:
    """The axes along which positions lie: one for text, more for images; None for columns, which have no places."""
    codec = data.codec
    if isinstance(codec, dmb.data.Columns):
        return None
    if isinstance(codec, dmb.data.Grid | dmb.data.Picture):
        return tuple(codec.shape)
    if isinstance(codec, dmb.data.ImageCodec):
        return (data.num_positions // codec.across, codec.across)
    return (data.num_positions,)


@dataclass(frozen=True, kw_only=True)
class NetworkChoice:
    """The network that turns noise into data.

    Args:
        network: The kind of network. ordered learns by whole paths, in any order, causal from left to right; columns is
            a network for each column of a table, or one for all (an mlp, twice as wide, with one more block) if there
            are more than 32. These three mask positions, and bring the settings for it along.
        blocks: Number of blocks.
        width: Size of hidden vectors.
        heads: Number of attention heads, for transformers.
        placed: Tell a transformer the place of each position, not only distances between positions; for images.
        conditioning: Size of the vector that tells all layers the time and the class.
        dropout: Share of activations that are dropped in training.
        classes: Condition on the class labels of the data.
    """

    network: Literal["mlp", "transformer", "ordered", "causal", "columns"] = "transformer"
    blocks: int = 4
    width: int = 96
    heads: int = 4
    placed: bool = False
    conditioning: int = 64
    dropout: float = 0.1
    classes: bool = False

    def __post_init__(self) -> None:
        for name, most in {
            "blocks": MOST_BLOCKS,
            **dict.fromkeys(("width", "heads", "conditioning"), MOST_WIDTH),
        }.items():
            value = getattr(self, name)
            if not 1 <= value <= most:
                rule = "at least 1" if value < 1 else f"at most {most:,}"
                raise ValueError(f"{name} must be {rule}, got {value}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")

    def build(self, process: "dmb.ForwardProcess", data: "dmb.data.DataSet") -> "dmb.Network":
        """The network for `process`, which destroys `data`."""
        options = _options(self, "network")
        if options.pop("classes", False):
            if not data.num_classes:
                raise ValueError("classes needs data with class labels, got data without: use --no-classes")
            options["num_classes"] = data.num_classes
        if self.network == "columns":
            if not isinstance(data.codec, dmb.data.Columns):
                raise ValueError(f"network=columns is for tables, got {data.name}: choose another")
            if self.classes:
                raise ValueError("classes must be false for network=columns, which takes no labels: use --no-classes")
            if process.num_states == data.num_states:
                raise ValueError("network=columns needs a mask as the only noise: use --mask --floor 0")
            return dmb.tables.column_network(process, data.codec, **options)
        if self.network == "mlp":
            network = dmb.MLP(process, **options)
            if isinstance(data.codec, dmb.data.Columns):
                network.init_ordinal_embeddings(data.codec.ordered)
            return network
        if self.network == "transformer":
            return dmb.Transformer(process, **options)
        kind = {"ordered": dmb.OrderedTransformer, "causal": dmb.CausalTransformer}[self.network]
        return kind(process, beside=_distances(axes_of(data) or ()), **options)


def _options(section: Any, choice: str) -> dict[str, Any]:
    """The settings of a section that one of its choices reads."""
    names = READ_BY[choice][getattr(section, choice)]
    return {field.name: getattr(section, field.name) for field in fields(section) if field.name in names}


def _distances(axes: tuple[int, ...]) -> list[int]:
    """From a position to its neighbours along each axis, in row-major order; in a sequence, to the next three."""
    if len(axes) == 1:
        return list(range(1, min(4, axes[0])))
    return sorted({math.prod(axes[axis + 1 :]) for axis, length in enumerate(axes) if length > 1})
