"""What the buttons of the page do: values of components in, values of components out."""

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from jaxtyping import Int
from markupsafe import Markup, escape
from torch import Tensor

from dmb.app.display import duration
from dmb.app.serve import marked
from dmb.app.serve.film import Certainty, Film
from dmb.app.serve.kinds import Kind
from dmb.app.serve.model import ROWS, Estimate
from dmb.app.serve.options import Options, whole
from dmb.data.codecs import Cells

REFRESH = 0.15
"""Seconds between two pictures of a draw on its way."""

ANY = "any"
"""The class of samples that may have any."""

Scene = tuple[Film, Certainty | None, int]
"""A film, what the model thought of one of its samples, and the number of this sample."""


def told(action: Callable[..., Any]) -> Callable[..., Any]:
    """An action whose ValueErrors are told to the visitor in one line."""

    @functools.wraps(action)
    def once(*values: Any) -> Any:
        try:
            return action(*values)
        except ValueError as problem:
            raise _error(problem) from None

    return once


def told_steps(action: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    """The same for an action that takes its time, and says now and then what it has."""

    def steps(values: tuple[Any, ...]) -> Iterator[Any]:
        try:
            yield from action(*values)
        except ValueError as problem:
            raise _error(problem) from None

    # gradio asks whether a function is a generator: of a lambda that is true even where functions are wrapped to check
    # types, as in tests
    return lambda *values: (yield from steps(values))


def _error(problem: ValueError) -> gr.Error:
    """Escaped, because gradio shows messages as HTML."""
    return gr.Error(str(escape(" ".join(str(problem).split())[:600])), print_exception=False, duration=8)


class Actions:
    """The functions behind the page.

    Args:
        kind: the data, and the model.
        settings: names of the settings of a draw, in the order of their components.
        folder: where files to download are written.
    """

    def __init__(self, kind: Kind, settings: list[str], folder: Path):
        self.kind, self.playground, self.settings, self.folder = kind, kind.playground, settings, folder

    def options(self, values: tuple[Any, ...]) -> tuple[Options, tuple[Any, ...]]:
        """The settings, and the values of all other components."""
        own, rest = values[: len(self.settings)], values[len(self.settings) :]
        chosen = dict(zip(self.settings, own, strict=True))
        if chosen.get("label") == ANY:
            chosen["label"] = None
        for name in ("n", "calls", "seed", "label"):  # a browser sends numbers, be they whole or not
            if isinstance(chosen.get(name), float) and float(chosen[name]).is_integer():
                chosen[name] = int(chosen[name])
        return Options(**chosen, most=self.kind.most), rest

    def estimate(self, *values: Any) -> Markup:
        """How long a draw will take."""
        options, _ = self.options(values)
        seconds = self.playground.seconds(options)
        return _status(f"A draw takes about {duration(seconds) if seconds >= 1 else 'a second'}.")

    def anew(self, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Draw samples, whatever is given."""
        options, _ = self.options(values)
        yield from self._drawn(options, None)

    def draw(self, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Fill in the blanks of what is given."""
        options, rest = self.options(values)
        yield from self._drawn(options, self.kind.template(*rest))

    def _drawn(self, options: Options, template: Int[Tensor, " d"] | None) -> Iterator[tuple[Any, ...]]:
        """A status, the samples, a scene, the slider of the film, its samples, its picture, a file to download."""
        if template is not None and (template == -1).all():
            template = None
        given = None if template is None else template >= 0
        if given is not None and given.all():
            raise ValueError("nothing is blank: leave or erase something for the model to fill in")
        film = Film(None if template is None else template.clamp(min=-1), options.label)
        began = drawn = time.monotonic()
        moment = None
        for moment in self.playground.draw(options, template, film):
            if time.monotonic() - drawn > REFRESH:  # between pictures too, one can cancel here
                drawn = time.monotonic()
                left = (drawn - began) * (1 / moment.share - 1)
                status = _status(f"{moment.share:.0%}, t = {moment.t:.2f}; about {duration(left)} left", moment.share)
                yield status, marked.samples(self.playground, moment.x, given), *[gr.skip()] * 5
            else:
                yield (gr.skip(),) * 7
        assert moment is not None
        took = time.monotonic() - began
        picture = marked.samples(self.playground, moment.x, given)
        done = f"{len(moment.x):,} drawn in {took:.1f} s"
        yield _status(f"{done}; the film is being made …", 1.0), picture, *[gr.skip()] * 5
        scene: Scene = (film, self.playground.certainty(film, 0), 0)
        path = self.kind.write(Path(tempfile.mkdtemp(dir=self.folder)), moment.x)
        more = len(moment.x) - marked.MOST_SHOWN
        note = f" The file has {more:,} more." if isinstance(self.playground.view, Cells) and more > 0 else ""
        yield (
            _status(f"{done}.{note}"), picture, scene,
            gr.Slider(minimum=1, maximum=max(2, len(film)), value=len(film), interactive=True),
            gr.Dropdown(choices=list(range(1, film.samples + 1)), value=1, interactive=True),
            marked.frame(self.playground, film, len(film) - 1, 0, scene[1], "certainty"),
            gr.DownloadButton(value=str(path), interactive=True),
        )  # fmt: skip

    def develop(self, scene: Scene | None, sample: Any) -> Scene | None:
        """The scene of another sample of the same film."""
        if scene is None:
            return None
        film = scene[0]
        chosen = whole("sample", sample, 1, film.samples) - 1
        return film, self.playground.certainty(film, chosen), chosen

    def frame(self, scene: Scene | None, number: Any, colour: Any) -> Markup:
        """A frame of the film."""
        if scene is None:
            return Markup("<p class='note'>Draw something first; then its film is here.</p>")
        film, certainty, sample = scene
        place = whole("frame", number, 1, max(2, len(film)))
        chosen: marked.Colour = "order" if colour == "order" else "certainty"
        return marked.frame(self.playground, film, min(place, len(film)) - 1, sample, certainty, chosen)

    def bound(self, *values: Any) -> Iterator[Markup]:
        """The bound of what is given, better and better."""
        options, rest = self.options(values)
        for estimate in self.playground.bound(self.kind.template(*rest), options.seed, options.label):
            yield self._bound_in_words(estimate)

    def noise(self, example: Any, t: Any, seed: Any) -> Markup:
        """An example and noisy copies of it."""
        copies = marked.noise(self.playground, self.playground.noisy(example, t, seed), float(t))
        return copies + marked.way(self.playground, self.playground.way(example, seed))

    def cancelled(self) -> Markup:
        """What is said after a call was cancelled."""
        return _status("Cancelled.")

    def _bound_in_words(self, estimate: Estimate) -> Markup:
        if estimate.bits != estimate.bits:
            return _status("the blanks are filled in …")
        token, rest = self.playground.codec.token, self.playground.bridge.num_positions - estimate.tokens
        whole_record = self.playground.bridge.lengths is not None
        context = (
            ""
            if whole_record or not rest or self.playground.from_left
            else (f", given the other {rest:,} as the model filled them in")
        )
        error = "exact" if estimate.stderr == 0 else f"± {estimate.stderr:.1f}"
        draws = "" if estimate.stderr == 0 else f" {round(estimate.share * 8) * ROWS} draws of time and noise."
        text = Markup("<b>{:.1f} {} bits</b> at most for {:,} {}{}: {:.2f} per {}{}.{}")
        told = text.format(
            estimate.bits, error, estimate.tokens, token, "s" * (estimate.tokens != 1),
            estimate.bits / estimate.tokens, token, context, draws,
        )  # fmt: skip
        return _status(told, None if estimate.share == 1 else estimate.share)


def _status(text: str, share: float | None = None) -> Markup:
    bar = Markup("") if share is None else Markup("<progress max='1' value='{:.3f}'></progress>").format(share)
    return Markup("<div class='status'>{}{}</div>").format(text, bar)
