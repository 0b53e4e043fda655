"""Where a source goes on: the last record of a compacted topic, written in the transaction of the records before it.

Each connector has a topic of its own. In a shared one, a transaction that another connector left open would hide what
this one has committed after it.
"""

from __future__ import annotations

import json

from ottla.client import Admin, Consumer
from ottla.client.errors import TopicExistsError
from ottla.connect.contract import Position
from ottla.connect.failures import NeedsHelpError

POSITION_TOPIC_PREFIX = "__connect_position_"
POSITION_KEY = b"position"
_READ_TIMEOUT_MS = 60_000


def position_topic(connector: str) -> str:
    return POSITION_TOPIC_PREFIX + connector


def transactional_id(connector: str) -> str:
    """Whoever begins with it last is the connector; the one before is fenced."""
    return f"ottla-connect-{connector}"


async def ensure_position_topic(bootstrap: str, connector: str) -> None:
    await ensure_topic(bootstrap, position_topic(connector), {"cleanup.policy": "compact"})


async def ensure_topic(bootstrap: str, topic: str, configs: dict[str, str], partitions: int = 1) -> None:
    async with Admin(bootstrap) as admin:
        try:
            await admin.create_topic(topic, partitions=partitions, configs=configs)
        except TopicExistsError:
            return


async def read_position(bootstrap: str, connector: str) -> Position | None:
    """The last one committed. Ask after the producer of the connector has started: then none is under way."""
    topic = position_topic(connector)
    async with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        partition = (topic, 0)
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[consumer.assignment[0]]
        await consumer.seek_to_beginning(partition)
        last: bytes | None = None
        while (found := await consumer.fetch_range(partition, end, timeout_ms=_READ_TIMEOUT_MS)) is not None:
            last = found[0].column("value")[-1].as_py()
    return None if last is None else _parsed(topic, last)


def encode_position(position: Position) -> bytes:
    return json.dumps(position, separators=(",", ":")).encode()


def _parsed(topic: str, value: bytes) -> Position:
    try:
        position = json.loads(value)
    except ValueError:
        position = None
    if not isinstance(position, dict):
        raise NeedsHelpError(f"the last record of {topic} is no position: somebody else has written there")
    return position


async def reset_position(bootstrap: str, connector: str) -> bool:
    """The source begins anew, as after a snapshot that was interrupted. Fences whoever runs. False if there is "
    "nothing."""
    from ottla.client import Producer

    async with Admin(bootstrap) as admin:
        if position_topic(connector) not in [each.name for each in await admin.list_topics()]:
            return False
    async with Producer(bootstrap, transactional_id=transactional_id(connector)) as producer:
        last = await read_position(bootstrap, connector)
        if last is None:
            return False
        anew = {"phase": "announced", "attempt": last.get("attempt", 1)}
        async with producer.transaction() as transaction:
            await transaction.send(position_topic(connector), encode_position(anew), POSITION_KEY)
    return True
