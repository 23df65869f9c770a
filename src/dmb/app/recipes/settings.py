"""The recipes, one function each. Times are for two CPU cores."""

from dataclasses import replace

from dmb import tables
from dmb.app.recipes import choices
from dmb.app.recipes.base import Recipe
from dmb.app.recipes.choices import DataChoice, NetworkChoice, OrderChoice, ProcessChoice
from dmb.training.settings import TrainingSettings

# Algorithm 1 with Matrix-learning as in the paper's code: rates of every position, learned linearly on J_Q, three steps
# for every two of Score-learning. They cost little, because J_Q needs no batch. Time follows the rates (schedule
# paced): on any other schedule, fast clocks squeeze all changes into a small part of [0, 1].
LIVE = ProcessChoice(learn="linear", schedule="paced")
ALGORITHM_1 = TrainingSettings(
    cycles=2, score_steps=1000, matrix_steps=1500, matrix_learning_rate=1e-3, matrix_weight_decay=0.01, matrix_clip=1.0,
)  # fmt: skip

# The paper's forward process for text: all gathers in the rarest state until Matrix-learning wakes the other clocks.
PAPER = ProcessChoice(order="descending", floor=0.0, learn="linear")

# Whole paths, and an order of writing that is learned with the network. Masks are the only noise.
MASKED, LEARNED = ProcessChoice(mask=True, floor=0.0, tied=True), OrderChoice(write_order="learned")
# One network for all numbers of calls, and an order for each of them.
FEW_CALLS = OrderChoice(write_order="learned_streams")
PATHS = TrainingSettings(
    cycles=1, matrix_steps=0, decay="cosine", evaluate_every=500, evaluate_sequences=1024, **choices.LEARNED
)


def digits() -> Recipe:
    """Scikit-learn's 8×8 digits, 17 grey levels: one minute."""
    return Recipe(
        name="digits",
        data=DataChoice(source="digits"),
        process=replace(LIVE, order="natural"),
        network=NetworkChoice(network="mlp", width=256, blocks=3, dropout=0.3),
        training=replace(
            ALGORITHM_1, start="random", score_steps=750, matrix_steps=1125, learning_rate=2e-3, weight_decay=1.0,
            decay="cosine", patience=3, evaluate_every=100, log_every=25,
        ),
    )  # fmt: skip


def digits_paths() -> Recipe:
    """The same digits by whole paths, like `sequences`: one minute."""
    return Recipe(
        name="digits_paths",
        data=DataChoice(source="digits"),
        process=MASKED,
        order=LEARNED,
        network=NetworkChoice(network="ordered", blocks=3, width=64, heads=4, placed=True),
        training=replace(PATHS, score_steps=700, batch_size=32, learning_rate=2e-3, warmup=50, evaluate_every=350),
    )


def table() -> Recipe:
    """A table, one column per position: for `.csv` and `.parquet` files.

    The model that `dmb.TableModel` has: a network for each column, columns written one after the other. Columns are
    masked, because a mask is no value: what a template gives is never taken for noise.
    """
    return Recipe(
        name="table",
        data=DataChoice(source="table.csv"),
        process=ProcessChoice(mask=True, floor=0.0),
        order=OrderChoice(write_order="fixed"),
        network=NetworkChoice(network="columns", width=128, blocks=2, dropout=0.0),
        training=tables.column_training(rows=100_000, columns=10),
    )


def array() -> Recipe:
    """Integer arrays, short enough for an MLP that sees all positions at once: about a minute."""
    return Recipe(
        name="array",
        data=DataChoice(source="digits"),
        process=LIVE,
        network=NetworkChoice(network="mlp", width=256, blocks=3, dropout=0.1),
        training=replace(ALGORITHM_1, learning_rate=2e-3, decay="cosine", patience=4, evaluate_every=100),
    )  # fmt: skip


def sequences() -> Recipe:
    """Integer arrays with many positions or states. Learned like `text`."""
    return Recipe(
        name="sequences",
        data=DataChoice(source="digits"),
        process=MASKED,
        order=FEW_CALLS,
        network=NetworkChoice(network="ordered", blocks=4, width=128, heads=4, placed=True),
        training=replace(PATHS, score_steps=2500, batch_size=32, warmup=200),
    )


def text() -> Recipe:
    """Text: your own file, or `pydocs`, English from Python's documentation: 20 minutes.

    Learned by whole paths, with an order of writing that is learned too (`write_order`). Masks are the only noise, and
    what a template gives comes first in the order, so that it is believed.
    """
    return Recipe(
        name="text",
        data=DataChoice(source="pydocs", length=64),
        process=MASKED,
        order=FEW_CALLS,
        network=NetworkChoice(network="ordered"),
        training=replace(PATHS, score_steps=2500, batch_size=64, patience=2),
    )


