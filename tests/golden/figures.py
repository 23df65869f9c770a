"""The figures that must not move: everything a model computes, at fixed seeds, in float64."""

import math
from functools import cache

import torch

import dmb

DIMENSIONS = {"positions": 3, "states": 5}


def marginals(seed=0):
    p = torch.rand(*DIMENSIONS.values(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2 + 0.02
    return p / p.sum(-1, keepdim=True)


def tokenwise(p):
    return dmb.TokenwiseMasking.from_marginals(p, schedule=dmb.Canonical())


def dense(p):
    Q = torch.rand(p.shape[1], p.shape[1], generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    Q = Q - torch.diag(Q.diagonal())
    return dmb.DenseProcess((Q - torch.diag(Q.sum(-1)))[None], num_positions=len(p), marginals=p)


def uniform(p):
    return dmb.UniformProcess(*p.shape, marginals=p).double()


def bridge(in_canonical_time=False, **options):
    def build(p):
        schedule = dmb.Canonical() if in_canonical_time else None
        return dmb.BridgeProcess.from_marginals(p, schedule=schedule, **options)

    return build


PROCESSES = {
    "ascending": bridge(floor=0.1),
    "descending, tied, top clock only": bridge(order="descending", floor=0.0, tied=True),
    "natural order, all clocks alike": bridge(order="natural", init="uniform"),
    "matched to uniform": bridge(init="match"),
    "masked diffusion": bridge(mask=True, floor=0.0),
    "mask and mixing": bridge(mask=True, floor=0.3, order="descending"),
    "in stages": bridge(init="nested", stages=2, floor=0.03),
    "in stages, canonical time": bridge(in_canonical_time=True, init="nested", stages=2, floor=0.03, tied=True),
    "varying": bridge(clocks=dmb.Varying, init="uniform"),
    "varying, canonical time": bridge(in_canonical_time=True, clocks=dmb.Varying, floor=0.3),
    "tokenwise": tokenwise,
    "uniform": uniform,
    "dense": dense,
}

TRAINED = {
    "ascending, J_Q": (bridge(floor=0.1), {"matrix_objective": "prior"}),
    "masked diffusion": (bridge(mask=True, floor=0.0, tied=True), {"matrix_steps": 0}),
    "in stages, joint": (
        bridge(in_canonical_time=True, init="nested", floor=0.03, tied=True), {"matrix_objective": "joint"}
    ),
    "mask and mixing, bound": (
        bridge(in_canonical_time=True, mask=True, floor=0.3), {"matrix_objective": "bound", "infill": 0.25}
    ),
    "varying, joint": (
        bridge(in_canonical_time=True, clocks=dmb.Varying, floor=0.3), {"matrix_objective": "joint"}
    ),
    "tokenwise, joint": (tokenwise, {"matrix_objective": "joint", "infill": 0.25}),
    "uniform": (uniform, {"matrix_steps": 0}),
}  # fmt: skip

# the data make no difference to how a model is trained: all trainings are on digits, and two on text as well
TRAININGS = [
    *((name, "digits") for name in TRAINED),
    ("ascending, J_Q", "pydocs"),
    ("mask and mixing, bound", "pydocs"),
]


def with_network(process, head="mean"):
    """A bridge around a network that is neither trained nor trivial."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = dmb.MLP(process, width=16, blocks=1, dropout=0.0).double()
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                # recorded when all tokens at a position had the same mark of being given
                same = name == "given"
                noise = torch.randn_like(parameter[:: process.num_states] if same else parameter)
                parameter.add_(0.2 * (noise.repeat_interleave(process.num_states, 0) if same else noise))
    return dmb.MarkovBridge(process, network, head)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def summary(tensor):
    """Its norm, and its product with a vector that has no symmetries."""
    flat = tensor.detach().double().flatten()
    return [flat.norm().item(), (flat * torch.arange(1.0, len(flat) + 1, dtype=torch.float64).cos()).sum().item()]


def of_a_model(name):
    """Losses, gradients, bounds and samples of one process under an MLP."""
    p = marginals()
    model = with_network(PROCESSES[name](p))
    x_0 = torch.multinomial(p, 12, replacement=True, generator=generator(1)).T
    loss = model.loss(x_0, generator=generator(2))
    loss.mean().backward()
    gradient = torch.cat(
        [parameter.grad.flatten() for parameter in model.network.parameters() if parameter.grad is not None]
    )
    bound = model.bound(x_0, samples=2, batch_size=5, generator=generator(3))
    figures = {
        "loss": loss.tolist(),
        "gradient": summary(gradient),
        "score": bound.score.tolist(),
        "prior": bound.prior.tolist(),
        "stderr": bound.stderr,
        "p_T": model.process.p_T.detach().sort().values.flatten().tolist(),
    }
    learned = model.process.learned()
    if learned is not None:
        model.process.zero_grad()
        model.prior_loss().backward()
        gradients = torch.cat([q.grad.flatten() for q in model.process.parameters() if q.grad is not None])
        figures |= {"rates": learned.detach().norm().item(), "rates' gradient": gradients.norm().item()}
    samplers = ["ancestral", "euler", "tweedie"] + ["first_hitting"] * isinstance(model.process, dmb.BridgeProcess)
    for sampler in samplers:
        drawn = model.sample(
            6, calls=None if sampler == "first_hitting" else 8, sampler=sampler, generator=generator(4)
        )
        figures[sampler] = drawn.tolist()
    figures["template"] = model.sample(4, calls=8, template=torch.tensor([1, -1, -1]), generator=generator(5)).tolist()
    score = with_network(PROCESSES[name](p), "score")
    figures["score head"] = score.loss(x_0, generator=generator(6)).tolist()
    return figures


def of_a_training(name, data):
    """Weights after 50 steps of Algorithm 1, and the bounds on the way."""
    build, options = TRAINED[name]
    process = build(data.marginals().double() / data.marginals().double().sum(-1, keepdim=True))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = dmb.MLP(process, width=16, blocks=1, dropout=0.0).double()
    model = dmb.MarkovBridge(process, network)
    settings = {
        "infill": 0.0,
        "matrix_steps": 5,
        "batch_size": 16,
        "chains": 16,
        "chain_calls": 4,
        "evaluate_sequences": 32,
    }
    steps = {"cycles": 2, "score_steps": 25, "evaluate_every": 25, "log_every": 25, "learning_rate": 1e-4}
    reports = list(dmb.train(model, data, **{**settings, **steps, **options}))
    learned = model.process.learned()
    return {
        "bits": [report.bits for report in reports if math.isfinite(report.bits)],
        "weights": {key: summary(tensor) for key, tensor in model.network.state_dict().items()},
        "rates": None if learned is None else learned.detach().norm().item(),
        "p_0": summary(model.process.p_0),
        "sample": reports[-1].sample.tolist(),
    }


@cache
def data_sets():
    return {"digits": dmb.data.digits(), "pydocs": dmb.data.pydocs(length=16)}
