"""A sequence of nonsensical group requests to one broker: each is answered, and nothing breaks.

A bug in a handler would be logged and answered with UNKNOWN_SERVER_ERROR; one in the coordinator would end its term.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from ottla.broker.api.registry import APIS
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.schema import encode, request_type
from tests.properties.random_messages import random_entity
from tests.support.group_caller import (
    BEAT,
    COMMIT,
    DELETE,
    DELETE_OFFSETS,
    DESCRIBE,
    DESCRIBE_CONSUMER,
    FETCH,
    FIND,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST,
    SUBSCRIPTION,
    SYNC,
    grouping,
)
from tests.support.handlers_caller import Caller

KEYS = (
    COMMIT,
    FETCH,
    FIND,
    JOIN,
    HEARTBEAT,
    LEAVE,
    SYNC,
    DESCRIBE,
    LIST,
    DELETE,
    DELETE_OFFSETS,
    BEAT,
    DESCRIBE_CONSUMER,
)
GROUP_APIS = [api for api in APIS if api.key in KEYS]
REQUESTS = 1200
SEEDS = 2

STRINGS: dict[str, list[str]] = {
    "group_id": ["", "a", "a", "a", "b", "b", "b"],
    "member_id": ["", "m", "n"],
    "group_instance_id": ["i", "j"],
    "instance_id": ["", "i", "j"],
    "protocol_type": ["", "consumer", "consumer", "consumer", "connect"],
    "protocol_name": ["range", "other"],
    "subscribed_topic_regex": ["", "t.*", "(", "(a+)+b"],
    "server_assignor": ["range", "uniform", "range", "uniform", "other"],
}
"""Few values, so that requests refer to the effects of others."""
NUMBERS = {
    "generation_id": range(-1, 5),
    "generation_id_or_member_epoch": range(-2, 4),
    "member_epoch": [-3, -2, -1, 0, 0, 0, 0, 1, 2, 3, 4],
    "partition_index": range(-1, 4),
}
TIMES_MS = (-(2**31), -1, 0, 1, *[20_000] * 10, 2**31 - 1)


def sensible(rng: random.Random, entity: Any, names: list[str]) -> Any:
    """Returns the entity, sometimes with values that are likely to be valid."""
    changes: dict[str, Any] = {}
    for field in fields(entity):
        value = getattr(entity, field.name)
        if rng.random() < 0.05:
            continue
        if field.name in STRINGS and value is not None:
            changes[field.name] = rng.choice(STRINGS[field.name] + (names if "member" in field.name else []))
        elif field.name in NUMBERS:
            changes[field.name] = rng.choice(NUMBERS[field.name])
        elif isinstance(value, timedelta):
            changes[field.name] = timedelta(milliseconds=rng.choice(TIMES_MS))
        elif field.name in ("metadata", "assignment") and isinstance(value, bytes):
            changes[field.name] = rng.choice([b"", SUBSCRIPTION, SUBSCRIPTION[:-3], value])
        elif field.name in ("name", "topic_name"):
            changes[field.name] = rng.choice(["t", "u", "range", "other", "strange"])
        elif field.name == "topic_partitions" and rng.random() < 0.6:
            changes[field.name] = ()
        elif isinstance(value, tuple):
            changes[field.name] = tuple(_sensible_item(rng, field.name, each, names) for each in value)
    return replace(entity, **changes)


def _sensible_item(rng: random.Random, name: str, item: Any, names: list[str]) -> Any:
    if is_dataclass(item):
        return sensible(rng, item, names)
    if name in ("groups", "group_ids", "groups_names", "coordinator_keys"):
        return rng.choice(STRINGS["group_id"])
    if name == "subscribed_topic_names":
        return rng.choice(["t", "u", "strange"])
    return rng.randrange(-1, 4) if isinstance(item, int) else item


async def _send_all(caller: Caller, rng: random.Random) -> int:
    """Returns how many requests were answered."""
    names: list[str] = []
    waiting: set[asyncio.Task[bytes]] = set()
    sent = 0
    for _ in range(REQUESTS):
        api = rng.choice(GROUP_APIS)
        version = rng.randint(*api.versions)
        entity = sensible(rng, random_entity(rng, request_type(api.key, version)), names)
        frame = request_header(api.key, version, 1, "fuzz") + encode(entity)
        waiting.add(asyncio.create_task(caller.send(frame)))
        sent += 1
        if rng.random() < 0.3:
            await asyncio.sleep(0)
        names = _members(caller)[:8]
    caller.broker.begin_shutdown()
    done, stuck = await asyncio.wait(waiting, timeout=60)
    assert not stuck, "a request was not answered, not even at the end"
    assert all(each.result() for each in done)
    return sent


def _members(caller: Caller) -> list[str]:
    """Member ids that the coordinators have assigned."""
    shards = caller.broker.groups._shards.values()
    classic = [name for shard in shards for group in shard.machine.tables.classic.values() for name in _ids(group)]
    consumer = [name for shard in shards for group in shard.machine.tables.consumer.values() for name in group.members]
    return classic + consumer


def _ids(generation: Any) -> list[str]:
    return [member.member_id for member in generation.members]


@pytest.mark.parametrize("number", range(SEEDS))
async def test_nonsense_breaks_nothing(seed: int, number: int, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(f"{seed}-{number}")
    with caplog.at_level(logging.WARNING, logger="ottla"):
        async with grouping() as caller:
            await caller.create_topic("t", 3)
            await caller.create_topic("u")
            assert await _send_all(caller, rng) == REQUESTS
    failures = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not failures, failures[0].getMessage() + str(failures[0].exc_info)
