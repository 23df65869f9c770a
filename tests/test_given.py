"""What a template gives is believed, whatever the noise: a known value is no noise, even if most values like it are."""

import json
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import dmb
from commands import dmb_
from dmb.app import recipes
from dmb.bridges import TemplateWarning
from dmb.networks.base import given_embedding, init_given_embedding
from dmb.training import TrainingSettings

DRAWS = 2000
SMALL = {
    "cycles": 1, "matrix_steps": 0, "batch_size": 256, "learning_rate": 5e-3, "warmup": 20, "width": 32, "blocks": 2,
    "dropout": 0.0, "ema": 0.98, "patience": 0, "evaluate_sequences": 64,
}  # fmt: skip


def language(folder):
    """Text in three letters, each of which likes its own kind; `b` is the rarest, and what all become."""
    chain = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
    letters, rng = [0], np.random.default_rng(0)
    for uniform in rng.random(30_000):
        letters.append(int((uniform > chain[letters[-1]].cumsum()).sum()))
    (folder / "letters.txt").write_text("".join(" ab"[letter] for letter in letters))
    data = dmb.data.text(folder / "letters.txt", length=3)
    start = np.linalg.matrix_power(chain, 100)[0]
    return data, start[:, None, None] * chain[:, :, None] * chain[None]


def survey(folder):
    """A table of three columns with three answers each, of one group of people or the other."""
    yes, no = np.array([0.75, 0.15, 0.1]), np.array([0.05, 0.25, 0.7])
    mu = sum(share * np.einsum("i,j,k->ijk", p, p, p) for share, p in ((0.65, yes), (0.35, no)))
    rows = np.stack(np.unravel_index(np.random.default_rng(0).choice(mu.size, 20_000, p=mu.ravel()), mu.shape), 1)
    lines = [",".join("abc"[answer] for answer in row) for row in rows.tolist()]
    (folder / "survey.csv").write_text("\n".join(["first,second,third", *lines]))
    return dmb.data.table(folder / "survey.csv"), mu


def pictures(_):
    """Pictures of 1 × 3 pixels, bright or dark all over, with noise."""
    bright, dark = np.array([0.05, 0.15, 0.8]), np.array([0.7, 0.2, 0.1])
    mu = sum(share * np.einsum("i,j,k->ijk", p, p, p) for share, p in ((0.6, bright), (0.4, dark)))
    rows = np.random.default_rng(0).choice(mu.size, 20_000, p=mu.ravel())
    return dmb.data.array(np.stack(np.unravel_index(rows, mu.shape), 1).reshape(-1, 1, 3), num_states=3), mu


MARGINALS = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])


def gathering(**options):
    """A bridge in which all values become the commonest: 2 at the first position, 0 at the second."""
    process = dmb.BridgeProcess.from_marginals(MARGINALS, **{"floor": None if "init" in options else 0.0} | options)
    torch.manual_seed(0)
    network = dmb.MLP(process, width=16, blocks=1)
    torch.nn.init.normal_(network.output.weight)
    return dmb.MarkovBridge(process, network)


@pytest.mark.parametrize("options", [{}, {"mask": True}, {"init": "uniform"}, {"init": "nested", "stages": 2}], ids=str)
@pytest.mark.parametrize("t", [0.1, 0.5, 0.9])
def test_the_share_of_noise_is_what_did_not_stay_where_it_was(options, t):
    process = dmb.BridgeProcess.from_marginals(MARGINALS, **options)
    P, p_0 = process.to_dense(t).detach(), process.p_0
    stayed = p_0 * P.diagonal(dim1=1, dim2=2)  # no state is left and entered again
    found = torch.einsum("dx,dxy->dy", p_0, P)
    torch.testing.assert_close(process.noise_share(t), 1 - stayed / found, rtol=1e-4, atol=1e-6)


def test_only_tokens_in_doubt_are_marked():
    bridge = gathering()
    assert bridge.ambiguous_states.tolist() == [[False, False, True], [True, False, False]]
    init_given_embedding(bridge.network, torch.Generator().manual_seed(0))
    bridge.eval()
    given = torch.tensor([[True, False]])
    for token, marked in ((0, False), (1, False), (2, True)):
        x_t = torch.tensor([[token, 0]])
        plain, told = bridge.log_posterior(x_t, 0.9), bridge.log_posterior(x_t, 0.9, given=given)
        assert (plain[:, 1] != told[:, 1]).any() == marked


@pytest.mark.parametrize("kind", [dmb.MLP, dmb.Transformer])
def test_a_given_token_begins_as_a_token_of_its_own(kind):
    network = kind(5, 6, width=16, blocks=1)
    assert not given_embedding(network).any()
    init_given_embedding(network, torch.Generator().manual_seed(0))
    marks = given_embedding(network).detach().clone()
    assert marks.std() == pytest.approx(0.5, rel=0.2)
    init_given_embedding(network, torch.Generator().manual_seed(1))  # what has been learned stays
    assert given_embedding(network).equal(marks)


