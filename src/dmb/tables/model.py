"""A model of a data frame, with the manners of scikit-learn."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dmb._core import checks
from dmb._core.configuration import Configurable, from_json
from dmb._core.files import write_json
from dmb._core.seeding import seeded
from dmb.bridges import Bridge, MarkovBridge, OrderedBridge
from dmb.data import Columns, DataSet, frames
from dmb.data.columns import Value
from dmb.data.sources.table import Table, as_data_set, tokens_of
from dmb.orders import Fixed
from dmb.processes import BridgeProcess
from dmb.processes.states import States
from dmb.tables import rows as rows_of
from dmb.tables.columnwise import column_network, column_training, fitting_width, is_narrow
from dmb.training import TrainingReport, train

_TRIES = 100  # times as many rows as asked for, before a rule is given up


class LogProb(NamedTuple):
    """Log-probabilities of rows in nats, or lower bounds on them, and their standard errors."""

    value: np.ndarray
    stderr: np.ndarray


class TableModel(BaseEstimator):  # type: ignore[misc]
    r"""A generative model of a data frame: draw rows, fill gaps, predict any column from any others, judge rows.

    Columns are masked one by one, and a network learns to put back what the others imply. So the model has a
    conditional distribution `p(x_i | x_S)` for every column `i` and every set of columns `S`. A row is written column
    by column: first those that are given, then the others in one order `σ`, that of half of the training rows.

    `log p(x) = Σ_k log p(x_{σ_k} | x_{σ_1}, …, x_{σ_{k-1}}).`

    Tables with more than 32 columns have one network for all columns, and no order of their own: `σ` is drawn evenly
    from all orders, and the mean over them is a lower bound on `log p(x)`.

    Args:
        steps: of training, at most; it ends when rows set apart have not become likelier for a while. Default: 20
            passes over the rows, at least 400 and at most 1,500 steps, or 30,000 divided by the number of columns.
        width: of the network of each column; one network for all columns is twice as wide. Default: as rows allow, from
            16 to 128, which 3,000 rows have.
        blocks: of the network of each column; one network for all columns has one more.
        dropout: share of activations that are dropped in training. Default: none; of one network for all columns, 0.1.
        batch_size: rows of a step.
        learning_rate: the highest one; it falls to 0 at the end. Default: 0.004; of one network for all columns, 0.002.
        bins: maximum number of states of a column of numbers or dates. Default: one for every 50 rows that are learned
            from, from 64 to 1,024.
        order: names of all columns, in the order in which they are written; default: as they stand in the frame.
        kinds: of columns by name, where the rules of `dmb.data.columns.column_of` are wrong.
        patience: evaluations without progress after which training ends; 0: never.
        random_state: seed of training.
        report: called with a report of training now and then.

    Attributes:
        bridge_: the model itself, a `dmb.Bridge`.
        codec_: the columns, and how their values become states.
        notes_: how the frame was read: what was guessed or left out.
        feature_names_in_: names of the columns that the model has.
        n_features_in_: their number.
        acceptance_: share of the last samples that kept their rule.

    >>> import pandas
    >>> frame = pandas.DataFrame({"size": [1, 2, 3] * 50, "colour": ["red", "blue", "blue"] * 50})
    >>> model = TableModel(steps=200, width=64, blocks=1, batch_size=64).fit(frame)
    >>> model.sample(3, given={"size": 1}, random_state=0)["colour"].tolist()
    ['red', 'red', 'red']
    >>> model.predict_proba(pandas.DataFrame({"size": [2]}), "colour").round(1)
    array([[1., 0.]])
    """

    bridge_: Bridge
    codec_: Columns
    _like: Any = None

    def __init__(
        self,
        *,
        steps: int | None = None,
        width: int | None = None,
        blocks: int = 2,
        dropout: float | None = None,
        batch_size: int = 256,
        learning_rate: float | None = None,
        bins: int | None = None,
        order: Sequence[str] | None = None,
        kinds: Mapping[str, str] | None = None,
        patience: int = 4,
        random_state: int = 0,
        report: Callable[[TrainingReport], None] | None = None,
    ):
        self.steps, self.width, self.blocks, self.dropout = steps, width, blocks, dropout
        self.batch_size, self.learning_rate, self.bins = batch_size, learning_rate, bins
        self.order, self.kinds = order, kinds
        self.patience, self.random_state, self.report = patience, random_state, report

    def fit(self, X: Any, y: None = None) -> "TableModel":
        """Learn a data frame of pandas or Polars. A tenth of its rows decides when to stop."""
        content = frames.read(X)
        kinds = dict.fromkeys(frames.coded(X), "category") | dict(self.kinds or {})
        data = as_data_set(content, "frame", kinds=kinds, bins=self.bins, test=False)
        assert isinstance(data.codec, Columns)
        bridge = self._untrained(data)
        settings = column_training(
            len(data.train), data.num_positions, self.batch_size,
            steps=self.steps, learning_rate=self.learning_rate, patience=self.patience, seed=self.random_state,
        )  # fmt: skip
        for progress in train(bridge, data, settings):
            if self.report is not None:
                self.report(progress)
        self.bridge_, self.codec_, self.notes_ = bridge, data.codec, list(data.notes)
        self._like = nw.from_native(X, eager_only=True).head(0).to_native()
        return self

    def _untrained(self, data: DataSet) -> Bridge:
        """A network for each column, or one for all if there are many, with random weights."""
        codec, states = data.codec, States.with_mask(data.num_positions, data.num_states, data.state_counts)
        assert isinstance(codec, Columns)
        width = fitting_width(len(data.train)) if self.width is None else self.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            network = column_network(states, codec, width=width, blocks=self.blocks, dropout=self.dropout)
        if is_narrow(data.num_positions):
            names = codec.names if self.order is None else [name for name in self.order if name not in codec.left_out]
            if sorted(names) != sorted(codec.names):
                raise ValueError(f"order must name all columns once, {', '.join(codec.names)}, got {', '.join(names)}")
            return OrderedBridge(Fixed([codec.names.index(name) for name in names]), network, states)
        process = BridgeProcess.from_marginals(
            data.marginals(), mask=True, floor=0.0, init="gather", state_counts=data.state_counts
        )
        return MarkovBridge(process, network)

    @property
    def feature_names_in_(self) -> np.ndarray:
        return np.array(self._codec.names, dtype=object)

    @property
    def n_features_in_(self) -> int:
        return len(self._codec.names)

    def sample(
        self,
        n: int = 1,
        given: Mapping[str, Value] | None = None,
        *,
        legal: Mapping[str, Sequence[Value]] | None = None,
        rule: Callable[[Any], Any] | None = None,
        temperature: float = 1.0,
        random_state: int | None = None,
    ) -> Any:
        """Draw rows, as a frame like the one that was learned.

        Args:
            n: how many.
            given: values of some columns, by name; `None` asks for a missing value.
            legal: for some columns, the values that may be drawn.
            rule: tells which rows of a frame to keep, such as `lambda rows: rows["end"] >= rows["start"]`; rows are
                drawn until enough are kept, see `acceptance_`.
            temperature: values below 1 favour likely values.
            random_state: seed; default: new rows each time.
        """
        checks.at_least(1, n=n)
        codec = self._codec
        template = torch.full((1, self.n_features_in_), -1)
        for name, value in (given or {}).items():
            template[0, self._position(name)] = self._state(name, value)
        generator = self._generator(random_state)
        kept, found, drawn = [], 0, 0
        while found < n:
            count = n if rule is None else max(n - found, 64)
            tokens = rows_of.draw(
                self.bridge_, template.expand(count, -1), generator, self._legal(legal or {}), temperature
            )
            columns = dict(zip(codec.names, codec.cells(tokens), strict=True))
            columns |= {name: [value] * count for name, value in (given or {}).items()}
            rows = nw.from_native(frames.write(columns, self._like_rows()), eager_only=True)
            if rule is not None:
                rows = rows.filter(np.asarray(rule(rows.to_native()), dtype=bool).tolist())
            kept.append(rows)
            found, drawn = found + len(rows), drawn + count
            if found < n and drawn >= _TRIES * n:
                raise ValueError(f"rule must keep one row in {_TRIES}, kept {found:,} of {drawn:,}")
        self.acceptance_ = found / drawn
        return nw.concat(kept).head(n).to_native()

    def impute(self, X: Any, *, draw: bool = False, random_state: int | None = None) -> Any:
        r"""The frame with its missing values filled in; columns that it lacks are added.

        Each gap `x_i` is filled on its own from the observed columns `x_S` of its row, by `p(x_i | x_S)`: with the
        mean of a number or date, which has the least expected squared error, or the likeliest of other values, which
        is right most often. A column keeps its type: where that is whole numbers, the value nearest to the mean is
        filled in. (pandas makes a column of whole numbers real as soon as it has a gap; `Int64` does not change.)
        Numbers that are only codes have no mean: say so by `kinds={"zip": "category"}`, or by a categorical type.

        Args:
            X: the frame.
            draw: draw the gaps of a row from their joint distribution instead, as multiple imputation needs.
            random_state: seed of draws; default: new ones each time.
        """
        real = {name: dtype.is_float() for name, dtype in nw.from_native(X, eager_only=True).schema.items()}
        return frames.write(self.filled(frames.read(X), draw, random_state, real), X)

    def filled(
        self,
        content: Table,
        draw: bool = False,
        random_state: int | None = None,
        real: Mapping[str, bool] | None = None,
    ) -> dict[str, list[Value]]:
        """As `impute`, for a table that was read from a file: its columns by name.

        `real` says which columns can hold real numbers; default: those that are not of whole numbers.
        """
        tokens = torch.from_numpy(tokens_of(content, self._codec, gaps=True))
        columns = {name: content.cells(name) for name in dict.fromkeys([*content.names, *self._codec.names])}
        rows = (tokens < 0).any(-1).nonzero().squeeze(-1)
        if not len(rows):
            return columns
        tokens = tokens[rows]
        values = (
            self._codec.cells(rows_of.draw(self.bridge_, tokens, self._generator(random_state), self._present()))
            if draw
            else self._expected(tokens, real or {})
        )
        for name, found, gone in zip(self._codec.names, values, (tokens < 0).T.tolist(), strict=True):
            for row, value, gap in zip(rows.tolist(), found, gone, strict=True):
                if gap:
                    columns[name][row] = value
        return columns

    def predict_proba(self, X: Any, column: str) -> Float[np.ndarray, "rows values"]:
        """`p(column | all else that X knows)`, for every row; what `classes` names, in that order.

        The column itself is not looked at, if X has it. Gaps of X are left open, not filled in.
        """
        position = self._position(column)
        tokens = torch.from_numpy(tokens_of(frames.read(X), self._codec, gaps=True))
        tokens[:, position] = -1
        log_p = torch.cat([part[:, position] for part in rows_of.conditionals(self.bridge_, tokens)])
        return log_p[:, self._present()[position]].softmax(-1).numpy()

    def conditionals(self, template: Int[Tensor, " d"]) -> list[Float[np.ndarray, " states"]]:
        """`p(column | what is given)` for every column, over all its states, with one call of the network.

        Args:
            template: the state of every column, and -1 for those that are not given; a column that is given has all its
                probability on its state.
        """
        [log_p] = rows_of.conditionals(self.bridge_, template[None])  # in double precision, as `predict_proba`
        p = log_p[0].exp().numpy()
        known = [p[place, : len(column)] for place, column in enumerate(self._codec.columns)]
        return [each / each.sum() for each in known]

    def shares(self, template: Int[Tensor, " d"], count: int = 1024) -> list[Float[np.ndarray, " states"]]:
        """How often each state of every column occurs among rows that `sample` draws with this template.

        It is the mean of the laws that `count` rows are drawn from, always the same ones.
        """
        p = rows_of.shares(self.bridge_, template, count, seeded(0, "shares")).numpy()
        known = [p[place, : len(column)] for place, column in enumerate(self._codec.columns)]
        return [each / each.sum() for each in known]

    def classes(self, column: str) -> list[Value]:
        """The values of a column that `predict_proba` speaks of; for a number, the means of its bins."""
        known = self._codec.columns[self._position(column)]
        return [value for state, value in enumerate(known.means()) if state != known.missing]

    def log_prob(self, X: Any, *, draws: int = 4, random_state: int | None = None) -> LogProb:
        """The log-probability of each row, in nats; for columns of real numbers it is a density.

        If columns are written in one order, one pass gives it, exact up to rounding. For a model without an order of
        its own it is a lower bound, the mean over `draws` orders of this seed (default: the model's), with its
        standard error.
        """
        checks.at_least(2, draws=draws)
        content = frames.read(X)
        tokens = torch.from_numpy(tokens_of(content, self._codec)).long()
        generator = self._generator(self.random_state if random_state is None else random_state)
        passes = 1 if isinstance(self.bridge_.write_order(), Fixed) else draws
        values = np.stack([rows_of.log_prob(self.bridge_, tokens, generator).numpy() for _ in range(passes)])
        density = np.zeros(len(tokens))
        for name, column in zip(self._codec.names, self._codec.columns, strict=True):
            index = content.names.index(name)
            density += column.log_density(content.distinct[index])[content.codes[:, index]]
        return LogProb(values.mean(0) + density, values.std(0, ddof=min(1, passes - 1)) / passes**0.5)

    def score(self, X: Any, y: None = None) -> float:
        """The mean of `log_prob` over rows."""
        return float(self.log_prob(X).value.mean())

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder."""
        kept = nw.from_native(self._like_rows(), eager_only=True)
        about = {
            "settings": {name: value for name, value in self.get_params().items() if name != "report"},
            "codec": self._codec.to_config(),
            "notes": self.notes_,
            "library": str(kept.implementation.value),
            "types": frames.types(kept.to_native()),
        }
        self.bridge_.save_pretrained(folder)
        write_json(Path(folder) / "table.json", about)

    @classmethod
    def load(cls, folder: str | Path) -> "TableModel":
        """The model that `save` wrote; frames have its library and types."""
        about = from_json((Path(folder) / "table.json").read_text())
        model = cls(**about["settings"])
        model.bridge_ = Bridge.from_pretrained(folder)
        model.codec_, model.notes_ = Configurable.from_config(about["codec"]), about["notes"]
        model._like = frames.empty(about["library"], about["types"])
        return model

    @classmethod
    def of(cls, bridge: Bridge, codec: Columns) -> "TableModel":
        """The model that a bridge is whose only noise is a mask, such as that of a run; it samples frames of pandas."""
        bridge.write_order()  # refuses other noise than a mask
        if bridge.from_left:
            raise ValueError("the network must take any columns as given, got one that follows one order only")
        model = cls()
        model.bridge_, model.codec_, model.notes_ = bridge, codec, []
        return model

    def _like_rows(self) -> Any:
        """A frame without rows, with the library and the types of the one that was learned; default: of pandas."""
        return frames.empty("pandas", {}) if self._like is None else self._like

    # -- tokens -------------------------------------------------------------------------------------------------------

    @property
    def _codec(self) -> Columns:
        check_is_fitted(self, "codec_", msg="this %(name)s has not learned a table yet: call fit first")
        return self.codec_

    def _generator(self, random_state: int | None) -> torch.Generator:
        """Random numbers of this seed, or new ones."""
        return seeded(torch.Generator().seed() if random_state is None else random_state, "rows")

    def _position(self, column: str) -> int:
        if column not in self._codec.names:
            raise ValueError(f"column must be one of {', '.join(self._codec.names)}, got {column!r}")
        return self._codec.names.index(column)

    def _state(self, name: str, value: Value) -> int:
        column = self._codec.columns[self._position(name)]
        [state] = column.states([value], nearest=True).tolist()
        if state < 0:
            raise ValueError(f"column {name!r} has {column.describe()}, got {value!r}")
        return state

    def _legal(self, values: Mapping[str, Sequence[Value]]) -> Bool[Tensor, "d n"] | None:
        if not values:
            return None
        legal = torch.ones(self.n_features_in_, self.bridge_.num_states, dtype=torch.bool)
        for name, allowed in values.items():
            if not allowed:
                raise ValueError(f"legal must allow a value of column {name!r}, got none")
            legal[self._position(name)] = False
            legal[self._position(name), [self._state(name, value) for value in allowed]] = True
        return legal

    def _present(self) -> Bool[Tensor, "d n"]:
        """The states of each column that are values, and not missing."""
        present = torch.arange(self.bridge_.num_states) < torch.tensor(self._codec.state_counts)[:, None]
        for position, column in enumerate(self._codec.columns):
            if column.missing is not None and len(column) > 1:
                present[position, column.missing] = False
        return present

    def _expected(self, tokens: Int[Tensor, "b d"], real: Mapping[str, bool]) -> list[list[Value]]:
        """For each column, the value that stands best for `p(x_i | x_S)` in each row."""
        present, found = self._present(), list[list[Value]]([] for _ in self._codec.names)
        for log_p in rows_of.conditionals(self.bridge_, tokens):
            p = torch.where(present, log_p, -torch.inf).softmax(-1).numpy()
            for position, (name, column) in enumerate(zip(self._codec.names, self._codec.columns, strict=True)):
                found[position] += column.expected(p[:, position, : len(column)], real.get(name))
        return found
