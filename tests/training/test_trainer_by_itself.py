"""The trainer by itself: a learner that takes a second for every step, by a clock that only it moves."""

from types import SimpleNamespace

import pytest
import torch

from dmb._core.pretrained import Pretrained
from dmb.training import Report, Trainer, engine, trainer
from dmb.training.checkpoint import Checkpoints
from dmb.training.state import Learner
from stopping import StopAfter


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=1000.0)
    ticking = SimpleNamespace(perf_counter=lambda: now.seconds, process_time=lambda: now.seconds / 2)
    monkeypatch.setattr(trainer, "time", ticking)
    return now


class Kept(Pretrained):
    """Stands for the model that was handed in."""

    def __init__(self, kept=()):
        super().__init__()
        self.kept = kept

    @classmethod
    def from_pretrained(cls, folder):
        return cls()

    def tensors(self):
        return {}

    def load_tensors(self, tensors):
        self.kept.append("fetched")

    def write(self, folder):
        folder.mkdir(exist_ok=True)


class Slow(Learner):
    """Its losses are given, one for each evaluation; the schedule at each step is remembered."""

    def __init__(self, clock, losses=(), *, total_steps=10, evaluate_every=1, minutes=None, patience=0, keep=2):
        settings = SimpleNamespace(
            cycles=1, score_steps=total_steps, total_steps=total_steps, score_tolerance=0.0, tolerance=0.0, log_every=1,
            evaluate_every=evaluate_every, minutes=minutes, patience=patience, keep=keep,
        )  # fmt: skip
        self.clock, self.losses, self.schedule, self.kept = clock, losses, [], []
        super().__init__(Kept(self.kept), settings, engine(accelerator="cpu"))

    def score_step(self):
        self.schedule.append(self.progress.schedule(self.settings.total_steps))
        self.clock.seconds += 1
        return 0.0, 0.0

    def score_report(self, loss, steps_per_second, gradient_norm):
        return Report(phase="train")

    def evaluate(self):
        number = self.progress.step // self.settings.evaluate_every - 1
        loss = self.losses[number] if 0 <= number < len(self.losses) else -self.progress.step
        return float(loss), Report(phase="validation")

    def hand_over(self):
        self.kept.append(self.progress.step)


def run(learner, folder=None, **options):
    return list(Trainer(learner, folder, **options).run())


def steps(reports, phase="validation"):
    return [report.step for report in reports if report.phase == phase]


# -- time -------------------------------------------------------------------------------------------------------------


def test_without_a_limit_the_schedule_is_that_of_the_steps(clock):
    learner = Slow(clock)
    run(learner)
    assert learner.schedule == [step / 10 for step in range(10)]


def test_with_a_limit_the_schedule_ends_when_the_time_does(clock):
    learner = Slow(clock, total_steps=1000, evaluate_every=1000, minutes=20 / 60)
    reports = run(learner)
    assert steps(reports)[-1] == 21  # the first step that ends after 20 seconds
    assert learner.schedule == pytest.approx([second / 20 for second in range(21)])
    assert learner.progress.share == 1.0


def test_with_a_limit_a_run_is_evaluated_in_each_tenth_of_its_time(clock):
    learner = Slow(clock, total_steps=10_000, evaluate_every=5000, minutes=200 / 60)
    assert steps(run(learner)) == pytest.approx([20, 40, 60, 80, 100, 120, 140, 160, 180, 201], abs=1)


def test_evaluations_take_at_most_a_fifth_of_the_time_beyond_those_that_are_planned(clock):
    class Careful(Slow):
        def evaluate(self):
            self.clock.seconds += 40
            return super().evaluate()

    learner = Careful(clock, total_steps=10_000, evaluate_every=5000, minutes=1000 / 60)
    assert steps(run(learner)) == pytest.approx([100, 300, 500, 700, 841], abs=1)  # the last one is that at the end


def test_evaluations_for_the_sake_of_the_time_do_not_count_for_patience(clock):
    learner = Slow(clock, [1], total_steps=10_000, evaluate_every=5000, minutes=200 / 60, patience=2)
    learner.evaluate = lambda: (float(learner.progress.step), Report(phase="validation"))  # worse and worse
    assert steps(run(learner))[-1] == 201


def test_steps_that_end_before_the_time_lead_the_schedule(clock):
    learner = Slow(clock, total_steps=10, minutes=100)
    run(learner)
    assert learner.schedule == [step / 10 for step in range(10)]


def test_minutes_are_those_of_this_call_and_the_schedule_goes_on_from_where_it_was(clock, tmp_path):
    options = {"total_steps": 1000, "evaluate_every": 1000, "minutes": 20 / 60}
    first = Slow(clock, **options)
    run(first, tmp_path, stop=StopAfter(5))
    clock.seconds += 10_000  # nobody trains
    second = Slow(clock, **options)
    reports = run(second, tmp_path, resume=True)
    assert steps(reports)[-1] == 5 + 21
    assert second.schedule == pytest.approx([5 / 20 + (1 - 5 / 20) * second / 20 for second in range(21)])
    assert reports[-1].seconds == pytest.approx(26)
    assert reports[-1].cpu_seconds == pytest.approx(13)


