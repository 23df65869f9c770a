"""The page: components, and which action each of them calls."""

from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from dmb.app.report.contents import Block, html
from dmb.app.report.results import facts, headline
from dmb.app.serve.actions import ANY, Actions, in_steps, said, show_errors
from dmb.app.serve.images import ImageKind
from dmb.app.serve.kinds import Kind, TextKind
from dmb.app.serve.model import Playground
from dmb.app.serve.options import MOST_CALLS
from dmb.app.serve.table import TableKind
from dmb.data.codecs import Cells, Images

WAITING = 100  # calls that may wait; one more is refused
FRAME, LONGEST_START = 0.2, 10.0  # seconds per frame of a film that plays, and of a draw for whoever opens the page
ONE_AT_A_TIME: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1, "show_progress": "hidden"}
# for calls that need no network
AT_ONCE: dict[str, Any] = {"concurrency_limit": 8, "show_progress": "hidden", "api_visibility": "private"}


def kind_of(playground: Playground) -> Kind:
    """The kind of data that the model is of."""
    kinds: dict[type, type[Kind]] = {Images: ImageKind, Cells: TableKind}
    return kinds.get(type(playground.view), TextKind)(playground)


def page(playground: Playground, folder: Path) -> gr.Blocks:
    """The page about a model.

    Args:
        playground: the model.
        folder: where files to download are written.
    """
    kind = kind_of(playground)
    about = [("Run", playground.title), *facts(playground), ("Bound", " ".join(headline(playground)))]
    with gr.Blocks(
        title=f"dmb · {playground.title}", analytics_enabled=False, fill_width=True, delete_cache=(600, 1800)
    ) as blocks:
        gr.HTML(Markup("<h1>{}</h1><p>{}</p>").format(playground.title, playground.sentence), elem_id="about")
        with gr.Tabs():
            with gr.Tab("Samples"):
                _samples(kind, folder)
            with gr.Tab("What noise destroys"):
                _noise(kind, folder)
            with gr.Tab("About this model"):
                gr.HTML(html(Block(kind="facts", body=about)))
    blocks.queue(max_size=WAITING, default_concurrency_limit=1)
    return blocks


def _samples(kind: Kind, folder: Path) -> None:
    images = isinstance(kind, ImageKind)
    with gr.Row():
        with gr.Column(scale=2, min_width=340):
            given = kind.inputs()
            with gr.Row():
                draw = gr.Button(kind.verb, variant="primary", size="md", min_width=90, elem_id="draw")
                fill = gr.Button("Fill in", size="md", min_width=90, visible=images, elem_id="fill")
                bound = gr.Button("Bound", size="md", min_width=90, elem_id="bound")
                cancel = gr.Button(
                    "Cancel", variant="stop", size="md", min_width=80, interactive=False, elem_id="cancel"
                )
            settings = _settings(kind)
        with gr.Column(scale=3, min_width=340):
            status = gr.HTML(elem_id="status")
            samples = gr.HTML(elem_id="samples")
            file = gr.DownloadButton("Download", size="sm", interactive=False, elem_id="download")
            with gr.Accordion("The reverse process as a film", open=not isinstance(kind, TableKind)):
                with gr.Row():
                    play = gr.Button("▶ Play", size="md", min_width=80, scale=0, elem_id="play")
                    number = gr.Slider(1, 2, value=1, step=1, label="Frame", interactive=True, elem_id="frame", scale=3)
                    sample = gr.Dropdown([1], value=1, label="Sample", min_width=80, scale=1)
                colour = gr.Radio(
                    [("how certain the model is", "certainty"), ("when it was decided", "order")], value="certainty",
                    label="Coloured by", visible=not images, elem_id="colour",
                )  # fmt: skip
                picture = gr.HTML(elem_id="film")
    scene, clock = gr.State(None, time_to_live=3600), gr.Timer(FRAME, active=False)
    do = Actions(kind, list(settings), folder)
    inputs, outputs = [*settings.values(), *given], [status, samples, scene, number, sample, picture, file]
    events: list[Any] = [
        draw.click(in_steps(do.draw), [*settings.values()] if images else inputs, outputs,
                   api_name="draw", **ONE_AT_A_TIME),
        bound.click(in_steps(do.bound), inputs, [status], api_name="bound", **ONE_AT_A_TIME),
        sample.input(show_errors()(do.develop), [scene, sample, number, colour], [scene, picture],
                     api_visibility="private", **ONE_AT_A_TIME),
    ]  # fmt: skip
    if isinstance(kind, ImageKind):
        events.append(fill.click(in_steps(do.draw), inputs, outputs, api_name="fill", **ONE_AT_A_TIME))
        kind.take.click(show_errors()(kind.sampled), [scene], [kind.editor, kind.exact], **AT_ONCE)
    if isinstance(kind, TableKind):
        gr.Markdown("### Distributions of the other columns")
        shown = gr.HTML(kind.distributions(*(box.value for box in given)), elem_id="distributions")
        gr.on([box.change for box in given], show_errors()(kind.distributions), given, [shown],
              api_visibility="private", trigger_mode="always_last", **ONE_AT_A_TIME)  # fmt: skip
    gr.on([draw.click, bound.click, fill.click], lambda: gr.update(interactive=True), None, [cancel], **AT_ONCE)
    for event in events:
        event.then(lambda: gr.update(interactive=False), None, [cancel], **AT_ONCE)
    # only then, or a late step writes over it
    cancel.click(None, cancels=events).then(
        lambda: (said("Cancelled."), gr.update(interactive=False)), None, [status, cancel], **AT_ONCE
    )
    gr.on([number.input, colour.input], show_errors()(do.frame), [scene, number, colour], [picture],
          trigger_mode="always_last", **AT_ONCE)  # fmt: skip
    play.click(do.rewound, [scene, number], [number, clock], **AT_ONCE)
    clock.tick(show_errors()(do.next_frame), [scene, number, colour], [number, picture, clock], **AT_ONCE)
    gr.on([each.change for each in settings.values()], do.estimate, [*settings.values()], [status],
          trigger_mode="always_last", **AT_ONCE)  # fmt: skip
    options = [component.value for component in (settings.values() if images else inputs)]
    picture.value = do.frame(None, 1, "certainty")
    if do.seconds(*options) < LONGEST_START:  # something to see at once
        *_, (_, samples.value, scene.value, slider, choice, picture.value, _) = do.draw(*options)
        for component, update in ((number, slider), (sample, choice)):
            vars(component).update(update)
    status.value = do.estimate(*options[: len(settings)])


