import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import dmb
import toys
from dmb import theory
from dmb.processes import grouping

import oracles
from contracts.trees import on_tree, random_parents


def ancestors(parent, x):
    above = []
    while parent[x] != x:
        x = parent[x]
        above.append(x)
    return above


trees = st.builds(random_parents, st.integers(2, 12), st.integers(1, 3), st.integers(0, 10_000))


@hypothesis.given(trees, st.integers(0, 1000))
@hypothesis.settings(max_examples=50, deadline=None)
def test_sums_over_a_tree_are_those_of_loops(parent, seed):
    tree, (rows, n) = dmb.Tree(parent), parent.shape
    values = np.random.default_rng(seed).random((2, rows, n))
    above, below = np.zeros_like(values), np.zeros_like(values)
    for i in range(rows):
        for x in range(n):
            for v in ancestors(parent[i].tolist(), x):
                above[:, i, x] += values[:, i, v]
                below[:, i, v] += values[:, i, x]
    tensor = torch.tensor(values)
    np.testing.assert_allclose(tree.sum_above(tensor), above, rtol=1e-12)
    np.testing.assert_allclose(tree.sum_below(tensor), below, rtol=1e-12)
    np.testing.assert_allclose(tree.from_cumulative(tensor + tree.sum_below(tensor)), values, rtol=1e-9, atol=1e-12)


@pytest.mark.long
@hypothesis.given(trees)
@hypothesis.settings(max_examples=50, deadline=None)
def test_who_is_below_whom_and_the_way_up_are_those_of_loops(parent):
    tree, (rows, n) = dmb.Tree(parent), parent.shape
    x, y = (grid.flatten()[:, None].expand(-1, rows) for grid in torch.meshgrid(*[torch.arange(n)] * 2, indexing="ij"))
    on_the_way, here = tree.path_mask(x, y)
    nodes = tree.gather_path(torch.arange(n).expand(1, 1, n), x)
    for i in range(rows):
        up = [ancestors(parent[i].tolist(), v) for v in range(n)]
        for row, (a, b) in enumerate(zip(x[:, i].tolist(), y[:, i].tolist(), strict=True)):
            assert tree.is_below(x, y)[row, i] == (b in up[a])
            assert tree.mask_below(y)[row, i, a] == (b in up[a])
            assert tree.mask_above(x)[row, i, b] == (b in up[a])
            if b in up[a] or a == b:
                way = [a, *up[a]][: [a, *up[a]].index(b)]
                assert nodes[row, i][on_the_way[row, i]].tolist() == way
    assert here.tolist() == [True] + [False] * (len(here) - 1)


def test_a_climb_ends_at_the_lowest_node_within_the_level():
    tree = dmb.Tree(torch.tensor([[1, 2, 2, 1]]))  # 0 and 3 under 1 under 2
    rates = torch.tensor([[[3.0, 2.0]]])  # of the clocks of 1 and of 2: above 0 they make 5, above 1 they make 2
    x = torch.tensor([[0, 0, 0, 1, 2]])
    level = torch.tensor([[5.0, 4.9, 1.9, 1.0, 0.0]])
    assert tree.climb(x, rates, level).tolist() == [[0, 1, 2, 2, 2]]


