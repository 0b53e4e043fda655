"""Finds the coordinator of a group or of a transactional id and connects to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.client.brokers import Brokers
from ottla.client.errors import refused
from ottla.client.metadata import Metadata
from ottla.net.apis import FIND_COORDINATOR, ClientApi, call
from ottla.net.connection import Connection

GROUP_KEY, TRANSACTION_KEY = 0, 1
MEMBERSHIP = "group"
OFFSETS = "offsets"
"""Purposes of connections. Nothing waits behind a JoinGroup, whose reply comes when all members have joined."""
FIND_TIMEOUT_MS = 3000
"""Every broker knows the coordinator, so there is no need to wait for one that does not reply."""


class Coordinator:
    """The coordinator of one group. `group_id` is a transactional id if `key_type` says so."""

    def __init__(self, brokers: Brokers, metadata: Metadata, group_id: str, key_type: int = GROUP_KEY) -> None:
        self.group_id = group_id
        self._key_type = key_type
        self._brokers = brokers
        self._metadata = metadata
        self._node_id: int | None = None

    @property
    def group_text(self) -> str:
        """The group's description for messages."""
        return f'{"group" if self._key_type == GROUP_KEY else "transactional id"} "{self.group_id}"'

    def forget(self) -> None:
        """Looks the coordinator up again at the next request, because it moved or does not reply."""
        self._node_id = None

    async def ask(
        self, api: ClientApi, body: Mapping[str, Any], *, purpose: str, what: str, timeout_ms: int | None = None
    ) -> Any:
        """Sends one request and returns the reply. Raises on failure; the caller checks error codes in the reply."""
        return await call(await self.connection(purpose), api, body, what=what, timeout_ms=timeout_ms)

    async def connection(self, purpose: str) -> Connection:
        """Returns a connection to the coordinator."""
        if self._node_id is None:
            self._node_id = await self._find()
        return await self._brokers.connection(self._node_id, purpose)

    async def _find(self) -> int:
        connection = await self._brokers.any_connection()
        body = {"key_type": self._key_type, "coordinator_keys": [self.group_id]}
        what = f"finding the coordinator of {self.group_text}"
        reply = await call(connection, FIND_COORDINATOR, body, what=what, timeout_ms=FIND_TIMEOUT_MS)
        (found,) = reply.coordinators
        if found.error_code:
            raise refused(found.error_code, self.group_text, found.error_message)
        node_id = int(found.node_id)
        if node_id not in self._metadata.view.nodes:
            await self._metadata.refresh()
        return node_id
