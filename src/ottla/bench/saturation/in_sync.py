"""Watches the in-sync replicas of topics, and counts how often a partition loses one."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from ottla.bench.leaders import any_broker, ask_leaders

EVERY_S = 0.1
JOIN_S = 70.0

Place = tuple[str, int]
InSync = Mapping[Place, frozenset[int]]


def shrinks_between(before: InSync, after: InSync) -> int:
    """Returns how many partitions have lost an in-sync replica. New partitions do not count."""
    return sum(1 for place, members in after.items() if before.get(place, frozenset()) - members)


class InSyncWatch:
    """Polls the metadata ten times a second, in a thread, while the context is entered."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._last: InSync = {}
        self.shrinks = 0
        self.unanswered = 0
        """The number of metadata requests that failed."""

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with any_broker(self._bootstrap) as caller:
                    while not self._ended.is_set():
                        found = ask_leaders(caller, self._topics)
                        self._seen({place: frozenset(led.in_sync) for place, led in found.partitions.items()})
                        self._ended.wait(EVERY_S)
            except OSError:
                self.unanswered += 1
                self._ended.wait(EVERY_S)

    def _seen(self, now: InSync) -> None:
        self.shrinks += shrinks_between(self._last, now)
        self._last = {**self._last, **now}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(JOIN_S)
