"""Processes of their own that start at once: each is a fork of one that has torch and lightning loaded already.

They are real processes, with their own memory, files, signals and exit codes. Importing is all that they share.
"""

import multiprocessing
import os
import socket
import sys
from pathlib import Path

from dmb.app.cli import main

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["dmb.app.cli.train", "dmb.app.session", "lightning_fabric.strategies.model_parallel"])


def start(function, *arguments, output, environment=None):
    """Call a function in a new process, in this process's folder; its words go to the file `output`."""
    here = (os.getcwd(), dict(os.environ) | (environment or {}))
    process = _server.Process(target=_there, args=(*here, output, function, arguments))
    process.start()
    return process


def dmb(*arguments, output, environment=None):
    """Start a command."""
    return start(_command, *map(str, arguments), output=output, environment=environment)


def pair(function, *arguments, output):
    """Start two processes that train together, as a user does who starts them himself; `function` is called in both."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        start(function, *arguments, output=Path(f"{output}.{rank}"), environment=known | {"LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]


def dmb_pair(*arguments, output):
    """Start a command in two processes that train together."""
    return pair(_command, *map(str, arguments), output=output)


def script(code):
    """For `start` and `pair`: what Python's `-c` does."""
    exec(code, {"__name__": "__main__"})


def codes(*processes, timeout=240):
    """Exit codes of processes, when all have ended."""
    for process in processes:
        process.join(timeout)
    return [process.exitcode for process in processes]


def _there(folder, environment, output, function, arguments):
    words = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(words, 1), os.dup2(words, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments)


def _command(*arguments):
    sys.argv[1:] = arguments
    main()
