import pytest
import torch

from dmb.training.checkpoint import Checkpoint, Checkpoints, read, write


def checkpoint(step=0):
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "weights": torch.randn(3, 4, generator=generator),
        "exact": torch.randn(5, generator=generator, dtype=torch.float64),
        "half": torch.randn(5, generator=generator).bfloat16(),
        "scalar": torch.tensor(7.0),
        "running": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
    }
    return Checkpoint(tensors, {"step": step, "bits": 0.1 + 0.2, "best": None})


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path):
    saved = checkpoint(3)
    write(tmp_path / "one.safetensors", saved)
    loaded = read(tmp_path / "one.safetensors")
    assert loaded.state == saved.state
    assert loaded.tensors.keys() == saved.tensors.keys()
    for name, tensor in saved.tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor)


@pytest.mark.parametrize("where", [0.01, 0.3, 0.6, 0.99])
def test_one_wrong_byte_anywhere_is_noticed(tmp_path, where):
    path = tmp_path / "one.safetensors"
    write(path, checkpoint())
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"one\.safetensors"):
        read(path)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_truncated_file_is_noticed(tmp_path, length):
    path = tmp_path / "one.safetensors"
    write(path, checkpoint())
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"one\.safetensors"):
        read(path)


def test_the_last_few_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    for step in (10, 20, 30, 40, 50):
        checkpoints.save(step, checkpoint(step), best=20 if step >= 20 else step)
    assert checkpoints.steps() == [20, 40, 50]


def test_checkpoints_from_beyond_the_point_of_return_are_deleted(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (2, 20):
        checkpoints.save(step, checkpoint(step), best=2)
    checkpoints.save(10, checkpoint(10), best=2)
    assert checkpoints.steps() == [2, 10]


def test_a_spoilt_newest_checkpoint_gives_a_warning_and_the_one_before(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, checkpoint(step))
    checkpoints.path(3).write_bytes(checkpoints.path(3).read_bytes()[:-9])
    with pytest.warns(UserWarning, match="step_000000003.*going back"):
        found = checkpoints.newest()
    assert found is not None
    assert found.state["step"] == 2


def test_without_a_readable_checkpoint_there_is_none(tmp_path):
    assert Checkpoints(tmp_path / "nothing").newest() is None
    (tmp_path / "step_000000001.safetensors").write_bytes(b"not one")
    with pytest.warns(UserWarning, match="cannot be read"):
        assert Checkpoints(tmp_path).newest() is None
