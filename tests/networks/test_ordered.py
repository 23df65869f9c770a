"""Networks that follow an order: what each position sees, and that a cache changes nothing."""

import itertools
import math

import pytest
import torch

import dmb
from dmb._core.seeding import seeded
from dmb.orders import turns_of_calls

STATES, POSITIONS = 6, 7
"""Five of the data, and the mask."""


def stirred(network, seed=0):
    """Zero-initialised layers filled with noise, so that every input can show in the output."""
    with torch.no_grad():
        for name, p in network.named_parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=seeded(seed, name)))
    return network.eval()


def transformer(kind=dmb.OrderedTransformer, **options):
    torch.manual_seed(0)
    return stirred(kind(STATES, POSITIONS, blocks=3, width=16, heads=2, conditioning=8, **options))


def tokens(rows=5, seed="tokens"):
    return torch.randint(STATES - 1, (rows, POSITIONS), generator=seeded(seed))


def random_turns(rows=5):
    return torch.rand(rows, POSITIONS, generator=seeded("ranks")).argsort(-1)


TIED = torch.tensor([[0, 2, 2, 1, 0, 3, 2], [1, 1, 1, 1, 1, 1, 1], [5, 5, 0, 0, 9, 9, 9]])
every_reach = pytest.mark.parametrize("beside", [(), (1,), (1, 3)], ids=["alone", "beside", "two distances"])
every_placing = pytest.mark.parametrize("placed", [False, True], ids=["rotary", "placed"])


# -- any order --------------------------------------------------------------------------------------------------------


@every_placing
@pytest.mark.parametrize("turn", [random_turns(), TIED], ids=["all different", "with ties"])
def test_an_output_depends_on_all_tokens_of_an_earlier_turn_and_on_no_other(turn, placed):
    network, x = transformer(placed=placed), tokens(len(turn))
    base = network(x, turn=turn)
    for j in range(POSITIONS):
        changed = x.clone()
        changed[:, j] = (changed[:, j] + 1) % (STATES - 1)
        output = network(changed, turn=turn)
        for row, i in itertools.product(range(len(turn)), range(POSITIONS)):
            if turn[row, j] < turn[row, i]:
                assert (output[row, i] - base[row, i]).abs().max() > 1e-5
            else:
                assert torch.equal(output[row, i], base[row, i])


@pytest.mark.parametrize("turn", [random_turns(), TIED], ids=["all different", "with ties"])
@every_reach
def test_without_blocks_a_query_is_its_neighbours_of_earlier_turns_by_hand(turn, beside):
    torch.manual_seed(0)
    network = stirred(dmb.OrderedTransformer(STATES, POSITIONS, blocks=0, width=8, heads=2, beside=beside))
    x, vectors, mask = tokens(len(turn)), network.tokens.weight, STATES - 1
    condition = network.condition(None, 1)
    for row, i in itertools.product(range(len(turn)), range(POSITIONS)):
        query, column = vectors[mask], 0
        for j in [i + sign * distance for distance in beside for sign in (-1, 1)]:
            there = 0 <= j < POSITIONS and turn[row, j] < turn[row, i]
            weight = network.neighbours.weight[:, column : column + 8]
            query, column = query + weight @ vectors[x[row, j] if there else mask], column + 8
        by_hand = network.last(query[None, None], condition)[0, 0]
        torch.testing.assert_close(network(x, turn=turn)[row, i], by_hand, rtol=0, atol=1e-5)


