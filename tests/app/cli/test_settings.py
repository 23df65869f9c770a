"""Settings of the command line: what a choice brings along, and what means nothing with it."""

import json
import shlex
from pathlib import Path
from typing import get_args

import pytest

import dmb
from commands import dmb_, flags
from dmb.app.cli.parsing import SamplerName
from dmb.app.cli.train import shown
from dmb.app.recipes import RECIPES, recipe
from dmb.app.runs import Run
from dmb.sampling import SAMPLERS

TINY = ["--accelerator", "cpu", *flags(score_steps=2, width=16, blocks=1, batch_size=8, evaluate_sequences=8)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DMB_DATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "novel.txt").write_text("the cat sat on the mat. " * 300)
    (tmp_path / "survey.csv").write_text("colour,size\n" + "red,big\nblue,small\nred,small\n" * 40)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "kind", "learned"),
    [
        ("novel.txt --recipe text8 --length 8 --network transformer", dmb.MarkovBridge, None),
        ("novel.txt --length 8 --network mlp --no-mask --floor 0.01", dmb.MarkovBridge, None),
        ("novel.txt --length 8 --network causal", dmb.OrderedBridge, False),
        ("novel.txt --length 8 --write-order random", dmb.OrderedBridge, False),
        ("digits --network ordered", dmb.OrderedBridge, False),
        ("digits --network causal --cycles 1", dmb.OrderedBridge, False),
        ("digits --network ordered --write-order learned --orders 4", dmb.OrderedBridge, True),
        ("novel.txt --recipe text_gather --length 8 --network ordered", dmb.OrderedBridge, False),
        ("survey.csv --network mlp", dmb.MarkovBridge, None),
        ("survey.csv --network ordered --write-order learned", dmb.OrderedBridge, True),
        ("survey.csv --recipe array --network columns", dmb.OrderedBridge, False),
    ],
)
def test_a_choice_of_another_kind_brings_what_it_needs_and_the_run_can_be_repeated(words, kind, learned, capsys):
    assert dmb_("train", *words.split(), "--out", "run", *TINY) == 0
    run = Run.open(Path("run"))
    bridge, settings = run.bridge(), run.recipe.training
    assert type(bridge) is kind
    if learned is not None:
        assert bool(list(bridge.order.parameters())) is learned
    assert (settings.matrix_objective, settings.orders > 1) == (("joint", True) if learned else ("prior", False))
    _, _, *again, out, _ = shlex.split(json.loads(Path("run/run.json").read_text())["command"])
    assert out == "--out"
    assert dmb_("train", *again, "--show") == 0
    assert capsys.readouterr().out.splitlines() == shown(run.recipe)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--process uniform --init nested", "--init nested means nothing with --process uniform, only with bridge, varying"),
        ("--process uniform --order ascending", "--order ascending means nothing with --process uniform"),
        ("--process tree --mask", "--mask means nothing with --process tree, only with bridge, varying"),
        ("--init nested --order ascending", "--order ascending means nothing with --init nested, only with gather, uniform"),
        ("--heads 8", "--heads 8 means nothing with --network mlp, only with transformer, ordered, causal"),
        ("--tilt 0.1", "--tilt 0.1 means nothing with --network mlp, only with ordered, causal, columns"),
        ("--network ordered --tilt 0.1", "--tilt 0.1 means nothing with --write-order None, only with learned"),
        ("--network transformer --write-order learned", "--write-order learned means nothing with --network transformer"),
        ("--network ordered --process uniform", "--process uniform means nothing with --network ordered, only with mlp"),
        ("--network ordered --no-mask", "--no-mask means nothing with --network ordered"),
        ("--network ordered --head score", "--head score means nothing with --network ordered"),
        ("--network ordered --no-adapt-times", "--no-adapt-times means nothing with --network ordered"),
        ("--any-order 0.5", "--any-order 0.5 means nothing with --network mlp"),
        ("--process tree --stages 2", "--stages 2 means nothing with --grouping cooccurrence, only with frequency"),
        ("--stages 2", "--stages 2 means nothing with --init gather, only with nested"),
    ],
)  # fmt: skip
def test_a_setting_that_means_nothing_with_a_choice_is_one_line(words, message, capsys):
    assert dmb_("train", "digits", *words.split(), "--out", "run") == 2
    assert capsys.readouterr().err.startswith(f"dmb: {message}")
    assert not Path("run").exists()


def test_several_such_settings_are_in_one_line(capsys):
    assert dmb_("train", "digits", "--process", "tree", "--mask", "--init", "uniform") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.count("means nothing with --process tree") == 2


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_recipe_has_without_need_is_not_refused(name):
    recipe(name).check_changes(recipe(name))
    recipe(name).check_changes(recipe(name).changed(width=16))


def test_all_samplers_can_be_named():
    assert set(get_args(SamplerName)) == SAMPLERS.keys() | set(dmb.OrderedBridge.samplers)


def test_help_lists_all_recipes_and_data(capsys):
    assert dmb_("train", "--help") == 0
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert ", ".join(RECIPES) in words
    assert ", ".join(dmb.data.BUILT_IN) in words
