"""Collects topic changes for the coordinators and hands them on in intervals.

Each coordinator keeps the topics by name. If a thousand topics are created one after another, notifying fifty
coordinators of each of them would take minutes. So changes are batched, and the common part is computed once. Regular
expressions are evaluated over new names only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.broker.groups.topic_patterns import compile_pattern
from ottla.broker.topics.topics import Topics
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.ids import TopicId

PATTERNS_KEPT = 256

Facts = dict[str, tuple[TopicId, int]]


class TopicChanges:
    """The topics as the coordinators of this broker see them."""

    def __init__(self, topics: Topics, is_complete: Callable[[], bool]) -> None:
        self._topics = topics
        self._is_complete = is_complete
        self._is_stale = True
        self.version = 0
        """Incremented when topics are created or deleted or get partitions, but not when their leaders change."""
        self.facts: Facts = {}
        """Shared by all coordinators, which must not modify it."""
        self._names: set[str] = set()
        self._matching: dict[str, set[str]] = {}

    def changed(self) -> None:
        """Marks the topics as changed."""
        self._is_stale = True

    def refresh(self) -> None:
        """Takes over the current topics, if they have changed."""
        if self._is_stale:
            self._is_stale = False
            self.version += 1
            self.facts = {topic.name: (topic.id, topic.partition_count) for topic in self._topics}
            self._note_names(set(self.facts))

    def missing(self, used: Iterable[Iterable[str]]) -> set[str]:
        """Returns those of the topics that do not exist: a coordinator that takes over looks for topics that were
        deleted while it did not listen. Returns none if this broker cannot read all of the cluster's topics, since
        those it does not see may exist."""
        return {name for names in used for name in names if name not in self.facts} if self._is_complete() else set()

    def matching(self, regex: str) -> tuple[str, ...] | Refused:
        """Returns the topic names that match a regular expression."""
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
