"""Images and codes: a brush that erases part of a picture, for the model to fill in."""

from typing import Any

import gradio as gr
import numpy as np
import torch
from gradio.components.base import server
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from dmb.app.images import Codes
from dmb.app.serve.actions import Scene, show_errors
from dmb.app.serve.kinds import Kind
from dmb.app.serve.options import whole
from dmb.data.codecs import Grid, Images, Picture

# pixels of the longer side on the page; the same of an uploaded picture at most; the share of a token that must be
# brushed over to be erased; what an encoder sees there
CANVAS, LARGEST, ERASED, GREY = 320, 4096, 0.25, 128
# of a picture that is sent; bytes of all pictures that were sent and wait for their call
LAYERS, MOST_STORED = 16, 128 << 20


class ImageKind(Kind):
    """A picture to paint on: a validation example, a sample, or one of the visitor's own."""

    usual = 16

    @property
    def view(self) -> Images:
        view = self.playground.view
        assert isinstance(view, Images)
        return view

    def inputs(self) -> list[Any]:
        tokens = self.playground.examples[0]
        exact = gr.State(tokens.tolist(), time_to_live=3600)
        picture, brush = self.enlarged(tokens), max(12, CANVAS // max(self.view.grid))  # which covers a token
        editor = gr.ImageEditor(
            value=picture, label="A picture: brush over what is to be erased", sources=["upload"], type="numpy",
            image_mode="RGBA", transforms=(), layers=False, canvas_size=(picture.shape[1], picture.shape[0]),
            brush=gr.Brush(colors=["#d9662b"], color_mode="fixed", default_size=brush), eraser=gr.Eraser(),
            height=CANVAS + 120, buttons=[], format="png", elem_id="picture",
        )  # fmt: skip
        with gr.Row():
            last = len(self.playground.examples)
            number = gr.Number(1, label=f"Validation example, 1 to {last:,}", precision=0, minimum=1, maximum=last)
            with gr.Column(min_width=120):
                self.take = gr.Button("Take sample 1 instead", size="md")
        number.change(
            show_errors()(self.chosen), [number], [editor, exact], api_visibility="private", show_progress="hidden",
            trigger_mode="always_last", concurrency_limit=8,
        )  # fmt: skip
        editor.upload(lambda: None, None, [exact], api_visibility="private", show_progress="hidden")
        editor.accept_blobs = _limited(editor)
        self.editor, self.exact = editor, exact
        return [editor, exact]

    def chosen(self, number: Any) -> tuple[Any, Any]:
        """A validation example as a picture to paint on, and its tokens."""
        tokens = self.playground.examples[whole("example", number, 1, len(self.playground.examples)) - 1]
        return self.enlarged(tokens), tokens.tolist()

    def sampled(self, scene: Scene | None) -> tuple[Any, Any]:
        """The first sample as a picture to paint on, and its tokens."""
        if scene is None:
            raise ValueError("there is no sample yet: draw some first")
        tokens = scene[0].of(0)[-1]
        return self.enlarged(tokens), tokens.tolist()

    def template(self, *values: Any) -> Int[Tensor, " d"]:
        painted, exact = values
        if not isinstance(painted, dict) or painted.get("background") is None:
            raise ValueError("there is no picture: choose an example, or upload one")
        background = np.asarray(painted["background"])
        if max(background.shape[:2]) > LARGEST:
            raise ValueError(f"a picture must have at most {LARGEST:,} × {LARGEST:,} pixels")
        strokes = [np.asarray(layer)[..., 3] > 0 for layer in painted.get("layers") or []]
        cells = _covered(strokes, *self.view.grid) >= ERASED
        erased = torch.from_numpy(cells.ravel().repeat(self.playground.bridge.num_positions // cells.size))
        known = isinstance(exact, list) and len(exact) == len(erased)
        return torch.where(erased, -1, torch.tensor(exact) if known else self.read(background, strokes))

    def read(self, picture: UInt8[np.ndarray, "h w k"], strokes: list[Bool[np.ndarray, "h w"]]) -> Int[Tensor, " d"]:
        """The tokens of the middle of any picture, made as large as those of the data, on white if transparent."""
        codec, (height, width, channels) = self.playground.codec, self.view.pixels.shape[1:]
        page = Image.fromarray(np.asarray(picture, dtype=np.uint8)).convert("RGBA")
        flat = Image.alpha_composite(Image.new("RGBA", page.size, "white"), page)
        small = ImageOps.fit(flat.convert("L" if channels == 1 else "RGB"), (width, height), Image.Resampling.BOX)
        values = np.array(small).reshape(height, width, channels)
        if isinstance(codec, Codes):
            values[_covered(strokes, height, width) > 0] = GREY
            return torch.from_numpy(codec.encode(values[None])[0]).long()
        if isinstance(codec, Picture):
            return torch.from_numpy(values.ravel().astype(np.int64) * codec.levels // 256)
        assert isinstance(codec, Grid)
        shades = np.arange(codec.num_states) * 255 // max(1, codec.num_states - 1)  # as `Grid.view` has them
        return torch.from_numpy(np.abs(values.reshape(-1, 1).astype(np.int64) - shades).argmin(-1))

    def enlarged(self, tokens: Int[Tensor, " d"]) -> UInt8[np.ndarray, "h w 3"]:
        """A picture large enough to paint on."""
        picture = self.playground.symbols.painted(tokens[None])[0]
        scale = max(1, CANVAS // max(picture.shape[:2]))
        return picture.repeat(scale, axis=0).repeat(scale, axis=1)


def _limited(editor: gr.ImageEditor) -> Any:
    """Keep the layers that a browser sends before a call, as it does, but forget the oldest if there are many."""
    accept = editor.accept_blobs

    def accept_blobs(data: Any) -> None:
        index = data.data["index"]
        if index and index != "null":
            whole("layer", int(index), 0, LAYERS)
        accept(data)
        stored = editor.blob_storage
        stored[data.data["id"]] = stored.pop(data.data["id"])  # the newest is the last
        sizes = {
            name: sum(len(blob) for blob in (blobs.background, blobs.composite, *blobs.layers) if blob is not None)
            for name, blobs in stored.items()
        }
        for name in list(stored):
            if sum(sizes.values()) > MOST_STORED:
                stored.pop(name, None)
                sizes.pop(name)

    return server(accept_blobs)


def _covered(strokes: list[Bool[np.ndarray, "h w"]], down: int, across: int) -> Float[np.ndarray, "down across"]:
    """The share of each cell of a grid in the middle that a stroke covers: the largest, if there are several."""
    drawn = (Image.fromarray(stroke.astype(np.float32)) for stroke in strokes)
    shares = (np.asarray(ImageOps.fit(stroke, (across, down), Image.Resampling.BOX)) for stroke in drawn)
    return np.max([np.zeros((down, across), dtype=np.float32), *shares], axis=0)
