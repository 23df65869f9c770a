"""An option that a model does not have is an error that names the right one, or the model that has it."""

import inspect

import pytest
import torch

import dmb

X = torch.zeros(2, 3, dtype=torch.long)


def drawn_times(head="mean"):
    process = dmb.BridgeProcess.from_marginals(torch.full((3, 3), 1 / 3))
    return dmb.MarkovBridge(process, dmb.MLP(process, width=8, blocks=1), head)


def whole_paths():
    states = dmb.States.with_mask(3, 3)
    return dmb.OrderedBridge(dmb.orders.Random(3), dmb.OrderedMLP(states, width=8, blocks=1), states)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: whole_paths().loss(X, times=None), r"OrderedBridge.loss has no option times: MarkovBridge has it"),
        (lambda: drawn_times().loss(X, orders=2), r"MarkovBridge.loss has no option orders: OrderedBridge has it"),
        (lambda: whole_paths().bound(X, split=False), r"OrderedBridge.bound has no option split: MarkovBridge has it"),
        (lambda: drawn_times().bound(X, any_order=0.5), r"MarkovBridge.bound has no option any_order: OrderedBridge has"),
        (lambda: drawn_times().bound(X, importnce=False), r"no option importnce: did you mean importance\?"),
        (lambda: drawn_times().sample(2, temprature=1.0), r"MarkovBridge.sample has no option temprature: did you mean temperature\?"),
        (lambda: whole_paths().trajectory(2, steps=3), r"OrderedBridge.trajectory has no option steps: it has count, calls, sampler"),
        (lambda: whole_paths().conditionals(X, X > 0, labels=None), r"OrderedBridge.conditionals has no option labels: did you mean label\?"),
        (lambda: drawn_times().conditionals(X, X > 0, labels=None), r"MarkovBridge.conditionals has no option labels: did you mean label\?"),
        (lambda: drawn_times().estimate_marginals(steps=3), r"MarkovBridge.estimate_marginals has no option steps: it has chains, calls, generator"),
        (lambda: whole_paths().corrupt(X, 0.5, seed=0), r"OrderedBridge.corrupt has no option seed: it has x_0, t, generator"),
        (lambda: drawn_times().log_score(X, 0.5, givn=None), r"MarkovBridge.log_score has no option givn: did you mean given\?"),
        (lambda: whole_paths().turns(2, steps=3), r"OrderedBridge.turns has no option steps: it has batch, calls, given, generator"),
        (lambda: whole_paths().sample(2, sampler="euler"), r"sampler must be one of ancestral, first_hitting, speculative, got 'euler', which a MarkovBridge has"),
        (lambda: whole_paths().sample(2, sampler="gibbs"), r"sampler must be one of ancestral, first_hitting, speculative, got 'gibbs'$"),
        (lambda: drawn_times().sample(2, sampler="gibbs"), r"sampler must be one of ancestral, first_hitting, euler, tweedie, got 'gibbs'$"),
        (lambda: drawn_times("score").sample(2, sampler="ancestral"), r"sampler must be one of tweedie, euler, got 'ancestral', which needs head='mean'"),
        (lambda: drawn_times("score").sample(2, sampler="first_hitting"), r"got 'first_hitting', which needs head='mean'"),
        (lambda: whole_paths().bound(X, calls=2, sampler="euler"), r"sampler must be one of ancestral, first_hitting, speculative, got 'euler'"),
        (lambda: whole_paths().bound(X, calls=2, sampler="first_hitting"), r"first_hitting has no number of calls: choose the sampler from ancestral, or"),
        (lambda: drawn_times().bound(X, calls=2, sampler="first_hitting"), r"first_hitting has no number of calls: choose the sampler from ancestral, euler, tweedie, or"),
        (lambda: drawn_times().sample(2, calls=8, sampler="first_hitting"), r"first_hitting has no number of calls: .* from ancestral, euler, tweedie, or leave out calls and grid"),
        (lambda: whole_paths().trajectory(2, calls=3, sampler="first_hitting"), r"first_hitting has no number of calls: .* from ancestral, or leave out calls and grid"),
        (lambda: drawn_times().trajectory(2, grid="cosine", sampler="first_hitting"), r"first_hitting has no number of calls"),
        (lambda: whole_paths().sample(2, grid=torch.tensor([1.0, 0.0]), sampler="first_hitting"), r"first_hitting has no number of calls"),
        (lambda: whole_paths().bound(X, sampler="ancestral"), r"sampler is of a bound with calls: give calls, too"),
        (lambda: whole_paths().sample(2, grid="log"), r"grid must be one of canonical, uniform, cosine, got 'log'"),
        (lambda: drawn_times().sample(2, grid="log"), r"grid must be one of canonical, uniform, cosine, got 'log'"),
    ],
)  # fmt: skip
def test_it_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("method", ["loss", "bound", "sample", "trajectory"])
@pytest.mark.parametrize("kind", [dmb.MarkovBridge, dmb.OrderedBridge])
def test_a_method_shows_its_own_options_and_takes_no_others(kind, method):
    shown = inspect.signature(getattr(kind, method)).parameters.values()
    assert {"label", "generator"} <= {parameter.name for parameter in shown}
    assert not any(parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) for parameter in shown)
