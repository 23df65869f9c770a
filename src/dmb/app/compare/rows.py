"""What is compared: one row for each kind of noise, head, and way to learn the forward process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dmb.app.images import Codes
from dmb.app.recipes import Recipe, choices
from dmb.data import DataSet
from dmb.data.codecs import Columns, Grid, Picture, Text
from dmb.tables.columnwise import is_narrow

Settings = dict[str, Any]  # by name; a value may be a function of the steps of Score-learning, the data and the recipe


@dataclass(frozen=True, eq=False)
class Row:
    """One way to train, a test whether it makes sense for the data, and what is evaluated."""

    name: str
    title: str
    settings: Settings
    fits: Callable[[DataSet], bool] = lambda _: True
    grids: tuple[str, ...] = ()  # on which it is also evaluated at numbers of calls, beside the canonical one

    def apply(self, recipe: Recipe, data: DataSet, steps: int) -> Recipe:
        """The recipe with the settings of the row; all others stay as they are."""
        values = {k: v(steps, data, recipe) if callable(v) else v for k, v in self.settings.items()}
        return recipe.changed(**values)


def _mixing(share: float) -> Settings:
    """Let this share of the rates mix states: a clock that starts at a rate of zero would never learn to run."""
    return {"floor": lambda _, data, __: float(f"{share / (1 - share) / max(1, data.num_states - 2):.3g}")}


def _states(least: int, codec: Any = object) -> Callable[[DataSet], bool]:
    return lambda data: data.num_states >= least and isinstance(data.codec, codec)


def _narrow(data: DataSet) -> bool:
    return isinstance(data.codec, Columns) and is_narrow(data.num_positions)


def _placed(data: DataSet) -> bool:
    return not isinstance(data.codec, Columns)


def _uniform(data: DataSet) -> bool:
    return data.state_counts is None or len(data.state_counts.unique()) == 1


# fmt: off
ORDINAL = Grid | Picture
ALIKE = {"tied": lambda _, data, recipe: recipe.process.tied or isinstance(data.codec, Text)}  # windows begin anywhere
ONCE = ALIKE | {"cycles": 1, "score_steps": lambda steps, *_: steps, "matrix_steps": 0}
# Algorithm 1 on J_Q as the paper's authors run it: three steps of Matrix-learning for two of Score-learning
LIVE = {"cycles": 2, "score_steps": lambda steps, *_: steps // 2, "matrix_steps": lambda steps, *_: 3 * steps // 4,
        "matrix_learning_rate": 1e-3, "matrix_weight_decay": 0.01, "matrix_clip": 1.0, "start": "random",
        "learn": "linear", "init": "gather", "floor": 0.0, "tied": False}
STILL = LIVE | {"matrix_steps": 0}  # the same without Matrix-learning: all gathers in the top state
TURNS = ALIKE | {"cycles": 10, "score_steps": lambda steps, *_: steps // 10, "reestimate": False,
         "matrix_steps": lambda steps, *_: max(1, steps // 100), "matrix_objective": "bound"}
MEAN, SCORE, PRINTED = ({"head": name} for name in ("mean", "score", "unscaled_score"))
UP, DOWN, NATURAL = ({"order": name, "mask": False} for name in ("ascending", "descending", "natural"))
UNIFORM, TOKENWISE, VARYING = ({"process": name} for name in ("uniform", "tokenwise", "varying"))
NESTED, CANONICAL = {"init": "nested", "mask": False}, {"schedule": "canonical"}
PACED, TIED = {"schedule": "paced"}, {"tied": True}
EVEN, LITTLE, MUCH = {"adapt_times": False}, _mixing(0.03), _mixing(0.3)
MASK = ONCE | {"mask": True, "init": "gather", "floor": 0.0}
JOINT = ONCE | {"matrix_objective": "joint"} | CANONICAL | MEAN
TREE = ONCE | {"process": "tree"} | CANONICAL | MEAN
PLACED = {"placed": lambda _, data, recipe:  # windows of text begin anywhere
          recipe.network.placed or not isinstance(data.codec, Text)}
ORDERED, CAUSAL = (MASK | MEAN | PLACED | {"network": name} for name in ("ordered", "causal"))
COLUMNS = MASK | MEAN | {"network": "columns"}
LEARNED = {"write_order": "learned"} | choices.LEARNED
ROWS = (
    Row("sedd-uniform", "uniform noise, score head, even times (SEDD)", ONCE | UNIFORM | SCORE | EVEN),
    Row("sedd-absorb", "mask, score head, even times (SEDD)", MASK | SCORE | EVEN),
    Row("mean-uniform", "uniform noise, mean head", ONCE | UNIFORM | MEAN),
    Row("mdlm", "mask, mean head (MDLM, MD4)", MASK | MEAN),
    Row("tokenwise", "mask, each state by a schedule of its own, learned on the bound (GenMD4)", JOINT | TOKENWISE),
    Row("dmb-published", "bridge, J_Q, score head as printed, even times: as published", LIVE | DOWN | PRINTED | EVEN),
    Row("dmb-still", "the same without Matrix-learning", STILL | DOWN | PRINTED | EVEN),
    Row("dmb-paced", "as published, but time follows the rates", LIVE | DOWN | PRINTED | EVEN | PACED),
    Row("dmb-tied", "as published, but one set of rates for all positions", LIVE | DOWN | PRINTED | EVEN | TIED,
        _uniform),
    Row("dmb-tied-still", "the same without Matrix-learning", STILL | DOWN | PRINTED | EVEN | TIED, _uniform),
    Row("mean-live", "bridge, J_Q, mean head, time follows the rates", LIVE | DOWN | MEAN | PACED),
    Row("mean-loglinear", "bridge, J_Q, mean head, time does not follow the rates", LIVE | DOWN | MEAN),
    Row("mean-still", "bridge, mean head, without Matrix-learning", STILL | DOWN | MEAN),
    Row("mean-tied", "as mean-live, but one set of rates for all positions", LIVE | DOWN | MEAN | PACED | TIED,
        _uniform),
    Row("mean-tied-still", "the same without Matrix-learning", STILL | DOWN | MEAN | TIED, _uniform),
    Row("mean-ascending", "as mean-live, frequent states on top", LIVE | UP | MEAN | PACED),
    Row("mean-nested", "bridge, gathering in stages, fixed, mean head", ONCE | NESTED | CANONICAL | MEAN, _states(4)),
    Row("learned-descending", "bridge, descending, learned on the bound", JOINT | DOWN | LITTLE, _states(3)),
    Row("learned-ascending", "bridge, ascending, learned on the bound", JOINT | UP | MUCH, _states(3)),
    Row("learned-live", "bridge, descending, all clocks awake, rates learned linearly on the bound",
        JOINT | DOWN | _mixing(0.5) | {"learn": "linear", "matrix_learning_rate": 1e-3}, _states(3)),
    Row("learned-turns", "bridge, descending, learned on the bound in turns, on 10 % more batches",
        TURNS | CANONICAL | MEAN | DOWN | LITTLE, _states(3)),
    Row("learned-varying", "bridge, ascending, clocks that vary in time, learned on the bound",
        JOINT | VARYING | UP | MUCH, _states(3)),
    Row("learned-nested", "bridge, gathering in stages, learned on the bound", JOINT | NESTED, _states(4)),
    Row("learned-mask", "bridge, descending, mask on top, learned on the bound",
        JOINT | DOWN | {"mask": True} | LITTLE),
    Row("paths", "mask, whole paths, any order, ordered transformer", ORDERED, grids=("best",)),
    Row("paths-learned", "mask, whole paths, order learned on the bound, ordered transformer", ORDERED | LEARNED),
    Row("streams", "mask, whole paths, as many streams side by side as calls allow, from left to right",
        ORDERED | {"write_order": "streams"}, _placed),
    Row("streams-learned", "mask, whole paths, streams whose direction and slope are learned on the bound",
        ORDERED | LEARNED | {"write_order": "learned_streams"}, _placed),
    Row("blocks", "mask, whole paths, blocks from left to right, any order in each (BD3-LM)",
        ORDERED | {"write_order": "blocks", "any_order": 0.0}, _placed),
    Row("columns", "mask, whole paths, columns from first to last, a network for each",
        COLUMNS | {"write_order": "fixed", "any_order": 0.0}, _narrow),
    Row("columns-learned", "mask, whole paths, order of columns learned on the bound, a network for each",
        COLUMNS | LEARNED, _narrow),
    Row("autoregressive", "from left to right, causal transformer", CAUSAL),
    Row("mean-tree", "bridge, tree of clusters by value, fixed, mean head", TREE | {"grouping": "value"},
        _states(2, ORDINAL)),
    Row("mean-tree", "bridge, tree of clusters by cooccurrence, fixed, mean head",
        TREE | {"grouping": "cooccurrence"}, lambda data: not isinstance(data.codec, ORDINAL | Columns | Codes)),
    Row("mean-tree", "bridge, tree of clusters of codebook vectors, fixed, mean head",
        TREE | {"grouping": "vectors"}, _states(2, Codes)),
    Row("mean-natural", "as mean-live, in natural order", LIVE | NATURAL | MEAN | PACED, _states(2, ORDINAL)),
    Row("mean-natural-still", "the same without Matrix-learning", STILL | NATURAL | MEAN, _states(2, ORDINAL)),
    Row("learned-natural", "bridge, natural order, learned on the bound", JOINT | NATURAL | MUCH, _states(3, ORDINAL)),
)
# fmt: on
