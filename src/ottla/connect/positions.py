"""The position of a source: the last record of a compacted topic, written in the same transaction as the records before
it.

Each connector has its own topic. In a shared topic, a transaction that another connector left open would hide the
positions committed after it.
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
    """Returns the name of the compacted topic with the positions of this connector."""
    return POSITION_TOPIC_PREFIX + connector


def transactional_id(connector: str) -> str:
    """Returns the transactional id of a connector. Starting a producer with it fences the previous instance."""
    return f"ottla-connect-{connector}"


async def ensure_position_topic(bootstrap: str, connector: str) -> None:
    """Creates the position topic, compacted, unless it exists."""
    await ensure_topic(bootstrap, position_topic(connector), {"cleanup.policy": "compact"})


async def ensure_topic(bootstrap: str, topic: str, configs: dict[str, str], partitions: int = 1) -> None:
    """Creates a topic unless it exists."""
    async with Admin(bootstrap) as admin:
        try:
            await admin.create_topic(topic, partitions=partitions, configs=configs)
        except TopicExistsError:
            return


async def read_position(bootstrap: str, connector: str) -> Position | None:
    """Returns the last committed position.

    Call it after the connector's producer has started: then no transaction of an earlier instance is open.
    """
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
    """Returns the position as compact JSON, the value of its record."""
    return json.dumps(position, separators=(",", ":")).encode()


def _parsed(topic: str, value: bytes) -> Position:
    try:
        position = json.loads(value)
    except ValueError:
        position = None
    if not isinstance(position, dict):
        raise NeedsHelpError(f"the last record of {topic} is not a position; another program has written to the topic")
    return position


async def reset_position(bootstrap: str, connector: str) -> bool:
    """Makes the source start over, as after an interrupted snapshot, and fences a running instance.

    Returns False if the connector has no position.
    """
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
