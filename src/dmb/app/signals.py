"""Signals that ask for an end, heeded when it suits."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_OTHERS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]  # Windows has no SIGHUP


@contextmanager
def interruptible() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP act as Ctrl-C does: a KeyboardInterrupt, with their number.

    So that files which are only half written are deleted then, too.
    """

    def interrupt(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    with _handled_in_block(_OTHERS, interrupt):
        yield


@contextmanager
def ending_at_once() -> Iterator[None]:
    """While the block runs, signals end the process: for imports, which turn a KeyboardInterrupt into other errors."""

    def end(number: int, _: FrameType | None) -> None:
        os.write(2, b"dmb: interrupted\n")
        os._exit(128 + number)

    with _handled_in_block([signal.SIGINT, *_OTHERS], end):
        yield


class Signals:
    """While the block runs, SIGINT, SIGTERM and SIGHUP only make it say True when asked; a second Ctrl-C interrupts."""

    def __init__(self) -> None:
        self.caught = 0
        self.heeded = 0
        """The signal that was told of when asked last; 0 if none."""

    def __call__(self) -> bool:
        self.heeded = self.caught
        return self.heeded > 0

    def __enter__(self) -> "Signals":
        self._before = _handled([signal.SIGINT, *_OTHERS], self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: object) -> None:
        self.caught = number
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _handled_in_block(
    numbers: list[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    before = _handled(numbers, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _handled(numbers: list[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Let `handler` have these signals, and return the handlers before. Those ignored, as after nohup, stay so."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {
        number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN
    }
