"""Saving a model to a folder and loading it, or from the Hugging Face Hub: a JSON description and tensors, no code."""

import json
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from dmb._core.files import written_whole
from dmb._core.tensors import read_tensors, write_tensors

if TYPE_CHECKING:  # a tenth of the time that torch takes to import
    from huggingface_hub import ModelHubMixin

FORMAT = 2
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
LIBRARY, TAGS = "dmb", ("discrete-diffusion", "discrete-markov-bridge")
"""What the Hub calls models of this library."""
Model = TypeVar("Model", bound="Pretrained")
_HUB = ("revision", "cache_dir", "force_download", "local_files_only", "token")


class Pretrained(nn.Module):
    """A module that a folder with `config.json` and `model.safetensors` describes completely."""

    kind: ClassVar[str]
    """What it is called in errors."""
    card: str | None = None
    """The model card of the folder that it was loaded from, which goes wherever the model is saved; see `dmb card`."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What `from_description` needs to build such a model, as JSON."""

    @classmethod
    @abstractmethod
    def from_description(cls: type[Model], config: dict[str, Any], tensors: Mapping[str, Tensor]) -> Model:
        """A model of that description and of the shapes of these tensors, for `load_tensors` to fill in.

        A KeyError, TypeError or ValueError if they do not describe one.
        """

    def tensors(self) -> dict[str, Tensor]:
        """What the file of weights holds."""
        return self.state_dict()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load such weights, in the precision they were saved in; a RuntimeError or ValueError if they do not fit."""
        own, precisions = self.state_dict(), dict[tuple[str, torch.dtype], torch.dtype]()
        for name, tensor in tensors.items():
            if name not in own:
                continue
            like = (name.partition(".")[0], own[name].dtype)
            if precisions.setdefault(like, tensor.dtype) != tensor.dtype:
                raise ValueError(f"{name} is {tensor.dtype}, but others are {precisions[like]}")
            if tensor.dtype == own[name].dtype:
                continue
            if not (tensor.is_floating_point() and own[name].is_floating_point()):
                raise ValueError(f"{name} is {tensor.dtype}")
            _set_dtype(self, name, tensor.dtype)
        self.load_state_dict(tensors)

    def write(self, folder: Path) -> None:
        """Write both files over the ones that are there; a kill at any moment leaves a model that can be loaded.

        `save_pretrained` does more, such as a model card, but deletes the old description before it writes the new one.
        """
        config = {"format": FORMAT, **self.description()}  # first: a model that cannot be described is not begun
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS, self.tensors())
        with written_whole(folder / CONFIG) as part:
            part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def check_round_trip(self) -> None:
        """A ValueError if what `write` would write could not be loaded again; call it before training."""
        config, tensors = self.description(), self.tensors()
        try:
            with torch.random.fork_rng(devices=[]):
                self.from_description(json.loads(json.dumps(config)), tensors).load_tensors(tensors)
        except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            cure = "config() must give the arguments of the constructor"
            raise ValueError(f"the {self.kind} could not be loaded again: {error}: {cure}") from error

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Write the files and a model card, its own or a generic one; see `huggingface_hub.ModelHubMixin`."""
        return _on_hub(self).save_pretrained(save_directory, **options)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Put the model on the Hugging Face Hub; see `huggingface_hub.ModelHubMixin.push_to_hub`."""
        return _on_hub(self).push_to_hub(repo_id, **options)

    @classmethod
    def from_pretrained(
        cls: type[Model], pretrained_model_name_or_path: str | Path, *, map_location: str = "cpu", **options: Any
    ) -> Model:
        """A model from a folder, or from the Hugging Face Hub; in evaluation mode.

        Args:
            pretrained_model_name_or_path: a folder that `write` wrote to, or the name of a repository.
            map_location: the device.
            options: `revision`, `cache_dir`, `force_download`, `local_files_only` and `token`, for a repository.
        """
        for name in sorted(options.keys() - set(_HUB)):
            raise ValueError(f"from_pretrained has no option {name}")
        folder = Path(pretrained_model_name_or_path)
        if folder.is_dir():
            config_path, weights_path = folder / CONFIG, folder / WEIGHTS
            for path in (config_path, weights_path):
                if not path.is_file():
                    raise ValueError(f"{folder} is not a saved {cls.kind}: it has no {path.name}")
        else:
            from huggingface_hub import hf_hub_download

            repository = str(pretrained_model_name_or_path)
            config_path, weights_path = (
                Path(hf_hub_download(repository, name, **options)) for name in (CONFIG, WEIGHTS)
            )
        model, tensors = cls._read(config_path, read_tensors(weights_path).tensors)
        try:
            model.load_tensors(tensors)
        except (RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())
            raise ValueError(f"{weights_path} does not fit {config_path}: {why}") from error
        if folder.is_dir() and (folder / CARD).is_file():
            model.card = (folder / CARD).read_text(encoding="utf-8", errors="replace")
        return model.to(map_location).eval()

    @classmethod
    def upgraded(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor]
    ) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
        """The description and tensors of a model that an earlier version wrote, as this version writes them."""
        return config, tensors

    @classmethod
    def _read(cls: type[Model], path: Path, tensors: Mapping[str, Tensor]) -> tuple[Model, Mapping[str, Tensor]]:
        try:
            config = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
            if not isinstance(config, dict):
                raise ValueError("not a JSON object")
            found = config.pop("format", None)
            if found != FORMAT:
                raise ValueError(f"it has format {found}, but this version of dmb reads {FORMAT}")
            config, tensors = cls.upgraded(config, tensors)
            return cls.from_description(config, tensors), tensors
        except Exception as error:  # a description can be wrong in any way
            raise ValueError(f"{path} does not describe a {cls.kind}: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"numbers must be finite, got {name}")


def _on_hub(model: Pretrained) -> "ModelHubMixin":
    """The model as the Hub's library knows models; a ValueError if it could not be loaded again."""
    model.check_round_trip()
    from huggingface_hub import ModelHubMixin

    class Saved(ModelHubMixin, library_name=LIBRARY, tags=[*TAGS]):
        def _save_pretrained(self, save_directory: Path) -> None:
            model.write(save_directory)
            if (
                model.card is not None and not (save_directory / CARD).exists()
            ):  # the Hub's library replaces none either
                (save_directory / CARD).write_text(model.card, encoding="utf-8")

    return Saved()


def _set_dtype(model: nn.Module, name: str, dtype: torch.dtype) -> None:
    """Give the tensor called `name` another precision, in place."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    tensor = getattr(module, leaf)
    if isinstance(tensor, nn.Parameter):
        tensor.data = tensor.data.to(dtype)
    else:
        setattr(module, leaf, tensor.to(dtype))
