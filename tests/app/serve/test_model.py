"""The model behind the page, without a page."""

import math

import pytest
import torch

from app.report.making import recipe, text, untrained
from dmb.app.evaluation.drawing import draw
from dmb.app.report.results import facts, headline
from dmb.app.serve import model
from dmb.app.serve.model import FRAMES, Film, Playground
from dmb.app.serve.options import Options, words
from dmb.sampling import State


@pytest.fixture(params=["text", "table", "digits"])
def playground(request, playgrounds):
    return playgrounds[request.param]


def last(moments):
    *_, found = moments
    return found


def test_a_seed_gives_what_the_command_line_gives(playground):
    moment = last(playground.draw(Options(n=70, most=100, calls=3, seed=5, temperature=0.7)))
    expected = torch.cat(list(draw(playground.bridge, 70, seed=5, calls=3, temperature=0.7)))
    assert torch.equal(moment.x, expected)
    assert (moment.share, moment.t) == (1.0, 0.0)


@pytest.mark.filterwarnings("ignore::dmb.bridges.TemplateWarning")  # nothing was learned
def test_what_is_given_stays_and_what_is_blank_becomes_data(playground):
    template = playground.examples[3].clone()
    template[1:3] = -1
    moment = last(playground.draw(Options(n=5, calls=4), template))
    assert torch.equal(moment.x[:, 3:], template[3:].expand(5, -1))
    assert playground.codec.knows(moment.x).all()


def test_first_hitting_needs_no_number_of_calls_whatever_the_slider_says(playground):
    assert playground.codec.knows(last(playground.draw(Options(n=3, calls=200, sampler="first_hitting"))).x).all()


def test_nothing_is_computed_after_a_draw_is_closed(playground):
    draw = playground.draw(Options(calls=50))
    next(draw), next(draw)
    before = playground.calls
    draw.close()
    assert list(draw) == []
    assert playground.calls == before


def test_a_film_ends_with_the_samples_and_says_when_each_position_was_decided(playground):
    film = Film()
    moment = last(playground.draw(Options(n=10, calls=12), film=film))
    assert len(film) == 13
    assert film.samples == 8
    for sample in (0, 7):
        x, decided = film.of(sample), film.decided(sample)
        assert torch.equal(x[-1], moment.x[sample])
        for place, frame in enumerate(decided.tolist()):
            assert (x[frame:, place] == x[-1, place]).all()
            assert frame == 0 or x[frame - 1, place] != x[-1, place]


def test_a_long_film_is_thinned_out_and_keeps_its_ends():
    film = Film()
    for k in range(1000, -1, -1):
        film.add(State(k / 1000, torch.full((2, 3), k)))
    assert (film.t[0], film.t[-1]) == (1.0, 0.0)
    assert FRAMES / 2 < len(film) <= 2 * FRAMES
    assert film.t == sorted(film.t, reverse=True)


def test_certainty_is_the_largest_probability_of_the_posterior_and_1_where_data_are_given(playground):
    template = torch.where(torch.arange(playground.bridge.num_positions) < 2, playground.examples[0], -1)
    film = Film(template >= 0)
    last(playground.draw(Options(n=2, calls=6), template, film))
    found = playground.certainty(film, 1)
    for k in (0, 3):
        given = film.given[None]
        p = playground.bridge.log_posterior(film.of(1)[k][None], film.t[k], given=given)[0].exp()
        assert torch.equal(found.likeliest[k, 2:], p.argmax(-1)[2:])
        torch.testing.assert_close(found.probability[k, 2:], p.amax(-1)[2:])
    assert (found.probability[:, :2] == 1).all()
    assert (found.probability[-1] == 1).all()


def test_the_bound_of_a_sequence_is_that_of_the_bridge_within_its_error(playground):
    x = playground.examples[0]
    estimate = last(playground.bound(x))
    many = playground.bridge.bound(x.expand(2000, -1), generator=torch.Generator().manual_seed(1))
    error = math.hypot(estimate.stderr, math.sqrt(many.variance / 2000) / math.log(2))
    assert abs(estimate.bits - many.nats / math.log(2)) < 4 * error
    assert (estimate.tokens, estimate.share) == (len(x), 1.0)


def test_blanks_are_filled_in_first_and_cost_nothing(playground):
    template = playground.examples[0].clone()
    template[2:] = -1
    estimate = last(playground.bound(template, seed=3))
    assert torch.equal(estimate.x[:2], template[:2])
    assert estimate.tokens == 2
    given = (template < 0).expand(2000, -1)
    many = playground.bridge.bound(estimate.x.expand(2000, -1), given=given, generator=torch.Generator().manual_seed(1))
    error = math.hypot(estimate.stderr, math.sqrt(many.variance / 2000) / math.log(2))
    assert abs(estimate.bits - many.nats / math.log(2)) < 4 * error