@pytest.mark.parametrize("clocks", [dmb.Steady, dmb.Varying])
@pytest.mark.parametrize("mask", [False, True])
def test_a_path_is_a_line_to_the_last_digits(clocks, mask):
    """Everything a process computes, and the gradient in its rates."""
    generator = torch.Generator().manual_seed(0)
    n = 5
    rank = torch.tensor([[2, 0, 3, 1, 4]])
    token = rank.argsort(-1)[0]
    parent = torch.empty(n, dtype=torch.long)
    parent[token] = torch.cat([token[1:], token[-1:]])
    rates = torch.rand(3, n - 1, generator=generator, dtype=torch.float64) + 0.1
    p = torch.rand(3, n, generator=generator, dtype=torch.float64)
    p[:, n - 1] *= not mask
    p = p / p.sum(-1, keepdim=True)
    line, tree = (
        dmb.BridgeProcess(hierarchy, clocks(rates), marginals=p, schedule=dmb.Canonical())
        for hierarchy in (dmb.Line(rank, names=int(mask)), dmb.Tree(parent[None], names=int(mask)))
    )
    x_0 = torch.randint(n - int(mask), (40, 3), generator=generator)
    t = torch.rand(40, generator=generator, dtype=torch.float64)
    x_t = line.sample(x_0, t, generator=torch.Generator().manual_seed(1))
    assert x_t.equal(tree.sample(x_0, t, generator=torch.Generator().manual_seed(1)))
    moved = [each.sample_moved(x_0, t, generator=torch.Generator().manual_seed(2)) for each in (line, tree)]
    assert moved[0].equal(moved[1])
    logits = torch.randn(40, 3, n, generator=generator, dtype=torch.float64)

    def figures(process):
        posterior = process.log_posterior(logits, x_t, t)
        return {
            "rows": process.log_transition(x_0, t).exp(),
            "columns": process.log_likelihood(x_t, t).exp(),
            "entries": process.log_prob(x_t, x_0, t),
            "evolved": process.evolve(p, 0.4),
            "unevolved": process.unevolve(posterior.exp(), t, start=t / 2),
            "rates": process.rates_into(x_t, t),
            "score": process.log_score(posterior, x_t, t).exp(),
            "from score": process.integrand_from_score(logits, x_t, x_0, t),
            "from posterior": process.integrand_from_posterior(posterior, x_t, x_0, t),
            "from logits": process.integrand_from_logits(logits, x_t, x_0, t),
            "prior": process.prior_kl_table(process.p_T),
        }

    ours, theirs = figures(tree), figures(line)
    for name in theirs:
        torch.testing.assert_close(
            ours[name], theirs[name], rtol=1e-11, atol=1e-13, msg=lambda m, name=name: f"{name}: {m}"
        )
    slopes = []
    for process, figure in ((tree, ours), (line, theirs)):
        process.zero_grad()
        (figure["from logits"].sum() + figure["prior"].sum()).backward()
        slopes.append([parameter.grad.clone() for parameter in process.parameters()])
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-12)
    back = [each.step_back(each.log_posterior(logits, x_t, t), x_t, t, t / 3, generator=torch.Generator().manual_seed(3))
            for each in (line, tree)]  # fmt: skip
    # sources are drawn in another order of the states, so only what does not depend on that is equal
    assert (line.log_prob(x_t, back[0], t, start=t / 3) > -torch.inf).all()
    assert (tree.log_prob(x_t, back[1], t, start=t / 3) > -torch.inf).all()


