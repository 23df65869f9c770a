"""`dmb serve`."""

import os
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from dmb._core.pretrained import WEIGHTS
from dmb.app.cli.parsing import OnDevice, OwnRecipe, command
from dmb.app.display import notes
from dmb.app.runs import Run
from dmb.app.serve.server import credentials, import_gradio, listening, served, server_of
from dmb.app.signals import ending_at_once
from dmb.training.devices import device


def serve(
    run: Annotated[Positional[Path | None], arg(metavar="RUN")] = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    auth: str | None = None,
    accelerator: OnDevice = "auto",
    recipe: OwnRecipe = None,
) -> int:
    """Open a page in the browser to play with a run's model: fill in blanks, watch it draw, see what noise destroys.

    Ctrl-C ends it. Needs the extra `web`: pip install 'discrete-markov-bridge[web]'.

    Args:
        run: the run folder; default: the newest one in runs/ that has a model.
        host: address to listen on. Beyond this machine, --auth is needed.
        port: port to listen on; default: the first free one from 7860.
        auth: USER:PASSWORD that visitors must give; default: the environment variable DMB_AUTH.
    """
    login = credentials(auth or os.environ.get("DMB_AUTH"), host)
    folder = run or newest(Path("runs"))
    with listening(host, port) as socket:
        with ending_at_once():
            import_gradio()
            from dmb.app.serve.model import Playground
        with notes.status(f"opening {folder}"):
            playground = Playground(Run.open(folder, recipe), device(accelerator))
        with served(playground, host=host, auth=login) as app:
            shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
            print(f"{folder}: http://{shown}:{socket.getsockname()[1]} (Ctrl-C ends it)", flush=True)
            server_of(app).run(sockets=[socket])
    return 0


def newest(runs: Path) -> Path:
    """The folder of the newest run in `runs` that has a model."""
    found = [file.parent for file in runs.glob(f"*/{WEIGHTS}") if (file.parent / "run.json").is_file()]
    if not found:
        raise ValueError(f"there is no finished run in {runs}: name a run folder, or make one with dmb quickstart")
    return max(found, key=lambda folder: (folder / WEIGHTS).stat().st_mtime)


main = command(serve)