@every_reach
@pytest.mark.parametrize("calls", [1, 2, 3, 7])
def test_one_pass_says_what_cached_sampling_does_where_calls_write_several_positions(calls, beside):
    network, x, mask = transformer(beside=beside), tokens(1), STATES - 1
    turn, known = random_turns(1), 2  # two positions are given
    order = turn.argsort(-1)
    call = torch.where(turn < known, -1, ((turn - known) * calls) // (POSITIONS - known))
    seen = turns_of_calls(turn, call)
    whole = network(x, turn=seen)
    cache, new, written = network.cache(1, POSITIONS), order[:, :known], torch.where(turn < known, x, mask)
    for k in range(calls):
        asked = order[:, (call.gather(1, order) == k)[0]]
        if asked.numel():
            output = cache.outputs_at(written, seen, new, torch.ones_like(new, dtype=torch.bool), asked)
            torch.testing.assert_close(output[0], whole[0, asked[0]], rtol=0, atol=1e-5)
            new, written = asked, written.scatter(1, asked, x.gather(1, asked))
    if calls < POSITIONS - known:
        assert not torch.allclose(whole, network(x, turn=turn), atol=1e-3)  # one position per call is another law


@every_reach
def test_what_a_vector_starts_from_is_saved_and_older_models_have_less(beside):
    network, x, turn = transformer(beside=beside), tokens(), random_turns()
    config, tensors = network.to_config(), network.state_dict()
    again = dmb.Network.from_config(config, tensors)
    again.load_state_dict(tensors)
    assert torch.equal(again.eval()(x, turn=turn), network(x, turn=turn))
    if beside:
        del tensors["content_neighbours.weight"]  # queries had neighbours before contents
        older = dmb.Network.from_config(config, tensors)
        older.load_state_dict(tensors)
        assert not torch.allclose(older.eval()(x, turn=turn), network(x, turn=turn), atol=1e-3)
    del config["beside"]
    assert dmb.Network.from_config(config).config()["beside"] == []


def test_contents_start_from_the_tokens_beside_them_and_whoever_sees_contents_can_tell():
    network, x, turn = transformer(), tokens(), random_turns()
    base = network(x, turn=turn)
    with torch.no_grad():
        network.content_neighbours.weight.zero_()
    differs = (network(x, turn=turn) - base).abs().amax(-1) > 1e-4
    assert torch.equal(differs, turn > 0)  # who comes first sees none


def test_a_causal_position_starts_from_tokens_to_its_left_by_hand():
    torch.manual_seed(0)
    network = stirred(dmb.CausalTransformer(STATES, POSITIONS, blocks=0, width=8, heads=2, beside=(1, 3)))
    x, vectors, condition = tokens(1), network.tokens.weight, network.condition(None, 1)
    for i in range(POSITIONS):
        left = [vectors[x[0, i - distance] if i >= distance else STATES - 1] for distance in (1, 3)]
        by_hand = network.last((left[0] + network.neighbours.weight @ torch.cat(left))[None, None], condition)
        torch.testing.assert_close(network(x)[0, i], by_hand[0, 0], rtol=0, atol=1e-5)


def test_a_query_that_would_start_from_its_own_token_is_refused():
    with pytest.raises(ValueError, match=r"beside must be distances of at least 1, got \[1, 0\]"):
        dmb.OrderedTransformer(STATES, POSITIONS, beside=(1, 0))


def test_only_the_order_of_ranks_matters():
    network, x, turn = transformer(), tokens(), random_turns()
    assert torch.equal(network(x, turn=turn), network(x, turn=10 * turn + 3))
    assert not torch.allclose(network(x, turn=turn), network(x, turn=POSITIONS - 1 - turn), atol=1e-2)


def test_tokens_of_one_turn_do_not_see_each_other_in_a_pass_or_in_a_cache():
    network, x, last = transformer(), tokens(1), torch.tensor([[2]])
    together, apart = torch.tensor([[0, 0, 1, 9, 9, 9, 9]]), torch.tensor([[0, 1, 2, 9, 9, 9, 9]])
    whole = network(x, turn=together)[:, 2:3]
    assert (whole - network(x, turn=apart)[:, 2:3]).abs().max() > 1e-3
    for at in ([[0, 1]], [[1, 0]]):  # in which order they are read does not matter
        filled = torch.ones(1, 2, dtype=torch.bool)
        x_t = torch.where(together < 1, x, STATES - 1)
        found = network.cache(1, 2).outputs_at(x_t, together, torch.tensor(at), filled, last)
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-5)


def test_without_ranks_what_stands_was_written_from_left_to_right_and_masks_see_it_all():
    network, x, mask = transformer(), tokens(1), STATES - 1
    x[0, [0, 3, 4]] = mask
    turn = torch.tensor([[7, 0, 1, 7, 7, 2, 3]])
    assert torch.equal(network(x), network(x, turn=turn))
    base = network(x)
    for j in (1, 2, 5, 6):
        changed = x.clone()
        changed[0, j] = (changed[0, j] + 1) % mask
        moved = (network(changed) - base).abs().amax(-1)[0] > 0
        assert moved[[0, 3, 4]].all()
        assert not moved[1 : j + 1][(x[0] != mask)[1 : j + 1]].any()


