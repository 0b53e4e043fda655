"""The trace of a simulated world, line by line, with a digest of all of it: two runs of one seed must agree."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

LAST_LINES = 200


class Trace:
    """Keeps the last lines, or all of them. The digest covers every line since the beginning."""

    def __init__(self, *, keep_all: bool = False) -> None:
        self._lines: deque[str] = deque(maxlen=None if keep_all else LAST_LINES)
        self._digest = blake2b(digest_size=16)
        self.count = 0

    def note(self, time_s: float, text: str) -> None:
        """Adds a line with its virtual time in seconds."""
        line = f"{time_s:.9f} {text}\n"
        self._lines.append(line)
        self._digest.update(line.encode())
        self.count += 1

    @property
    def digest(self) -> str:
        """The digest of all lines so far, in hexadecimal."""
        return self._digest.hexdigest()

    @property
    def text(self) -> str:
        """The lines that were kept."""
        return "".join(self._lines)
