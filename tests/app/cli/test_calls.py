"""Bounds at numbers of network calls: `dmb evaluate --calls`, and what `dmb sample --calls` says of them."""

import itertools
import json
import math
import re
import shutil

import pytest
import torch

import dmb
from app.report.making import recipe, text, trained, untrained
from commands import dmb_
from dmb._core.seeding import seeded
from dmb.app.evaluation import token_costs
from dmb.app.records import best, read_bounds, read_calls, read_evaluations, read_metrics
from dmb.app.runs import Run

FEW = ("--sequences", 20, "--accelerator", "cpu")


def letters(folder, **choices):
    """A recipe for words of six letters, and the data."""
    data = text(folder, length=6, count=4000)
    return recipe(tied=True, source=data.source, **choices).changed(length=6), data


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked")
    return trained(folder / "run", *letters(folder, mask=True, floor=0.0)).path


@pytest.fixture
def run(masked, tmp_path):
    return shutil.copytree(masked, tmp_path / "run")


@pytest.fixture
def written(tmp_path):
    """A run whose model writes with this network in this order."""

    def of(network, order):
        run = untrained(tmp_path / "run", *letters(tmp_path, mask=True, floor=0.0, network="ordered"), [{}])
        states = run.bridge().states
        torch.manual_seed(0)
        dmb.OrderedBridge(order, network(states, width=8, heads=1, blocks=1), states).write(run.path)
        return run.path

    return of


def known(run):
    return read_calls(run, best(read_metrics(run)))


def test_each_number_of_calls_has_the_bound_of_what_is_sampled_and_is_remembered(run, capsys):
    assert dmb_("evaluate", run, *FEW, "--calls", 1, 4, 4) == 0
    limit, *lines = capsys.readouterr().out.splitlines()
    assert "marginals alone" in limit
    folder = Run.open(run)
    x = folder.data().test
    x = x[x.spread(20)]
    assert [found.calls for found in known(run)] == [1, 4]
    for line, found in zip(lines, known(run), strict=True):
        bound = folder.bridge().bound(x, calls=found.calls, generator=seeded(0, "evaluation"))
        assert (found.bits, found.stderr) == pytest.approx((bound.bits_per_token, bound.stderr))
        calls = "1 call" if found.calls == 1 else "4 calls"
        assert line.startswith(f"{calls} (ancestral): {bound.bits_per_token:.4f} ± {bound.stderr:.4f} bits per ")
        assert re.search(r", [\d.e-]+ s per sample$", line)
        assert 0 < found.seconds < 60
        assert (found.sequences, found.of_sequences) == (20, len(folder.data().test))
    assert set(read_bounds(run)) == {"test"}


def test_the_json_holds_the_bounds_and_they_add_to_those_that_are_stored(run, capsys):
    assert dmb_("evaluate", run, *FEW, "--calls", 2) == 0
    capsys.readouterr()
    assert dmb_("evaluate", run, *FEW, "--json", "--calls", 4, "--sampler", "tweedie") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["split"] == "test"
    assert [each["calls"] for each in found["calls"]] == [4]
    stored = read_evaluations(run)["calls"]["test"]
    assert stored["tweedie"]["4"] == found["calls"][0]
    assert [(each.sampler, each.calls) for each in known(run)] == [("ancestral", 2), ("tweedie", 4)]


def test_a_bound_that_is_infinite_says_how_often(tmp_path, capsys):
    run = untrained(tmp_path / "run", *letters(tmp_path, init="uniform"), [{}]).path
    assert dmb_("evaluate", run, *FEW, "--calls", 2, "--sampler", "euler") == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("2 calls (euler): inf bits per token (50% of the steps cannot lead to the data), ")
    [found] = known(run)
    assert (found.bits, found.impossible) == (math.inf, 0.5)
    assert read_evaluations(run)["calls"]["test"]["euler"]["2"]["bits"] is None
    assert dmb_("sample", run, "-n", 1, "--calls", 2, "--sampler", "euler") == 0
    assert capsys.readouterr().err.strip() == "at 2 calls: inf bits per token"


