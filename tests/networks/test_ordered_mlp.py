"""A small MLP for each position: what each position sees, states in an order, files."""

import itertools

import pytest
import torch

import dmb
from dmb._core.configuration import Configurable
from dmb._core.seeding import seeded

COUNTS, FIRST = [5, 40, 3, 31], [5, 0, 3, 1]
"""The second position's states lie in an order, and the fourth's except for one; 40 is the mask."""
STATES, POSITIONS = 41, 4


def network(**options):
    torch.manual_seed(0)
    made = dmb.OrderedMLP(STATES, POSITIONS, width=16, features=8, state_counts=COUNTS, ordered_from=FIRST, **options)
    with torch.no_grad():
        for name, p in made.named_parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=seeded(0, name)))
    return made.eval()


def tokens(rows=6):
    return torch.stack([torch.randint(count, (rows,), generator=seeded("tokens", count)) for count in COUNTS], dim=-1)


RANDOM = torch.rand(6, POSITIONS, generator=seeded("ranks")).argsort(-1)
TIED = torch.tensor([[0, 2, 2, 1], [1, 1, 1, 1], [5, 5, 0, 0], [0, 0, 0, 9], [3, 2, 1, 0], [0, 1, 1, 0]])


@pytest.mark.parametrize("turn", [RANDOM, TIED], ids=["all different", "with ties"])
def test_an_output_depends_on_all_tokens_of_an_earlier_turn_and_on_no_other(turn):
    made, x = network(), tokens()
    base = made(x, turn=turn)
    for j in range(POSITIONS):
        changed = x.clone()
        changed[:, j] = (changed[:, j] + 1) % COUNTS[j]
        output = made(changed, turn=turn)
        for row, i in itertools.product(range(len(turn)), range(POSITIONS)):
            if turn[row, j] < turn[row, i]:
                assert (output[row, i] - base[row, i]).abs().max() > 1e-5
            else:
                assert torch.equal(output[row, i], base[row, i])


@pytest.mark.parametrize("turn", [RANDOM, TIED, None], ids=["all different", "with ties", "none"])
def test_outputs_at_some_positions_are_those_of_all(turn):
    made, x = network(), tokens()
    x[[0, 3], [2, 1]] = STATES - 1
    position = torch.tensor([[0, 3], [3, 1], [2, 2], [1, 0], [1, 3], [3, 2]])
    expected = made(x, turn=turn).take_along_dim(position[..., None], 1)
    torch.testing.assert_close(made.outputs_at(x, position, turn=turn), expected)


@torch.no_grad()
def test_a_position_is_computed_without_the_networks_of_the_others():
    made, x = network(), tokens()
    expected = made(x, turn=RANDOM)[:, 2:3]
    for name, weight in made.named_parameters():
        if weight.shape[0] == POSITIONS:
            weight[[0, 1, 3]] = torch.nan
        elif name.startswith("output"):
            weight[: made.starts[2]], weight[made.ends[2] :] = torch.nan, torch.nan
    assert made(x, turn=RANDOM)[:, 0, : COUNTS[0]].isnan().all()
    torch.testing.assert_close(made.outputs_at(x, torch.full((6, 1), 2), turn=RANDOM), expected)


def test_a_mask_says_nothing_whatever_its_turn():
    made, x, mask = network(), tokens(), STATES - 1
    hidden = x.clone()
    hidden[:, 1] = mask
    seen = made(hidden, turn=torch.tensor([0, 0, 1, 1]).expand(6, -1))
    unseen = made(x, turn=torch.tensor([0, 2, 1, 1]).expand(6, -1))
    torch.testing.assert_close(seen[:, [2, 3]], unseen[:, [2, 3]])
    torch.testing.assert_close(made(hidden), made(hidden, turn=torch.tensor([0, 9, 1, 2]).expand(6, -1)))


