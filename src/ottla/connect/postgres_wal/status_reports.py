"""Reports the receiver's status for `ottla connect status`: a heartbeat to the status topic, independent of the WAL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable

from ottla.client.errors import ClientError
from ottla.connect.postgres_wal.receiver import Receiver
from ottla.connect.status import HEARTBEAT_S, LAST_WORD_S, Status, StatusTopic

KIND = "postgres-wal"


async def report_status(bootstrap: str, name: str, receiver: Receiver, news: Callable[[str], None]) -> None:
    """Reports until cancelled. A failure to report does not stop the receiver."""
    topic, told = StatusTopic(bootstrap), False
    since_ms, state = _now_ms(), ""
    try:
        while True:
            if receiver.state != state:
                since_ms, state = _now_ms(), receiver.state
            try:
                await topic.write(_status(name, receiver, since_ms))
            except (ClientError, OSError) as failure:
                if not told:
                    news(f"could not write the status to {bootstrap}: {failure}")
                told = True
            await asyncio.sleep(HEARTBEAT_S)
    finally:
        with contextlib.suppress(ClientError, OSError, TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                if topic.is_started or not told:  # the final state, if the brokers are reachable
                    await topic.write(_status(name, receiver, _now_ms()))
                await topic.close()


def _status(name: str, receiver: Receiver, since_ms: int) -> Status:
    return Status(
        name=name,
        kind=KIND,
        state=receiver.state,
        host=socket.gethostname(),
        pid=os.getpid(),
        since_ms=since_ms,
        at_ms=_now_ms(),
        restarts=receiver.reconnects,
        error=receiver.last_failure,
        facts=receiver.facts(),
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
