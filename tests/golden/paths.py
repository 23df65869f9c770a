"""The same figures for models by whole paths: losses, gradients, bounds, samples, and recipes after a few steps."""

import torch

import dmb
from dmb import orders
from dmb.app.recipes import recipe
from golden.figures import DIMENSIONS, generator, marginals, summary

STATES = dmb.States.with_mask(*DIMENSIONS.values())


def weighted(order, weights):
    with torch.no_grad():
        order.weights.copy_(torch.tensor(weights))
    return order


def transformer(kind, beside):
    sizes = {"width": 8, "heads": 2, "blocks": 1, "conditioning": 8}
    return lambda: kind(STATES, **sizes, beside=beside, dropout=0.0, placed=True)


ORDERED, CAUSAL = transformer(dmb.OrderedTransformer, (1,)), transformer(dmb.CausalTransformer, ())


def columns():
    return dmb.OrderedMLP(STATES, width=8, blocks=1, features=4)


MODELS = {
    "any order": (lambda: orders.Random(3), ORDERED),
    "smooth": (lambda: weighted(orders.Smooth(orders.waves((3,))), [0.3, -0.4]), ORDERED),
    "free": (lambda: weighted(orders.Free(3), [0.5, -0.7, 0.2]), columns),
    "in turn": (lambda: orders.Fixed([2, 0, 1]), columns),
    "causal": (lambda: orders.Fixed.left_to_right(3), CAUSAL),
}
LEARNS = ("smooth", "free")


def built(name):
    order, kind = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = kind().double()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return dmb.OrderedBridge(order(), network, STATES).double()


def of_a_model(name):
    """Losses, gradients, bounds and samples of one model by whole paths."""
    model, x_0 = built(name), torch.multinomial(marginals(), 12, replacement=True, generator=generator(1)).T
    loss = model.loss(x_0, generator=generator(2))
    loss.mean().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.network.parameters() if p.grad is not None])
    bound = model.bound(x_0, samples=2, batch_size=5, generator=generator(3))
    figures = {"loss": loss.tolist(), "gradient": summary(gradient), "score": bound.score.tolist(),
               "prior": bound.prior.tolist(), "stderr": bound.stderr}  # fmt: skip
    for sampler, steps in {
        "ancestral": (None, 2, 8) if name != "causal" else (None, 8),
        "first_hitting": (None,),
    }.items():
        for calls in steps:
            drawn = model.sample(6, calls=calls, sampler=sampler, generator=generator(4))
            figures[f"{sampler}, {calls}"] = drawn.tolist()
    template = torch.tensor([1, -1, -1])
    figures["template"] = model.sample(4, template=template, generator=generator(5)).tolist()
    given = torch.zeros(12, 3, dtype=torch.bool)
    given[::2, 0] = True
    figures["given"] = model.loss(x_0, given=given, generator=generator(6)).tolist()
    if name != "causal":
        several = {"orders": 2, "singles": 2, "any_order": 0.5}
        figures["several"] = model.loss(x_0, given=given, generator=generator(7), **several).tolist()
    if name in LEARNS:
        model.zero_grad()
        model.loss(x_0, given=given, orders=3, learn_order=True, generator=generator(8)).mean().backward()
        figures["speeds"] = model.order.weights.grad.tolist()
    figures["marginals"] = summary(model.estimate_marginals(chains=8, calls=3, generator=generator(9)))
    return figures


SMALL = {"width": 16, "blocks": 1, "log_every": 3, "evaluate_every": 3, "evaluate_sequences": 16, "score_steps": 3,
         "batch_size": 16, "cycles": 1, "warmup": 1, "chains": 4, "chain_calls": 2, "matrix_steps": 0}  # fmt: skip
PATHS = SMALL | {"heads": 2, "conditioning": 8, "orders": 2, "singles": 2, "tilt": 0.3}
FASTA = "".join(f">p{i}\n{''.join('ACDEG'[(i * j + i) % 5] for j in range(4 + i % 5))}\n" for i in range(60))
CSV = "size,colour,price\n" + "".join(f"{i % 3},{'rgb'[i % 3]},{i % 7}\n" for i in range(80))
RECIPES = {
    "digits": ("digits", SMALL | {"start": "histogram"}),
    "digits_paths": ("digits", PATHS),
    "sequences": ("digits", PATHS | {"write_order": "learned"}),
    "text": ("pydocs", PATHS | {"length": 16, "write_order": "learned"}),
    "text_gather": ("pydocs", SMALL | {"length": 16, "heads": 2, "matrix_steps": 2}),
    "records": ("proteins.fasta", PATHS),
    "table": ("table.csv", SMALL),
    "array": ("digits", SMALL | {"matrix_steps": 2}),
}


def of_a_recipe(name, folder):
    """Weights, bounds and a sample after three steps of a recipe."""
    (folder / "proteins.fasta").write_text(FASTA)
    (folder / "table.csv").write_text(CSV)
    source, settings = RECIPES[name]
    source = str(folder / source) if "." in source else source
    chosen = recipe(name).changed(source=source, **settings)
    data = chosen.data.load()
    model = chosen.build(data).double()  # in float32 the figures would be those of one kind of processor
    begins = {key: summary(tensor) for key, tensor in model.network.state_dict().items()}
    reports = list(dmb.train(model, data, chosen.training))
    return {
        "initial": begins,
        "weights": {key: summary(tensor) for key, tensor in model.network.state_dict().items()},
        "speeds": model.learned().get("log_speeds"),
        "bits": [report.bits for report in reports],
        "sample": [report.sample for report in reports if report.sample is not None][-1].tolist(),
        "nats": model.bound(data.validation[:16], generator=generator(1)).nats,
    }
