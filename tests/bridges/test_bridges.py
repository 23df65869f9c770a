import json
import os
import re
import socket
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

import dmb
import toys

MU = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]])


def small_bridge(process=None, network=None, head="mean"):
    torch.manual_seed(0)
    process = process or dmb.BridgeProcess.from_marginals(MU, init="uniform")
    network = network or dmb.MLP(process.num_states, process.num_positions, width=8, blocks=1)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return dmb.MarkovBridge(process, network, head)


def stirred(process):
    with torch.no_grad():
        for p in process.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    return process


def outputs(bridge, x_t, t):
    """What the network says, in evaluation mode."""
    return bridge.eval().network(x_t, torch.full((len(x_t),), t, dtype=torch.float64)).detach()


BRIDGES = {
    "mlp": small_bridge,
    "transformer": lambda: small_bridge(network=dmb.Transformer(3, 2, blocks=1, width=8, heads=2, num_classes=2)),
    "score head": lambda: small_bridge(head=dmb.networks.heads.ScoreHead(scaled=False)),
    "mean head without leave-one-out": lambda: small_bridge(head=dmb.networks.heads.MeanHead(leave_one_out=False)),
    "tied, canonical, float64 process": lambda: small_bridge(
        dmb.BridgeProcess.from_marginals(MU.double() / MU.double().sum(-1, keepdim=True), tied=True,
                                         schedule=dmb.Canonical())
    ),
    "in stages": lambda: small_bridge(dmb.BridgeProcess.from_marginals(MU, init="nested", mask=True)),
    "varying, canonical": lambda: small_bridge(
        stirred(dmb.BridgeProcess.from_marginals(MU, init="uniform", clocks=dmb.Varying, schedule=dmb.Canonical(1e-2)))
    ),
    "mask, descending, geometric": lambda: small_bridge(
        dmb.BridgeProcess.from_marginals(MU, mask=True, order="descending", schedule=dmb.processes.time.Geometric())
    ),
    "ragged": lambda: small_bridge(
        dmb.BridgeProcess.from_marginals(
            torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.6, 0.3]]), state_counts=torch.tensor([2, 3]), init="uniform"
        )
    ),
    "uniform": lambda: small_bridge(dmb.UniformProcess(2, 3, marginals=MU, schedule=dmb.Linear())),
    "ragged uniform": lambda: small_bridge(dmb.UniformProcess(2, 3, state_counts=torch.tensor([2, 3]))),
    "dense": lambda: small_bridge(dmb.DenseProcess(torch.tensor([[[-1.0, 1, 0], [0, -1, 1], [1, 0, -1]]]), num_positions=2)),
}  # fmt: skip
every_bridge = pytest.mark.parametrize("build", BRIDGES.values(), ids=BRIDGES)


def figures(bridge):
    x = torch.tensor([[0, 1], [1, 2], [0, 0]])
    bound = bridge.bound(x, generator=torch.Generator().manual_seed(0))
    sampler = "ancestral" if isinstance(bridge.head, dmb.networks.heads.MeanHead) else "tweedie"
    samples = bridge.sample(16, calls=4, sampler=sampler, generator=torch.Generator().manual_seed(0))
    return bound.score, bound.prior, samples


@every_bridge
def test_a_saved_bridge_gives_the_same_bounds_and_samples_to_the_last_bit(build, tmp_path):
    bridge = build()
    bridge.save_pretrained(tmp_path)
    for mine, theirs in zip(figures(bridge), figures(dmb.Bridge.from_pretrained(tmp_path)), strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


@pytest.mark.long
def test_another_interpreter_reads_the_same_model(tmp_path):
    bridge = small_bridge()
    bridge.save_pretrained(tmp_path)
    script = (
        "import sys, torch, dmb; torch.set_num_threads(1); bridge = dmb.Bridge.from_pretrained(sys.argv[1]);"
        "x = bridge.sample(16, calls=4, generator=torch.Generator().manual_seed(0)); print(x.flatten().tolist())"
    )
    output = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert json.loads(output.stdout) == figures(bridge)[2].flatten().tolist()


def test_nothing_but_json_and_safetensors_is_written(tmp_path):
    small_bridge().save_pretrained(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} <= {"config.json", "model.safetensors", "README.md"}


def _edit(path, change):
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def _replace(folder, name, change):
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: change(tensors[name])}, folder / "model.safetensors")


