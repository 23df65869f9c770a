"""What training a VQ-VAE tells."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dmb.data.codecs import Codec
from dmb.training.reporting import AnyReport, Fact


@dataclass(frozen=True, kw_only=True)
class AutoencoderReport(AnyReport):
    """What happened since the report before. The sample is validation images, each followed by what comes back of it.

    Of the losses and their parts see `VQVAE.loss`: they are means over the training batches since the report before, or
    of validation data.
    """

    phases: ClassVar[dict[str, str]] = {"train": "training", "validation": "validation"}
    caption: ClassVar[str] = "an image, and what comes back of it,"

    phase: Literal["train", "validation"]
    images: int
    """Images learned from so far."""
    reconstruction: float
    loss: float | None = None
    detail: float | None = None
    commitment: float | None = None
    images_per_second: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    psnr: float | None = None
    """Decibels, of validation data."""
    perplexity: float | None = None
    """Codes in use, of validation data."""

    def record(self) -> dict[str, Any]:
        names = ("phase", "step", "images", "seconds", "cpu_seconds", "loss", "reconstruction", "detail", "commitment",
                 "images_per_second", "gradient_norm", "learning_rate", "psnr", "perplexity")  # fmt: skip
        record = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return record | ({"improved": self.improved} if self.phase == "validation" else {})

    def line(self) -> str:
        if self.phase == "train":
            return f"{self.counter()}  loss {self.loss:.4f}"
        best = "  best so far" if self.improved else ""
        return f"{self.counter()}  {self.psnr:.2f} dB, {self.perplexity:.0f} codes in use{best}"

    def place(self) -> list[Fact]:
        return [Fact("phase", self.phases[self.phase])]

    def facts(self) -> list[Fact]:
        if self.phase == "train":
            return [Fact("loss", f"{self.loss:.4f}"), Fact("speed", self.speed)]
        return [Fact("PSNR", f"{self.psnr:.2f}", "dB", main=True), Fact("codes in use", f"{self.perplexity:.0f}")]

    @property
    def speed(self) -> str:
        return f"{self.images_per_second or 0:,.0f} images/s" if self.phase == "train" else ""

    def shown(self, codec: Codec) -> str:
        assert self.sample is not None
        lines = zip(*(text.split("\n") for text in codec.decode(self.sample[:2])), strict=True)
        return "\n".join("  ".join(line) for line in lines)