def _settings(kind: Kind) -> dict[str, Any]:
    """Components of the settings of a draw, by name."""
    bridge, found = kind.playground.bridge, dict[str, Any]()
    with gr.Row():
        found["n"] = gr.Slider(1, kind.most, value=kind.usual, step=1, label="Samples", min_width=150)
        found["calls"] = gr.Slider(
            1, MOST_CALLS, value=min(MOST_CALLS, bridge.usual_calls), step=1, label="Calls", min_width=150,
            elem_id="calls",
        )  # fmt: skip
    with gr.Row():
        found["temperature"] = gr.Slider(0.1, 2.0, value=1.0, step=0.05, label="Temperature", min_width=150)
        found["sampler"] = gr.Dropdown([*bridge.samplers], value=bridge.samplers[0], label="Sampler", min_width=120)
        found["seed"] = gr.Number(0, label="Seed", precision=0, minimum=0, min_width=80)
    if bridge.num_classes:
        with gr.Row():
            classes: list[Any] = [("any", ANY), *((name, k) for k, name in enumerate(kind.playground.classes))]
            found["label"] = gr.Dropdown(classes, value=ANY, label="Class", min_width=100, elem_id="class")
            found["guidance"] = gr.Slider(0, 5, value=1.0, step=0.25, label="Guidance", min_width=150)
    return found


def _noise(kind: Kind, folder: Path) -> None:
    last = len(kind.playground.examples)
    gr.Markdown("A validation example, and noisy copies of it at a time of your choice: 0 is data, 1 is noise.")
    with gr.Row():
        t = gr.Slider(0, 1, value=0.3, step=0.01, label="Time t", scale=3, elem_id="time")
        number = gr.Number(1, label=f"Example, 1 to {last:,}", precision=0, minimum=1, maximum=last, min_width=120)
        seed = gr.Number(0, label="Seed", precision=0, minimum=0, min_width=100)
    do = Actions(kind, [], folder)
    shown = gr.HTML(do.noise(1, 0.3, 0), elem_id="noise")
    gr.on([t.change, number.change, seed.change], show_errors()(do.noise), [number, t, seed], [shown], api_name="noise",
          trigger_mode="always_last", show_progress="hidden", concurrency_limit=4)  # fmt: skip
