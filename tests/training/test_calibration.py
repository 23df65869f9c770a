"""The last phase of training columns in turn: each state as likely as it is frequent. It can be interrupted, too."""

import copy
import itertools
import signal

import pytest
import torch

import dmb
from app.images.test_tokenize import Caught
from columns import bridge_of_three_columns, rows_of_three_columns
from commands import dmb_, flags
from dmb._core.seeding import seeded
from dmb.app import session
from dmb.app.runs import Run
from dmb.training import engine
from dmb.training.checkpoint import Checkpoints
from stopping import StopAfter, same

ORDER, STEPS = [2, 0, 1], 4
QUICK = {"cycles": 1, "score_steps": STEPS, "batch_size": 16, "evaluate_every": 2, "log_every": 2, "warmup": 0}


@pytest.fixture(scope="module")
def data():
    return dmb.data.array(rows_of_three_columns().numpy())


def run(bridge, data, **options):
    return list(dmb.train(bridge, data, fabric=engine(accelerator="cpu"), **(QUICK | options)))


def shares(bridge, rows):
    """The mean of each column's conditionals over rows, by blanking later columns, one column at a time."""
    found, written = torch.zeros(3, 3, dtype=torch.float64), torch.full_like(rows, -1)
    for column in ORDER:
        found[column] = bridge.conditionals(written.clamp(min=0), written >= 0)[:, column, :3].exp().mean(0)
        written[:, column] = rows[:, column]
    return found


@pytest.fixture(scope="module")
def straight(tmp_path_factory, data):
    """A run that nothing stopped: its folder, its bridge, its reports."""
    folder, bridge = tmp_path_factory.mktemp("straight"), bridge_of_three_columns(ORDER)
    return folder, bridge, run(bridge, data, folder=folder)


def weights_of(folder):
    return (folder / "model.safetensors").read_bytes()


def test_training_ends_with_each_state_as_likely_as_it_is_frequent_on_average_over_rows(data, straight):
    """Compared with conditionals of a network with random weights, hardly trained."""
    rows = data.train[:]
    marginals = torch.stack([column.bincount(minlength=3) / len(rows) for column in rows.T])
    first = bridge_of_three_columns(ORDER)
    assert (shares(first, rows) - marginals).abs().max() > 0.1
    _, bridge, reports = straight
    torch.testing.assert_close(shares(bridge, rows), marginals.double(), rtol=0, atol=1.5e-3)
    assert [report.phase for report in reports[-2:]] == ["validation", "calibration"]
    assert (shares(bridge, rows) - marginals).abs().max() <= reports[-1].share_error < 3e-3
    bound = bridge.bound(
        data.validation, any_order=0.5, batch_size=16, generator=seeded(0, "validation", 0)
    ).bits_per_token
    assert reports[-1].bits == bound < reports[-2].bits


def test_a_bridge_whose_columns_have_no_order_is_left_as_it_is(data):
    process = dmb.BridgeProcess.from_marginals(data.marginals(), mask=True, floor=0.0)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1))
    assert run(bridge, data, matrix_steps=0)[-1].phase == "validation"


@pytest.mark.parametrize("asks", [*range(STEPS, STEPS + 3), "last"])
def test_a_run_stopped_while_it_calibrates_goes_on_to_the_same_bytes(tmp_path, data, straight, asks):
    folder, _, reports = straight
    counted = StopAfter(-1)
    run(bridge_of_three_columns(ORDER), data, stop=counted)
    rounds = -1 - counted.left - STEPS
    assert rounds > 2
    before = run(
        broken := bridge_of_three_columns(ORDER), data, folder=tmp_path,
        stop=StopAfter(STEPS + rounds if asks == "last" else asks),
    )  # fmt: skip
    assert before[-1].phase == "validation"
    assert weights_of(tmp_path) != weights_of(folder)
    best = dmb.Bridge.from_pretrained(tmp_path)
    assert same(broken.state_dict(), best.state_dict())  # not half calibrated
    after = run(again := bridge_of_three_columns(), data, folder=tmp_path, resume=True)
    assert [report.phase for report in after] == ["calibration"]
    assert [report.index for report in before + after] == [report.index for report in reports]
    assert weights_of(tmp_path) == weights_of(folder)
    assert same(again.state_dict(), straight[1].state_dict())
    one, other = (Checkpoints(path / "checkpoints").newest().tensors for path in (folder, tmp_path))
    assert same(one, other)
    assert run(again, data, folder=tmp_path, resume=True) == []
    assert weights_of(tmp_path) == weights_of(folder)


