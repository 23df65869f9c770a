"""A server of the page: a socket, uvicorn, and gradio with everything off that the page does not need."""

import asyncio
import ipaddress
import os
import socket
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

FIRST_PORT, PORTS = 7860, 100
LOOPBACK = {"localhost", "127.0.0.1", "[::1]", "::1"}
UPLOAD = 4 << 20  # bytes of a file that a visitor may upload
SESSIONS = 100  # visitors whose films are kept; the oldest ones are forgotten
MESSAGES = 400  # visitors for whom answers are kept until they are fetched: more than can wait
STYLES = [Path(__file__).parents[1] / "report" / "block.css", Path(__file__).parent / "style.css"]
PIXELS = 1 << 24  # of a picture that a visitor may upload; one of twice as many is refused before it is unpacked


def import_gradio() -> Any:
    """Gradio, which nothing but the page needs."""
    try:
        return import_module("gradio")
    except ImportError as error:
        raise ValueError("dmb serve needs the extra `web`: pip install 'discrete-markov-bridge[web]'") from error


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach `host`.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def credentials(auth: str | None, host: str) -> tuple[str, str] | None:
    """User and password of `USER:PASSWORD`; needed if others can reach `host`."""
    if auth is None:
        if not is_loopback(host):
            raise ValueError(
                f"--host {host} lets others in: give --auth USER:PASSWORD, or set DMB_AUTH, which no list of processes "
                "shows"
            )
        return None
    user, _, password = auth.partition(":")
    if not user or not password:
        raise ValueError("--auth must read USER:PASSWORD, with neither of them empty")
    return user, password


def listening(host: str, port: int | None) -> socket.socket:
    """A socket at `port`, or at the first free one from 7860 on."""
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ValueError(f"--host {host} is no address of this machine: {error.strerror or error}") from None
    if port is not None and not 0 <= port < 1 << 16:
        raise ValueError(f"--port must lie between 0 and 65535, got {port}")
    problem = ""
    for candidate in range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else [port]:
        try:
            return socket.create_server(
                (address[0], candidate), family=family, backlog=128, dualstack_ipv6=family == socket.AF_INET6
            )
        except OSError as error:
            problem = os.strerror(error.errno or 0)
    which = f"port {port} of {host} cannot" if port is not None else f"no port of {host} from {FIRST_PORT} on can"
    raise ValueError(f"{which} be used ({problem}): give another --port")


@contextmanager
def served(playground: Any, *, host: str, auth: tuple[str, str] | None) -> Iterator[Any]:
    """The application that answers requests; while the block runs, it has a folder for its files.

    Args:
        playground: the model.
        host: where it listens.
        auth: user and password; None: everybody is let in.
    """
    with tempfile.TemporaryDirectory(prefix="dmb-serve-") as folder:
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=folder)
        for name in ("GRADIO_ALLOWED_PATHS", "GRADIO_SHARE", "GRADIO_MCP_SERVER", "GRADIO_ROOT_PATH"):
            os.environ.pop(name, None)
        made = _application(playground, Path(folder), LOOPBACK if is_loopback(host) else None, auth)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of gradio and of what it imports
            with ThreadPoolExecutor(1) as thread:  # in a loop of its own, or gradio makes some that nobody closes
                app = thread.submit(asyncio.run, made).result()
            yield app


async def _application(playground: Any, folder: Path, hosts: set[str] | None, auth: tuple[str, str] | None) -> Any:
    import gradio as gr
    from fastapi import FastAPI
    from gradio import processing_utils
    from PIL import Image

    from dmb.app.serve.guard import Guard
    from dmb.app.serve.page import page

    async def fetch_nothing(url: str) -> Any:
        raise gr.Error("a picture must be uploaded, got an address", print_exception=False)

    Image.MAX_IMAGE_PIXELS = PIXELS
    processing_utils.async_ssrf_protected_get = fetch_nothing  # any value may name an address instead of a file
    blocks = page(playground, folder)
    blocks.state_session_capacity = SESSIONS
    blocks._queue.pending_messages_per_session.max_size = MESSAGES  # it keeps what nobody has fetched
    fonts = (["system-ui", "sans-serif"], ["ui-monospace", "monospace"])  # of the reader's machine
    theme = gr.themes.Default(primary_hue="blue", font=fonts[0], font_mono=fonts[1])
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app = gr.mount_gradio_app(
        app, blocks, path="/", auth=auth, allowed_paths=[], max_file_size=UPLOAD, show_error=False, ssr_mode=False,
        footer_links=[], run_history=False, enable_monitoring=False, mcp_server=False, pwa=False, theme=theme,
        css="\n".join(path.read_text(encoding="utf-8") for path in STYLES),
    )  # fmt: skip
    return Guard(app, hosts, folder)


def server_of(app: Any) -> Any:
    """A server for it, to be `run` with sockets; it ends when its `should_exit` is set, or by a signal."""
    import uvicorn

    # pages keep connections open, which must not keep the server from ending
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="on"))
