"""The interface of a client as a member of a group and as an administrator of groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

CLASSIC, CONSUMER = "classic", "consumer"
SESSION_MS = 20_000

Offsets = dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Described:
    """The description of a group that an administrator gets."""

    state: str
    members: tuple[tuple[str, str, frozenset[tuple[str, int]]], ...] = ()
    """Client id, host and assignment of each member."""


class GroupUser(ABC):
    """One client library. Every call is self-contained."""

    name: str
    protocols: tuple[str, ...] = (CLASSIC,)
    is_admin = True
    can_change = True
    """Whether it can alter offsets and delete groups."""
    can_delete_offsets = True

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def consume(self, group: str, topic: str, count: int, protocol: str = CLASSIC) -> list[bytes]:
        """Joins, reads at least that many records (plus the rest of the last batch), commits and leaves.

        Commits explicit offsets: a commit of the position depends on the library, and some leave out a partition whose
        leader has just moved.
        """

    def groups(self) -> dict[str, str | None]:
        """Returns group names and, where the library has them, states."""
        raise NotImplementedError

    def describe(self, group: str) -> Described:
        raise NotImplementedError

    def offsets(self, group: str) -> Offsets:
        raise NotImplementedError

    def alter_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        raise NotImplementedError

    def delete_offsets(self, group: str, topic: str, partition: int) -> None:
        raise NotImplementedError

    def delete_group(self, group: str) -> None:
        raise NotImplementedError
