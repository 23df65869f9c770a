"""Sequences of different lengths: the law of the length, bounds and samples, beside exact figures by enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch

import dmb
import toys
from dmb.data import DataSet, Rows
from dmb.data.codecs import Records
from dmb.data.lengths import BLANK
from dmb.objectives.variance import sample_split

import oracles

D, PAD = 3, 2  # lengths 1 to 3 over two letters, and padding
CODEC = Records("AB", D)


def languages():
    """All sequences of length 1 to 3 with their probabilities: 14 of them, no two alike."""
    words = ["".join(word) for length in (1, 2, 3) for word in itertools.product("AB", repeat=length)]
    p = np.random.default_rng(3).random(len(words)) ** 3 + 0.01
    return words, p / p.sum()


def table(length):
    """The law of sequences of this length, over padded sequences; and how likely the length is."""
    mu = torch.zeros(3, 3, 3, dtype=torch.float64)
    for word, chance in zip(*languages(), strict=True):
        if len(word) == length:
            mu[tuple(CODEC.encode([word])[0].astype(int))] = chance
    return mu / mu.sum(), mu.sum().item()


def by_length(kind):
    """A network that holds an exact one for each length, and tells by the padding which to ask."""

    class ByLength(kind):
        def forward(self, x_t, *others, **options):
            answers = torch.stack([exact.forward(x_t, *others, **options) for exact in self.parts])
            return answers[(x_t != PAD).sum(-1) - 1, torch.arange(len(x_t))].nan_to_num(-30.0, neginf=-30.0)

    return ByLength


def exact_model(by_paths=False):
    """Knows the law of every sequence given its length, and the law of the length."""
    laws, chances = zip(*map(table, (1, 2, 3)), strict=True)
    whole = sum(law * chance for law, chance in zip(laws, chances, strict=True))
    bridge = toys.ordered_bridge(whole, [1.0, 1.0, 1.0]) if by_paths else toys.model("masked diffusion", whole)
    process, kind = bridge.states, type(bridge.network)
    options = () if by_paths else (process, "mean")
    widened = [law if by_paths else toys.with_mask_axis(law, process) for law in laws]
    network = by_length(kind)(whole if by_paths else toys.with_mask_axis(whole, process), *options)
    network.parts = [kind(law, *options) for law in widened]
    lengths = dmb.Lengths([round(1e9 * chance) for chance in chances], PAD)
    if by_paths:
        return dmb.OrderedBridge(bridge.order, network, bridge.states, lengths)
    return dmb.MarkovBridge(process, network, lengths=lengths)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("by_paths", [False, True])
def test_with_exact_conditionals_the_bound_is_the_entropy_lengths_included(by_paths):
    words, p = languages()
    random = np.random.default_rng(0)
    drawn = random.choice(len(words), size=2000, p=p)
    x_0 = torch.from_numpy(CODEC.encode([words[i] for i in drawn])).long()
    bound = exact_model(by_paths).bound(x_0, generator=torch.Generator().manual_seed(0))
    truth = -np.log(p[drawn]).mean()
    error = bound.stderr * math.log(2) * bound.mean_tokens
    assert bound.nats == pytest.approx(truth, abs=4 * error)
    assert bound.mean_tokens == np.mean([len(words[i]) for i in drawn])
    assert bound.bits_per_token == pytest.approx(bound.nats / math.log(2) / bound.mean_tokens)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("sampler", ["ancestral", "first_hitting", "whole paths"])
def test_samples_of_different_lengths_have_the_models_law(sampler):
    bridge = exact_model(by_paths=sampler == "whole paths")
    options = {"sampler": "first_hitting"} if sampler != "ancestral" else {"sampler": sampler, "calls": 24}
    x = bridge.sample(3000, generator=torch.Generator().manual_seed(0), **options)
    words, p = languages()
    drawn = CODEC.decode(x)
    assert torch.equal(torch.from_numpy(CODEC.encode(drawn)).long(), x)  # nothing stands after the end
    assert oracles.chi_square_p_value([drawn.count(word) for word in words], p) > 1e-5


@pytest.mark.usefixtures("no_type_checks")
def test_templates_say_what_is_known_of_the_end():
    bridge, generator = exact_model(), torch.Generator().manual_seed(0)
    assert {len(text) for text in draw(bridge, [-1, -1, -1], generator)} == {1, 2, 3}
    assert {len(text) for text in draw(bridge, [1, -1, -1], generator)} == {1, 2, 3}
    assert {len(text) for text in draw(bridge, [1, BLANK, -1], generator)} == {2, 3}
    assert {len(text) for text in draw(bridge, [BLANK, BLANK, PAD], generator)} == {2}
    assert {len(text) for text in draw(bridge, [-1, -1, PAD], generator)} == {1, 2}
    assert {text[0] for text in draw(bridge, [1, BLANK, -1], generator)} == {"B"}
    with pytest.raises(ValueError, match="template must have padding, state 2, after all other tokens only"):
        draw(bridge, [PAD, 1, -1], generator)


def draw(bridge, template, generator):
    return CODEC.decode(bridge.sample(300, calls=4, template=torch.tensor(template), generator=generator))


@pytest.mark.usefixtures("no_type_checks")
def test_the_error_of_bits_per_token_is_that_of_a_ratio():
    """Beside the jackknife, which leaves out one sequence after the other."""
    words, p = languages()
    drawn = np.random.default_rng(0).choice(len(words), size=500, p=p)
    x_0 = torch.from_numpy(CODEC.encode([words[i] for i in drawn])).long()
    bound = exact_model(by_paths=True).bound(x_0, generator=torch.Generator().manual_seed(0))
    nats, tokens = (bound.score + bound.prior).numpy(), bound.tokens.numpy()
    left_out = (nats.sum() - nats) / (tokens.sum() - tokens) / math.log(2)
    jackknife = math.sqrt((len(nats) - 1) * left_out.var())
    assert bound.stderr == pytest.approx(jackknife, rel=0.02)
    assert jackknife != pytest.approx(nats.std() / math.sqrt(len(nats)) / tokens.mean() / math.log(2), rel=0.05)


def test_what_is_given_never_moves_and_the_rest_moves_as_often_as_it_should():
    process = dmb.BridgeProcess.from_marginals(torch.full((4, 3), 1 / 3).double(), mask=True, floor=0.0)
    x_0 = torch.tensor([[0, 1, 2, 2]]).repeat(4000, 1)
    given, clock = x_0 == PAD, process.solve(0.2, len(x_0))
    x_t, weight = sample_split(process, x_0, clock, torch.Generator().manual_seed(0), given)
    assert torch.equal(x_t[given], x_0[given])
    moved = weight * (x_t != x_0).any(-1)
    chance = 1 - process.log_prob(x_0[:1], x_0[:1], 0.2).exp()[0, :2].prod().item()
    assert moved.mean().item() == pytest.approx(chance, abs=4 * moved.std().item() / math.sqrt(len(x_0)))
    assert weight.mean().item() == pytest.approx(1, abs=4 * weight.std().item() / math.sqrt(len(x_0)))


def test_no_length_is_impossible_and_sharp_histograms_stay_sharp():
    sharp = dmb.Lengths([0, 0, 500, 0, 0, 0, 500, 0], padding=9)
    assert (sharp.p > 0).all()
    assert sharp.p.sum().item() == pytest.approx(1)
    assert sharp.p[[2, 6]].sum() > 0.998
    random = np.random.default_rng(0)
    smooth = dmb.Lengths(np.bincount(random.integers(20, 200, size=300), minlength=201)[1:].tolist(), padding=9)
    assert smooth.p[25:190].min() > 0.5 * smooth.p[25:190].mean()  # of these many do not occur
    assert smooth.p[:10].sum() < 0.01  # far from all that occur


def test_padding_that_is_not_at_the_end_is_refused():
    bridge = exact_model()
    for row, message in [
        ([PAD, 0, 0], "got it before another token at row 0, position 0"),
        ([PAD] * 3, "must have a token"),
    ]:
        with pytest.raises(ValueError, match=message):
            bridge.loss(torch.tensor([row]))


def test_a_saved_bridge_still_knows_lengths(tmp_path):
    schedule = dmb.LogLinear(0.5)  # half of all tokens survive to t = 1, padding among them
    process = dmb.BridgeProcess.from_marginals(torch.full((4, 5), 0.2), mask=True, floor=0.0, schedule=schedule)
    lengths = dmb.Lengths([1, 0, 5, 2], padding=4)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1), lengths=lengths)
    bridge.write(tmp_path)
    again = dmb.Bridge.from_pretrained(tmp_path)
    assert again.lengths.to_config() == lengths.to_config()
    one, two = (b.sample(50, calls=4, generator=torch.Generator().manual_seed(0)) for b in (bridge.eval(), again))
    assert torch.equal(one, two)
    again.lengths.of(one)  # raises if padding stands anywhere but at the end
    few = again.sample(50, calls=4, legal=torch.tensor([True, True, False, False, True]))
    assert set(few.flatten().tolist()) == {0, 1, 4}
    again.lengths.of(few)


@pytest.mark.usefixtures("no_type_checks")
def test_the_bound_of_a_trained_model_is_never_below_the_entropy():
    words, p = languages()
    drawn = np.random.default_rng(0).choice(len(words), size=15_000, p=p)
    tokens = CODEC.encode([words[i] for i in drawn])
    parts = [Rows(tokens[a:b], CODEC.num_states) for a, b in ((0, 10_000), (10_000, 11_000), (12_000, 15_000))]
    data = DataSet(
        name="words", source="", codec=CODEC, train=parts[0], validation=parts[1], test=parts[2], padding=PAD
    )
    process = dmb.BridgeProcess.from_marginals(data.marginals(), mask=True, floor=0.0)
    torch.manual_seed(0)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=32, blocks=1, dropout=0.0), lengths=data.lengths)
    truth = -np.log2(p[drawn[12_000:]]).sum() / (tokens[12_000:] != PAD).sum()
    above = []
    for report in dmb.train(
        bridge, data, cycles=1, score_steps=120, evaluate_every=60, learning_rate=1e-2, batch_size=64, chain_calls=4
    ):
        if report.validation is not None:
            bound = bridge.bound(data.test, generator=torch.Generator().manual_seed(0))
            assert bound.bits_per_token > truth - 3 * bound.stderr
            above.append(bound.bits_per_token - truth)
    assert above[-1] < min(0.06, (data.unigram_bits(data.test) - truth) / 2)
    assert data.lengths.mean == (tokens[:10_000] != PAD).sum() / 10_000


@pytest.mark.parametrize("padding", [-1, 4, 100])
def test_padding_is_one_of_the_states(padding):
    states = dmb.States(D, 4, names=1)
    network = dmb.OrderedTransformer(states, width=8, heads=1, blocks=1)
    with pytest.raises(ValueError, match=rf"padding must lie in \[0, 4\), got {padding}"):
        dmb.OrderedBridge(dmb.orders.Random(D), network, states, dmb.data.lengths.Lengths([1, 1, 1], padding))