def test_the_hidden_token_of_a_query_is_the_mask_whatever_stands_there():
    network, x, turn = transformer(), tokens(), random_turns()
    last = turn.argmax(-1, keepdim=True)
    hidden = x.scatter(1, last, STATES - 1)
    assert torch.equal(network(x, turn=turn), network(hidden, turn=turn))


@every_placing
def test_where_a_position_is_shows_only_in_a_network_that_is_told(placed):
    first = transformer(placed=placed)(tokens(1), turn=torch.zeros(1, POSITIONS, dtype=torch.long))[0]
    apart = torch.cdist(first, first) + torch.eye(POSITIONS)
    assert apart.min() > 0.1 if placed else (first - first[0]).abs().max() < 1e-5


def test_the_distance_of_tokens_shows_and_not_where_they_are():
    """All moved by one place, with nothing else to see, they say the same; two that change places do not."""
    network, x, turn = transformer(), tokens(), random_turns()
    unseen = turn[:, -1:] * 0 + POSITIONS
    here, there = torch.cat([turn[:, :-1], unseen], 1), torch.cat([unseen, turn[:, :-1]], 1)
    base = network(x, turn=here)
    torch.testing.assert_close(network(x.roll(1, -1), turn=there)[:, 1:], base[:, :-1], rtol=0, atol=1e-5)
    first, second = here.argsort(-1)[:, :1], here.argsort(-1)[:, 1:2]
    swapped = x.scatter(1, first, x.gather(1, second)).scatter(1, second, x.gather(1, first))
    order = here.scatter(1, first, 1).scatter(1, second, 0)  # each token keeps its turn
    last = [POSITIONS - 1] * 5
    differ = (x.gather(1, first) != x.gather(1, second))[:, 0]
    assert differ.any()
    apart = (network(swapped, turn=order) - base)[range(5), last].abs().amax(-1)
    assert apart[differ].min() > 1e-3


def test_an_untrained_network_gives_every_state_the_same_number():
    network = dmb.OrderedTransformer(STATES, POSITIONS, width=16)
    assert (network(tokens(), turn=random_turns()) == 0).all()


def test_rows_do_not_see_each_other():
    network, x, turn = transformer(), tokens(), random_turns()
    torch.testing.assert_close(network(x, turn=turn)[2:], network(x[2:], turn=turn[2:]), rtol=1e-4, atol=1e-5)


def test_labels_show_and_minus_one_is_none():
    network, x, turn, label = transformer(num_classes=3), tokens(), random_turns(), torch.arange(5) % 3
    base = network(x, label=label, turn=turn)
    assert (network(x, label=(label + 1) % 3, turn=turn) - base).abs().amax((1, 2)).min() > 1e-3
    assert (network(x, turn=turn) - base).abs().amax((1, 2)).min() > 1e-3
    assert torch.equal(network(x, turn=turn), network(x, label=torch.full((5,), -1), turn=turn))
    with pytest.raises(ValueError, match="label needs a network made with num_classes"):
        transformer()(x, label=label, turn=turn)


def test_a_width_that_heads_cannot_share_is_refused():
    with pytest.raises(ValueError, match="width must be a multiple of 2 · heads, got 10 with 4 heads"):
        dmb.OrderedTransformer(STATES, POSITIONS, width=10)


# -- keys and values that are kept ------------------------------------------------------------------------------------


def writings(seed, rows=4):
    """Positions that are written in turns of random sizes, some slots of some rows empty, and what is asked after each."""
    generator = seeded("writings", seed)
    order = torch.rand(rows, POSITIONS, generator=generator).argsort(-1)
    x, written = tokens(rows, seed), torch.zeros(rows, dtype=torch.long)
    x_t, turn = torch.full_like(x, STATES - 1), torch.full_like(x, 1000)
    for step in itertools.count():
        size = int(torch.randint(0, 4, (), generator=generator))
        filled = torch.rand(rows, size, generator=generator) < 0.7
        filled &= written[:, None] + filled.cumsum(-1) < POSITIONS  # one is left to ask
        slot = written[:, None] + filled.cumsum(-1) - 1
        at = torch.where(filled, order.gather(1, slot.clamp(0)), 0)
        written = written + filled.sum(-1)
        new = (order.argsort(-1) < written[:, None]) & (turn == 1000)
        x_t, turn = torch.where(new, x, x_t), torch.where(new, step, turn)
        left = min(int((POSITIONS - written).min()), 2)
        ask = torch.stack([order[row, int(written[row]) :][-left:] for row in range(rows)])
        yield x_t, turn, at, filled, ask
        if (written == POSITIONS - 1).all():
            return