@pytest.mark.parametrize(
    ("options", "share"), [({}, 0.25), ({"mask": True}, 0.0), ({"init": "uniform"}, 0.25)], ids=str
)
def test_training_shows_given_positions_where_noise_looks_like_data(options, share):
    bridge = gathering(**options)
    assert bridge.infill_share(TrainingSettings()) == share
    assert bridge.infill_share(TrainingSettings(infill=0.7)) == 0.7
    untold = dmb.MarkovBridge(bridge.process, torch.nn.Identity())
    assert untold.infill_share(TrainingSettings()) == 0.0


@pytest.mark.parametrize(
    ("kind", "order", "share"),
    [
        (dmb.OrderedTransformer, dmb.orders.Free(2), 0.25),
        (dmb.OrderedTransformer, dmb.orders.Fixed([1, 0]), 0.25),
        (dmb.OrderedTransformer, dmb.orders.Streams((2,)), 0.25),
        (dmb.OrderedTransformer, dmb.orders.Blocks(2, 1), 0.25),
        (dmb.OrderedTransformer, dmb.orders.Random(2), 0.0),
        (dmb.CausalTransformer, dmb.orders.Fixed([0, 1]), 0.0),
    ],
)
def test_training_shows_given_positions_where_an_order_is_preferred(kind, order, share):
    states = dmb.States.with_mask(*MARGINALS.shape)
    bridge = dmb.OrderedBridge(order, kind(states, width=16, blocks=1, heads=2), states)
    assert bridge.infill_share(TrainingSettings()) == share


def test_a_template_that_may_not_be_believed_is_a_warning():
    bridge = gathering()
    with pytest.warns(TemplateWarning, match="may take token 2 of the template, at position 0, for noise"):
        bridge.sample(template=torch.tensor([2, -1]), calls=2)
    bridge.sample(template=torch.tensor([1, -1]), calls=2)  # warnings are errors here
    gathering(mask=True).sample(template=torch.tensor([2, -1]), calls=2)
    init_given_embedding(bridge.network, torch.Generator().manual_seed(0))
    bridge.sample(template=torch.tensor([2, -1]), calls=2)


@pytest.mark.filterwarnings("default")
def test_a_warning_is_a_line_of_the_command_line(monkeypatch, capsys):
    def called(_):
        warnings.warn("not\nbelieved", TemplateWarning, stacklevel=1)
        warnings.warn("of another package", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("dmb.app.cli._called", called)
    assert dmb_("sample") == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == ["note: not believed"]


@pytest.mark.parametrize("kind", [dmb.MLP, dmb.Transformer])
def test_models_with_one_vector_for_all_given_states_can_be_loaded(kind, tmp_path):
    """As version 0.1 wrote them, when bridges had no type."""
    process = dmb.UniformProcess(6, 5)
    dmb.MarkovBridge(process, kind(process, width=16, blocks=1)).write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    old = torch.randn(6, 16) if kind is dmb.MLP else torch.randn(16)
    save_file(tensors | {"network.given": old}, tmp_path / "model.safetensors")
    vectors = dmb.Bridge.from_pretrained(tmp_path).network.given.view(-1, 5, 16)
    assert vectors.equal(old.view(-1, 1, 16).expand_as(vectors))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "make", "settings"),
    [
        ("array", pictures, {"score_steps": 450, "evaluate_every": 450}),
        # a learned order seldom begins with what it has learned to write last, and so knows less of what follows from it
        (
            "text",
            language,
            {"score_steps": 200, "evaluate_every": 200, "batch_size": 128, "write_order": "random"}
            | {"matrix_objective": "prior"},
        ),
        (
            "sequences",
            pictures,
            {"score_steps": 120, "evaluate_every": 120, "batch_size": 128, "learning_rate": 1e-2, "blocks": 1},
        ),
        ("table", survey, {"score_steps": 200, "evaluate_every": 200}),
    ],
    ids=["array", "text", "sequences", "table"],
)
def test_conditionals_are_exact_for_every_value_that_a_template_can_give(name, make, settings, tmp_path):
    data, mu = make(tmp_path)
    recipe = recipes.recipe(name).changed(**SMALL | settings)
    bridge = recipe.build(data)
    assert bridge.believes_given == (name != "array")
    for _ in dmb.train(bridge, data, recipe.training):
        pass
    template = torch.full((9, 3), -1)
    given = [(position, value) for position in range(3) for value in range(3)]
    for row, (position, value) in enumerate(given):
        template[row, position] = value
    samples = bridge.sample(
        template=template.repeat_interleave(DRAWS, 0),
        calls=16 if name == "array" else None,
        generator=torch.Generator().manual_seed(0),
    )
    for (position, value), rows in zip(given, samples.view(9, DRAWS, 3).numpy(), strict=True):
        assert (rows[:, position] == value).all()
        exact = np.take(mu, value, axis=position) / np.take(mu, value, axis=position).sum()
        for axis, other in enumerate(i for i in range(3) if i != position):
            expected, found = exact.sum(1 - axis), np.bincount(rows[:, other], minlength=3) / DRAWS
            error = np.sqrt(expected * (1 - expected) / DRAWS).sum() / 2
            assert np.abs(found - expected).sum() / 2 < 3 * error + 0.03, (position, value, other)
