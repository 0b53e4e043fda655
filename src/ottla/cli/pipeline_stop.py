"""Ctrl-C for a job that runs until somebody ends it: it finishes what it has begun, and then ends as it should."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from ottla.cli.output import say

LOOK_AGAIN_S = 0.2
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """A flag and no event: a signal may come while the program waits for it."""

    def __init__(self) -> None:
        self.is_wanted = False

    def wait(self, duration_s: float) -> None:
        """That long, or until it is wanted."""
        deadline_s = time.monotonic() + duration_s
        while not self.is_wanted and (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(left_s, LOOK_AGAIN_S))

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
        say("ending after what has begun; again: at once")


@contextlib.contextmanager
def until_interrupted() -> Iterator[Stop]:
    """The first SIGINT or SIGTERM only asks to stop; a second one interrupts. For the time after Spark has begun: it
    sets a handler of its own, which cancels what runs."""
    stop = Stop()
    before = {number: signal.signal(number, stop.on_signal) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
