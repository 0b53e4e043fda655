"""The way to a group's coordinator: who it is, and a connection to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.client.apis import FIND_COORDINATOR, ClientApi, call
from ottla.client.brokers import Brokers
from ottla.client.errors import refused
from ottla.client.metadata import Metadata

GROUP_KEY = 0
MEMBERSHIP = "group"
OFFSETS = "offsets"
"""Purposes of connections: nothing waits behind a JoinGroup, which is answered when all members have joined."""
FIND_TIMEOUT_MS = 3000
"""Any broker knows: one that says nothing need not be waited for."""


class Coordinator:
    def __init__(self, brokers: Brokers, metadata: Metadata, group_id: str) -> None:
        self.group_id = group_id
        self._brokers = brokers
        self._metadata = metadata
        self._node_id: int | None = None

    @property
    def group_text(self) -> str:
        return f'group "{self.group_id}"'

    def forget(self) -> None:
        """It is another one, or it does not answer: look for it again."""
        self._node_id = None

    async def ask(
        self, api: ClientApi, body: Mapping[str, Any], *, purpose: str, what: str, timeout_ms: int | None = None
    ) -> Any:
        """Once. Raises what stands in the way; error codes inside of the reply are for the caller."""
        if self._node_id is None:
            self._node_id = await self._find()
        connection = await self._brokers.connection(self._node_id, purpose)
        return await call(connection, api, body, what=what, timeout_ms=timeout_ms)

    async def _find(self) -> int:
        connection = await self._brokers.any_connection()
        body = {"key_type": GROUP_KEY, "coordinator_keys": [self.group_id]}
        what = f"looking for the coordinator of {self.group_text}"
        reply = await call(connection, FIND_COORDINATOR, body, what=what, timeout_ms=FIND_TIMEOUT_MS)
        (found,) = reply.coordinators
        if found.error_code:
            raise refused(found.error_code, self.group_text, found.error_message)
        node_id = int(found.node_id)
        if node_id not in self._metadata.view.nodes:
            await self._metadata.refresh()
        return node_id
