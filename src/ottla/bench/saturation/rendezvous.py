"""Starts processes together: each arrives when it is connected, and all begin at the same moment.

Without it, the slow start of a process on a busy machine would be measured as a slow cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.01
LEAD_S = 0.2
"""The time from the last arrival to the start, in which every process sees the file."""
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A meeting point in an existing directory of its own. It is passed to the processes that meet there."""

    directory: Path

    @property
    def _start(self) -> Path:
        return self.directory / "start"

    @property
    def _end(self) -> Path:
        return self.directory / "end"

    def arrive(self, name: str) -> float:
        """Waits for the others. Returns the start time on the clock `time.monotonic`, which all processes share."""
        (self.directory / f"arrived-{name}").touch()
        deadline = time.monotonic() + TIMEOUT_S
        while not self._start.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} waited {TIMEOUT_S:.0f} s for the other processes of the benchmark")
            time.sleep(POLL_S)
        return float(self._start.read_text(encoding="ascii"))

    def begin(self, count: int, is_hopeless: Callable[[], bool]) -> None:
        """Starts when `count` processes have arrived, or at once if one never will, so that the others can end."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(list(self.directory.glob("arrived-*"))) < count and not is_hopeless():
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        unfinished = self.directory / "start.new"
        unfinished.write_text(repr(time.monotonic() + LEAD_S), encoding="ascii")
        unfinished.rename(self._start)

    def end(self) -> None:
        """Tells all processes to stop."""
        self._end.touch()

    @property
    def has_ended(self) -> bool:
        """True once `end` was called, in any process."""
        return self._end.exists()
