"""Handles Ctrl-C for a job that runs until it is stopped: the job finishes its current work and then ends cleanly."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from ottla.cli.output import say

LOOK_AGAIN_S = 0.2
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """A request to stop. It is a flag and not an event, because a signal may arrive while the program waits for it."""

    def __init__(self) -> None:
        self.is_wanted = False

    def wait(self, duration_s: float) -> None:
        """Waits for that long, or until a stop is requested."""
        deadline_s = time.monotonic() + duration_s
        while not self.is_wanted and (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(left_s, LOOK_AGAIN_S))

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Requests a stop; a second signal interrupts."""
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
        say("stopping after the current batch; interrupt again to stop immediately")


@contextlib.contextmanager
def until_interrupted() -> Iterator[StopRequest]:
    """Makes the first SIGINT or SIGTERM request a stop, and a second one interrupt.

    Enter it after Spark has started, because Spark installs a handler of its own that cancels running jobs.
    """
    stop = StopRequest()
    before = {number: signal.signal(number, stop.on_signal) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