def test_logits_are_those_of_the_formula():
    """Position 1 given 0 and 3, by hand: a matrix, two residual blocks, and a peak that follows the place of 3."""
    made, x = network(), tokens()
    turn = torch.tensor([0, 2, 3, 1]).expand(6, -1)
    parts = [made.tokens.weight[start + x[:, j]] @ made.first[1, 8 * j : 8 * j + 8] for j, start in ((0, 0), (3, 48))]
    h = sum(parts) + made.first_bias[1]
    normal = lambda v: (v - v.mean(-1, keepdim=True)) / (v.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()  # noqa: E731
    for block in made.blocks:
        inner = normal(h) @ block.up[1] + block.bias[1]
        h = h + (inner * inner.sigmoid()) @ block.down[1]
    h = normal(h) * made.scale[1]
    m, log_s, steep = made.peaks["1"].shape(h).T[..., None]
    place = torch.where(x[:, 3:] > 0, -2 + 4 * (x[:, 3:] - 1) / 29, 0.0)  # state 0 lies in no order
    m, nu = m + 10 * made.straight[1, 3] * place, (1 + steep.exp()).log()
    peak = -nu * (1 + ((-2 + 4 * torch.arange(40) / 39 - m) / log_s.exp()) ** 2).log()
    logits = h @ made.output.weight[5:45].T + made.output.bias[5:45] + peak
    torch.testing.assert_close(made(x, turn=turn)[:, 1, :40], logits, rtol=1e-4, atol=1e-4)


def test_a_state_before_those_in_an_order_has_no_peak_and_few_states_have_none():
    made, x = network(), tokens()
    before = made(x, turn=RANDOM)
    with torch.no_grad():
        for peak in made.peaks.values():
            peak.shape.bias += 1.0
    after = made(x, turn=RANDOM)
    assert set(made.peaks) == {"1", "3"}
    assert torch.equal(before[:, [0, 2]], after[:, [0, 2]])
    assert torch.equal(before[:, 3, 0], after[:, 3, 0])
    assert (before[:, 3, 1:31] != after[:, 3, 1:31]).any(-1).all()
    assert (after[:, 3, 31:] == 0).all()


def test_neighbours_in_an_order_begin_alike_and_others_do_not():
    torch.manual_seed(0)
    made = dmb.OrderedMLP(STATES, POSITIONS, state_counts=COUNTS, ordered_from=FIRST)
    vectors = made.tokens.weight.detach()[5:45]
    near, far = ((vectors[k:] - vectors[:-k]).square().sum(-1).mean() for k in (1, 13))
    assert near < 0.5 * far
    same = dmb.OrderedMLP(STATES, POSITIONS, state_counts=COUNTS)
    vectors = same.tokens.weight.detach()[5:45]
    near, far = ((vectors[k:] - vectors[:-k]).square().sum(-1).mean() for k in (1, 13))
    assert near > 0.7 * far


def test_its_description_makes_the_same_network():
    made = network()
    again = Configurable.from_config(made.to_config())
    again.load_state_dict(made.state_dict())
    assert torch.equal(again.eval()(tokens(), turn=RANDOM), made(tokens(), turn=RANDOM))


def test_a_bridge_learns_by_whole_paths_and_samples_all_its_states():
    states = dmb.States.with_mask(2, 3, [2, 3])
    bridge = dmb.OrderedBridge(dmb.orders.Random(2), dmb.OrderedMLP(states, width=8), states)
    bound = bridge.bound(torch.tensor([[0, 2], [1, 1]]))
    torch.testing.assert_close(bound.score, torch.full((2,), 6.0).log().double())  # untrained: 2 and 3 states alike
    drawn = bridge.sample(200, generator=seeded("sample"))
    assert drawn.amax(0).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_counts": [5, 41, 3, 31]}, r"state_counts must be 4 numbers in \[1, 41\), got"),
        ({"state_counts": [5, 4, 3]}, r"state_counts must be 4 numbers"),
        ({"ordered_from": [0, -1, 0, 0]}, r"ordered_from must be 4 numbers of at least 0, got"),
        ({"blocks": 2000}, r"blocks must lie in \[0, 1,024\], got 2000"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        dmb.OrderedMLP(STATES, POSITIONS, **options)
