import itertools

import numpy as np
import pytest
import torch

import dmb
from dmb.networks.base import TimeEmbedding
from dmb.networks.transformer import rotary_angles, rotate

import oracles

NETWORKS = {
    "transformer": lambda **o: dmb.Transformer(5, 6, blocks=2, width=16, heads=2, conditioning=8, **o),
    "mlp": lambda **o: dmb.MLP(5, 6, width=16, blocks=2, conditioning=8, **o),
}
every_network = pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)


def stirred(network, seed=0):
    """Zero-initialised layers filled with noise, so that every input can show in the output."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return network.eval()


@pytest.mark.parametrize("kind", [dmb.MLP, dmb.Transformer])
def test_a_network_for_a_process_has_its_size(kind):
    network = kind(dmb.UniformProcess(6, 5), width=16, blocks=1)
    assert (network.num_positions, network.num_states) == (6, 5)
    assert network(torch.zeros(1, 6, dtype=torch.long), torch.rand(1)).shape == (1, 6, 5)


@pytest.mark.parametrize(
    "kind", [dmb.MLP, dmb.Transformer, dmb.OrderedMLP, dmb.OrderedTransformer, dmb.CausalTransformer]
)
def test_a_network_without_a_number_of_positions_says_what_to_give(kind):
    with pytest.raises(ValueError, match="num_positions must be given, unless a process or States stand in place"):
        kind(5)


@every_network
def test_an_untrained_network_gives_every_state_the_same_number(build):
    output = build()(torch.randint(5, (3, 6)), torch.rand(3))
    assert output.shape == (3, 6, 5)
    assert (output == 0).all()


@every_network
def test_outputs_depend_on_tokens_time_label_and_what_is_given(build):
    network = stirred(build(num_classes=3))
    x, t, label = (
        torch.randint(5, (4, 6), generator=torch.Generator().manual_seed(0)),
        torch.rand(4),
        torch.arange(4) % 3,
    )
    base = network(x, t, label)
    given = torch.zeros(4, 6, dtype=torch.bool)
    given[:, 2] = True
    for changed in (
        network((x + 1) % 5, t, label),
        network(x, 1 - t, label),
        network(x, t, (label + 1) % 3),
        network(x, t),
        network(x, t, label, given),
    ):
        assert (changed - base).abs().amax(dim=(1, 2)).min() > 1e-3
    assert torch.equal(network(x, t), network(x, t, torch.full((4,), -1)))
    torch.testing.assert_close(network(x, t, label, torch.zeros_like(given)), base)


def test_positions_with_fewer_states_have_fewer_weights_and_the_same_outputs():
    """Against the network that has weights for all states, with the same ones where both have any."""
    counts, most = torch.tensor([2, 4, 1]), 4
    marginals = (torch.arange(most) < counts[:, None]) / counts[:, None]
    process = dmb.BridgeProcess.from_marginals(marginals, mask=True, floor=0.0, state_counts=counts)
    few = stirred(dmb.MLP(process, width=16, blocks=1, conditioning=8))
    full = dmb.MLP(most + 1, 3, width=16, blocks=1, conditioning=8).eval()
    states = [(i, k) for i, count in enumerate(counts.tolist()) for k in [*range(count), most]]  # the mask is the last
    rows = torch.tensor([i * (most + 1) + k for i, k in states])
    assert len(few.tokens.weight) == len(few.output.weight) == len(rows)
    weights = {name: weight.clone() for name, weight in few.state_dict().items()}
    for name in ("tokens.weight", "given", "output.weight", "output.bias"):
        table = torch.zeros_like(full.state_dict()[name])
        table[rows] = weights[name]
        weights[name] = table
    full.load_state_dict(weights)
    x, t = torch.tensor([list(row) for row in itertools.product([0, 1, 4], [0, 3, 4], [0, 4])]), torch.rand(18)
    given = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    for marks in (None, given):
        torch.testing.assert_close(few(x, t, given=marks), full(x, t, given=marks))
    assert (few(x, t)[:, 0, 2:4] == 0).all()
    again = dmb.Network.from_config(few.to_config())
    again.load_state_dict(few.state_dict())
    torch.testing.assert_close(again.eval()(x, t), few(x, t))
    with pytest.raises(ValueError, match=r"state_counts must be 3 numbers in \[1, 5\], got \[2, 6, 1\]"):
        dmb.MLP(5, 3, state_counts=[2, 6, 1])


def test_vectors_of_states_in_an_order_are_the_more_alike_the_nearer_they_are():
    network = dmb.MLP(100, 2, width=512, blocks=1)
    before = network.tokens.weight.clone()
    ordered = torch.zeros(2, 100, dtype=torch.bool)
    ordered[0, :23] = True  # too few to gain by it
    ordered[1, 1:80] = True
    torch.manual_seed(0)
    network.init_ordinal_embeddings(ordered)
    own = torch.zeros(200, dtype=torch.bool)
    own[101:180] = True
    assert torch.equal(network.tokens.weight[~own], before[~own])
    assert (network.output.weight[~own] == 0).all()
    for weight, std in ((network.tokens.weight, 2**-0.5), (network.output.weight, 0.5 * 512**-0.5)):
        vectors = weight[own].detach()
        assert vectors.std().item() == pytest.approx(std, rel=0.1)
        alike = torch.stack([torch.cosine_similarity(vectors[:-k], vectors[k:]).mean() for k in (1, 4, 16, 60)])
        assert (alike.diff() < 0).all()
        assert alike[0] > 0.7
        assert alike[-1].abs() < 0.3


@every_network
def test_rows_do_not_see_each_other(build):
    network = stirred(build())
    x, t = torch.randint(5, (4, 6)), torch.rand(4)
    torch.testing.assert_close(network(x, t)[2:], network(x[2:], t[2:]), rtol=1e-4, atol=1e-5)


@every_network
def test_labels_are_hidden_in_training_at_the_given_rate(build):
    network = stirred(build(num_classes=2, label_dropout=0.3, dropout=0.0)).train()
    x, t = torch.zeros(4000, 6, dtype=torch.long), torch.full((4000,), 0.5)
    torch.manual_seed(0)
    output = network(x, t, torch.ones(4000, dtype=torch.long))
    hidden = (output - network.eval()(x[:1], t[:1])).abs().amax(dim=(1, 2)) < 1e-5
    assert hidden.float().mean().item() == pytest.approx(0.3, abs=4 * (0.21 / 4000) ** 0.5)


@every_network
def test_a_label_out_of_range_or_unasked_for_is_refused(build):
    x, t, process = torch.zeros(1, 6, dtype=torch.long), torch.rand(1), dmb.UniformProcess(6, 5)
    for options, wrong, message in [
        ({"num_classes": 3}, 3, r"label must lie in \[0, 3\), or be -1 for none, got 3"),
        ({"num_classes": 3}, -2, r"label must lie in \[0, 3\), or be -1 for none, got -2"),
        ({}, 0, "label needs a network made with num_classes"),
    ]:
        bridge, label = dmb.MarkovBridge(process, build(**options)), torch.tensor([wrong])
        with pytest.raises(ValueError, match=message):
            bridge.loss(x, label=label)
        with pytest.raises(ValueError, match=message):
            bridge.bound(x, label=label)
        with pytest.raises(ValueError, match=message):
            bridge.sample(label=label)
    with pytest.raises(ValueError, match="label needs a network made with num_classes"):
        build()(x, t, torch.tensor([0]))


def test_time_features_are_finite_distinct_and_well_scaled_at_both_ends():
    torch.manual_seed(0)
    embed = TimeEmbedding(32)
    t = torch.tensor([0.0, 1e-6, 1e-3, 0.5, 1 - 1e-3, 1.0], dtype=torch.float64)
    out = embed(t)
    assert out.isfinite().all()
    assert (out[1:] - out[:-1]).norm(dim=-1).min() > 1e-4
    # a step of the same relative size near either end is seen about equally well
    near_0, near_1 = (out[2] - out[0]).norm(), (out[5] - out[4]).norm()
    assert 1 / 3 < near_0 / near_1 < 3


def test_rotary_attention_sees_only_the_distance_of_positions():
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8, generator=generator)
    rotary = rotary_angles(10, 8)
    rotated_q, rotated_k = rotate(query.expand(-1, -1, 10, -1), rotary), rotate(key.expand(-1, -1, 10, -1), rotary)
    scores = (rotated_q @ rotated_k.mT)[0, 0]
    for distance in range(-9, 10):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)
    assert scores[0].std() > 1e-2
    torch.testing.assert_close(rotated_q.norm(dim=-1), query.norm(dim=-1).expand(-1, -1, 10))


def test_sizes_run_from_half_a_million_to_the_papers():
    def parameters(**options):
        with torch.device("meta"):
            return sum(p.numel() for p in dmb.Transformer(27, 256, **options).parameters())

    assert parameters() == pytest.approx(0.6e6, rel=0.1)
    assert parameters(blocks=12, width=768, heads=12, conditioning=128) == pytest.approx(92e6, rel=0.05)
    with pytest.raises(ValueError, match="width must be a multiple of 2 · heads, got 10 with 4 heads"):
        dmb.Transformer(27, 8, width=10)


def test_a_table_is_not_saved_as_a_model(tmp_path):
    process = dmb.UniformProcess(1, 2)
    with pytest.raises(ValueError, match="a Tabular network cannot be saved"):
        dmb.MarkovBridge(process, dmb.Tabular(torch.tensor([0.5, 0.5]), process)).save_pretrained(tmp_path)


@pytest.mark.parametrize("given", [None, [False, True, False]])
def test_the_tabular_network_is_bayes_rule_by_enumeration(given):
    rng = np.random.default_rng(0)
    mu = rng.random((3, 3, 3)) ** 3
    mu /= mu.sum()
    process = dmb.UniformProcess(3, 3).double()
    P = oracles.transition(oracles.uniform_rates(3, 3), oracles.loglinear(0.4)[0])
    x_t = [0, 2, 1]
    expected = np.zeros((3, 3))
    for x_0 in itertools.product(range(3), repeat=3):
        for i in range(3):
            weight = mu[x_0]
            for j in range(3):
                if j != i:
                    known = given is not None and given[j]
                    weight *= float(x_0[j] == x_t[j]) if known else P[x_0[j], x_t[j]]
            expected[i, x_0[i]] += weight
    network = dmb.Tabular(torch.tensor(mu), process)
    mask = None if given is None else torch.tensor([given])
    rho = network(torch.tensor([x_t]), torch.tensor([0.4], dtype=torch.float64), None, mask)[0].exp().numpy()
    np.testing.assert_allclose(rho / rho.sum(-1, keepdims=True), expected / expected.sum(-1, keepdims=True), rtol=1e-9)


@pytest.mark.parametrize("placed", [True, False])
def test_where_a_position_is_shows_only_in_a_network_that_is_told(placed):
    torch.manual_seed(0)
    output = stirred(NETWORKS["transformer"](placed=placed))(torch.full((1, 6), 4), torch.rand(1))[0]
    apart = torch.cdist(output, output) + torch.eye(6)
    assert apart.min() > 0.1 if placed else (output - output[0]).abs().max() < 1e-5