def text_gather() -> Recipe:
    """Text by Algorithm 1 as in the recipe text8_paper, sized for two CPU cores: 20 minutes.

    What differs: the size of the network, batches and sequences, the number of cycles and their length, a learning rate
    that falls, and an average of weights over fewer steps.
    """
    return Recipe(
        name="text_gather",
        data=DataChoice(source="pydocs", length=64),
        process=PAPER,
        network=NetworkChoice(),
        head="unscaled_score",
        training=replace(
            ALGORITHM_1, start="random", score_steps=2000, matrix_steps=3000, adapt_times=False, infill=0.0,
            batch_size=64, decay="cosine", evaluate_every=500, evaluate_sequences=1024,
        ),
    )  # fmt: skip


def records() -> Recipe:
    """Records of any length (FASTA, SMILES, JSON lines, or lines of text): 5 minutes for lengths up to 150.

    Learned like `text`.
    """
    return Recipe(
        name="records",
        data=DataChoice(source="proteins.fasta", read_as="records"),
        process=MASKED,
        order=LEARNED,
        network=NetworkChoice(network="ordered", blocks=3, placed=True),
        training=replace(
            PATHS, score_steps=500, batch_size=32, learning_rate=2e-3, patience=4, evaluate_every=100,
            evaluate_sequences=512,
        ),
    )  # fmt: skip


def text8() -> Recipe:
    """Text8, sized for two CPU cores: 50 minutes. Learned like `text`."""
    return Recipe(
        name="text8",
        data=DataChoice(source="text8", length=128),
        process=MASKED,
        order=FEW_CALLS,
        network=NetworkChoice(network="ordered", blocks=4, width=128, heads=4, dropout=0.0),
        training=replace(PATHS, score_steps=5000, batch_size=32, warmup=200),
    )


def text8_paper() -> Recipe:
    """The paper's setting for Text8, as its authors' code has it: SEDD's 12×768 network, length 256, batches of 512.

    A cycle is 15 epochs of Matrix-learning (10,305 steps) and 10 of Score-learning (6,870 steps). Where paper and code
    differ, the code decides, but for the end of weight decay; `docs/errata.md` lists where they do. Ours: μ is
    estimated with Tweedie steps instead of Euler's, and J_Q has no batch.
    """
    return Recipe(
        name="text8_paper",
        data=DataChoice(source="text8", length=256),
        process=PAPER,
        network=NetworkChoice(blocks=12, width=768, heads=12, conditioning=128, dropout=0.1),
        head="unscaled_score",
        training=replace(
            ALGORITHM_1, start="random", cycles=1000, score_steps=6870, matrix_steps=10_305, chains=512,
            chain_calls=128, adapt_times=False, infill=0.0, batch_size=512, learning_rate=3e-4, warmup=2500,
            weight_decay=0.01, weight_decay_until=7_900_000, ema=0.9999, log_every=100, evaluate_every=6870,
            evaluate_sequences=4096,
        ),
    )  # fmt: skip


def images() -> Recipe:
    """Pixels in 16 levels, with a small network; still slow on a CPU beyond 16 × 16 pixels.

    `dmb tokenize`, then the recipe `codes`, makes better images for far less computation.
    """
    return Recipe(
        name="images",
        data=DataChoice(source="cifar10", levels=16),
        process=replace(LIVE, order="natural"),
        network=NetworkChoice(blocks=4, width=64, heads=4, placed=True, dropout=0.0),
        training=replace(
            ALGORITHM_1, cycles=1, score_steps=5000, batch_size=4, decay="cosine", warmup=200,
            evaluate_every=500, evaluate_sequences=64,
        ),
    )  # fmt: skip


def codes() -> Recipe:
    """Codes from `dmb tokenize`, learned like `text`, in streams over tiles of their grid: 90 minutes for CIFAR-10.

    The frequencies of codes differ by position, so nothing of them is tied.
    """
    return Recipe(
        name="codes",
        data=DataChoice(source="codes"),
        process=replace(MASKED, tied=False),
        order=FEW_CALLS,
        network=NetworkChoice(network="ordered", blocks=6, width=128, heads=4, placed=True, dropout=0.0),
        training=replace(PATHS, score_steps=8000, batch_size=32, warmup=200, evaluate_every=1000),
    )


def codes_paper() -> Recipe:
    """The paper's setting for CIFAR-10: SEDD's 12×768 network over a VQ-VAE's codes, batches of 512, unscaled scores.

    From the paper: the initial rates (1e-5, and 1 on top), the order of states, rates of every position, batch size,
    the learning rate of both phases, weight decay. The authors' code is for text only, so the rest is ours: 16×16 codes
    (`dmb tokenize cifar10 --grid 16 --codes 1024 --width 256 --steps 200000`), 100 cycles with the phases of
    `text8_paper` in epochs (15 and 10 of 98 steps), and its dropout, warm-up, average, clipping and decay of rates.
    """
    return Recipe(
        name="codes_paper",
        data=DataChoice(source="codes"),
        process=replace(PAPER, order="ascending", floor=1e-5),
        network=NetworkChoice(blocks=12, width=768, heads=12, placed=True, conditioning=128, dropout=0.1),
        head="unscaled_score",
        training=replace(
            text8_paper().training, cycles=100, score_steps=980, matrix_steps=1470, matrix_learning_rate=3e-4,
            weight_decay_until=None, evaluate_every=980,
        ),
    )  # fmt: skip
