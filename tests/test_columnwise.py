"""Columns written one after the other: their shares, and how they are trained by default."""

import pytest
import torch

import dmb
from commands import dmb_
from dmb.all_orders import AllOrders
from dmb.columnwise import calibrate, column_training
from dmb.data.splits import Rows
from dmb.seeding import seeded
from dmb.tensors import read_tensors, write_tensors
from stopping import same


def rows_of_three_columns(count=1500):
    """The last column is rare where the first two differ."""
    first = torch.randint(0, 3, (count,), generator=seeded("first"))
    second = (first + (torch.rand(count, generator=seeded("second")) < 0.3)) % 3
    third = torch.where(torch.rand(count, generator=seeded("third")) < 0.1 + 0.5 * (first == second), 1, 0)
    return torch.stack([first, second, third], dim=-1)


def test_after_calibration_each_state_is_as_likely_as_it_is_frequent_on_average_over_rows():
    """Compared with conditionals by blanking later columns, one at a time, of a network with random weights."""
    rows, order = rows_of_three_columns(), [2, 0, 1]
    marginals = torch.stack([column.bincount(minlength=3) / len(rows) for column in rows.T])
    bridge = bridge_of_three_columns(order)

    def shares():
        found = torch.zeros(3, 3, dtype=torch.float64)
        written = torch.full_like(rows, -1)
        for column in order:
            found[column] = AllOrders(bridge).log_conditionals(written)[:, column, :3].exp().mean(0)
            written[:, column] = rows[:, column]
        return found

    assert (shares() - marginals).abs().max() > 0.1
    before = bridge.bound(rows, generator=seeded("bound")).bits_per_token
    assert calibrate(bridge, Rows(rows.numpy(), 3))
    torch.testing.assert_close(shares(), marginals.double(), rtol=0, atol=0.01)
    assert bridge.bound(rows, generator=seeded("bound")).bits_per_token < before


def bridge_of_three_columns(order=(2, 0, 1)):
    """Columns in turn, by a network with random weights."""
    rows = rows_of_three_columns()
    marginals = torch.stack([column.bincount(minlength=3) / len(rows) for column in rows.T])
    process = dmb.BridgeProcess.from_marginals(
        marginals, mask=True, floor=0.0, state_counts=torch.tensor([3, 3, 2]), speeds=True
    )
    process.clocks.fix_write_order(order)
    torch.manual_seed(0)
    network = dmb.OrderedMLP.for_process(process, width=16)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            weight.add_(0.5 * torch.randn(weight.shape, generator=seeded(name)))
    return dmb.Bridge(process, network)


def without_turns(folder):
    """As earlier versions wrote it: an order was speeds that are far apart, and a flag that no file had."""
    tensors, _ = read_tensors(folder / "model.safetensors")
    turns = tensors.pop("process.clocks.turns")
    write_tensors(folder / "model.safetensors", tensors)
    return turns


@pytest.mark.parametrize("earlier", [False, True], ids=["saved now", "saved by an earlier version"])
def test_an_order_of_columns_is_there_after_saving_and_loading(tmp_path, earlier):
    bridge = bridge_of_three_columns()
    bridge.write(tmp_path)
    if earlier:
        assert without_turns(tmp_path).tolist() == [1, 2, 0]
    loaded = dmb.Bridge.from_pretrained(tmp_path)
    assert loaded.process.clocks.turns.tolist() == [1, 2, 0]
    assert not any(parameter.requires_grad for parameter in loaded.process.parameters())
    rows = Rows(rows_of_three_columns().numpy(), 3)
    assert calibrate(bridge, rows)
    assert calibrate(loaded, rows)
    assert same(loaded.state_dict(), bridge.state_dict())
    data = dmb.data.array(rows_of_three_columns().numpy())
    options = {"cycles": 1, "score_steps": 3, "batch_size": 16, "evaluate_every": 3}
    one, other = (list(dmb.train(each, data, **options))[-1].bits for each in (bridge, loaded))
    assert one == other
    assert loaded.process.clocks.turns.tolist() == [1, 2, 0]


@pytest.mark.parametrize("log_speeds", [[0.0, 16.0, 33.0], [0.3, -0.1, 0.2]], ids=str)
def test_speeds_that_are_learned_are_not_taken_for_an_order(tmp_path, log_speeds):
    marginals = torch.full((3, 2), 0.5)
    process = dmb.BridgeProcess.from_marginals(marginals, mask=True, floor=0.0, speeds=True)
    with torch.no_grad():
        process.clocks.speed_weights.copy_(torch.tensor(log_speeds))
    dmb.Bridge(process, dmb.OrderedMLP.for_process(process, width=8)).write(tmp_path)
    loaded = dmb.Bridge.from_pretrained(tmp_path).process
    assert loaded.clocks.turns is None
    assert loaded.clocks.speed_weights.requires_grad


@pytest.mark.parametrize(
    ("turns", "message"), [([0, 0, 1], "turns must be each of 0 to 2 once"), ([0, 1], "order must name each of 3")]
)
def test_turns_of_a_file_that_are_no_order_are_refused(tmp_path, turns, message):
    bridge_of_three_columns().write(tmp_path)
    tensors, _ = read_tensors(tmp_path / "model.safetensors")
    write_tensors(tmp_path / "model.safetensors", tensors | {"process.clocks.turns": torch.tensor(turns)})
    with pytest.raises(ValueError, match=message):
        dmb.Bridge.from_pretrained(tmp_path)


def test_a_model_of_a_table_by_the_command_line_is_calibrated_too(tmp_path):
    rows = rows_of_three_columns()
    text = "\n".join(["a,b,c", *(",".join("xyz"[state] for state in row) for row in rows.tolist())])
    (tmp_path / "rows.csv").write_text(text)
    run = tmp_path / "run"
    dmb_("train", str(tmp_path / "rows.csv"), "--out", str(run), "--score-steps", "20", "--width", "8")
    bridge, data = dmb.Bridge.from_pretrained(run), dmb.data.load(tmp_path / "rows.csv")
    first = AllOrders(bridge).log_conditionals(torch.full((1, 3), -1))[0, 0, :3].exp()
    torch.testing.assert_close(first, data.train.counts()[0] / len(data.train), rtol=0, atol=2e-3, check_dtype=False)


def test_many_columns_are_trained_longer_at_a_lower_rate():
    few, many = column_training(50_000, 10), column_training(50_000, 100)
    assert (few.score_steps, few.clip, few.evaluate_every) == (1500, 0.0, 75)
    assert (many.score_steps, many.clip) == (4000, 1.0)
    assert many.learning_rate < few.learning_rate
    assert column_training(100, 3).score_steps == 400
