import json

import pytest

from dmb.app import recipes
from dmb.app.recipes import settings_of


def doing(job):
    """The commands that are left, by name."""
    return [command[3] for command in job.commands()]


def test_the_first_seed_of_every_row_comes_first(planned):
    jobs = planned("mdlm", "mean-natural").jobs()
    assert [(job.row.name, job.seed) for job in jobs] == [("mdlm", 0), ("mean-natural", 0), ("mdlm", 1), ("mean-natural", 1)]  # fmt: skip
    assert [str(job.path.relative_to(planned().out)) for job in jobs[1:3]] == ["mean-natural/seed-0", "mdlm/seed-1"]


def test_every_row_takes_the_same_steps_and_has_its_own_settings(planned):
    for job in planned("sedd-uniform", "mdlm", "mean-natural").jobs():
        assert job.steps == 10
        settings = settings_of(job.recipe)
        assert settings["training.seed"] == job.seed
        assert settings["network.width"] == 16
        assert settings["process.mask"] == (job.row.name == "mdlm")
        assert settings["process.process"] == ("uniform" if job.row.name == "sedd-uniform" else "bridge")


def test_what_train_is_called_with_makes_the_recipe_that_is_wanted(planned):
    for job in planned().jobs():
        train = job.commands()[0]
        assert recipes.override(recipes.digits(), train[train.index("--set") + 1 :]) == job.recipe


def test_steps_and_sequences_are_those_of_recipe_and_data_unless_given(planned):
    whole = planned(steps=None, sequences=None)
    assert whole.steps == recipes.digits().training.total_steps
    assert whole.jobs()[0].sequences == len(whole.data.test) == planned(sequences=10**6).jobs()[0].sequences


@pytest.mark.parametrize(
    ("figures", "left"),
    [
        ({"validation": (3.0,), "evaluated": 0}, ["train", "evaluate"]),  # cut short
        ({"validation": (3.0,)}, ["train", "evaluate"]),  # looked at on its way
        ({"evaluated": 0}, ["evaluate"]),
        ({"evaluated": 20}, ["evaluate"]),
        ({"of_step": 5}, ["evaluate"]),  # of an earlier model
        ({}, []),
        ({"validation": (2.5, 3.0)}, []),  # the best model need not be the last
    ],
)
def test_only_what_is_missing_is_done(planned, made_up, figures, left):
    job = planned().jobs()[0]
    assert doing(job) == ["train", "evaluate"]
    made_up(job, **figures)
    assert doing(job) == left


def test_a_last_line_cut_short_by_a_kill_does_not_count(planned, made_up):
    job = planned().jobs()[0]
    made_up(job)
    metrics = job.path / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-9])
    assert doing(job) == ["train", "evaluate"]
    assert job.progress() == (5, 3.0)


def test_another_run_in_the_folder_is_refused_by_the_name_of_the_setting(planned, made_up):
    job = planned().jobs()[0]
    made_up(job)
    job.refuse_another()
    other = planned(shared=("width=16", "blocks=2", *planned().shared[2:])).jobs()[0]
    with pytest.raises(ValueError, match=r"mdlm/seed-0 is another run, with network.blocks=1, not 2: choose another"):
        other.refuse_another()


def test_a_run_from_before_a_setting_existed_has_its_default(planned, made_up):
    job = planned().jobs()[0]
    made_up(job)
    config = json.loads((job.path / "run.json").read_text())
    del config["recipe"]["training"]["infill"]
    (job.path / "run.json").write_text(json.dumps(config))
    job.refuse_another()
    assert doing(job) == []


def test_a_folder_of_something_else_is_refused(planned):
    job = planned().jobs()[0]
    job.path.mkdir(parents=True)
    (job.path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="exists already"):
        job.refuse_another()


def test_a_folder_takes_more_rows_and_seeds(planned):
    first = planned("mdlm", seeds=3)
    first.out.mkdir()
    first.write()
    both = planned("mean-natural", seeds=1).with_earlier()
    both.write()
    again = planned("mean-natural", "mdlm", seeds=2).with_earlier()
    for plan in (both, again):
        assert {(job.row.name, job.seed) for job in plan.jobs()} == {
            (name, seed) for name in ("mdlm", "mean-natural") for seed in (0, 1, 2)
        }
    assert [job for job in both.jobs() if job.row.name == "mdlm"] == first.jobs()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared": ("width=32", "blocks=1")}, "network.width=16, not 32"),
        ({"steps": 20}, "steps=10, not 20"),
    ],
)
def test_a_folder_of_another_comparison_is_refused(planned, options, message):
    first = planned("mdlm")
    first.out.mkdir()
    first.write()
    with pytest.raises(ValueError, match=message):
        planned("mean-natural", **options).with_earlier()


def test_the_command_line_is_whole(planned):
    plan = planned("mdlm")
    assert plan.command() == (
        f"dmb compare digits --out {plan.out} --rows mdlm --seeds 2 --steps 10 --sequences 32 "
        f"--set {' '.join(plan.shared)}"
    )


def test_a_run_that_was_evaluated_with_fewer_draws_is_evaluated_again(planned, made_up):
    job = planned("mdlm").jobs()[0]
    made_up(job)
    assert doing(job) == []
    [again] = planned("mdlm", samples=4).jobs()[0].commands()
    assert again[-4:] == ["--samples", "4", "--seed", "0"]


def test_a_run_that_was_evaluated_with_other_noise_is_evaluated_again(planned, made_up):
    job = planned("mdlm").jobs()[0]
    made_up(job, seed=7)
    assert doing(job) == ["evaluate"]


def test_what_cannot_be_built_is_refused_before_anything_runs(planned):
    with pytest.raises(ValueError, match="width"):
        planned("mdlm", shared=("network=transformer", "width=15"))
