"""The sections of a recipe: which data, which forward process, which network; each builds what it describes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from tyro.conf import Fixed

from dmb.app.loading import load
from dmb.data import Codec, DataSet, Kind
from dmb.data.codecs import Columns, Grid, ImageCodec, Picture
from dmb.networks import MLP, CausalTransformer, Network, OrderedTransformer, Transformer
from dmb.networks.base import MOST_BLOCKS
from dmb.orders import Fixed as OneOrder, Free, Random, Smooth, WriteOrder, waves
from dmb.processes import BridgeProcess, ForwardProcess, TokenwiseMasking, UniformProcess, grouping
from dmb.processes.clocks import Steady, Varying
from dmb.processes.hierarchies import Tree
from dmb.processes.time import Canonical, Geometric, Linear, LogLinear, Schedule
from dmb.tables.columnwise import column_network, is_narrow

MOST_TILT, MOST_WIDTH = 10, 1 << 14
"""Maximum of settings that would otherwise overflow, or use up the memory before they are refused."""


@dataclass(frozen=True, kw_only=True)
class DataChoice:
    """How the data are read."""

    source: Annotated[str, Fixed]
    """The name of built-in data; a file: text, `.npy`, `.npz`, `.csv`, `.parquet`, `.fasta`, `.smi`, `.jsonl`; a folder
    of images; or a folder of codes from `dmb tokenize`."""
    read_as: Kind | None = None
    """Read a file as this kind of data; None: as its extension says."""
    length: int | None = None
    """Tokens per sequence, for text; for records, symbols of the longest one to keep."""
    encoding: str = "characters"
    """How text becomes tokens: characters, bytes, or the path of a Hugging Face tokenizer.json."""
    levels: int | None = None
    """Levels per channel of an image; None: 256."""
    size: int | None = None
    """Crop each image to a square and resize it to this many pixels a side; None: use images of one size unchanged."""
    most_states: int | None = None
    """Maximum number of states of an array; None: 65,536."""
    kinds: str = ""
    """Kinds of columns of a table, where the rules are wrong: zip=category,born=date,age=number,id=drop."""
    bins: int | None = None
    """Maximum number of states of a column of numbers or dates; None: one for every 50 training rows, from 64 to
    1,024."""

    def load(
        self,
        source: str | None = None,
        *,
        codec: Codec | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> DataSet:
        """The data, or another file read the way they are; see `dmb.app.loading.load`."""
        return load(
            source or self.source, kind=self.read_as, length=self.length, encoding=self.encoding, levels=self.levels,
            size=self.size, most_states=self.most_states, kinds=self._kinds(), bins=self.bins, codec=codec,
            progress=progress,
        )  # fmt: skip

    def _kinds(self) -> dict[str, str]:
        parts = [part.rpartition("=") for part in self.kinds.split(",") if part.strip()]
        if not all(name.strip() and equals for name, equals, _ in parts):
            raise ValueError(f"kinds must read column=kind,column=kind, got {self.kinds!r}")
        return {name.strip(): kind.strip() for name, _, kind in parts}


@dataclass(frozen=True, kw_only=True)
class ProcessChoice:
    """The forward process. Uniform noise uses only `schedule`, token-wise masking only `tied` and `schedule`."""

    process: Literal["bridge", "varying", "tree", "tokenwise", "uniform"] = "bridge"
    """The kind of noise: a bridge on a line, a bridge whose clocks vary in time, a bridge on a tree of clusters,
    masking with a learned schedule for each state (GenMD4), or uniform noise."""
    order: Literal["ascending", "descending", "natural"] = "ascending"
    """Which states lie on top: frequent ones (as in the paper), rare ones (as in its code), or large values.
    Ignored by init nested and match, which choose their own order."""
    init: Literal["gather", "nested", "uniform", "match"] = "gather"
    """Initial rates: everything gathers in the top state, at once (gather) or in stages (nested); all clocks have the
    same rate (uniform); or rates that lead from the data's marginals to uniform ones (match)."""
    floor: float = 1e-5
    """Rate of all other clocks for init gather and nested; 0 switches them off, until a step of learn=linear."""
    learn: Literal["log", "linear"] = "log"
    """What Matrix-learning changes: the logarithms of the rates, which leaves slow clocks slow; or the rates, as the
    paper's authors do, which wakes all clocks."""
    stages: int = 3
    """Number of stages, from fine to coarse, for init nested and grouping frequency."""
    tied: bool = False
    """Share one set of rates among all positions."""
    mask: bool = False
    """Add a mask: one more state, on top, that data never visit."""
    grouping: Literal["cooccurrence", "value", "frequency", "vectors"] = "cooccurrence"
    """How the clusters of a tree are formed: by neighbours (text, codes), by value (shades), by frequency (in stages),
    or by codebook vectors (codes)."""
    clusters: str = "12,5"
    """Number of clusters on each level of a tree by co-occurrence or vectors, from fine to coarse; levels with as many
    clusters as states, or more, are left out."""
    ratio: float = 5.0
    """How many times faster each level of a tree is than the level above it."""
    schedule: Literal["loglinear", "geometric", "linear", "canonical", "paced"] = "loglinear"
    """How fast clock time runs. With canonical and paced the share of changed tokens grows evenly, whatever the
    rates; with canonical until 0.1 % are left, with paced until clocks have run as long as with loglinear."""

    def build(self, data: DataSet, generator: torch.Generator | None = None) -> ForwardProcess:
        """The process for `data`; its random numbers come from `generator`."""
        marginals = data.marginals()
        schedules: dict[str, Callable[[], Schedule]] = {
            "loglinear": LogLinear, "geometric": Geometric, "linear": Linear, "canonical": Canonical,
            "paced": lambda: Canonical(end=math.log(1000)),
        }  # fmt: skip
        schedule = schedules[self.schedule]()
        if self.process == "uniform":
            return UniformProcess(
                data.num_positions, data.num_states, schedule=schedule, marginals=marginals,
                state_counts=data.state_counts,
            )  # fmt: skip
        if self.process == "tokenwise":
            return TokenwiseMasking.from_marginals(
                marginals, tied=self.tied, state_counts=data.state_counts, schedule=schedule
            )
        if self.process == "tree":
            return BridgeProcess.from_marginals(
                marginals, tree=self._tree(data), ratio=self.ratio, tied=self.tied, state_counts=data.state_counts,
                schedule=schedule, learn=self.learn,
            )  # fmt: skip
        return BridgeProcess.from_marginals(
            marginals,
            order=None if self.init in ("match", "nested") else self.order,
            init=self.init,
            floor=self.floor,
            stages=self.stages,
            tied=self.tied,
            mask=self.mask,
            state_counts=data.state_counts,
            schedule=schedule,
            clocks=Varying if self.process == "varying" else Steady,
            learn=self.learn,
        )

    def _tree(self, data: DataSet) -> Tree:
        if self.grouping == "value":
            return grouping.by_value(data.num_states)
        if self.grouping == "frequency":
            return grouping.by_frequency(data.marginals().mean(0), self.stages)
        try:
            clusters = [int(size) for size in self.clusters.split(",")]
        except ValueError:
            raise ValueError(f"clusters must be whole numbers separated by commas, got {self.clusters!r}") from None
        clusters = [size for size in clusters if size < data.num_states]
        if self.grouping == "cooccurrence":
            return grouping.by_cooccurrence(data.train.bigrams(), clusters)
        vectors = getattr(data.codec, "vectors", None)
        if vectors is None:
            raise ValueError(f"grouping=vectors needs codes from dmb tokenize, got {data.name}: choose another")
        return grouping.by_vectors(vectors(), clusters)


