"""Columns written one after the other: their shares, and how they are trained by default."""

import pytest
import torch

import dmb
from columns import bridge_of_three_columns, rows_of_three_columns
from commands import dmb_
from dmb.all_orders import AllOrders
from dmb.columnwise import column_training
from dmb.tensors import read_tensors, write_tensors
from stopping import same


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
    data = dmb.data.array(rows_of_three_columns().numpy())
    options = {"cycles": 1, "score_steps": 3, "batch_size": 16, "evaluate_every": 3}
    one, other = (list(dmb.train(each, data, **options))[-1] for each in (bridge, loaded))
    assert one.phase == "calibration"
    assert one.bits == other.bits
    assert same(loaded.state_dict(), bridge.state_dict())
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