def test_a_star_is_masked_diffusion_to_the_last_digits():
    p = toys.distribution(3, 4)
    p = p / p.sum(-1, keepdim=True)
    mask = dmb.BridgeProcess.from_marginals(p, mask=True, floor=0.0)
    star = dmb.BridgeProcess.from_marginals(p, tree=grouping.star(4))
    assert star.clocks.rates.tolist() == [[1.0]] * 3
    generator = torch.Generator().manual_seed(0)
    x_0 = torch.randint(4, (50, 3), generator=generator)
    t = torch.rand(50, generator=generator, dtype=torch.float64)
    x_t = mask.sample(x_0, t, generator=torch.Generator().manual_seed(1))
    assert x_t.equal(star.sample(x_0, t, generator=torch.Generator().manual_seed(1)))
    logits = torch.randn(50, 3, 5, generator=generator, dtype=torch.float64)
    expected = mask.integrand_from_logits(logits, x_t, x_0, t)
    torch.testing.assert_close(star.integrand_from_logits(logits, x_t, x_0, t), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(star.to_dense(0.3), mask.to_dense(0.3), rtol=1e-13, atol=0)
    # and of MDLM's published form: -log π(x_0), times the hazard of the mask, where it is masked
    log_pi = logits[..., :4].log_softmax(-1).gather(-1, x_0[..., None]).squeeze(-1)
    sigma_bar, sigma = (np.array(each) for each in zip(*(oracles.loglinear(float(time)) for time in t), strict=True))
    weight = torch.tensor(sigma / np.expm1(sigma_bar))[:, None]
    torch.testing.assert_close(expected, torch.where(x_t == 4, -weight * log_pi, 0.0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [dmb.Steady, dmb.Varying])
def test_with_the_exact_score_the_bound_is_the_entropy_on_random_trees(seed, kind):
    mu = toys.distribution(6, seed=seed)
    process = on_tree(dmb.Tree(random_parents(6, seed=seed)), d=1, kind=kind, seed=seed)
    bound = theory.exact_bound(mu, process, nodes=161)
    assert bound.total == pytest.approx(theory.entropy(mu), abs=2e-6)


@pytest.mark.parametrize("seed", range(3))
def test_with_the_exact_score_the_bound_is_the_entropy_on_trees_with_names(seed):
    tree = grouping.by_value(4)
    mu = torch.nn.functional.pad(toys.distribution(4, seed=seed), (0, tree.names))
    process = on_tree(tree, d=1, seed=seed, schedule=dmb.Canonical())
    bound = theory.exact_bound(mu, process, nodes=161)
    assert bound.total == pytest.approx(theory.entropy(mu), abs=2e-6)


def test_where_data_are_leaves_each_refinement_pays_its_own_surprise():
    """`(w / D_v) Σ_y q_y (-log π(at or below y))` over the way from x_0 to v, for names that data never visit."""
    tree = grouping.by_value(4)
    process = on_tree(tree, d=1)
    x_0 = torch.arange(4)[:, None]
    root, t = tree.num_states - 1, 0.6
    x_t = torch.full_like(x_0, root)
    logits = torch.randn(4, 1, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pi = process.log_posterior(logits, x_t, t).exp()[:, 0]
    kernel = process.to_dense(t)[0].detach()
    hazard = process.rates_into(x_t, t)[:, 0, 0] / kernel[0, root]
    parent = tree.parent[0].tolist()
    for x in range(4):
        total = 0.0
        for y in [x, *ancestors(parent, x)][:-1]:
            inside = [leaf for leaf in range(4) if leaf == y or y in ancestors(parent, leaf)]
            total = total - kernel[x, y] * pi[x, inside].sum().log()
        value = process.integrand_from_logits(logits, x_t, x_0, t)[x, 0]
        torch.testing.assert_close(value, hazard[x] * total, rtol=1e-10, atol=0)


def test_a_process_on_a_tree_saves_and_loads_to_the_last_bit(tmp_path):
    process = on_tree(grouping.by_value(5), kind=dmb.Varying, schedule=dmb.Canonical())
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1))
    bridge.write(tmp_path)
    again = dmb.Bridge.from_pretrained(tmp_path)
    assert isinstance(again.process.hierarchy, dmb.Tree)
    assert again.process.names == process.names
    x = torch.randint(5, (6, 2))
    figures = [each.eval().bound(x, generator=torch.Generator().manual_seed(0)) for each in (bridge, again)]
    assert figures[0].score.equal(figures[1].score)
    samples = [each.sample(5, calls=4, generator=torch.Generator().manual_seed(0)) for each in (bridge, again)]
    assert samples[0].equal(samples[1])
    assert (samples[0] < 5).all()


@pytest.mark.parametrize(
    ("parent", "message"),
    [
        (torch.tensor([[1, 0, 2]]), "cycle"),
        (torch.tensor([[0, 1, 1]]), "one root"),
        (torch.tensor([[1, 2, 3]]), r"lie in \[0, 3\)"),
        (torch.tensor([0, 0]), "integer tensor"),
        (torch.tensor([[0.0, 0.0]]), "integer tensor"),
    ],
)
def test_what_is_no_tree_is_refused(parent, message, no_type_checks):
    with pytest.raises(ValueError, match=message):
        dmb.Tree(parent)


def test_names_on_a_line_have_the_top_ranks():
    with pytest.raises(ValueError, match="names, on top"):
        dmb.Line(torch.tensor([[0, 2, 1]]), names=1)


def test_a_state_that_a_position_lacks_must_not_lie_above_one_that_it_has():
    tree = dmb.Tree(torch.tensor([[2, 2, 2]]))
    with pytest.raises(ValueError, match="must not have legal states below it"):
        dmb.BridgeProcess(tree, dmb.Steady(torch.ones(1, 1)), legal=torch.tensor([[True, True, False]]))


@pytest.mark.parametrize("n", [5, 6, 8])
def test_canonical_time_counts_every_lift_that_a_token_can_make(n):
    """A token makes as many lifts as names lie above it; `t` is the share of them that are done, counted by loops."""
    tree = grouping.by_value(n)
    p = torch.stack([toys.distribution(n, seed=1), toys.distribution(n, seed=2).flip(0)])
    process = dmb.BridgeProcess.from_marginals(p, tree=tree, ratio=3.0, schedule=dmb.Canonical())
    parent = tree.parent[0].tolist()
    for t in (0.1, 0.5, 0.9, 1.0):
        intensity = process.intensities(t).detach().expand(2, -1)
        done = total = 0.0
        for i in range(2):
            for x in range(n):
                way = [x, *ancestors(parent, x)]
                for place, _ in enumerate(way[:-1]):
                    above = sum(intensity[i, v].item() for v in way[place + 1 :])
                    done += p[i, x].item() * -np.expm1(-above)
                    total += p[i, x].item()
        assert done / total == pytest.approx((1 - 1e-3) * t, rel=1e-9)


@pytest.mark.parametrize("n", [8, 16, 256])
def test_a_balanced_tree_forgets_its_data_by_the_end_of_canonical_time(n):
    process = dmb.BridgeProcess.from_marginals(
        torch.full((1, n), 1 / n), tree=grouping.by_value(n), schedule=dmb.Canonical()
    )
    assert (process.p_0 * process.prior_kl_table(process.p_T)).sum() < 0.006


def test_a_schedule_that_two_processes_are_given_is_bound_by_neither():
    schedule, p = dmb.Canonical(), torch.tensor([[0.7, 0.2, 0.1]])
    first = dmb.BridgeProcess.from_marginals(p, floor=0.3, schedule=schedule)
    before = first.solve(0.5).sigma_bar
    dmb.BridgeProcess.from_marginals(p.flip(1), floor=0.3, schedule=schedule)
    assert schedule.marginals is None
    assert first.solve(0.5).sigma_bar.equal(before)
    own = dmb.Canonical().bind(torch.tensor([[0.2, 0.2, 0.6]]))
    assert dmb.BridgeProcess.from_marginals(p, floor=0.3, schedule=own).schedule.marginals.equal(own.marginals)


def test_a_tied_process_whose_marginals_were_replaced_by_a_row_per_position_can_be_loaded(tmp_path):
    p = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    process = dmb.BridgeProcess.from_marginals(p, tied=True, floor=0.3, schedule=dmb.Canonical())
    process.set_marginals(p)
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1))
    bridge.write(tmp_path)
    again = dmb.Bridge.from_pretrained(tmp_path).process
    assert again.solve(0.5).sigma_bar.equal(process.solve(0.5).sigma_bar)
    assert again.p_0.equal(process.p_0)


def test_a_transition_from_a_start_is_over_the_clock_time_since_it():
    process = on_tree(grouping.by_value(4))
    from_middle = process.solve(0.9, 3, start=0.5)
    assert from_middle.elapsed.equal((process.solve(0.9).elapsed - process.solve(0.5).elapsed).expand(3))
    assert from_middle.t.tolist() == [0.9] * 3
    with pytest.raises(ValueError, match="start must not come after t"):
        process.solve(0.5, start=0.9)