def test_a_network_of_one_token_per_call_says_so_and_goes_on(written, capsys):
    run = written(dmb.CausalTransformer, dmb.orders.Fixed.left_to_right(6))
    assert dmb_("evaluate", run, *FEW, "--calls", 2, 6) == 0
    _, two, six = capsys.readouterr().out.splitlines()
    assert two == "2 calls (ancestral): fewer than the model needs, which writes one token per call"
    assert six.startswith("6 calls (ancestral): ")
    assert [found.calls for found in known(run)] == [6]
    assert known(run)[0].bits == pytest.approx(read_bounds(run)["test"].bits)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--calls", 4, "--sampler", "first_hitting"), "first_hitting has no number of calls: choose the sampler from"),
        (("--calls", 4, 0), "--calls must be at least 1, got 0"),
        (("--grid", "cosine"), "--grid is for bounds at numbers of network calls: give --calls, too"),
        (("--sampler", "euler"), "--sampler is for bounds at numbers of network calls: give --calls, too"),
    ],
)
def test_what_has_no_such_bound_is_one_line(run, capsys, words, message):
    stored = read_evaluations(run)
    assert dmb_("evaluate", run, *FEW, *words) == 2
    assert message in capsys.readouterr().err
    assert read_evaluations(run) == stored


def test_bounds_of_an_earlier_model_and_of_other_data_are_not_shown(run, tmp_path, capsys):
    assert dmb_("evaluate", run, *FEW, "--calls", 2) == 0
    step = read_evaluations(run)["test"]["step"]
    (tmp_path / "other.txt").write_text("ab c" * 200)
    assert dmb_("evaluate", run, *FEW, "--calls", 3, "--data", tmp_path / "other.txt") == 0
    assert [found.calls for found in known(run)] == [2]
    results = read_evaluations(run)
    results["calls"]["test"]["ancestral"]["2"]["step"] = step - 1
    (run / "evaluation.json").write_text(json.dumps(results))
    assert known(run) == []


def test_samples_of_few_calls_come_with_what_is_known_of_them(run, capsys):
    def said(*words):
        assert dmb_("sample", run, "-n", 1, *words) == 0
        return capsys.readouterr().err.strip()

    hint = "what so few calls cost in bits: dmb evaluate"
    assert said("--calls", 2).startswith(hint)
    assert said() == said("--calls", 64) == said("--calls", 2, "--temperature", 0.9) == ""
    assert dmb_("evaluate", run, *FEW, "--calls", 1, 4, 8) == 0
    capsys.readouterr()
    one, four, eight = (f"{found.bits:.2f}" for found in known(run))
    assert said("--calls", 5) == f"at 4 calls: {four} bits per token, {eight} at 8"
    assert said("--calls", 1) == f"at 1 call: {one} bits per token, {eight} at 8"
    assert said("--calls", 100) == f"at 8 calls: {eight} bits per token"
    assert said("--calls", 2, "--sampler", "tweedie").startswith(hint)
    assert said("--sampler", "first_hitting") == said("--calls", 2, "--top-p", 0.9) == ""
    assert dmb_("sample", run, "-n", 1, "--calls", 2, "--sampler", "first_hitting") == 2
    assert "first_hitting has no number of calls: choose the sampler from" in capsys.readouterr().err


def test_speculative_samples_take_no_number_of_calls(written, capsys):
    run = written(dmb.OrderedTransformer, dmb.orders.Random(6))
    assert dmb_("sample", run, "-n", 2, "--sampler", "speculative", "--json") == 0
    assert [len(row) for row in json.loads(capsys.readouterr().out)["tokens"]] == [6, 6]
    assert dmb_("sample", run, "--sampler", "speculative", "--calls", 2) == 2
    assert "speculative has no number of calls: choose the sampler from ancestral, or" in capsys.readouterr().err


def test_samples_and_bounds_of_an_order_for_few_calls_say_which_one(written, capsys):
    run = written(dmb.OrderedTransformer, dmb.orders.Streams((6,), budgets=(2, 3)))
    for calls, order in ((1, 2), (2, None), (3, None), (5, 3)):
        line = "" if order is None else f"{calls} calls: the order for {order} calls is used"
        assert dmb_("sample", run, "-n", 1, "--calls", calls) == 0
        assert capsys.readouterr().err.strip() == line
        assert dmb_("evaluate", run, *FEW, "--calls", calls) == 0
        assert capsys.readouterr().err.strip() == line
        (run / "evaluation.json").unlink()
    one, other = (Run.open(run).bridge().sample(3, calls=calls, generator=seeded(0)) for calls in (3, 5))
    assert torch.equal(one, other)


@pytest.fixture
def in_random_order(written):
    run = written(dmb.OrderedTransformer, dmb.orders.Random(6))
    bridge = shaken(Run.open(run).bridge())
    bridge.write(run)
    return run


def shaken(bridge):
    """The bridge with other weights: one that was not trained knows nothing, and so nothing that could be lost."""
    generator = seeded("weights")
    with torch.no_grad():
        for weights in bridge.network.parameters():
            weights.add_(0.4 * torch.randn(weights.shape, generator=generator))
    return bridge


