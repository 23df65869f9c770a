"""`dmb tokenize`."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dmb import data
from dmb._core.configuration import from_json, typed
from dmb._core.files import append_line, to_json, write_json
from dmb.app.cli.parsing import OnDevice, parsed
from dmb.app.cli.settings import from_anywhere
from dmb.app.display import Display, counting, notes, of_first_process, say
from dmb.app.images import TokenizerSettings, train_tokenizer
from dmb.app.images.codes import SETTINGS, SHEET, SUMMARY, write_codes, write_sheet
from dmb.app.records import METRICS, rewind
from dmb.app.session import alone_in, ended, introduce, stopped_by
from dmb.data.reading import as_value_error
from dmb.training.devices import engine


@dataclass(frozen=True, kw_only=True)
class Tokenize:
    """Turn images into codes with a VQ-VAE; `dmb train CODES` then learns codes, which is much faster than pixels.

    Examples: `dmb tokenize photos/ --size 64 --out codes/`; `dmb tokenize cifar10 --out codes/ --grid 8 --minutes 5`.

    CODES/sheet.png shows images, each beside its reconstruction. Ctrl-C stops it at any time; the same command with
    --resume continues, with its previous settings as defaults.

    Args:
        source: A folder of images, or cifar10.
        out: The folder to write.
        size: Crop each image to a square and resize it to this many pixels a side; None: use squares of one size
            unchanged.
        resume: Continue in --out from its newest checkpoint; start if there is none.
        devices: Number of processes.
    """

    source: Annotated[Positional[str], arg(metavar="IMAGES")]
    out: Annotated[Path, arg(metavar="CODES", aliases=["-o"])]
    size: int | None = None
    resume: bool = False
    settings: TokenizerSettings = field(default_factory=TokenizerSettings)
    accelerator: OnDevice = "auto"
    devices: int = 1


def main(arguments: list[str]) -> int:
    """Train a VQ-VAE on images, and write their codes; 0, or 128 plus the number of the signal that stopped it."""
    flags = parsed(Tokenize, arguments, prog="dmb tokenize")
    if flags.resume and (flags.out / SETTINGS).is_file():  # its settings are the defaults
        flags = parsed(Tokenize, arguments, prog="dmb tokenize", default=_begun(flags))
    source, out, settings = from_anywhere(flags.source), flags.out, flags.settings
    going_on = _going_on(replace(flags, source=source))
    console = of_first_process(notes)
    with counting(console, "reading the images") as progress:
        images = data.load(source, size=flags.size, progress=progress)
    vqvae, fabric = settings.build(images), engine(accelerator=flags.accelerator, devices=flags.devices)
    chief = fabric.is_global_zero
    with alone_in(out, fabric) as signals:
        reports = train_tokenizer(vqvae, images, settings, fabric=fabric, folder=out, resume=going_on, stop=signals)
        if chief:
            write_json(out / SETTINGS, {"source": source, "size": flags.size, "settings": asdict(settings)})
            (out / SUMMARY).unlink(missing_ok=True)
            introduce(console, images)
            plan = f"grids of {settings.grid} × {settings.grid} codes out of {settings.codes}; {settings.steps} steps"
            plan += f" of {settings.batch_size} images"
            plan += f", and {more} of the decoder alone" if (more := settings.adversarial_steps) else ""
            say(console, f"{'continuing' if going_on else 'making'} {out}: {plan}")
        with Display(console, images.codec).shown() as display:
            for number, report in enumerate(reports):
                if not chief:
                    continue
                if number == 0:
                    rewind(out, report.index)
                append_line(out / METRICS, to_json(report.record()))
                display.update(report)
                if report.improved:
                    write_sheet(out / SHEET, vqvae, images)
    number = stopped_by(signals, fabric, console, ["dmb", "tokenize", source, "--out", str(out), "--resume"])
    if chief and not number:
        with counting(console, "encoding") as progress:
            about = write_codes(out, vqvae.to(fabric.device), images, progress, settings.adversarial_steps)
        test, used = about["images"]["test"], about["perplexity"]
        print(f"PSNR {about['psnr']:.2f} dB of {test:,} test images; {used:.1f} codes in use of {vqvae.codes:,}")
        say(console, f"images beside their reconstructions: {out / SHEET}; train on their codes with: dmb train {out}")
    return ended(number, fabric)


def _begun(flags: Tokenize) -> Tokenize:
    """These flags, but with the source, the size and the settings of the existing folder."""
    file = flags.out / SETTINGS
    with as_value_error(f"{file} does not describe a tokenizer", OSError, ValueError, KeyError, TypeError):
        begun = from_json(file.read_text(encoding="utf-8"))
        # codes were points before there was a choice
        settings, size = typed(TokenizerSettings, {"cosine": False} | begun["settings"]), begun.get("size")
        return replace(flags, source=begun["source"], size=size, settings=settings)


def _going_on(flags: Tokenize) -> bool:
    """Whether there is something to continue; a ValueError if the folder cannot be used."""
    out = flags.out
    if not (out / SETTINGS).is_file():
        if out.is_file() or (out.exists() and any(file.name != ".lock" for file in out.iterdir())):
            raise ValueError(f"{out} exists already, but is not a folder of codes: choose another --out")
        return False
    if not flags.resume:
        raise ValueError(f"{out} exists already: choose another --out, or continue it with --resume")
    before = _begun(flags)
    if before.source != flags.source:
        raise ValueError(f"{out} has codes of {before.source}, not of {flags.source}: choose another --out")
    wanted, found = ({"size": each.size, **each.settings.sizes()} for each in (flags, before))
    if (out / METRICS).is_file() and b'"phase": "decoder"' in (out / METRICS).read_bytes():
        wanted["steps"], found["steps"] = flags.settings.steps, before.settings.steps  # those are over
    for name, value in found.items():
        if wanted[name] != value:
            raise ValueError(f"--{name.replace('_', '-')} cannot change during training: leave it out, or give {value}")
    return True