@dataclass(frozen=True, kw_only=True)
class OrderChoice:
    """The order in which positions are written, for networks that follow one."""

    write_order: Literal["random", "learned", "fixed"] | None = None
    """The order of writing, for networks ordered, causal and columns: random; learned, by a speed for each position
    that is smooth along texts and images (each column of a table has its own); or fixed, from left to right, columns in
    turn. Tables with more than 32 columns have one network that writes in any order. None: fixed for network causal,
    otherwise random."""
    tilt: float = 0.003
    """Initial differences between learned speeds: standard deviation of their random weights."""

    def build(self, data: DataSet, generator: torch.Generator | None = None) -> WriteOrder | None:
        """The order for `data`, its random weights drawn from `generator`; None if the network decides."""
        if not 0 <= self.tilt <= MOST_TILT:
            raise ValueError(f"tilt must lie in [0, {MOST_TILT}], got {self.tilt}")
        wide = isinstance(data.codec, Columns) and not is_narrow(data.num_positions)
        if self.write_order is None or (self.write_order == "fixed" and wide):
            return None
        if self.write_order == "fixed":
            return OneOrder.left_to_right(data.num_positions)
        if self.write_order == "random":
            return Random(data.num_positions)
        axes = axes_of(data)
        order = Free(data.num_positions) if axes is None else Smooth(waves(axes))
        torch.nn.init.normal_(order.weights, std=self.tilt, generator=generator)
        return order