def test_the_best_grid_is_found_on_validation_data_and_is_the_same_in_bounds_and_samples(in_random_order, capsys):
    run, folder = in_random_order, Run.open(in_random_order)
    bridge, examples = folder.bridge(), folder.summary()["examples"]
    assert dmb_("evaluate", run, *FEW, "--calls", 3, "--grid", "canonical", "best") == 0
    _, plain, best = capsys.readouterr().out.splitlines()
    costs = token_costs(bridge, examples)
    grid = dmb.orders.best_shares(costs, 3)
    assert not torch.allclose(grid, torch.linspace(1, 0, 4, dtype=torch.float64))  # that would show nothing
    x = folder.data().test
    bound = bridge.bound(x[x.spread(20)], calls=3, grid=grid, generator=seeded(0, "evaluation"))
    assert plain.startswith("3 calls (ancestral): ")
    assert best.startswith(f"3 calls (ancestral, best grid): {bound.bits_per_token:.4f} ± {bound.stderr:.4f} bits per ")
    stored = read_evaluations(run)["calls"]["test"]
    assert [stored[how]["3"]["grid"] for how in ("ancestral", "ancestral, best grid")] == ["canonical", "best"]

    assert dmb_("sample", run, "-n", 40, "--calls", 3, "--grid", "best", "--json") == 0
    said = capsys.readouterr()
    assert said.err.strip() == f"at 3 calls: {bound.bits_per_token:.2f} bits per token"
    drawn, other = (bridge.sample(40, calls=3, grid=g, generator=seeded(0, "samples")) for g in (grid, "canonical"))
    assert not torch.equal(drawn, other)
    assert json.loads(said.out)["tokens"] == drawn.tolist()


def test_what_a_token_costs_is_the_mean_over_orders_by_what_is_known(in_random_order):
    folder = Run.open(in_random_order)
    bridge, x = folder.bridge(), folder.summary()["examples"][:2].repeat(1000, 1)
    orders = torch.tensor([*itertools.permutations(range(6))])
    rows, turns = x[:2].repeat_interleave(len(orders), 0), orders.argsort(-1).repeat(2, 1)
    with torch.no_grad():
        each = bridge.token_nats(rows, turns).gather(1, turns.argsort(-1))
    error = each.std(0) / (4 * 2000) ** 0.5
    assert ((token_costs(bridge, x) - each.mean(0)).abs() < 4.5 * error).all()


def test_costs_are_smooth_in_what_is_known_so_that_noise_does_not_choose_the_grid(tmp_path):
    data = text(tmp_path, length=32, count=4000)
    run = untrained(tmp_path / "run", recipe(source=data.source, mask=True, floor=0.0, network="ordered"), data, [{}])
    costs = token_costs(shaken(run.bridge()), run.summary()["examples"])
    assert costs.std() > 0.01
    assert costs.diff(n=7).abs().max() < 1e-9  # of a polynomial of degree 6


def test_a_grid_changes_the_law_and_what_is_known_of_one_is_not_said_of_another(in_random_order, capsys):
    run = in_random_order
    assert dmb_("evaluate", run, *FEW, "--calls", 2, "--grid", "cosine") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("2 calls (ancestral, cosine grid): ")
    assert dmb_("sample", run, "-n", 1, "--calls", 2) == 0
    assert "--grid" not in (said := capsys.readouterr().err)
    assert said.startswith("what so few calls cost in bits: dmb evaluate")
    assert dmb_("sample", run, "-n", 1, "--calls", 2, "--grid", "uniform") == 0
    assert "--grid uniform --calls 2 6" in capsys.readouterr().err


def test_only_random_orders_have_a_best_grid(masked, written, capsys):
    for folder in (masked, written(dmb.OrderedTransformer, dmb.orders.Streams((6,), budgets=(2, 3)))):
        for words in (("evaluate", folder, *FEW), ("sample", folder, "-n", 1)):
            assert dmb_(*words, "--calls", 2, "--grid", "best") == 2
            said = "the best grid is known for models that write sequences of one length in random order only"
            assert said in capsys.readouterr().err


def test_several_samplers_are_evaluated_one_after_the_other(run, capsys):
    assert dmb_("evaluate", run, *FEW, "--calls", 2, 4, "--sampler", "ancestral", "euler") == 0
    _, *lines = capsys.readouterr().out.splitlines()
    begins = ["2 calls (ancestral)", "4 calls (ancestral)", "2 calls (euler)", "4 calls (euler)"]
    assert [line.partition(":")[0] for line in lines] == begins
