import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dmb._core.tensors import read_sizes, read_tensors, write_tensors
from faults import flip
from stopping import same

TENSORS = {"weight": torch.arange(6.0).view(2, 3), "half": torch.ones(3).bfloat16(), "empty": torch.zeros(0, 2)}


@pytest.fixture
def path(tmp_path):
    write_tensors(tmp_path / "x.safetensors", TENSORS, format="pt")
    return tmp_path / "x.safetensors"


def test_tensors_come_back_with_their_metadata(path):
    tensors, metadata = read_tensors(path)
    assert same(tensors, TENSORS)
    assert metadata["format"] == "pt"
    assert read_sizes(path) == {"weight": 6, "half": 3, "empty": 0}


def test_a_flipped_bit_anywhere_is_refused_or_changes_no_tensor(path):
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        flip(path, place, 1 << int(np.random.default_rng(place).integers(8)))
        try:
            assert same(read_tensors(path).tensors, TENSORS)
        except ValueError:
            refused += 1
        path.write_bytes(whole)
    assert refused > 0.9 * len(whole)


def test_equal_tensors_give_equal_files(tmp_path):
    for index in range(8):
        write_tensors(tmp_path / str(index), TENSORS)
    assert len({(tmp_path / str(index)).read_bytes() for index in range(8)}) == 1


def test_a_file_of_another_program_has_no_digest_and_is_read(tmp_path):
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    assert torch.equal(read_tensors(tmp_path / "x.safetensors").tensors["x"], torch.ones(2))