def _remove(folder, name):
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")


TAMPERINGS = {
    "no config": (lambda d: (d / "config.json").unlink(), "has no config.json"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "has no model.safetensors"),
    "not JSON": (lambda d: (d / "config.json").write_text("{"), "does not describe a bridge|Expecting"),
    "a foreign config": (lambda d: (d / "config.json").write_text('{"model_type": "bert"}'), "does not describe a bridge"),
    "another format": (lambda d: _edit(d / "config.json", lambda c: c.update(format=99)), "has format 99, but this version"),
    "an unknown class": (
        lambda d: _edit(d / "config.json", lambda c: c["network"].update(type="os.system")), "type must be one of",
    ),
    "an unknown option": (
        lambda d: _edit(d / "config.json", lambda c: c["network"].update(colour=3)), "MLP cannot be built from",
    ),
    "another size": (lambda d: _edit(d / "config.json", lambda c: c["network"].update(width=16)), "does not fit"),
    "truncated weights": (
        lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:100]),
        "cannot be read: ",
    ),
    "a JSON list": (lambda d: (d / "config.json").write_text("[1]"), "does not describe a bridge: not a JSON object"),
    "a part of another kind": (
        lambda d: _edit(d / "config.json", lambda c: c.update(head={"type": "LogLinear"})), "it is of class LogLinear, not Head",
    ),
    "an impossible size": (lambda d: _edit(d / "config.json", lambda c: c["network"].update(width=-1)), "does not describe"),
    "an order that is none": (
        lambda d: _replace(d, "process.hierarchy.rank", torch.zeros_like), "rank must hold a permutation",
    ),
    "an order of floats": (
        lambda d: _replace(d, "process.hierarchy.rank", torch.Tensor.float), "rank must be an integer tensor .* got torch.float32",
    ),
    "rates that are nan": (
        lambda d: _replace(d, "process.clocks.log_rates", lambda a: a * torch.nan), "log_rates must be finite, got nan",
    ),
    "clocks that run by floats": (
        lambda d: _replace(d, "process.clocks.running", torch.Tensor.float), "running is torch.float32",
    ),
    "weights of integers": (
        lambda d: _replace(d, "network.output.bias", torch.Tensor.long), "network.output.bias is torch.int64",
    ),
    "marginals of 2": (lambda d: _replace(d, "process.p_0", lambda p: 2 * p), "marginals must sum to 1, got 2"),
    "a missing tensor of the process": (lambda d: _remove(d, "process.hierarchy.rank"), "Line cannot be built from"),
    "a missing tensor of the network": (lambda d: _remove(d, "network.output.bias"), "does not fit"),
    "a tensor too many": (
        lambda d: save_file(
            {**load_file(d / "model.safetensors"), "network.extra": torch.zeros(1)}, d / "model.safetensors"
        ),
        "does not fit",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(("tamper", "message"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_a_tampered_or_foreign_file_is_refused_with_a_reason(tamper, message, tmp_path):
    small_bridge().save_pretrained(tmp_path)
    tamper(tmp_path)
    with pytest.raises(ValueError, match=message):
        dmb.Bridge.from_pretrained(tmp_path)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("learn", ["log", "linear"])
def test_a_model_with_a_tensor_of_another_precision_is_refused_or_computes(dtype, learn, tmp_path):
    process = dmb.BridgeProcess.from_marginals(MU, init="uniform", learn=learn, schedule=dmb.Canonical())
    small_bridge(process).save_pretrained(tmp_path)
    tensors, refused = load_file(tmp_path / "model.safetensors"), []
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            save_file({**tensors, name: tensor.to(dtype)}, tmp_path / "model.safetensors")
            try:
                bridge = dmb.Bridge.from_pretrained(tmp_path)
            except ValueError as error:
                refused.append(str(error))
                continue
            assert bridge.bound(torch.tensor([[0, 1], [2, 2], [1, 0]])).bits_per_token > 0
    known = r"must have at least (32|64) bits|, but others are|marginals must sum to 1"
    assert all(re.search(known, why) for why in refused)


@pytest.mark.parametrize("name", ["user/novel", "runs/no/such/folder"])
def test_without_a_connection_a_model_of_the_hub_is_refused_at_once(tmp_path, monkeypatch, name):
    asked = []

    def unknown(*arguments, **options):
        asked.append(arguments)
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waits to ask again"))
    with pytest.raises(
        ValueError, match=f"'{name}' is no folder, and cannot be read from the Hugging Face Hub: ."
    ) as caught:
        dmb.Bridge.from_pretrained(name, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert len(asked) <= 2


def test_an_option_that_does_not_exist_is_refused(tmp_path):
    small_bridge().save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"Bridge.from_pretrained has no option map_locaton: did you mean map_location\?"
    ):
        dmb.Bridge.from_pretrained(tmp_path, map_locaton="cpu")


def test_names_are_restored(tmp_path):
    line = dmb.Line(torch.tensor([[1, 0, 3, 2]]), names=2)
    process = dmb.BridgeProcess(line, dmb.Steady(torch.ones(1, 3)), num_positions=2)
    small_bridge(process).save_pretrained(tmp_path)
    restored = dmb.Bridge.from_pretrained(tmp_path).process
    assert restored.names == restored.hierarchy.names == 2
    assert restored.rank.tolist() == [[1, 0, 3, 2]]
    assert restored.data_states.tolist() == [[True, True, False, False]]


def test_in_half_precision_the_network_computes_so_but_never_the_process(tmp_path):
    bridge = small_bridge().bfloat16()
    assert bridge.network.output.weight.dtype == torch.bfloat16
    assert bridge.process.clocks.log_rates.dtype == bridge.process.p_0.dtype == torch.float32
    x = torch.tensor([[0, 1], [2, 2]])
    assert bridge.loss(x).dtype == torch.float32
    assert bridge.sample(4, calls=2).shape == (4, 2)
    bridge.save_pretrained(tmp_path)
    restored = dmb.Bridge.from_pretrained(tmp_path)
    assert torch.equal(outputs(restored, x, 0.5), outputs(bridge, x, 0.5))


def test_an_averaged_model_keeps_clocks_that_are_off_switched_off():
    process = dmb.BridgeProcess.from_marginals(MU, mask=True, floor=0.0)
    bridge = small_bridge(process)
    averaged = torch.optim.swa_utils.AveragedModel(bridge, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        averaged.update_parameters(bridge)
    torch.testing.assert_close(averaged.module.process.alpha, process.alpha)
    assert (process.alpha[:, :-1] == 0).all()


def test_evaluation_leaves_every_part_in_the_mode_it_had():
    bridge = small_bridge()
    bridge.network.eval()
    bridge.sample(2, calls=1)
    assert bridge.training
    assert not bridge.network.training


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_tokens_of_any_integer_type_do(dtype):
    bridge = small_bridge()
    x = torch.tensor([[0, 1], [2, 2]])
    one, two = (bridge.bound(y, generator=torch.Generator().manual_seed(0)) for y in (x, x.to(dtype)))
    assert torch.equal(one.score, two.score)


def test_first_hitting_asks_only_when_something_moves_unless_its_function_is_given_times():
    bridge = small_bridge(dmb.BridgeProcess.from_marginals(MU, mask=True, floor=0.0))
    calls = []
    bridge.network.register_forward_hook(lambda *_: calls.append(1))
    bridge.sample(1, sampler="first_hitting", generator=torch.Generator().manual_seed(0))
    assert len(calls) <= 3
    calls.clear()
    bridge.sample(1, sampler=dmb.sampling.first_hitting, calls=20, generator=torch.Generator().manual_seed(0))
    assert 20 <= len(calls) <= 23


def test_data_that_never_change_can_be_sampled():
    bridge = small_bridge(dmb.BridgeProcess.from_marginals(torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])))
    assert bridge.sample(4).shape == (4, 2)


def test_a_conditional_is_asked_for_at_the_share_of_positions_that_are_not_known():
    """Where all are known, at half of one position: networks have never seen time 0."""
    process = dmb.BridgeProcess.from_marginals(torch.full((4, 2), 0.5), mask=True, floor=0.0)
    bridge, times = small_bridge(process), []
    bridge.network.register_forward_pre_hook(lambda _, arguments: times.extend(arguments[1].tolist()))
    bridge.conditionals(torch.zeros(5, 4, dtype=torch.long), torch.ones(5, 4, dtype=torch.bool).tril(-1))
    assert times == [1.0, 0.75, 0.5, 0.25, 0.125]


def test_leave_one_out_puts_in_what_the_token_itself_says():
    """π ∝ ρ · p(x_t | x_0), against the definition."""
    bridge = small_bridge()
    x_t, t = torch.tensor([[1, 2]]), 0.4
    log_rho = outputs(bridge, x_t, t)
    kernel = bridge.process.to_dense(t).detach()
    expected = log_rho[0].exp() * torch.stack([kernel[0, :, 1], kernel[1, :, 2]])
    posterior = bridge.log_posterior(x_t, t)[0].detach().exp()
    torch.testing.assert_close(posterior, expected / expected.sum(-1, keepdim=True))


def test_without_leave_one_out_the_posterior_is_cut_to_what_is_possible():
    bridge = small_bridge(head=dmb.networks.heads.MeanHead(leave_one_out=False))
    x_t, t = torch.tensor([[1, 2]]), 0.4
    output, log_posterior = outputs(bridge, x_t, t), bridge.log_posterior(x_t, t).detach()
    possible = bridge.process.log_likelihood(x_t, t) > -torch.inf
    assert (log_posterior > -torch.inf).equal(possible)
    torch.testing.assert_close(log_posterior, output.masked_fill(~possible, -torch.inf).log_softmax(-1))


@pytest.mark.long
@pytest.mark.usefixtures("no_type_checks")
def test_trained_on_a_small_distribution_the_bound_approaches_the_entropy():
    mu = toys.distribution(3, 3, seed=1)
    process = dmb.BridgeProcess.from_marginals(torch.stack([mu.sum(1), mu.sum(0)]).float(), init="uniform")
    torch.manual_seed(0)
    bridge = dmb.MarkovBridge(process, dmb.MLP(3, 2, width=32, blocks=1, dropout=0.0))
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(bridge.network.parameters(), lr=1e-2)

    def draw(count):
        index = torch.multinomial(mu.flatten(), count, replacement=True, generator=generator)
        return torch.stack([index // 3, index % 3], dim=1)

    test = draw(10_000)
    empirical = -mu[test[:, 0], test[:, 1]].log().mean().item()
    before = bridge.bound(test, generator=generator)
    for _ in range(200):
        optimiser.zero_grad()
        bridge.loss(draw(256), generator=generator).mean().backward()
        optimiser.step()
    after = bridge.bound(test, generator=generator)
    stderr = after.stderr * 2 * 0.6931
    assert after.nats > empirical - 3 * stderr
    assert after.nats - empirical < 0.15 * (before.nats - empirical) + 3 * stderr


def masked_bridge():
    return small_bridge(dmb.BridgeProcess.from_marginals(MU, mask=True))


def nan_bridge():
    bridge = small_bridge()
    torch.nn.init.constant_(bridge.network.output.bias, torch.nan)
    return bridge


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dmb.MarkovBridge(dmb.UniformProcess(2, 3), dmb.MLP(4, 2)), "network must have the process's num_states, got 4 and 3"),
        (lambda: dmb.MarkovBridge(dmb.UniformProcess(2, 3), dmb.MLP(3, 5)), "network must have the process's num_positions"),
        (lambda: small_bridge(head="median"), "head must be one of mean, score, unscaled_score, got 'median'"),
        (lambda: small_bridge().sample(2, sampler="gibbs"), "sampler must be one of ancestral, .* got 'gibbs'"),
        (lambda: small_bridge(head="score").sample(2, sampler="ancestral"), "needs head='mean'"),
        (lambda: small_bridge(dmb.UniformProcess(2, 3)).sample(2, sampler="first_hitting"), "a UniformProcess cannot .* needs a BridgeProcess"),
        (lambda: small_bridge().sample(2, temperature=0.0), "temperature must be positive, got 0.0"),
        (lambda: small_bridge().sample(2, top_p=0.0), r"top_p must lie in \(0, 1\], got 0.0"),
        (lambda: small_bridge().sample(2, guidance=2.0), "guidance needs a label: give one, or leave guidance at 1"),
        (lambda: small_bridge().sample(2, label=torch.tensor([0, 1])), "label needs a network made with num_classes"),
        (lambda: small_bridge().sample(2, label=torch.tensor([0])), r"label must have shape \[2\], got \[1\]"),
        (lambda: small_bridge().sample(2, template=torch.tensor([-1, 7])), r"template must lie in \[0, 3\), got 7"),
        (lambda: small_bridge().sample(2, template=torch.tensor([0, 1, 2])), r"template must have shape \[batch, 2\]"),
        (lambda: small_bridge().sample(2, template=torch.zeros(3, 2).long()), "template must have 1 row or 2, got 3"),
        (lambda: small_bridge().integrand(torch.zeros(1, 2).long(), torch.zeros(1, 2).long(), 0.0), "t must be above 0"),
        (lambda: small_bridge().log_posterior(torch.full((1, 2), 9), 0.5), r"x_t must lie in \[0, 3\), got 9"),
        (lambda: small_bridge().log_score(torch.full((1, 2), 9), 0.5), r"x_t must lie in \[0, 3\), got 9"),
        (
            lambda: masked_bridge().loss(torch.tensor([[0, 3]])),
            r"x_0 must hold data, and states from 3 on are names .*such as a mask.*, got 3 at row 0, position 1",
        ),
        (lambda: masked_bridge().bound(torch.tensor([[3, 0]])), r"x_0 must hold data, .* got 3 at row 0, position 0"),
        (lambda: masked_bridge().sample(template=torch.tensor([3, 0])), r"template must hold data, .* got 3 at row 0"),
        (lambda: small_bridge(head="score").sample(2, sampler="tweedie", top_p=0.5), "needs head='mean'"),
        (lambda: nan_bridge().sample(2), "is the network's output nan"),
        (lambda: nan_bridge().bound(torch.zeros(1, 2).long()), "the network's output is nan"),
        (lambda: small_bridge().bound(torch.zeros(1, 2).long(), batch_size=0), "bound needs batch_size to be at least 1, got 0"),
        (lambda: small_bridge().prior_loss(2 * MU), "mu must sum to 1, got 2 in row 0"),
        (lambda: small_bridge().sample(2, calls=0), "calls must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_template_of_several_rows_makes_as_many_samples_and_minus_one_marks_what_is_chosen():
    bridge = small_bridge()
    torch.nn.init.normal_(bridge.network.given)  # as if it had learned what is given
    x = bridge.sample(8, template=torch.tensor([-1, 2]), calls=2, generator=torch.Generator().manual_seed(0))
    assert (x[:, 1] == 2).all()
    assert len(x[:, 0].unique()) > 1
    x = bridge.sample(template=torch.tensor([[1, -1], [0, -1]]), calls=2)
    assert x[:, 0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("imported", "late"),
    [
        ("dmb", {"dmb.app", "huggingface_hub", "matplotlib", "pyarrow", "rich", "sklearn", "tyro"}),
        ("dmb, dmb.app.cli", {"lightning_fabric", "torch._dynamo", "tensorboard"}),
        ("dmb.app.cli.train as it; it.first_look(it.Train, ['--help'])", {"torch", "sklearn", "scipy", "pandas"}),
    ],
)
def test_importing_loads_nothing_before_it_is_needed(imported, late):
    code = f"import sys, {imported}; print(*{late} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
