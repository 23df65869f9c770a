"""Columns written one after the other: their shares, and how they are trained by default."""

import pytest
import torch

import dmb
from columns import bridge_of_three_columns, rows_of_three_columns
from commands import dmb_
from dmb._core.files import read_tensors, write_tensors
from dmb.tables.columnwise import column_training
from stopping import same


def test_an_order_of_columns_is_there_after_saving_and_loading(tmp_path):
    bridge = bridge_of_three_columns()
    bridge.write(tmp_path)
    loaded = dmb.OrderedBridge.from_pretrained(tmp_path)
    assert loaded.order.order.tolist() == [2, 0, 1]
    data = dmb.data.array(rows_of_three_columns().numpy())
    options = {"cycles": 1, "score_steps": 3, "batch_size": 16, "evaluate_every": 3}
    one, other = (list(dmb.train(each, data, **options))[-1] for each in (bridge, loaded))
    assert one.phase == "calibration"
    assert one.bits == other.bits
    assert same(loaded.state_dict(), bridge.state_dict())


@pytest.mark.parametrize("order", [[0, 0, 1], [0, 1]])
def test_an_order_of_a_file_that_is_none_is_refused(tmp_path, order):
    bridge_of_three_columns().write(tmp_path)
    tensors, _ = read_tensors(tmp_path / "model.safetensors")
    write_tensors(tmp_path / "model.safetensors", tensors | {"order.order": torch.tensor(order)})
    with pytest.raises(ValueError, match="order must h"):
        dmb.Bridge.from_pretrained(tmp_path)


def test_a_model_of_a_table_by_the_command_line_is_calibrated_too(tmp_path):
    rows = rows_of_three_columns()
    text = "\n".join(["a,b,c", *(",".join("xyz"[state] for state in row) for row in rows.tolist())])
    (tmp_path / "rows.csv").write_text(text)
    run = tmp_path / "run"
    dmb_("train", str(tmp_path / "rows.csv"), "--out", str(run), "--score-steps", "20", "--width", "8")
    bridge, data = dmb.Bridge.from_pretrained(run), dmb.data.load(tmp_path / "rows.csv")
    first = bridge.conditionals(torch.zeros(1, 3).long(), torch.zeros(1, 3).bool())[0, 0, :3].exp()
    torch.testing.assert_close(first, data.train.counts()[0] / len(data.train), rtol=0, atol=2e-3, check_dtype=False)


def test_many_columns_are_trained_longer_at_a_lower_rate():
    few, many = column_training(50_000, 10), column_training(50_000, 100)
    assert (few.score_steps, few.clip, few.evaluate_every) == (1500, 0.0, 75)
    assert (many.score_steps, many.clip) == (4000, 1.0)
    assert many.learning_rate < few.learning_rate
    assert column_training(100, 3).score_steps == 400
