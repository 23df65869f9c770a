"""`dmb sample`."""

import shlex
import shutil
import sys
from typing import Annotated

import torch
from tyro.conf import arg

from dmb._core.files import to_json
from dmb.app.cli.parsing import AsJson, GridName, OnDevice, OutFile, OwnRecipe, RunFolder, SamplerName, command
from dmb.app.display import counting, notes, say, side_by_side, tabulated
from dmb.app.evaluation import at_calls, draw, order_used
from dmb.app.records import read_calls
from dmb.app.runs import Run
from dmb.bridges import Bridge
from dmb.data import Columns, Records, Text
from dmb.data.codecs import Images
from dmb.data.columns.base import shown
from dmb.data.lengths import BLANK
from dmb.training.devices import device


def sample(
    run: RunFolder,
    n: Annotated[int, arg(aliases=["-n"])] = 8,
    length: int | None = None,
    calls: int | None = None,
    sampler: SamplerName | None = None,
    grid: GridName = "canonical",
    template: str | None = None,
    blank: str = "_",
    label: str | None = None,
    guidance: float = 1.0,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    out: OutFile = None,
    accelerator: OnDevice = "auto",
    recipe: OwnRecipe = None,
    json_: AsJson = False,
) -> int:
    """Draw samples from a run's model, or fill in the blanks of a template.

    Examples: `dmb sample RUN --template "the ____ of"`; `dmb sample RUN -n 1000 --out more.csv`;
    `dmb sample RUN --template "colour=red"` for a table; `dmb sample RUN --length 1000` for a longer text.

    Args:
        n: number of samples.
        length: symbols per sample, for text and records; a text longer than the windows of training is written
            window by window, each conditioned on the second half of the previous one.
        calls: network calls per sample; default: 64, or one per token for a network that learned by whole paths.
        sampler: sampling algorithm; default: ancestral (exact at any step size), or tweedie for a score head.
            first_hitting and speculative have no number of calls.
        grid: how much each call does: canonical, about the same; uniform in time; cosine, little at first; best, the
            group sizes that cost least on validation data (ARDM), for models that write in random order.
        template: the known part, with blanks; blanks, and everything after its end, are filled in.
        blank: the symbol that stands for a blank in the template.
        label: class to sample, for a model trained with --classes: its number, or its name if it has one, as classes of
            cifar10 and of images in sub-folders do.
        guidance: how strongly to follow the class; 1: as trained.
        temperature: values below 1 favour likely tokens.
        top_p: sample only the likeliest tokens that have this total probability.
        seed: seed of all random numbers.
        out: write to a file in the format of the data (.txt, .csv, .parquet, .fasta, .npy, .png) instead of printing.
        json_: print JSON: tokens, and each sample as text.
    """
    folder = Run.open(run, recipe)
    bridge = folder.bridge(device(accelerator))
    if n < 1:
        raise ValueError(f"-n must be at least 1, got {n}")
    if length is not None and not isinstance(folder.codec, Text | Records):
        raise ValueError(f"--length is for text and records; samples of {run} have {bridge.num_positions} tokens")
    if length is not None and length < 1:
        raise ValueError(f"--length must be at least 1, got {length}")
    if out is not None:
        folder.codec.check_path(out, "--out")
        if json_:
            raise ValueError("--json prints, --out writes: choose one")
    known, codec = None, folder.codec
    if template is not None:
        known = codec.template(template, bridge.num_positions, blank)
        codec = codec.with_given_values(template, blank) if isinstance(codec, Columns) else codec
    if isinstance(folder.codec, Records) and length is not None:
        if length > bridge.num_positions:
            raise ValueError(f"--length must be at most {bridge.num_positions}, the longest record, got {length}")
        known = torch.full((bridge.num_positions,), -1) if known is None else known
        if (known[length:] != -1).any():
            raise ValueError(f"the template must have at most --length {length} symbols")
        known = torch.where(known == -1, BLANK, known)
        known[length:] = folder.codec.padding
    labels = None if label is None else torch.full((n,), folder.label(label))
    if labels is not None and not bridge.num_classes:
        raise ValueError(f"--label is for models trained with --classes, and {run} knows none: leave it out")
    plain = (guidance, temperature, top_p) == (1.0, 1.0, 1.0)
    for line in [] if calls is None or calls < 1 else about_calls(folder, bridge, calls, sampler, grid, plain=plain):
        say(notes, line)
    found = folder.grid(bridge, grid)(calls or bridge.usual_calls)
    with counting(notes, "sampling") as progress:
        if length is not None and length > bridge.num_positions:
            say(notes, f"written in windows of {bridge.num_positions}, each given half of the one before")
        parts = draw(
            bridge, n, length=length, labels=labels, template=known, calls=calls, sampler=sampler, grid=found,
            guidance=guidance, temperature=temperature, top_p=top_p, seed=seed, progress=progress,
        )  # fmt: skip
        tokens = torch.cat(list(parts))[:, :length]
    if out is not None:
        codec.write(out, tokens)
        print(out)
    elif json_:
        print(to_json({"tokens": tokens.tolist(), "text": codec.decode(tokens)}))
    elif isinstance(codec, Columns) and sys.stdout.isatty():
        tabulated(codec.names, [list(map(shown, row)) for row in zip(*codec.cells(tokens), strict=True)])
        say(notes, "as a file: --out rows.csv")
    elif isinstance(codec.view(tokens[:1]), Images):
        print(side_by_side(codec.decode(tokens), shutil.get_terminal_size().columns))
    else:
        print("\n\n".join(codec.decode(tokens)))
    return 0


def about_calls(folder: Run, bridge: Bridge, calls: int, sampler: str | None, grid: str, *, plain: bool) -> list[str]:
    """What is known of samples of so many network calls: their order, and their bound if it was computed.

    Args:
        folder: the run.
        bridge: its model.
        calls: network calls per sample.
        sampler: the sampling algorithm; None: the default.
        grid: its grid.
        plain: whether samples are those of the model as it is, of which alone the bounds are.
    """
    sampler = bridge.step_sampler(sampler)
    lines, found = order_used(bridge, calls), read_calls(folder.path, folder.best())
    bounds = [each for each in found if (each.sampler, each.grid) == (sampler, grid)]
    if plain and bounds:
        lines.append(at_calls(bounds, calls))
    elif plain and bridge.budget_for(calls) is None and calls < bridge.usual_calls:
        words = ["dmb", "evaluate", str(folder.path), "--sampler", sampler]
        words += [] if grid == "canonical" else ["--grid", grid]
        words += ["--calls", f"{calls}", f"{bridge.usual_calls}"]
        lines.append(f"what so few calls cost in bits: {shlex.join(words)}")
    return lines


main = command(sample)
