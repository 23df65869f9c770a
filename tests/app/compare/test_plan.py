import json
import sys
from dataclasses import dataclass, replace

import pytest
import torch

from dmb._core.files import to_json, write_tensors
from dmb.app import compare as comparison, recipes


def written(plan):
    """Leave the plan in its folder, as a comparison does before the first run."""
    plan.out.mkdir(exist_ok=True)
    (plan.out / "results.json").write_text(to_json({"comparison": plan.to_json()}))


def options(command):
    return dict(zip(command[::2], command[1::2], strict=True))


def test_the_first_seed_of_every_row_comes_first(planned):
    jobs = planned("mdlm", "mean-natural").jobs()
    assert [(job.row.name, job.seed) for job in jobs] == [("mdlm", 0), ("mean-natural", 0), ("mdlm", 1), ("mean-natural", 1)]  # fmt: skip
    assert [str(job.path.relative_to(planned().out)) for job in jobs[1:3]] == ["mean-natural/seed-0", "mdlm/seed-1"]


def test_every_row_takes_the_same_steps_and_has_its_own_settings(planned):
    for job in planned("sedd-uniform", "mdlm", "mean-natural").jobs():
        assert job.recipe.training.total_steps == 10
        assert job.recipe.training.seed == job.seed
        assert job.recipe.network.width == 16
        assert job.recipe.process.mask == (job.row.name == "mdlm")
        assert job.recipe.process.process == ("uniform" if job.row.name == "sedd-uniform" else "bridge")


def test_the_file_that_train_is_given_holds_the_recipe_that_is_wanted(planned):
    for job in planned().jobs():
        job.write_recipe()
        python, module, dmb, train, *words = job.command("train")
        assert (python, module, dmb, train) == (sys.executable, "-m", "dmb", "train")
        file = str(job.path.parent / f"seed-{job.seed}.json")
        assert recipes.recipe(file) == job.recipe
        assert options(words) == {"--recipe": file, "--out": str(job.path)}


def test_a_recipe_of_the_users_own_reaches_every_run(planned, monkeypatch, tmp_path):
    known = recipes.recipe
    monkeypatch.setattr(recipes, "recipe", lambda name: replace(known(name), name="/home/ada/mine.py:small"))
    (job, _) = planned("mdlm").jobs()
    monkeypatch.undo()
    job.write_recipe()
    assert recipes.recipe(f"{job.path}.json") == job.recipe
    assert job.recipe.name == "small"


def test_parts_that_rows_cannot_change_are_refused(tmp_path):
    @dataclass(frozen=True)
    class Own:
        girth: int = 8

    recipe = replace(recipes.recipe("digits").changed(patience=0), network=Own())
    with pytest.raises(ValueError, match=r"network must be a NetworkChoice to be compared.*got Own"):
        comparison.plan(recipe, out=tmp_path, command="dmb compare")


def test_what_evaluate_is_given(planned):
    *_, evaluate, run, sequences, thirty_two, samples, four, seed, zero = (
        planned(samples=4).jobs()[0].command("evaluate")
    )
    assert (evaluate, sequences, thirty_two, samples, four, seed, zero) == ("evaluate", "--sequences", "32", "--samples", "4", "--seed", "0")  # fmt: skip
    assert run.endswith("mdlm/seed-0")


def test_steps_and_sequences_are_those_of_recipe_and_data_unless_given(planned):
    whole = planned(steps=None, sequences=None)
    assert whole.steps == recipes.recipe("digits").training.total_steps
    assert whole.jobs()[0].sequences == len(whole.data.test) == planned(sequences=10**6).jobs()[0].sequences


@pytest.mark.parametrize(
    ("figures", "left"),
    [
        ({"validation": (3.0,), "evaluated": 0}, "resume"),  # cut short
        ({"validation": (3.0,)}, "resume"),  # looked at on its way
        ({"evaluated": 0}, "evaluate"),
        ({"evaluated": 20}, "evaluate"),
        ({"of_step": 5}, "evaluate"),  # of an earlier model
        ({}, None),
        ({"validation": (2.5, 3.0)}, None),  # the best model need not be the last
    ],
)
def test_only_what_is_missing_is_done(planned, made_up, figures, left):
    job = planned().jobs()[0]
    assert job.task() == "train"
    made_up(job, **figures)
    assert job.task() == left


def test_a_run_cut_short_in_its_calibration_is_not_evaluated(planned, made_up):
    job = planned().jobs()[0]
    made_up(job, evaluated=0)
    write_tensors(job.path / "model.safetensors", {"order.order": torch.arange(3)})
    columns = replace(job, recipe=replace(job.recipe, network=replace(job.recipe.network, network="columns")))
    assert (job.task(), columns.task()) == ("evaluate", "resume")
    with (job.path / "metrics.jsonl").open("a") as metrics:
        print('{"phase": "calibration", "step": 10, "seconds": 60}', file=metrics)
    assert columns.task() == "evaluate"