def test_a_network_that_writes_from_left_to_right_has_exact_bits_of_a_beginning(tmp_path):
    chosen = recipe(network="causal", mask=True, floor=0.0)
    playground = Playground(untrained(tmp_path / "run", chosen, text(tmp_path)))
    with torch.no_grad():
        for parameter in playground.bridge.network.parameters():
            parameter.normal_(std=0.3)
    x = playground.examples[0]
    whole = last(playground.bound(x))
    assert whole.bits == pytest.approx(playground.bridge.bound(x[None]).nats / math.log(2), rel=1e-5)
    assert whole.stderr == 0
    beginning = last(playground.bound(torch.where(torch.arange(10) < 4, x, -1)))
    bits, state = 0.0, torch.full((1, 10), playground.bridge.num_states - 1)
    for place in range(4):  # one network call per symbol
        bits -= playground.bridge.log_posterior(state, 0.5)[0, place, x[place]].item() / math.log(2)
        state[0, place] = x[place]
    assert beginning.bits == pytest.approx(bits, rel=1e-5)
    with pytest.raises(ValueError, match="the blanks must come last"):
        last(playground.bound(torch.where(torch.arange(10) > 4, x, -1)))


def test_noise_grows_from_nothing_to_the_end_of_the_process(playground):
    x = playground.noisy(2, 0.0)
    assert (x == playground.examples[1]).all()
    changed = [(playground.noisy(2, t, copies=200)[1:] != playground.examples[1]).float().mean() for t in (0.3, 1.0)]
    process = playground.bridge.process
    for t, share in zip((0.3, 1.0), changed, strict=True):
        expected = 1 - process.log_prob(x[:1], x[:1], t).exp().mean()
        assert abs(share - expected) < 5 * math.sqrt(0.25 / (200 * x.shape[1]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "number of samples must lie between 1 and 64"),
        ({"n": 65}, "number of samples"),
        ({"n": "8"}, "number of samples must be a number, got '8'"),
        ({"n": True}, "must be a number"),
        ({"calls": 10**9}, "calls must lie between 1 and 512"),
        ({"calls": 2.5}, "calls must be a whole number, got 2.5"),
        ({"temperature": math.nan}, "temperature must be a number"),
        ({"temperature": 0}, "temperature must lie"),
        ({"seed": -1}, "seed must lie"),
        ({"sampler": "__import__"}, "sampler must be one of ancestral"),
        ({"sampler": ["ancestral"]}, "sampler must be text"),
        ({"label": {}}, "class must be a number"),
        ({"guidance": 1e9}, "guidance must lie"),
    ],
)
def test_what_a_visitor_may_not_ask_for_is_refused_in_one_line(wrong, message, no_type_checks):
    with pytest.raises(ValueError, match=message):
        Options(**wrong)


def test_texts_that_are_no_texts_or_too_long_are_refused_without_repeating_them():
    with pytest.raises(ValueError, match="at most 10 characters, got 10,000,000") as error:
        words("the template", "x" * 10**7, 10)
    assert len(str(error.value)) < 100
    with pytest.raises(ValueError, match="must be text"):
        words("the template", ["x"], 10)


def test_what_would_take_too_long_or_too_much_memory_is_refused_before_it_begins(playgrounds, monkeypatch):
    playground = playgrounds["text"]
    before = playground.calls
    monkeypatch.setattr(playground, "_per_call", 10.0)
    monkeypatch.setattr(playground, "_pace", 1.0)
    with pytest.raises(ValueError, match="this would take about 11 minutes, and 10 are allowed"):
        next(playground.draw(Options(calls=64)))
    monkeypatch.setattr(playground, "_per_call", 0.0)
    monkeypatch.setattr(model, "LARGEST", 500)
    with pytest.raises(ValueError, match="number of samples must be at most 4 for a model of this size, got 8"):
        next(playground.draw(Options()))
    assert playground.calls == before


def test_the_time_of_a_draw_is_that_of_the_last_one(playgrounds, monkeypatch):
    playground, options = playgrounds["text"], Options(calls=64)
    monkeypatch.setattr(playground, "_per_call", 7.0)  # measured while the machine was busy
    monkeypatch.setattr(playground, "_pace", 1.0)
    assert playground.seconds(options, 12) > 400
    last(playground.draw(options))
    assert playground.seconds(options, 12) < 40
    assert playground.seconds(Options(calls=32), 12) < playground.seconds(options, 12)


def test_a_sampler_without_a_number_of_calls_is_not_given_the_one_of_the_slider(tmp_path):
    run = untrained(tmp_path / "run", recipe(network="ordered", mask=True, floor=0.0), text(tmp_path))
    moment = last(Playground(run).draw(Options(n=3, calls=4, sampler="speculative", seed=5)))
    expected = torch.cat(list(draw(run.bridge(), 3, seed=5, sampler="speculative")))
    assert torch.equal(moment.x, expected)


def test_an_unknown_class_is_refused(playgrounds):
    with pytest.raises(ValueError, match=r"label must lie in \[0, 10\)"):
        next(playgrounds["digits"].draw(Options(label=10)))


def test_it_says_what_it_is(playground):
    found = dict(facts(playground))
    assert found.keys() == {"Data", "Model"}
    parameters = sum(p.numel() for p in playground.bridge.network.parameters())
    assert found["Model"].startswith(f"MLP with {parameters:,} parameters, BridgeProcess with ")
    assert "/" not in found["Data"]
    assert headline(playground) == ("", "No bound has been computed yet.")
