"""Signals that stop training at the next checkpoint, or a command at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType

_OTHERS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]  # Windows has no SIGHUP
Handler = Callable[[int, FrameType | None], None]


@contextmanager
def _handled(numbers: list[signal.Signals], handler: Handler) -> Iterator[None]:
    """While the block runs, `handler` has these signals; those ignored, as after nohup, stay so."""
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def interruptible() -> AbstractContextManager[None]:
    """While the block runs, SIGTERM and SIGHUP act as Ctrl-C does: a KeyboardInterrupt, with their number.

    So that files which are only half written are deleted then, too.
    """

    def interrupt(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    return _handled(_OTHERS, interrupt)


def ending_at_once() -> AbstractContextManager[None]:
    """While the block runs, signals end the process: for imports, which turn a KeyboardInterrupt into other errors."""

    def end(number: int, _: FrameType | None) -> None:
        os.write(2, b"dmb: interrupted\n")
        os._exit(128 + number)

    return _handled([signal.SIGINT, *_OTHERS], end)


class Signals(ExitStack):
    """While the block runs, SIGINT, SIGTERM and SIGHUP only make it say True when asked; a second Ctrl-C interrupts."""

    caught = 0
    heeded = 0
    """The signal that was told of when asked last; 0 if none."""

    def __call__(self) -> bool:
        self.heeded = self.caught
        return self.heeded > 0

    def __enter__(self) -> "Signals":
        self.enter_context(_handled([signal.SIGINT, *_OTHERS], self._catch))
        return self

    def _catch(self, number: int, _: object) -> None:
        self.caught = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
