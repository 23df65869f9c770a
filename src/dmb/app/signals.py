"""Signals that ask for an end, heeded when it suits."""

import signal


class Signals:
    """While the block runs, SIGINT or SIGTERM only make it say True when it is asked; a second Ctrl-C acts as ever."""

    def __init__(self) -> None:
        self.caught = 0
        self.heeded = 0
        """The signal that was told of when asked last; 0 if none."""

    def __call__(self) -> bool:
        self.heeded = self.caught
        return self.heeded > 0

    def __enter__(self) -> "Signals":
        self._before = {number: signal.signal(number, self._catch) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: object) -> None:
        self.caught = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
