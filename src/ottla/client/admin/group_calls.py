"""Requests to the coordinators of groups and transactions: finds them, and retries while they move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ottla.client.admin.calls import AdminCalls, check
from ottla.client.brokers import new_backoff
from ottla.client.errors import BrokerRefusedError, ClientError, refused
from ottla.client.metadata import PASSING_FAILURES
from ottla.net.apis import FIND_COORDINATOR, call
from ottla.net.connection import Connection
from ottla.protocol.model.errors import ErrorCode


class CoordinatorKind(NamedTuple):
    """A kind of object that has a coordinator."""

    key_type: int
    noun: str

    def text(self, name: str) -> str:
        """Returns the object's description for messages."""
        return f'{self.noun} "{name}"'

    def refused(self, error: ErrorCode, name: str) -> BrokerRefusedError:
        """Returns the exception for an error code about the object."""
        is_ours = self is GROUP or error not in MOVING
        return refused(error, self.text(name), None if is_ours else "its coordinator is moving; try again")


GROUP = CoordinatorKind(0, "group")
TRANSACTIONAL_ID = CoordinatorKind(1, "transactional id")
MOVING = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
    }
)
"""The coordinator moved or is not ready; retrying helps."""


class Answer(NamedTuple):
    """A coordinator's reply about one of its groups or transactional ids."""

    error: ErrorCode
    entry: Any
    coordinator: int = -1

    def checked(self, group: str) -> Any:
        """Returns the entry. Raises a BrokerRefusedError if there is an error."""
        if self.error is not ErrorCode.none:
            raise refused(self.error, group_text(group), getattr(self.entry, "error_message", None))
        return self.entry


Question = Callable[[Connection, list[str]], Awaitable[Mapping[str, Answer]]]


def group_text(group: str) -> str:
    """Returns the group's description for messages."""
    return GROUP.text(group)


class GroupAdminCalls(AdminCalls):
    """Sends requests to coordinators."""

    async def _ask_coordinators(
        self, names: Iterable[str], question: Question, kind: CoordinatorKind = GROUP
    ) -> dict[str, Answer]:
        """Asks each coordinator once about everything that it coordinates, until all have replied or the time is up."""
        wanted = list(dict.fromkeys(names))
        answers: dict[str, Answer] = {}

        async def attempt() -> ClientError | None:
            return await self._ask_round([name for name in wanted if name not in answers], question, answers, kind)

        await self._until_complete(attempt)
        return {name: answers[name] for name in wanted}

    async def _until_complete(self, attempt: Callable[[], Awaitable[ClientError | None]]) -> None:
        """Repeats the attempt until it returns no failure. Raises the last failure when the time is up."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_ms / 1000
        backoff = new_backoff(min_ms=20)
        while (failure := await attempt()) is not None:
            if loop.time() >= deadline_s:
                raise failure
            await asyncio.sleep(backoff.next_s())

    async def _ask_round(
        self, names: list[str], question: Question, answers: dict[str, Answer], kind: CoordinatorKind = GROUP
    ) -> ClientError | None:
        """Adds to the answers and returns the reason why some are missing, or None."""
        missing: ClientError | None = None
        try:
            coordinators, missing = await self._find_coordinators(names, kind)
        except PASSING_FAILURES as failure:
            return failure
        for node_id, part in coordinators.items():
            try:
                told = await question(await self._brokers.connection(node_id), part)
            except PASSING_FAILURES as failure:
                self._metadata.mark_stale()
                missing = failure
                continue
            for name, answer in told.items():
                if answer.error in MOVING:
                    missing = kind.refused(answer.error, name)
                else:
                    answers[name] = answer._replace(coordinator=node_id)
        silent = [name for name in names if name not in answers]
        if silent and missing is None:
            missing = ClientError(f"{kind.text(silent[0])}: the coordinator's response does not contain it")
        return missing

    async def _find_coordinators(
        self, names: list[str], kind: CoordinatorKind
    ) -> tuple[dict[int, list[str]], BrokerRefusedError | None]:
        """Groups the names by known coordinator, and returns the reason why some have none."""
        if not names:
            return {}, None
        body = {"key_type": kind.key_type, "coordinator_keys": names}
        connection = await self._brokers.any_connection()
        reply = await call(connection, FIND_COORDINATOR, body, what=f"finding the coordinators of {kind.noun}s")
        found: dict[int, list[str]] = {}
        missing: BrokerRefusedError | None = None
        for each in reply.coordinators:
            if each.error_code in MOVING:
                missing = kind.refused(each.error_code, each.key)
                continue
            check(each, kind.text(each.key))
            found.setdefault(int(each.node_id), []).append(each.key)
        if self._metadata.needs_refresh or any(node_id not in self._metadata.view.nodes for node_id in found):
            await self._metadata.refresh()
        return found, missing