def test_the_schedule_never_goes_back_when_the_limit_is_taken_away(clock, tmp_path):
    run(Slow(clock, total_steps=100, minutes=20 / 60), tmp_path, stop=StopAfter(10))
    second = Slow(clock, total_steps=100)
    run(second, tmp_path, resume=True)
    assert second.schedule == pytest.approx([max(0.5, step / 100) for step in range(10, 100)])


def test_a_run_whose_time_was_up_has_a_schedule_anew(clock, tmp_path):
    options = {"total_steps": 100, "evaluate_every": 100, "minutes": 20 / 60}
    run(Slow(clock, **options), tmp_path)
    second = Slow(clock, **options)
    run(second, tmp_path, resume=True)
    assert second.schedule[0] == pytest.approx(21 / 100)
    assert second.schedule[10] == pytest.approx(0.21 + 0.79 * 10 / 20)


def test_several_processes_agree_on_the_time(clock):
    class Two:
        world_size, is_global_zero, device = 2, True, torch.device("cpu")

        def broadcast(self, value):
            return value

        def all_reduce(self, value, reduce_op):
            assert reduce_op == "mean"
            return (value + torch.tensor([0.0, 0.5])) / 2  # the other has used up half of its time

    learner = Slow(clock, total_steps=100, evaluate_every=100, minutes=20 / 60)
    learner.fabric = Two()
    reports = run(learner)
    assert learner.schedule[:3] == pytest.approx([0.01 * 0, (1 / 20 + 0.5) / 2, (2 / 20 + 0.5) / 2])
    assert steps(reports)[-1] == 31  # (31 / 20 + 0.5) / 2 > 1


def test_a_report_says_how_long_it_will_take(clock):
    reports = run(Slow(clock, total_steps=10, evaluate_every=100))
    assert [report.seconds_left for report in reports] == pytest.approx([*(9 - done for done in range(10)), 0])
    reports = run(Slow(clock, total_steps=100, evaluate_every=100, minutes=4 / 60))
    assert [each.seconds_left for each in reports if each.phase == "train"] == pytest.approx([3, 2, 1, 0, 0])


def test_time_that_is_up_ends_a_phase_that_does_not_count_only_after_a_step_that_does(clock):
    class Phased(Slow):
        def matrix_is_over(self):
            return self.progress.phase_step >= 50

        def matrix_step(self):
            self.clock.seconds += 1

        def matrix_report(self):
            return Report(phase="train")

    assert steps(run(Phased(clock, minutes=20 / 60))) == [1]


# -- patience ---------------------------------------------------------------------------------------------------------

LOSSES = [5, 4, 4, 6, 3, 3, 4, 5, 1, 1]


@pytest.mark.parametrize(("patience", "last"), [(0, 10), (1, 3), (2, 4), (3, 8), (4, 10)])
def test_patience_ends_training_after_so_many_evaluations_in_a_row_without_a_better_one(clock, patience, last):
    learner = Slow(clock, LOSSES, patience=patience)
    assert steps(run(learner)) == list(range(1, last + 1))
    assert learner.kept == [step for step in (1, 2, 5, 9) if step <= last]


@pytest.mark.parametrize("stop", range(1, 9))
def test_patience_is_counted_across_an_interruption(clock, tmp_path, stop):
    straight = run(Slow(clock, LOSSES, patience=3))
    before = run(Slow(clock, LOSSES, patience=3), tmp_path, stop=StopAfter(stop))
    after = run(Slow(clock, LOSSES, patience=3), tmp_path, resume=True)
    told = [[(r.index, r.phase, r.step, r.improved) for r in reports] for reports in (straight, before + after)]
    assert told[0] == told[1]
    assert run(Slow(clock, LOSSES, patience=3), tmp_path, resume=True) == []
    assert steps(run(Slow(clock, LOSSES, patience=4), tmp_path, resume=True)) == [9, 10]


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_there_is_a_checkpoint_after_every_evaluation_and_the_best_is_kept(clock, tmp_path):
    run(Slow(clock, [1, 2, 3, 4], total_steps=20, evaluate_every=5), tmp_path)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [5, 15, 20]


def test_a_first_loss_that_is_no_number_is_not_the_best_for_ever(clock):
    learner = Slow(clock, [float("nan"), 3, float("nan"), 2], total_steps=4)
    reports = run(learner)
    assert [report.improved for report in reports if report.phase == "validation"] == [True, True, False, True]
    assert learner.progress.best == 2


def test_the_best_model_is_fetched_by_a_run_that_goes_on(clock, tmp_path):
    run(Slow(clock, total_steps=5), tmp_path)
    again = Slow(clock, total_steps=5)
    assert run(again, tmp_path, resume=True) == []
    assert again.kept == ["fetched"]


def test_a_run_none_of_whose_checkpoints_can_be_read_is_not_begun_anew(tmp_path, clock):
    run(Slow(clock, total_steps=3), tmp_path)
    for file in (tmp_path / "checkpoints").iterdir():
        file.write_bytes(b"spoilt")
    with pytest.warns(UserWarning, match="cannot be read"), pytest.raises(ValueError, match="the run cannot continue"):
        run(Slow(clock, total_steps=5), tmp_path, resume=True)
