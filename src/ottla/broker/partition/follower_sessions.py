"""When each follower last fetched anything, from its fetch sessions."""

from __future__ import annotations

from typing import Protocol

NEVER = float("-inf")


class UsedSession(Protocol):
    """A fetch session."""

    used_ms: float
    """Time of its last request."""


class FollowerSessions:
    """The fetch sessions of each follower. A follower is one incarnation of a broker."""

    __slots__ = ("_by_follower",)

    def __init__(self) -> None:
        self._by_follower: dict[tuple[int, int], dict[int, UsedSession]] = {}

    def add(self, broker_id: int, broker_epoch: int, session_id: int, session: UsedSession) -> None:
        """Adds a session that a follower has opened."""
        self._by_follower.setdefault((broker_id, broker_epoch), {})[session_id] = session

    def remove(self, broker_id: int, broker_epoch: int, session_id: int) -> None:
        """Removes a session that has ended."""
        sessions = self._by_follower.get((broker_id, broker_epoch), {})
        sessions.pop(session_id, None)
        if not sessions:
            self._by_follower.pop((broker_id, broker_epoch), None)

    def heard_ms(self, broker_id: int, broker_epoch: int) -> float:
        """Returns the time of the follower's last request in any of its sessions."""
        sessions = self._by_follower.get((broker_id, broker_epoch), {})
        return max([session.used_ms for session in sessions.values()], default=NEVER)