@pytest.mark.parametrize("labelled", [False, True], ids=["plain", "labelled"])
@every_placing
@pytest.mark.parametrize("seed", range(4))
def test_a_cache_says_what_reading_everything_again_does(seed, placed, labelled):
    beside = [(), (1,), (1, 3), (2,)][seed]
    network = transformer(placed=placed, num_classes=3 if labelled else 0, beside=beside)
    label = torch.tensor([0, 2, -1, 1]) if labelled else None
    steps = list(writings(seed))
    cache, written = network.cache(4, sum(step[2].shape[1] for step in steps) + 2), 0
    for x_t, turn, at, filled, ask in steps:
        again = network(x_t, turn=turn, label=label).take_along_dim(ask[..., None], 1)
        torch.testing.assert_close(cache.outputs_at(x_t, turn, at, filled, ask, label), again, rtol=0, atol=1e-5)
        written += int(filled.sum())
    assert written >= 4 * (POSITIONS - 1)
    assert again.std() > 0.1


def test_written_one_by_one_the_outputs_are_those_of_one_pass_along_the_path():
    network, x, turn = transformer(), tokens(), random_turns()
    order, cache, outputs = turn.argsort(-1), network.cache(5, POSITIONS), []
    new = torch.zeros(5, 0, dtype=torch.long)
    for step in range(POSITIONS):
        at, x_t = order[:, step : step + 1], torch.where(turn < step, x, STATES - 1)
        outputs.append(cache.outputs_at(x_t, turn, new, torch.ones_like(new, dtype=torch.bool), at))
        new = at
    whole = network(x, turn=turn).gather(1, order[..., None].expand(-1, -1, STATES))
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=0, atol=1e-5)


# -- left to right ----------------------------------------------------------------------------------------------------


def causal_bridge(**options):
    states, order = dmb.States.with_mask(POSITIONS, STATES - 1), dmb.orders.Fixed.left_to_right(POSITIONS)
    return dmb.OrderedBridge(order, transformer(dmb.CausalTransformer, **options), states)


@every_placing
def test_a_causal_output_depends_on_all_tokens_to_its_left_and_on_no_other(placed):
    network, x = transformer(dmb.CausalTransformer, placed=placed), tokens()
    base = network(x)
    for j in range(POSITIONS):
        changed = x.clone()
        changed[:, j] = (changed[:, j] + 1) % (STATES - 1)
        output = network(changed)
        assert torch.equal(output[:, : j + 1], base[:, : j + 1])
        assert (j == POSITIONS - 1) or (output - base)[:, j + 1 :].abs().amax(-1).min() > 1e-5


def test_a_causal_network_refuses_any_other_order():
    network, x = transformer(dmb.CausalTransformer), tokens()
    left_to_right = torch.arange(POSITIONS).expand(5, -1)
    assert torch.equal(network(x, turn=left_to_right), network(x))
    for turn in (left_to_right.flip(-1), random_turns(), left_to_right[:, [0, 1, 2, 3, 4, 6, 5]]):
        with pytest.raises(
            ValueError, match="reads from left to right: unmasked tokens must come before all masked ones"
        ):
            network(x, turn=turn)
    with pytest.raises(ValueError, match="unmasked tokens must come before all masked ones"):
        network(x.index_fill(1, torch.tensor([2]), STATES - 1))


def test_a_causal_network_refuses_tokens_of_one_turn_which_must_not_see_each_other():
    with pytest.raises(ValueError, match="reads from left to right"):
        transformer(dmb.CausalTransformer)(tokens(), turn=torch.zeros(5, POSITIONS, dtype=torch.long))


def test_a_causal_network_refuses_to_learn_from_what_is_given_to_its_right():
    bridge, given = causal_bridge(), torch.arange(POSITIONS).expand(5, -1) == 3
    with pytest.raises(ValueError, match="must come first in that order"):
        bridge.loss(tokens(), given=given)


