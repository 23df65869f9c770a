"""Saving a model to a folder and loading it, or from the Hugging Face Hub: a JSON description and tensors, no code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from dmb._core import checks
from dmb._core.configuration import Configurable, from_json
from dmb._core.files import read_tensors, write_json, write_tensors

if TYPE_CHECKING:  # a tenth of the time that torch takes to import
    from huggingface_hub import ModelHubMixin

FORMAT = 2
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
LIBRARY, TAGS = "dmb", ("discrete-diffusion", "discrete-markov-bridge")
"""What the Hub calls models of this library."""
Model = TypeVar("Model", bound="Pretrained")


class Pretrained(Configurable, nn.Module):
    """A module that a folder with `config.json` and `model.safetensors` describes completely."""

    kind: ClassVar[str]
    """What it is called in errors."""
    card: str | None = None
    """The model card of the folder that it was loaded from, which goes wherever the model is saved; see `dmb card`."""

    def tensors(self) -> dict[str, Tensor]:
        """What the file of weights holds."""
        return self.state_dict()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load such weights, in the precision they were saved in; a RuntimeError or ValueError if they do not fit."""
        own, precisions = self.state_dict(keep_vars=True), dict[tuple[str, torch.dtype], torch.dtype]()
        for name, tensor in tensors.items():
            if name not in own:
                continue
            least = max(4, own[name].dtype.itemsize)  # of a process, however coarse its network
            if name.startswith("process.") and tensor.is_floating_point() and tensor.dtype.itemsize < least:
                raise ValueError(f"{name} must have at least {8 * least} bits, got {tensor.dtype}")
            like = (name.partition(".")[0], own[name].dtype)
            if precisions.setdefault(like, tensor.dtype) != tensor.dtype:
                raise ValueError(f"{name} is {tensor.dtype}, but others are {precisions[like]}")
            if tensor.dtype != own[name].dtype:
                if not (tensor.is_floating_point() and own[name].is_floating_point()):
                    raise ValueError(f"{name} is {tensor.dtype}")
                own[name].data = own[name].data.to(tensor.dtype)
        self.load_state_dict(tensors)

    def write(self, folder: Path) -> None:
        """Write both files over the ones that are there; a kill at any moment leaves a model that can be loaded.

        `save_pretrained` does more, such as a model card, but deletes the old description before it writes the new one.
        """
        config = {"format": FORMAT, **self.to_config()}  # first: a model that cannot be described is not begun
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS, self.tensors())
        write_json(folder / CONFIG, config)

    def check_round_trip(self) -> None:
        """A ValueError if what `write` would write could not be loaded again; call it before training."""
        config, tensors = self.to_config(), self.tensors()
        try:
            with torch.random.fork_rng(devices=[]):
                self.from_config(json.loads(json.dumps(config)), tensors).load_tensors(tensors)
        except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            cure = "config() must give the arguments of the constructor"
            raise ValueError(f"the {self.kind} could not be loaded again: {error}: {cure}") from error

    def save_pretrained(
        self, save_directory: str | Path, *, repo_id: str | None = None, push_to_hub: bool = False
    ) -> str | None:
        """Write the files and a model card, its own or a generic one.

        Args:
            save_directory: the folder.
            repo_id: see `push_to_hub`; default: the name of the folder.
            push_to_hub: put the model on the Hub, too.
        """
        return _on_hub(self).save_pretrained(save_directory, repo_id=repo_id, push_to_hub=push_to_hub)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Push model using huggingface_hub.",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Put the model on the Hugging Face Hub; see `huggingface_hub.ModelHubMixin.push_to_hub`."""
        return _on_hub(self).push_to_hub(
            repo_id, commit_message=commit_message, private=private, token=token, branch=branch, create_pr=create_pr
        )

    @classmethod
    @checks.known_options
    def from_pretrained(
        cls: type[Model],
        pretrained_model_name_or_path: str | Path,
        *,
        map_location: str = "cpu",
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
    ) -> Model:
        """A model from a folder, or from the Hugging Face Hub; in evaluation mode.

        Args:
            pretrained_model_name_or_path: a folder that `write` wrote to, or the name of a repository.
            map_location: the device.
            revision: of a repository: a branch, a tag or a commit.
            cache_dir: where files of repositories are kept.
            force_download: download files that are there already.
            local_files_only: download nothing.
            token: for a repository that is not public.
        """
        folder = Path(pretrained_model_name_or_path)
        if folder.is_dir():
            config_path, weights_path = folder / CONFIG, folder / WEIGHTS
            for path in (config_path, weights_path):
                if not path.is_file():
                    raise ValueError(f"{folder} is not a saved {cls.kind}: it has no {path.name}")
        else:
            config_path, weights_path = _from_hub(
                str(pretrained_model_name_or_path), revision=revision, cache_dir=cache_dir,
                force_download=force_download, local_files_only=local_files_only, token=token,
            )  # fmt: skip
        tensors: Mapping[str, Tensor] = read_tensors(weights_path).tensors
        try:
            config = from_json(config_path.read_text(encoding="utf-8"), parse_constant=_not_finite)
            if not isinstance(config, dict):
                raise ValueError("not a JSON object")
            if (found := config.pop("format", None)) != FORMAT:
                raise ValueError(f"it has format {found}, but this version of dmb reads {FORMAT}")
            config, tensors = cls.upgraded(config, tensors)
            model: Model = cls.from_config(config, tensors)
        except Exception as error:  # a description can be wrong in any way
            raise ValueError(f"{config_path} does not describe a {cls.kind}: {error}") from error
        try:
            model.load_tensors(tensors)
        except (RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())
            raise ValueError(f"{weights_path} does not fit {config_path}: {why}") from error
        if (folder / CARD).is_file():
            model.card = (folder / CARD).read_text(encoding="utf-8", errors="replace")
        return model.to(map_location).eval()

    @staticmethod
    def upgraded(config: dict[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
        """The description and tensors of a model that an earlier version wrote, as this version writes them."""
        return config, tensors


def _not_finite(name: str) -> None:
    raise ValueError(f"numbers must be finite, got {name}")


def _from_hub(repository: str, **options: Any) -> list[Path]:
    """Both files of a model from the Hugging Face Hub, or from where its library keeps them."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    revision = options["revision"]
    try:
        kept = try_to_load_from_cache(repository, CONFIG, options["cache_dir"], revision)
        if kept is None and not options["local_files_only"]:  # a download would ask for half a minute
            get_hf_file_metadata(hf_hub_url(repository, CONFIG, revision=revision), token=options["token"])
        return [Path(hf_hub_download(repository, name, **options)) for name in (CONFIG, WEIGHTS)]
    except Exception as error:  # of the connection, of the name, of the repository
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{repository!r} is no folder, and cannot be read from the Hugging Face Hub: {why}") from error


def _on_hub(model: Pretrained) -> "ModelHubMixin":
    """The model as the Hub's library knows models; a ValueError if it could not be loaded again."""
    model.check_round_trip()
    from huggingface_hub import ModelHubMixin

    class Saved(ModelHubMixin, library_name=LIBRARY, tags=[*TAGS]):
        def _save_pretrained(self, save_directory: Path) -> None:
            model.write(save_directory)
            card = save_directory / CARD
            if model.card is not None and not card.exists():  # the Hub's library replaces none either
                card.write_text(model.card, encoding="utf-8")

    return Saved()
