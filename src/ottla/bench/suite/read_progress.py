"""Tracks how far a consumer has read, and when it is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ottla.bench.suite.loads import ConsumerLoad, LoadFailedError


class ReadProgress:
    """The progress of one consumer."""

    def __init__(self, load: ConsumerLoad, now_s: float) -> None:
        self._positions = dict(load.offsets)
        self._ends = None if load.ends is None else dict(load.ends)
        self._ends_file = Path(load.ends_file)
        self._last_news_s = now_s

    def advance(self, positions: Mapping[int, int], now_s: float) -> None:
        """Records the next offset of each partition."""
        self._positions.update(positions)
        self._last_news_s = now_s

    def is_done(self) -> bool:
        """Returns whether the end is known and every partition has been read up to it."""
        return self._ends is not None and all(self._positions[index] >= end for index, end in self._ends.items())

    def nothing_came(self, now_s: float, patience_s: float) -> None:
        """Checks whether the producers have ended. Raises LoadFailedError if records do not arrive for too long."""
        if self._ends is None and self._ends_file.exists():
            every = {int(index): end for index, end in json.loads(self._ends_file.read_text(encoding="utf-8")).items()}
            self._ends = {index: every[index] for index in self._positions}
        if now_s - self._last_news_s > patience_s:
            raise LoadFailedError(f"no records arrived for {patience_s:.0f} s at {self._positions}, ends {self._ends}")


def write_ends(path: Path, ends: Mapping[int, int]) -> None:
    """Writes the end offsets atomically, because readers poll for the file."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(ends), encoding="utf-8")
    draft.replace(path)