def test_a_last_line_cut_short_by_a_kill_does_not_count(planned, made_up):
    job = planned().jobs()[0]
    made_up(job)
    metrics = job.path / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-9])
    assert job.task() == "resume"
    assert job.step() == 5


def test_another_run_in_the_folder_is_refused_by_the_name_of_the_setting(planned, made_up):
    job = planned().jobs()[0]
    made_up(job)
    job.check_same()
    other = planned(network={"blocks": 2}).jobs()[0]
    with pytest.raises(ValueError, match=r"mdlm/seed-0 is another run, with network.blocks=1, not 2: choose another"):
        other.check_same()


def test_a_run_from_before_a_setting_existed_has_its_default(planned, made_up):
    job = planned().jobs()[0]
    made_up(job)
    config = json.loads((job.path / "run.json").read_text())
    del config["recipe"]["training"]["patience"]
    (job.path / "run.json").write_text(json.dumps(config))
    job.check_same()
    assert job.task() is None


def test_a_folder_of_something_else_is_refused(planned):
    job = planned().jobs()[0]
    job.path.mkdir(parents=True)
    (job.path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="exists already"):
        job.check_same()


def test_a_folder_takes_more_rows_and_seeds(planned):
    first = planned("mdlm", seeds=3)
    written(first)
    both = planned("mean-natural", seeds=1).with_earlier()
    written(both)
    again = planned("mean-natural", "mdlm", seeds=2).with_earlier()
    for plan in (both, again):
        assert {(job.row.name, job.seed) for job in plan.jobs()} == {
            (name, seed) for name in ("mdlm", "mean-natural") for seed in (0, 1, 2)
        }
    assert [job for job in both.jobs() if job.row.name == "mdlm"] == first.jobs()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": {"width": 32}}, "is another comparison, with network.width=16, not 32: choose another --out"),
        ({"steps": 20}, "training.score_steps=5, not 10"),
    ],
)
def test_a_folder_of_another_comparison_is_refused(planned, options, message):
    first = planned("mdlm")
    written(first)
    with pytest.raises(ValueError, match=message):
        planned("mean-natural", **options).with_earlier()


def test_settings_that_every_row_has_its_own_value_of_may_differ(planned):
    """All rows set the number of cycles and the head."""
    first = planned("mdlm", training={"cycles": 5})
    written(first)
    assert planned("mdlm", training={"cycles": 7}).with_earlier().seeds == 2


def test_all_commands_that_made_the_table_are_kept_once(planned):
    for command in ("first", "second", "first"):
        plan = planned(command=command).with_earlier()
        written(plan)
    assert plan.commands == ["first", "second"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"comparison": {"rows": ["magic"]}}'])
def test_a_folder_with_other_results_is_refused(planned, content):
    plan = planned()
    plan.out.mkdir()
    (plan.out / "results.json").write_text(content)
    with pytest.raises(ValueError, match=r"results.json .*choose another --out"):
        plan.with_earlier()


def test_a_run_that_was_evaluated_with_fewer_draws_is_evaluated_again(planned, made_up):
    job = planned("mdlm").jobs()[0]
    made_up(job)
    assert job.task() is None
    assert planned("mdlm", samples=4).jobs()[0].task() == "evaluate"


def test_a_run_that_was_evaluated_with_other_noise_is_evaluated_again(planned, made_up):
    job = planned("mdlm").jobs()[0]
    made_up(job, seed=7)
    assert job.task() == "evaluate"


def test_what_cannot_be_built_is_refused_before_anything_runs(planned):
    with pytest.raises(ValueError, match="width"):
        planned("mdlm", network={"network": "transformer", "width": 15})


def test_a_setting_that_a_row_changes_cannot_be_given_and_others_can(planned):
    planned("mdlm", fixed={"training.learning_rate", "process.order"})
    planned("mdlm", fixed={"head"})  # the row has the same
    with pytest.raises(ValueError, match=r"process.order cannot be set: the row mean-live sets it itself"):
        planned("mdlm", "mean-live", fixed={"training.learning_rate", "process.order"})


def test_rows_decide_what_learns_by_whole_paths(tmp_path):
    def plan(name, **options):
        recipe = recipes.recipe(name).changed(source="markov", length=8, width=16, blocks=1, patience=0)
        return comparison.plan(recipe, out=tmp_path, command="", seeds=1, steps=10, sequences=4, **options)

    rows = ["mdlm", "mean-nested", "dmb-published", "paths", "paths-learned", "autoregressive"]
    for by_paths, by_times in zip(plan("text", rows=rows).jobs(), plan("text_gather", rows=rows).jobs(), strict=True):
        # the order of states has no effect on these rows, or is set by them
        by_paths, by_times = (replace(job.recipe, name="").changed(order="natural") for job in (by_paths, by_times))
        assert by_paths == by_times
    [job] = plan("text", rows=["paths"], fixed=["training.matrix_learning_rate"]).jobs()
    assert job.recipe.training.matrix_learning_rate == 0.1  # what the user says stays
