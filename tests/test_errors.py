"""Every mistake of a user's is a ValueError that names the argument, the rule and the value."""

from pathlib import Path

import pytest
import torch

import dmb
from dmb import theory
from dmb.bridges import put_together

MU = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]])
PROCESS = dmb.BridgeProcess.from_marginals(MU)
RAGGED = dmb.BridgeProcess.from_marginals(
    torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.6, 0.3]]), state_counts=torch.tensor([2, 3])
)
X = torch.tensor([[0, 1], [2, 2]])
STATES = dmb.States.with_mask(2, 3)
FOLDERS = Path(__file__).parent / "golden" / "version_0.2"


def ordered(process, kind=dmb.OrderedTransformer, **options):
    return put_together(process, None, kind(process, blocks=1, width=8, heads=2), **options)


def masked(**options):
    return dmb.BridgeProcess.from_marginals(MU, **{"mask": True, "floor": 0.0} | options)


pytestmark = pytest.mark.usefixtures("no_type_checks")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PROCESS.sample(X + 29, 0.5), r"x_0 must lie in \[0, 3\), got 29 at row 0, position 0"),
        (lambda: PROCESS.sample(-X, 0.5), r"x_0 must lie in \[0, 3\), got -1 at row 0, position 1"),
        (lambda: PROCESS.sample(X.float(), 0.5), r"x_0 must be an integer tensor, got torch.float32"),
        (lambda: PROCESS.sample(X[0], 0.5), r"x_0 must have shape \[batch, 2\], got \[2\]"),
        (lambda: PROCESS.sample(X[:, :1], 0.5), r"x_0 must have shape \[batch, 2\], got \[2, 1\]"),
        (lambda: RAGGED.sample(X, 0.5), r"one of the 2 states of its position, got 2 at row 1, position 0"),
        (lambda: PROCESS.sample(X, 1.5), r"t must lie in \[0, 1\], got 1.5"),
        (lambda: PROCESS.sample(X, -0.1), r"t must lie in \[0, 1\], got -0.1"),
        (lambda: PROCESS.sample(X, float("nan")), r"t must lie in \[0, 1\], got nan"),
        (lambda: PROCESS.sample(X, torch.rand(3)), r"t must be one time or one time per row \(2\), got shape \[3\]"),
        (lambda: PROCESS.sample(X, 0.2, start=0.5), r"start must not come after t"),
        (lambda: PROCESS.log_prob(X + 3, X, 0.5), r"x_t must lie in \[0, 3\), got 3"),
        (lambda: PROCESS.evolve(2 * MU, 0.5), r"p_0 must sum to 1, got 2 in row 0"),
        (lambda: PROCESS.evolve(-MU, 0.5), r"p_0 must hold probabilities, got -0.5"),
        (lambda: PROCESS.evolve(MU.repeat(2, 1), 0.5), r"p_0 must have shape \[2, 3\], got \[4, 3\]"),
        (lambda: PROCESS.evolve(X, 0.5), r"p_0 must be a floating-point tensor, got torch.int64"),
        (lambda: PROCESS.prior_kl(X, MU * float("nan")), r"p_T must hold probabilities, got nan"),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU[0]),
            r"marginals must have shape \[positions, states\], got \[3\]",
        ),
        (lambda: dmb.BridgeProcess.from_marginals(MU + 0.1), r"marginals must sum to 1, got 1.3 in row 0"),
        (lambda: dmb.BridgeProcess.from_marginals(MU, order="up"), r"order must be one of ascending, .* got 'up'"),
        (lambda: dmb.BridgeProcess.from_marginals(MU, init="zero"), r"init must be one of gather, .* got 'zero'"),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, floor=-1.0),
            r"floor must be a rate in \[0, 1,000,000\], got -1.0",
        ),
        (lambda: dmb.BridgeProcess.from_marginals(MU, order=X[:, [0, 0, 1]]), r"rank must hold a permutation of 0 … 2"),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, init="match", mask=True),
            r"init='match' does not use mask, only target: leave it out",
        ),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, init="match", order="natural"),
            r"init='match' does not use order",
        ),
        (lambda: dmb.BridgeProcess.from_marginals(MU, init="match", schedule=dmb.Canonical()), r"whose end is fixed"),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, target=MU),
            r"init='gather' does not use target, only order, floor, mask: leave it out",
        ),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, init="uniform", floor=0.1),
            r"init='uniform' does not use floor, only order, mask: leave it out",
        ),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, stages=2),
            r"init='gather' does not use stages, only order, floor, mask: leave it out",
        ),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, ratio=5.0),
            r"init='gather' does not use ratio, only order, floor, mask: leave it out",
        ),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, tree=dmb.processes.grouping.star(3), init="uniform"),
            r"a tree has its own rates: leave out init, got 'uniform'",
        ),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, tree=dmb.processes.grouping.star(3), order="natural"),
            r"a tree does not use order, only ratio: leave it out",
        ),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, state_counts=torch.tensor([2, 3])),
            r"must be 0 on states beyond",
        ),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, state_counts=torch.tensor([2, 4])),
            r"must be 2 whole numbers in \[1, 3\], got \[2, 4\]",
        ),
        (
            lambda: dmb.BridgeProcess.from_marginals(MU, state_counts=torch.tensor([3])),
            r"must be 2 whole numbers in \[1, 3\], got \[3\]",
        ),
        (lambda: dmb.Line(X[:1, [0, 1, 0]]), r"rank must hold a permutation"),
        (
            lambda: dmb.Line(torch.rand(1, 3)),
            r"rank must be an integer tensor \[positions, states\], got torch.float32",
        ),
        (lambda: dmb.Steady(torch.tensor([[1.0, -2.0]])), r"rates ≥ 0, got -2.0"),
        (lambda: dmb.Steady(torch.ones(2)), r"rates must have shape \[positions, clocks\], got \[2\]"),
        (
            lambda: dmb.BridgeProcess(dmb.Line(torch.tensor([[0, 1, 2]])), dmb.Steady(torch.tensor([[1.0]]))),
            r"rates must have shape \[positions, 2\], got \[1, 1\]",
        ),
        (
            lambda: dmb.BridgeProcess(dmb.Line(torch.arange(3).repeat(2, 1)), dmb.Steady(torch.ones(3, 2))),
            r"must have 3 rows or 1, got \[2, 3\]",
        ),
        (
            lambda: dmb.BridgeProcess(
                dmb.Line(torch.tensor([[2, 0, 1]])),
                dmb.Steady(torch.ones(1, 2)),
                legal=torch.tensor([[False, True, True]]),
            ),
            r"an illegal state of a position must not have legal states below it: check legal or state_counts",
        ),
        (
            lambda: dmb.Line(torch.tensor([[2, 0, 1]]), names=1),
            r"rank must place the last 1 states, which are names, on top of all others",
        ),
        (lambda: dmb.Line(torch.arange(3)[None], names=3), r"names must be fewer than the states, .* got 3 of 3"),
        (lambda: dmb.UniformProcess(0, 3), r"at least 1 position and 2 states, got 0 and 3"),
        (
            lambda: dmb.UniformProcess(2, 3, state_counts=torch.tensor([1.0, 2.0])),
            r"state_counts must be 2 whole numbers in \[1, 3\], got \[1.0, 2.0\]",
        ),
        (lambda: dmb.DenseProcess(torch.eye(2)[None]), r"Q must have rows that sum to 0, got a sum of 1"),
        (lambda: dmb.DenseProcess(torch.tensor([[[1.0, -1.0], [0, 0]]])), r"rates ≥ 0 off its diagonal, got -1"),
        (lambda: dmb.DenseProcess(torch.zeros(3, 2, 2), num_positions=2), r"Q must have 2 rows or 1, got \[3\]"),
        (lambda: dmb.DenseProcess(torch.zeros(2, 3)), r"Q must be a floating-point tensor \[d, n, n\] or \[n, n\]"),
        (lambda: theory.accessibility(MU[0], MU[0, :2]), r"vectors of one length ≥ 2, got \[3\] and \[2\]"),
        (lambda: theory.joint_marginal(torch.ones(9) / 9, PROCESS, 0.5), r"mu must have shape \[3, 3\], got \[9\]"),
        (lambda: list(theory.exact_bridge(MU[0], PROCESS, MU[0])), r"one position, got 2"),
        (lambda: ordered(PROCESS), r"must have a mask as its only noise"),
        (lambda: ordered(masked(mask=False)), r"must have a mask as its only noise"),
        (lambda: ordered(masked(floor=0.1)), r"must have a mask as its only noise"),
        (lambda: ordered(masked(init="uniform", floor=None)), r"must have a mask as its only noise"),
        (lambda: ordered(masked(clocks=dmb.Varying)), r"must have a mask as its only noise"),
        (
            lambda: ordered(dmb.UniformProcess(2, 3)),
            r"from_marginals\(marginals, mask=True, floor=0.0\)",
        ),
        (
            lambda: ordered(dmb.TokenwiseMasking.from_marginals(MU)),
            r"must have a mask as its only noise",
        ),
        (lambda: ordered(masked(), dmb.CausalTransformer, head="score"), r"needs head='mean', got (unscaled_)?score"),
        (lambda: ordered(masked(), head="score"), r"follows orders needs head='mean', got (unscaled_)?score"),
        (lambda: ordered(masked(), head="unscaled_score"), r"follows orders needs head='mean', got (unscaled_)?score"),
        (lambda: ordered(masked()).loss(X, orders=0), r"orders must be at least 1, got 0"),
        (lambda: ordered(masked()).loss(X, learn_order=True), r"orders must be at least 2 to learn speeds, .* got 1"),
        (
            lambda: ordered(masked()).loss(X + 1),
            r"x_0 must hold data, .* \(such as a mask\), got 3 at row 1, position 0",
        ),
        (
            lambda: ordered(masked()).bound(X + 1),
            r"x_0 must hold data, .* \(such as a mask\), got 3 at row 1, position 0",
        ),
        (lambda: ordered(masked()).bound(X - 1), r"x_0 must lie in \[0, 4\), got -1"),
        (lambda: ordered(masked()).bound(X.tolist()), r"x_0 must be tokens, or a split of a data set.* got a list"),
        (lambda: ordered(masked()).bound(X, any_order=1.5), r"any_order must lie in \[0, 1\], got 1.5"),
        (lambda: ordered(masked()).corrupt(X, 1.5), r"t must lie in \[0, 1\], got 1.5"),
        (
            lambda: dmb.MarkovBridge(dmb.orders.Random(2), dmb.MLP(4, 2, width=8)),
            r"process must be a ForwardProcess, got a Random: OrderedBridge takes orders of writing",
        ),
        (
            lambda: dmb.OrderedBridge(masked(), dmb.OrderedMLP(STATES), STATES),
            r"order must be one of dmb.orders, got a BridgeProcess",
        ),
        (lambda: ordered(masked()).loss(X, given=X[:1] > 0), r"given must have the shape of x_0, \[2, 2\], got"),
        (lambda: ordered(masked()).sample(guidance=2.0), r"guidance needs a label: give one, or leave guidance at 1"),
        (lambda: ordered(masked()).sample(label=X[0]), r"label needs a network made with num_classes > 0"),
        (
            lambda: ordered(masked()).sample(template=X[1] + 1),
            r"template must hold data, .* got 3 at row 0, position 0",
        ),
        (
            lambda: dmb.Bridge(PROCESS, None),
            r"choose MarkovBridge\(process, network\), or OrderedBridge\(order, network",
        ),
        (
            lambda: dmb.MarkovBridge(masked(), dmb.OrderedMLP(masked())),
            r"a OrderedMLP follows an order, not times: choose OrderedBridge\(order, network, states\)",
        ),
        (
            lambda: dmb.OrderedBridge(dmb.orders.Random(2), dmb.MLP(4, 2, width=8), STATES),
            r"network must be an OrderedNetwork, got a MLP, which MarkovBridge takes",
        ),
        (
            lambda: dmb.OrderedBridge(dmb.orders.Random(3), dmb.OrderedMLP(STATES), STATES),
            r"order must have 2 positions like states, got 3",
        ),
        (
            lambda: dmb.OrderedBridge(dmb.orders.Random(2), dmb.CausalTransformer(STATES), STATES),
            r"a CausalTransformer follows one order only: give it orders.Fixed.left_to_right\(num_positions\)",
        ),
        (
            lambda: dmb.OrderedBridge(dmb.orders.Random(2), dmb.OrderedMLP(4, 2), dmb.States(2, 4)),
            r"states must have one name, the mask: States.with_mask makes them, got 0",
        ),
        (
            lambda: dmb.States(2, 4, state_counts=[5, 1]),
            r"state_counts must be 2 whole numbers in \[1, 4\], got \[5, 1\]",
        ),
        (lambda: dmb.orders.Fixed([0, 0]), r"order must hold each of 0 to 1 once, got \[0, 0\]"),
        (lambda: dmb.orders.Random(0), r"num_positions must be at least 1, got 0"),
        (
            lambda: ordered(masked()).sample(sampler="euler"),
            r"sampler must be one of ancestral, first_hitting, speculative, got 'euler'",
        ),
        (
            lambda: ordered(masked(), dmb.CausalTransformer).sample(calls=1),
            r"calls must be left out for a CausalTransformer, which writes one of 2 blanks per call",
        ),
        (
            lambda: dmb.MarkovBridge.from_pretrained(FOLDERS / "smooth"),
            r"it is of class OrderedBridge, not MarkovBridge",
        ),
        (
            lambda: dmb.OrderedBridge.from_pretrained(FOLDERS / "drawn_times"),
            r"it is of class MarkovBridge, not OrderedBridge",
        ),
    ],
)
def test_a_mistake_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