def axes_of(data: DataSet) -> tuple[int, ...] | None:
    """The axes along which positions lie: one for text, more for images; None for columns, which have no places."""
    codec = data.codec
    if isinstance(codec, Columns):
        return None
    if isinstance(codec, Grid | Picture):
        return tuple(codec.shape)
    if isinstance(codec, ImageCodec):
        return (data.num_positions // codec.across, codec.across)
    return (data.num_positions,)


@dataclass(frozen=True, kw_only=True)
class NetworkChoice:
    """The network that turns noise into data."""

    network: Literal["mlp", "transformer", "ordered", "causal", "columns"] = "transformer"
    """The kind of network. ordered learns by whole paths, in any order, causal from left to right; columns is a network
    for each column of a table, or one for all (an mlp, twice as wide, with one more block) if there are more than 32.
    These need --process bridge --init gather --mask --floor 0."""
    blocks: int = 4
    """Number of blocks."""
    width: int = 96
    """Size of hidden vectors."""
    heads: int = 4
    """Number of attention heads, for transformers."""
    placed: bool = False
    """Tell a transformer the place of each position, not only distances between positions; for images."""
    conditioning: int = 64
    """Size of the vector that tells all layers the time and the class."""
    dropout: float = 0.1
    """Share of activations that are dropped in training."""
    classes: bool = False
    """Condition on the class labels of the data."""

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

    def build(self, process: ForwardProcess, data: DataSet) -> Network:
        """The network for `process`, which destroys `data`."""
        if self.classes and not data.num_classes:
            raise ValueError("classes needs data with class labels, got data without: use --no-classes")
        options: dict[str, Any] = {
            "blocks": self.blocks, "width": self.width, "conditioning": self.conditioning, "dropout": self.dropout,
            "num_classes": data.num_classes if self.classes else 0,
        }  # fmt: skip
        if self.network == "columns":
            if not isinstance(data.codec, Columns):
                raise ValueError(f"network=columns is for tables, got {data.name}: choose another")
            if self.classes:
                raise ValueError("classes must be false for network=columns, which takes no labels: use --no-classes")
            if process.num_states == data.num_states:
                raise ValueError("network=columns needs a mask as the only noise: use --mask --floor 0")
            return column_network(process, data.codec, width=self.width, blocks=self.blocks, dropout=self.dropout)
        if self.network == "mlp":
            network = MLP(process, **options)
            if isinstance(data.codec, Columns):
                network.init_ordinal_embeddings(data.codec.ordered)
            return network
        options |= {"heads": self.heads, "placed": self.placed}
        if self.network == "ordered":
            return OrderedTransformer(process, beside=_distances(axes_of(data) or ()), **options)
        kind = {"transformer": Transformer, "causal": CausalTransformer}[self.network]
        return kind(process, **options)


def _distances(axes: tuple[int, ...]) -> list[int]:
    """From a position to its neighbours along each axis, in row-major order."""
    return sorted({math.prod(axes[axis + 1 :]) for axis, length in enumerate(axes) if length > 1})
