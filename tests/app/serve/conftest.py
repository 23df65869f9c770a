import threading
from contextlib import contextmanager

import numpy as np
import pytest

import dmb
from app.report.making import recipe, table, text, untrained
from dmb.app.serve.model import Playground
from dmb.app.serve.server import listening, served, server_of

EVIL = "<script>boo()</script>"


@pytest.fixture(scope="session")
def text_run(tmp_path_factory):
    """Twelve letters, some of which are HTML."""
    folder = tmp_path_factory.mktemp("text")
    return untrained(folder / "run", recipe(mask=True), text(folder, 12, "ab <>&'\"", 4000), change=louder)


@pytest.fixture(scope="session")
def table_run(tmp_path_factory):
    """A number, a category with a value that is HTML, and one that may be missing."""
    folder = tmp_path_factory.mktemp("table")
    return untrained(folder / "run", recipe(mask=True, floor=0.0), table_data(folder), change=louder)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    return untrained(
        tmp_path_factory.mktemp("digits") / "run", recipe(classes=True, order="natural"), dmb.data.digits()
    )


@pytest.fixture(scope="session")
def playgrounds(text_run, table_run, digits_run):
    return {name: counted(Playground(run)) for name, run in
            {"text": text_run, "table": table_run, "digits": digits_run}.items()}  # fmt: skip


def counted(playground):
    """The same with a count of the calls of its network."""

    def count(*_):
        playground.calls += 1

    playground.calls = 0
    playground.bridge.network.register_forward_hook(count)
    return playground


def table_data(folder):
    rng = np.random.default_rng(0)
    rows = [[k % 40, rng.choice(["red", EVIL, "blue"]), rng.choice(["yes", "no", ""])] for k in range(200)]
    return table(folder, ["size", "colour", "a<b"], rows)


def louder(bridge):
    """Weights that have not been trained say nothing: the last layer is 0."""
    for parameter in bridge.network.parameters():
        if parameter.abs().sum() == 0:
            parameter.normal_(std=0.5)


@contextmanager
def address_of(playground, auth=None):
    """The address of a page, while the block runs."""
    socket = listening("127.0.0.1", 0)
    with served(playground, host="127.0.0.1", auth=auth) as app:
        server = server_of(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)
    socket.close()