@pytest.mark.parametrize(("kind", "name"), [(dmb.Bridge, "write"), (Checkpoints, "save")], ids=["model", "checkpoint"])
def test_a_run_killed_before_its_last_file_is_written_goes_on_to_the_same_bytes(
    tmp_path, data, straight, monkeypatch, kind, name
):
    folder, _, reports = straight
    evaluations = [report for report in reports if report.phase == "validation"]
    calls = {"write": sum(report.improved for report in evaluations), "save": 1 + len(evaluations)}[name]
    real, number = getattr(kind, name), itertools.count()

    def killed_at_last(*arguments):
        if next(number) == calls:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(kind, name, killed_at_last)
    with pytest.raises(KeyboardInterrupt):
        run(bridge_of_three_columns(ORDER), data, folder=tmp_path)
    monkeypatch.undo()
    assert (weights_of(tmp_path) == weights_of(folder)) == (name == "save")
    after = run(bridge_of_three_columns(), data, folder=tmp_path, resume=True)
    assert [report.phase for report in after] == ["calibration"]
    assert weights_of(tmp_path) == weights_of(folder)


@pytest.mark.parametrize("stop", [None, 5, 7])
def test_the_best_weights_are_those_that_are_calibrated_not_the_last(tmp_path, data, straight, stop):
    """At a rate at which later steps do harm."""
    options = {"score_steps": 6, "learning_rate": 1.0, "ema": 0.0, "evaluate_every": 1}
    bridge = bridge_of_three_columns(ORDER)
    if stop is not None:
        run(bridge, data, folder=tmp_path, stop=StopAfter(stop), **options)
    run(bridge, data, folder=tmp_path, resume=stop is not None, **options)
    state = Checkpoints(tmp_path / "checkpoints").newest().state
    assert state["best_step"] == state["finished_step"] < 6
    only = bridge_of_three_columns(ORDER)
    run(only, data, **options | {"score_steps": state["best_step"]})
    assert same(dmb.Bridge.from_pretrained(tmp_path).state_dict(), only.state_dict())
    assert same(bridge.state_dict(), only.state_dict())


def test_a_run_made_longer_is_calibrated_again_if_it_has_become_better(tmp_path, data):
    first, longer, whole = bridge_of_three_columns(ORDER), bridge_of_three_columns(), bridge_of_three_columns(ORDER)
    options = {"learning_rate": 1e-2, "ema": 0.9, "weight_decay": 0.0}
    run(first, data, folder=tmp_path, **options)
    before = copy.deepcopy(first.state_dict())
    phases = [report.phase for report in run(longer, data, folder=tmp_path, resume=True, cycles=2, **options)]
    assert phases.count("calibration") == 1
    run(whole, data, cycles=2, **options)
    assert same(longer.state_dict(), whole.state_dict())
    assert not same(longer.state_dict(), before)


def test_ctrl_c_while_a_run_is_calibrated_loses_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = rows_of_three_columns()
    lines = ["a,b,c", *(",".join("xyz"[state] for state in row) for row in rows.tolist())]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    command = ["train", "rows.csv", "--accelerator", "cpu", *flags(score_steps=20, width=8, evaluate_every=20)]
    assert dmb_(*command, "--out", "straight") == 0
    with monkeypatch.context() as patch:
        patch.setattr(session, "Signals", lambda: Caught(21))
        assert dmb_(*command, "--out", "broken") == 128 + signal.SIGINT
    assert "stopped at a checkpoint; continue with: dmb resume broken" in capsys.readouterr().err
    assert weights_of(tmp_path / "broken") != weights_of(tmp_path / "straight")
    assert dmb_("resume", "broken", "--accelerator", "cpu") == 0
    assert "nothing left to do" not in capsys.readouterr().err
    assert weights_of(tmp_path / "broken") == weights_of(tmp_path / "straight")
    one, other = (
        [(r.phase, r.step, r.bits) for r in Run.open(tmp_path / name).metrics()] for name in ("straight", "broken")
    )
    assert str(one) == str(other)
    assert one[-1][0] == "calibration"
    assert dmb_("resume", "broken", "--accelerator", "cpu") == 0
    assert "nothing left to do" in capsys.readouterr().err
    assert weights_of(tmp_path / "broken") == weights_of(tmp_path / "straight")
