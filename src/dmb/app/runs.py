"""A run folder: everything about one training run, in files that say what they are.

run.json            version, recipe with every setting, the command that repeats it, codec; no folder of this machine
local.json          where its data lie on this machine
config.json         the model's description      \\ written by `Bridge.write`:
model.safetensors   its weights, best so far      / load them with `Bridge.from_pretrained(folder)`
metrics.jsonl       one report per line; the same in TensorBoard's format under tensorboard/
vqvae/              for a bridge over codes, a copy of the VQ-VAE that decodes them
data.safetensors    marginals of the training data and a few validation examples, for the report
checkpoints/        what a resumed run needs
samples/            one sample of every evaluation, in the format of the data
evaluation.json     results of `dmb evaluate` and `dmb fid`
report.html         the page that `dmb report` writes
"""

import difflib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dmb._core import checks
from dmb._core.configuration import Configurable, conforms, from_json
from dmb._core.files import append_line, read_tensors, to_json, write_json, write_tensors
from dmb._core.pretrained import WEIGHTS
from dmb._core.seeding import seeded
from dmb.app.evaluation import ImageQuality, Likelihood, RecordQuality, SamplerBound, TableQuality, token_costs
from dmb.app.images import Codes
from dmb.app.locks import locked
from dmb.app.recipes import LOCAL, DataChoice, Recipe, command_line, recipe as find_recipe, with_places
from dmb.app.records import EVALUATION, METRICS, Record, best, read_evaluations, read_metrics, rewind
from dmb.bridges import Bridge
from dmb.data import Codec, DataSet, Text
from dmb.data.codecs import Images
from dmb.data.codecs.base import shortened
from dmb.data.codecs.images import sheet
from dmb.data.loading import is_name
from dmb.data.reading import as_value_error
from dmb.orders import best_shares
from dmb.training import TrainingReport
from dmb.version import __version__

FORMAT = 3
ABOUT = ("version", "created", "unigram_bits", "digest")
EXAMPLE_TOKENS = 1 << 16
"""How many tokens of validation data a run keeps for its report: 1,024 sequences at most, 64 at least."""
SUMMARY, VQVAE_COPY = "data.safetensors", "vqvae"


