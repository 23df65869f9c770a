"""What the buttons of the page do: values of components in, values of components out."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup, escape

from dmb.app.display import duration
from dmb.app.evaluation import at_calls
from dmb.app.report.contents import html
from dmb.app.report.examples import path, timed
from dmb.app.serve import marked
from dmb.app.serve.kinds import Kind
from dmb.app.serve.model import ROWS, Certainty, Estimate, Film
from dmb.app.serve.options import Options, whole
from dmb.data.codecs import Cells

REFRESH = 0.15  # seconds between two pictures of a draw on its way

ANY = "any"  # the class of samples that may have any

# a film, what the model thought of one of its samples, and the number of this sample
Scene = tuple[Film, Certainty | None, int]


@contextmanager
def show_errors() -> Iterator[None]:
    """Tell visitors of a ValueError in one line; escaped, because gradio shows messages as HTML."""
    try:
        yield
    except ValueError as problem:
        text = str(escape(" ".join(str(problem).split())[:600]))
        raise gr.Error(text, print_exception=False, duration=8) from None


def in_steps(action: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    """The same for an action that takes its time, and says now and then what it has."""

    def steps(values: tuple[Any, ...]) -> Iterator[Any]:
        with show_errors():
            yield from action(*values)

    # gradio asks whether a function is a generator: of a lambda that is true even where functions are wrapped to check
    # types, as in tests
    return lambda *values: (yield from steps(values))


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
        chosen: dict[str, Any] = {  # a browser may send 8.0 for 8
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in zip(self.settings, own, strict=True)
            if (name, value) != ("label", ANY)
        }
        return Options(**chosen, most=self.kind.most), rest

    def estimate(self, *values: Any) -> Markup:
        """How long a draw will take."""
        options, _ = self.options(values)
        seconds = self.seconds(*values)
        plain = options.temperature == options.guidance == 1
        same = [each for each in self.playground.few_calls if plain and each.how == options.sampler]
        known = f" What is drawn, {at_calls(same, options.calls)}." if same else ""
        return said(f"A draw takes about {duration(seconds) if seconds >= 1 else 'a second'}.{known}")

    def seconds(self, *values: Any) -> float:
        """How long a draw will take, by the last one."""
        return self.playground.seconds(self.options(values)[0], self.playground.bridge.num_positions)

    def draw(self, *values: Any) -> Iterator[tuple[Any, ...]]:
        """As `_draw`; what was there before goes away if that fails."""
        try:
            yield from self._draw(*values)
        except ValueError:
            yield said("Nothing was drawn."), Markup(""), *[gr.skip()] * 5
            raise

    def _draw(self, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Draw samples, or fill in the blanks if something is given.

        It yields a status, the samples, a scene, the slider of the film, its samples, its picture, and a file.
        """
        options, rest = self.options(values)
        template, codec = self.kind.template(*rest) if rest else None, self.kind.codec_for(*rest)
        if template is not None and (template == -1).all():
            template = None
        given = None if template is None else template >= 0
        if given is not None and given.all():
            raise ValueError("nothing is blank: leave or erase something for the model to fill in")
        film = Film(given, options.label)
        began = drawn = time.monotonic()
        moment = None
        for moment in self.playground.draw(options, template, film):
            if time.monotonic() - drawn > REFRESH:  # between pictures too, one can cancel here
                drawn = time.monotonic()
                left = (drawn - began) * (1 / moment.share - 1)
                status = said(f"{moment.share:.0%}, t = {moment.t:.2f}; about {duration(left)} left", moment.share)
                yield status, html(marked.samples(self.playground, moment.x, given, codec)), *[gr.skip()] * 5
            else:
                yield (gr.skip(),) * 7
        assert moment is not None
        took = time.monotonic() - began
        picture = html(marked.samples(self.playground, moment.x, given, codec))
        done = f"{len(moment.x):,} drawn in {took:.1f} s"
        yield said(f"{done}; the film is being made …", 1.0), picture, *[gr.skip()] * 5
        scene: Scene = (film, self.playground.certainty(film, 0), 0)
        file = Path(tempfile.mkdtemp(dir=self.folder)) / f"samples{codec.extension}"  # nothing of a visitor's
        codec.write(file, moment.x)
        more = len(moment.x) - marked.MOST_SHOWN
        note = f" The file has {more:,} more." if isinstance(self.playground.view, Cells) and more > 0 else ""
        yield (
            said(f"{done}.{note}"), picture, scene,
            gr.update(minimum=1, maximum=max(2, len(film)), value=len(film), interactive=True),
            gr.update(choices=[(str(k), k) for k in range(1, film.samples + 1)], value=1, interactive=True),
            html(marked.frame(self.playground, film, len(film) - 1, 0, scene[1], "certainty")),
            gr.update(value=str(file), interactive=True),
        )  # fmt: skip

    def develop(self, scene: Scene | None, sample: Any, number: Any, colour: Any) -> tuple[Scene | None, Markup]:
        """The scene of another sample of the same film, and its frame."""
        if scene is not None:
            film = scene[0]
            chosen = whole("sample", sample, 1, film.samples) - 1
            scene = film, self.playground.certainty(film, chosen), chosen
        return scene, self.frame(scene, number, colour)

    def frame(self, scene: Scene | None, number: Any, colour: Any) -> Markup:
        """A frame of the film."""
        if scene is None:
            return said("Draw something first; then its film is here.")
        film, certainty, sample = scene
        place = min(whole("frame", number, 1, max(2, len(film))), len(film)) - 1
        chosen: marked.Colour = "order" if colour == "order" else "certainty"
        return html(marked.frame(self.playground, film, place, sample, certainty, chosen))

    def rewound(self, scene: Scene | None, number: Any) -> tuple[Any, Any]:
        """The slider, at the beginning if the film is at its end, and the clock that moves it."""
        last = 0 if scene is None else len(scene[0])
        return 1 if number >= last else number, gr.Timer(active=last > 1)

    def next_frame(self, scene: Scene | None, number: Any, colour: Any) -> tuple[Any, Markup, Any]:
        """The film one frame on; the clock stops at its end."""
        last = 0 if scene is None else len(scene[0])
        number = min(whole("frame", number, 1, max(2, last)) + 1, last)
        return number, self.frame(scene, number, colour), gr.Timer(active=number < last)

    def bound(self, *values: Any) -> Iterator[Markup]:
        """The bound of what is given, better and better."""
        options, rest = self.options(values)
        estimates = self.playground.bound(self.kind.template(*rest), options.seed, options.label)
        yield from map(self._bound_in_words, estimates)

    def noise(self, example: Any, t: Any, seed: Any) -> Markup:
        """An example with noisy copies of it, and on its way to noise."""
        x = self.playground.noisy(example, t, seed)
        changed, token = (x[1:] != x[0]).float().mean().item(), self.playground.codec.token
        note = f"At t = {float(t):.2f}, {changed:.0%} of the {token}s of {len(x) - 1} noisy copies have changed."
        copies = [("the example" if k == 0 else f"copy {k}", x[k : k + 1]) for k in range(len(x))]
        way = "One example all the way to noise, with equal shares of all changes between."
        states = timed(self.playground.way(example, seed))
        return html(path(self.playground, copies, note=note), path(self.playground, states, note=way))

    def _bound_in_words(self, estimate: Estimate) -> Markup:
        if estimate.bits != estimate.bits:
            return said("the blanks are filled in …")
        bridge, token = self.playground.bridge, self.playground.codec.token
        context, error, draws = "", "", ""
        rest = bridge.num_positions - estimate.tokens
        if rest and bridge.lengths is None and not bridge.from_left:
            context = f", given the other {rest:,} as the model filled them in"
        if estimate.stderr:
            error, draws = f" ± {estimate.stderr:.1f}", f" {round(estimate.share * 8) * ROWS} draws of time and noise."
        text = Markup("<b>{:.1f}{} bits</b> {} for {:,} {}{}: {:.2f} per {}{}.{}").format(
            estimate.bits, error, "at most" if error else "exactly", estimate.tokens, token,
            "s" * (estimate.tokens != 1), estimate.bits / estimate.tokens, token, context, draws,
        )  # fmt: skip
        return said(text, None if estimate.share == 1 else estimate.share)


def said(text: str, share: float | None = None) -> Markup:
    """A line about what is going on, and a bar if a share of it is done."""
    bar = Markup("") if share is None else Markup("<progress max='1' value='{:.3f}'></progress>").format(share)
    return Markup("<div class='status'>{}{}</div>").format(text, bar)
