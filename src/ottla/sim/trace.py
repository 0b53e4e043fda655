"""The trace of a simulated world, line by line, with a digest of all of it: two runs of one seed must agree.

A trace costs time for every event, so a world records none unless it is asked to.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

LAST_LINES = 200


class Trace:
    """Once started, keeps the last lines, or all of them. The digest covers every line since the start."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._digest = blake2b(digest_size=16)
        self.is_recorded = False
        self.count = 0

    def start(self, *, keep_all: bool = False) -> None:
        """Records lines from now on."""
        self.is_recorded = True
        if keep_all:
            self._lines = deque(self._lines)

    def note(self, time_s: float, text: str) -> None:
        """Adds a line with its virtual time in seconds. Does nothing before `start`."""
        if self.is_recorded:
            line = f"{time_s:.9f} {text}\n"
            self._lines.append(line)
            self._digest.update(line.encode())
            self.count += 1

    @property
    def digest(self) -> str:
        """The digest of all lines so far, in hexadecimal."""
        assert self.is_recorded, "the trace was not recorded: call start before the run"
        return self._digest.hexdigest()

    @property
    def text(self) -> str:
        """The lines that were kept."""
        return "".join(self._lines)
