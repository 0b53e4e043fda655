"""The common part of members of both protocols: subscription, handover, and the poll deadline."""

from __future__ import annotations

from ottla.client.errors import ClientError, refused
from ottla.client.groups.settings import GroupSettings
from ottla.client.groups.steps import NOTHING, ErrorReply, Handover, Partitions
from ottla.protocol.model.errors import ErrorCode

MOVING = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)
"""The coordinator moved or is not ready; the same request is repeated after a pause."""


class MemberCore:
    """The base of both state machines. Pure.

    A handover that has begun is always finished; one that has not begun can still be replaced.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.topics: frozenset[str] | None = None
        """None before the first subscription."""
        self.owned: Partitions = NOTHING
        self.handover: Handover | None = None
        self.failure: ClientError | None = None
        self.wants_metadata = False
        self._handing = False
        self._lost_meanwhile = False
        self._asleep = False
        """The user has exceeded the poll interval, so the group continues without this member."""
        self._poll_deadline_s: float | None = None

    @property
    def is_asleep(self) -> bool:
        """Whether the member left because of the poll interval."""
        return self._asleep

    def user_came(self) -> None:
        """The user asks for records."""
        self._poll_deadline_s = None
        if self._asleep:
            self._asleep = False
            self._wake_up()

    def user_went(self, now_s: float) -> None:
        """The user got its records; the poll interval begins."""
        self._poll_deadline_s = now_s + self.settings.max_poll_interval_s

    def _wake_up(self) -> None:
        raise NotImplementedError

    def handover_began(self) -> None:
        """The user's side has begun to execute `handover`."""
        self._handing = True

    def _poll_is_overdue(self, now_s: float) -> bool:
        return self._poll_deadline_s is not None and now_s >= self._poll_deadline_s

    def _until_s(self, due_s: float | None) -> float | None:
        times = [each for each in (due_s, self._poll_deadline_s) if each is not None]
        return min(times, default=None)

    def _finish_handover(self) -> Handover:
        """Applies the handover to `owned` and returns it."""
        done = self.handover
        assert done is not None
        self.handover = None
        self._handing = False
        self.owned = (self.owned - done.give_up) | done.take
        return done

    def _lose_owned(self) -> None:
        """Plans to give up all partitions. A handover in progress is finished first; its partitions are then lost."""
        if self._handing:
            self._lost_meanwhile = True
            return
        self._lost_meanwhile = False
        self.handover = Handover(give_up=self.owned, lost=True) if self.owned else None

    def _fail(self, refusal: ErrorReply) -> None:
        self.failure = refused(refusal.error, f'group "{self.settings.group_id}"', refusal.message)
