"""Signals that ask for an end, heeded when it suits."""

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

    before = _handled(_OTHERS, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _handled(numbers: list[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Let `handler` have these signals, and return the handlers before. Those ignored, as after nohup, stay so."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {
        number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN
    }
