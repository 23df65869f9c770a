"""Find a recipe: by name, by the data, from a run, or from the user's Python file."""

import difflib
import importlib.util
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from dmb import tables
from dmb._core.configuration import from_json
from dmb.app.recipes import settings
from dmb.app.recipes.base import Recipe, as_flags, public
from dmb.data.reading import arrays, as_value_error

Maker = Callable[[], Recipe]

RECIPES: dict[str, Maker] = {maker.__name__: maker for maker in (
    settings.digits, settings.digits_paths, settings.text, settings.table, settings.array, settings.sequences,
    settings.records, settings.images, settings.codes, settings.text8, settings.text_gather, settings.text8_paper,
    settings.codes_paper,
)}  # fmt: skip
"""All recipes by name."""

LOCAL = "local.json"
"""The file of a run folder that says where its data lie, not to be published."""
TRAINING_SHARE = 0.8
"""Share of the rows of a table that are trained on."""
MLP_SIZE = 1 << 15
"""Maximum positions × states for an MLP, whose first and last layers grow with them."""


def register(maker: Maker) -> Maker:
    """Make a recipe known by its function's name; also a decorator.

    >>> from dataclasses import replace
    >>> @register
    ... def digits_for_long() -> Recipe:
    ...     base = settings.digits()
    ...     return replace(base, name="digits_for_long", training=replace(base.training, cycles=8))
    >>> recipe("digits_for_long").training.cycles
    8
    >>> del RECIPES["digits_for_long"]
    """
    RECIPES[maker.__name__] = maker
    return maker


def recipe(which: str) -> Recipe:
    """A recipe by its name, from a run folder or a JSON file, or your own, `FILE.py:FUNCTION`."""
    if which in RECIPES:
        return RECIPES[which]()
    if ".py:" in which:
        return _from_python(which)
    path = Path(which)
    file = path / "run.json" if path.is_dir() else path
    if file.is_file() and file.suffix == ".json":
        with as_value_error(f"{file} does not contain a recipe", ValueError, KeyError, TypeError, AttributeError):
            config = from_json(file.read_text(encoding="utf-8"))
            config = config.get("recipe", config)  # of a run, or alone
            if ".py:" not in config["name"]:
                return with_places(Recipe.from_json(config), path)
        raise ValueError(f"{which} uses your own recipe: give --recipe {config['name']} instead")
    close = difflib.get_close_matches(which, RECIPES, n=1)
    hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(RECIPES)}, or give FILE.py:FUNCTION"
    raise ValueError(f"no recipe called {which!r}: {hint}")


def with_places(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe of a run with the full paths of its files on this machine, which the run keeps apart."""
    file = folder / LOCAL
    if not file.is_file():
        return recipe
    with as_value_error(f"{file} does not say where files lie"):
        places = from_json(file.read_text(encoding="utf-8"))
        names = recipe.settings()
        kept = {name: place for name, place in places.items() if names.get(name) == public(place)}
        return recipe.changed(**{name.rpartition(".")[2]: place for name, place in kept.items()})


def recipe_for(source: str) -> Recipe:
    """The recipe that suits these data.

    >>> recipe_for("digits").name, recipe_for("pydocs").name
    ('digits', 'text')
    """
    if source in ("digits", "text8"):
        return RECIPES[source]()
    from dmb.app.loading import kind_of  # with torch, for which help does not wait
    from dmb.data.sources.table import size_of

    kind, path = kind_of(source), Path(source)
    found = RECIPES[kind]()
    with suppress(Exception):  # a file can be broken in any way, which `load` will report
        if kind == "array" and path.suffix.lower() == ".npy":
            values = arrays(path)["array"]
            if int(values[:1000].max()) * values[0].size > MLP_SIZE:
                return RECIPES["sequences"]()
        if kind == "table":  # as many steps as its rows need
            rows, columns = size_of(path)
            dropout, learned = 0.0 if tables.is_narrow(columns) else 0.1, round(TRAINING_SHARE * rows)
            network = replace(found.network, dropout=dropout, width=tables.fitting_width(learned))
            return replace(found, network=network, training=tables.column_training(learned, columns))
    return found


def command_line(wanted: Recipe, out: Path | None = None) -> str:
    """The command that trains a recipe: its data, the recipe that it started from, and every setting that was changed.

    Of full paths it names the last part: the command repeats a run where the data lie.

    >>> command_line(recipe("digits").changed(width=64))
    'dmb train digits --recipe digits --width 64'
    """
    if wanted.name not in RECIPES and ".py:" not in wanted.name:  # made in Python, for one run
        return shlex.join(["dmb", "train", "--recipe", str(out)])
    idle = {"source", *wanted.meaningless()}  # the source is the first word
    changes = recipe(wanted.name).adapted_to(wanted).differences(wanted)
    flags = as_flags({name: value for name, value in changes.items() if name.rpartition(".")[2] not in idle})
    words = ["dmb", "train", wanted.data.source, "--recipe", wanted.name, *flags]
    return shlex.join(map(public, words + ([] if out is None else ["--out", str(out)])))


def _from_python(which: str) -> Recipe:
    file, _, name = which.rpartition(":")
    maker = getattr(_module(Path(file)), name, None)
    if not callable(maker):
        raise ValueError(f"{file} has no function called {name!r}")
    made = maker()
    if not isinstance(made, Recipe):
        raise ValueError(f"{which} must return a dmb.app.recipes.Recipe, got {type(made).__name__}")
    return replace(made, name=f"{Path(file).resolve()}:{name}")


def _module(path: Path) -> ModuleType:
    """The user's file, run once: its classes are then known, and models made of them can be loaded."""
    path = path.resolve()
    name = f"dmb_recipe_{path.stem}"
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ValueError(f"no Python file called {str(path)!r}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's file may raise anything
        del sys.modules[name]
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module
