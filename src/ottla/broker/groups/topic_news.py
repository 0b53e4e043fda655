"""What topics there are, for the coordinators: gathered, and handed on now and then.

Each coordinator keeps the topics by name. To tell fifty of them of each of a thousand topics that are created one after
another would take minutes; so changes wait for a moment, and what is common to all is made once. Regular expressions
are evaluated over names that are new, not over all of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.broker.groups.topic_patterns import compile_pattern
from ottla.broker.topics import Topics
from ottla.model.errors import Refused
from ottla.model.ids import TopicId

PATTERNS_KEPT = 256

Facts = dict[str, tuple[TopicId, int]]


class TopicNews:
    def __init__(self, topics: Topics, is_complete: Callable[[], bool]) -> None:
        self._topics = topics
        self._is_complete = is_complete
        self._is_stale = True
        self.version = 0
        """Of what is handed out. Grows when topics come and go or get partitions; not when their leaders change."""
        self.facts: Facts = {}
        """One and the same for all: nobody changes it."""
        self._names: set[str] = set()
        self._matching: dict[str, set[str]] = {}

    def changed(self) -> None:
        self._is_stale = True

    def refresh(self) -> None:
        if self._is_stale:
            self._is_stale = False
            self.version += 1
            self.facts = {topic.name: (topic.id, topic.partition_count) for topic in self._topics}
            self._note_names(set(self.facts))

    def missing(self, used: Iterable[Iterable[str]]) -> set[str]:
        """Which of these topics are not there. A coordinator that takes over asks: they went while nobody listened.

        None if this broker cannot read all that the cluster says of its topics: what it does not see may be there."""
        return {name for names in used for name in names if name not in self.facts} if self._is_complete() else set()

    def matching(self, regex: str) -> tuple[str, ...] | Refused:
        pattern = compile_pattern(regex)
        if isinstance(pattern, Refused):
            return pattern
        found = self._matching.get(regex)
        if found is None:
            if len(self._matching) >= PATTERNS_KEPT:
                self._matching.pop(next(iter(self._matching)))
            found = self._matching[regex] = set(_matching(regex, self._names))
        return tuple(sorted(found))

    def _note_names(self, names: set[str]) -> None:
        new, gone = names - self._names, self._names - names
        self._names = names
        for regex, found in self._matching.items():
            found -= gone
            found.update(_matching(regex, new))


def _matching(regex: str, names: Iterable[str]) -> list[str]:
    pattern = compile_pattern(regex)
    return [] if isinstance(pattern, Refused) else [name for name in names if pattern.fullmatch(name) is not None]