def test_a_causal_network_learns_from_a_beginning():
    bridge, x = causal_bridge(), tokens()
    given = torch.arange(POSITIONS).expand(5, -1) < torch.tensor([[0], [2], [3], [6], [7]])
    each = -bridge.network(x)[..., : STATES - 1].log_softmax(-1).gather(-1, x[..., None])[..., 0]
    torch.testing.assert_close(bridge.loss(x, given=given), (each * ~given).sum(-1), rtol=1e-4, atol=1e-5)


def test_the_bound_of_a_causal_network_is_its_likelihood_by_hand_whatever_the_seed():
    bridge, x = causal_bridge(), tokens()
    scores = [bridge.bound(x, generator=seeded(seed), batch_size=2).score for seed in range(3)]
    assert torch.equal(scores[0], scores[1])
    assert torch.equal(scores[0], scores[2])
    by_hand = []
    for row in x.tolist():
        total = 0.0
        for i, token in enumerate(row):
            seen = torch.tensor([row[:i] + [STATES - 1] * (POSITIONS - i)])  # what comes later is not even there
            logits = bridge.network(seen)[0, i, : STATES - 1].tolist()
            total -= logits[token] - math.log(sum(map(math.exp, logits)))
        by_hand.append(total)
    torch.testing.assert_close(scores[0], torch.tensor(by_hand).double(), rtol=1e-5, atol=1e-5)


def test_causal_samples_follow_the_likelihood():
    """Of two positions: all pairs, each with its chance by hand."""
    torch.manual_seed(0)
    network = stirred(dmb.CausalTransformer(4, 2, blocks=2, width=16, heads=2, conditioning=8), seed=2)
    bridge = dmb.OrderedBridge(dmb.orders.Fixed.left_to_right(2), network, dmb.States.with_mask(2, 3))
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    chance = torch.exp(-bridge.bound(pairs).score)
    assert chance.sum().item() == pytest.approx(1, abs=1e-5)
    assert chance.min() > 0.01  # rare pairs have no law of chi-square
    for options in ({"calls": 2}, {}, {"sampler": "first_hitting"}):  # one position at a time
        x = bridge.sample(8000, generator=seeded("causal"), **options)
        counts = torch.bincount(3 * x[:, 0] + x[:, 1], minlength=9)
        distance = ((counts - 8000 * chance).square() / (8000 * chance)).sum().item()
        assert distance < 26.1  # chi-square with 8 degrees of freedom: 1 in 1000


def test_a_causal_network_goes_on_from_a_beginning():
    bridge = causal_bridge()
    template = torch.full((3, POSITIONS), -1)
    template[1, :4], template[2] = torch.tensor([4, 3, 2, 1]), torch.arange(POSITIONS) % 5
    x = bridge.sample(template=template, generator=seeded("causal"))
    assert torch.equal(x[1, :4], template[1, :4])
    assert torch.equal(x[2], template[2])
    assert x.max() < STATES - 1


@every_placing
@pytest.mark.parametrize("num_classes", [0, 3])
def test_the_cache_of_a_causal_network_says_what_reading_everything_again_does(placed, num_classes):
    """Rows that begin with none, some and nearly all of their tokens, and are finished one after the other."""
    network, x = transformer(dmb.CausalTransformer, placed=placed, num_classes=num_classes), tokens(4)
    label = torch.tensor([0, 2, -1, 1]) if num_classes else None
    place, known = torch.arange(POSITIONS).expand(4, -1), torch.tensor([0, 2, 5, 6])
    cache, new, filled = network.cache(4, 2 * POSITIONS), place[:, :6], place[:, :6] < known[:, None]
    for _ in range(POSITIONS):
        written = torch.where(place < known[:, None], x, STATES - 1)
        ask = known.clamp(max=POSITIONS - 1)[:, None]
        output = cache.outputs_at(written, place, new, filled, ask, label)
        again = network.outputs_at(written, ask, label=label)
        goes_on = known < POSITIONS
        torch.testing.assert_close(output[goes_on], again[goes_on], rtol=0, atol=1e-5)
        new, filled, known = ask, goes_on[:, None], (known + 1).clamp(max=POSITIONS)
    assert again.std() > 0.1