class Run:
    """A run folder. `Run.create` makes one, `Run.open` reads one.

    Args:
        path: the folder.
        recipe: what is run.
        codec: turns tokens into data.
        about: `version` of dmb, when the run was `created`, `unigram_bits`: what the training data's marginals alone
            need on each split, `digest` of the data, `class_names`, if classes have names, and the number of training
            `sequences`: 0, if an earlier version made the run.
    """

    def __init__(self, path: Path, recipe: Recipe, codec: Codec, about: dict[str, Any]):
        self.path, self.recipe, self.codec, self.about = path, recipe, codec, about
        self._logged = False
        self._tensorboard: Any = None

    @classmethod
    def create(cls, path: Path, recipe: Recipe, data: DataSet) -> "Run":
        """A new folder for a run of `recipe` on `data`; never over an old one."""
        cls.check_free(path)
        about = {
            "version": __version__,
            "created": time.strftime("%Y-%m-%d %H:%M"),
            "unigram_bits": data.baselines(),
            "digest": data.digest(),
            "class_names": list(data.class_names),
            "sequences": len(data.train),
        }
        run = cls(path, recipe, data.codec, about)
        (path / "samples").mkdir(parents=True, exist_ok=True)
        marginals = data.marginals()
        if (marginals == marginals[:1]).all():  # as all positions of a text share one row
            marginals = marginals[:1]
        chosen = data.validation.spread(max(64, min(1024, EXAMPLE_TOKENS // data.num_positions)))
        # mixed, as samples are: images in folders come class by class
        examples = data.validation[chosen[torch.randperm(len(chosen), generator=seeded(0, "examples"))]]
        write_tensors(path / SUMMARY, {"marginals": marginals, "examples": examples})
        if isinstance(data.codec, Codes):
            data.codec.keep(path / VQVAE_COPY)
        run._write_config()  # last: a folder without run.json counts as unfinished, and may be made again
        return run

    @staticmethod
    def check_free(path: Path) -> None:
        """Raise a ValueError if `path` exists, except for the remains of a killed `create`."""
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file, not a folder")
        found = {file.name for file in path.iterdir()} if path.exists() else set()
        if {name for name in found if not name.startswith(".")} - {"samples", SUMMARY, VQVAE_COPY, LOCAL}:
            raise ValueError(f"{path} exists already: choose another --out, or continue it with dmb resume {path}")

    @classmethod
    def open(cls, path: Path, recipe: str | None = None) -> "Run":
        """The run in `path`, or an error that says why it is not a run.

        Args:
            path: the folder.
            recipe: for a run with the user's own recipe, `FILE.py:FUNCTION`. Code is run only if it is named here.
        """
        file = path / "run.json"
        if not file.is_file():
            raise ValueError(f"{path} is not a run folder: {_instead(path)}")
        with as_value_error(f"{file} does not describe a run", ValueError, KeyError, TypeError):
            config = from_json(file.read_text(encoding="utf-8"))
            found = config["format"]
        if found != FORMAT:
            raise ValueError(
                f"{path} is a run of format {found}, made by dmb {config.get('version')}, which can read it; "
                f"dmb {__version__} reads format {FORMAT}: use that version, or train it again"
            )
        with as_value_error(f"{file} does not describe a run", KeyError, TypeError):
            name = str(config["recipe"]["name"])
        if recipe is None and ".py:" in name:
            raise ValueError(f"{path} uses your own recipe: give --recipe {name}, whose code is then run")
        like = None if recipe is None else find_recipe(recipe)
        with as_value_error(f"{file} does not describe a run", Exception):  # a description can be wrong in any way
            # classes have no names in runs of earlier versions
            about = {key: config[key] for key in ABOUT} | {"class_names": config.get("class_names", [])}
            about["sequences"] = config.get("sequences", 0)
            if not conforms(about["unigram_bits"], dict[str, float | None]):
                raise ValueError(f"unigram_bits must be numbers, got {about['unigram_bits']!r:.80}")
            if not conforms(about["sequences"], int):
                raise ValueError(f"sequences must be a whole number, got {about['sequences']!r:.80}")
            if not conforms(about["class_names"], list[str]):
                raise ValueError(f"class_names must be strings, got {about['class_names']!r:.80}")
            codec = Configurable.from_config(config["codec"])
            if isinstance(codec, Codes):
                codec.vqvae = str(path / VQVAE_COPY)  # wherever the run lies now
            there = with_places(Recipe.from_json(config["recipe"], like), path)
            if like is not None:  # the folder may name another file, which is not to be run
                there = replace(there, name=like.name)
            if isinstance(codec, Text) and isinstance(there.data, DataChoice) and not is_name(there.data.source):
                # before that was a setting, the last tenth of a text was held out
                there = there.changed(held_out=config["recipe"]["data"].get("held_out", "end"))
            return cls(path, there, codec, about)

    def _write_config(self) -> None:
        public = self.recipe.public()
        write_json(self.path / LOCAL, public.differences(self.recipe))
        codec = self.codec.to_config() | ({"vqvae": VQVAE_COPY} if isinstance(self.codec, Codes) else {})
        write_json(
            self.path / "run.json",
            {
                "format": FORMAT,
                **self.about,
                "command": command_line(self.recipe, self.path),
                "recipe": public.to_json(),
                "codec": codec,
            },
        )

    def change(self, recipe: Recipe) -> None:
        """Continue with other settings."""
        self.recipe = recipe
        self._write_config()

    def bridge(self, device: str = "cpu") -> Bridge:
        """The best bridge so far."""
        if not (self.path / WEIGHTS).is_file():
            raise ValueError(f"{self.path} has no model yet: wait for the first evaluation, which saves it")
        return Bridge.from_pretrained(self.path, map_location=device)

    def data(self, source: str | None = None, *, progress: Callable[[int, int], None] | None = None) -> DataSet:
        """The run's data, or another file read the way the run's was; a ValueError if its data have changed."""
        data = self.recipe.data.load(source, codec=self.codec, progress=progress)
        if source is None and data.digest() != self.about["digest"]:
            raise ValueError(f"{self.recipe.data.source} has changed since the run began: restore it, or train again")
        return data

    def grid(self, bridge: Bridge, name: str) -> Callable[[int], str | Float[Tensor, " k"]]:
        """The grid of this name, by the number of calls. The best one is found on the examples of validation data."""
        if name != "best":
            return lambda _: name
        costs = token_costs(bridge, self.summary()["examples"])
        return lambda calls: best_shares(costs, min(calls, bridge.num_positions))

    def label(self, given: str) -> int:
        """The number of a class, from its name or its number; a folder called 7 is meant before class number 7."""
        names = self.about["class_names"]
        if given in names:
            return names.index(given)
        with suppress(ValueError):
            if abs(number := int(given)) < 1 << 63:
                return number
        known = f"a class ({shortened(names)}) or its number" if names else "a whole number"
        raise ValueError(f"--label must be {known}, got {given!r}")

    def summary(self) -> dict[str, Tensor]:
        """`marginals` of the training data, and `examples` of the validation data."""
        file = self.path / SUMMARY
        tensors = read_tensors(file).tensors
        with as_value_error(
            f"{file} does not describe the data of a run", KeyError, IndexError, RuntimeError, ValueError
        ):
            marginals, examples = tensors["marginals"], tensors["examples"]
            shape = (examples.shape[1], self.codec.num_states)
            checks.tokens("examples", examples, shape)
            return {"marginals": checks.distribution("marginals", marginals.expand(shape), shape), "examples": examples}

    # -- metrics ------------------------------------------------------------------------------------------------------

    def metrics(self) -> list[Record]:
        """All reports so far. A last line that a kill cut short is left out."""
        return read_metrics(self.path)

    def log(self, report: TrainingReport) -> None:
        """Add a report to the metrics, and its sample to the samples."""
        record, board = report.record(), self._tensorboard
        if not self._logged:  # an interrupted run may have logged more than its checkpoint knows
            rewind(self.path, report.index)
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter  # slow to import, and only training needs it

                board = SummaryWriter(os.fspath(self.path / "tensorboard"), purge_step=report.step)
            self._logged, self._tensorboard = True, board
        append_line(self.path / METRICS, to_json(record))
        if board is not None:
            for name, value in record.items():
                if isinstance(value, float):
                    board.add_scalar(f"{name}/{report.phase}", value, report.step)  # a group for each figure
            if report.sample is not None and isinstance(view := self.codec.view(report.sample), Images):
                board.add_image("sample", sheet(view.pixels), report.step, dataformats="HWC")
            elif report.sample is not None:
                board.add_text("sample", f"```\n{report.shown(self.codec)}\n```", report.step)
            board.flush()
        if report.sample is not None:
            samples = self.path / "samples"
            samples.mkdir(exist_ok=True)
            self.codec.write(samples / f"step_{report.step:09d}{self.codec.extension}", report.sample)

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def best(self) -> Record | None:
        """The evaluation that the model in the folder comes from; None before the first."""
        return best(self.metrics())

    def add_evaluation(
        self,
        result: (
            Likelihood | SamplerBound | ImageQuality | list[ImageQuality] | list[TableQuality] | list[RecordQuality]
        ),
        evaluated: Record | None,
    ) -> None:
        """Remember a result, and the model that it belongs to: what `best` gave when it was loaded."""
        step = of_step(evaluated)
        with (
            as_value_error("the result was printed, but cannot be stored", ValueError),
            locked(self.path, ".evaluation.lock", wait=True),
        ):
            results = read_evaluations(self.path)
            if isinstance(result, list):
                parts = {found.what: vars(found) | step for found in result}
                results.setdefault(result[0].kind, {})[result[0].split] = parts
            elif isinstance(result, SamplerBound):
                bounds = results.setdefault(result.kind, {}).setdefault(result.split, {})
                bounds.setdefault(result.how, {})[str(result.calls)] = vars(result) | step
            else:
                place = results.setdefault("images", {}) if isinstance(result, ImageQuality) else results
                place[result.split] = vars(result) | step
            write_json(self.path / EVALUATION, results)


def of_step(evaluated: Record | None) -> dict[str, int | None]:
    """The entry of a result that says which model was evaluated."""
    return {"step": None if evaluated is None else evaluated.step}


def _instead(path: Path) -> str:
    """Why `path` is no run folder, and which one was probably meant."""
    if path.is_file():
        return f"it is a file; dmb train {path} makes a run of it, {Path('runs') / path.stem}-<time>"
    runs = {str(file.parent) for folder in (path, path.parent, Path("runs")) for file in folder.glob("*/run.json")}
    close = difflib.get_close_matches(str(path), sorted(runs), n=1)
    if close:
        return f"did you mean {close[0]}?"
    return "it has no run.json" + (f"; there are {shortened(sorted(runs))}" if runs else "; dmb train DATA makes one")
