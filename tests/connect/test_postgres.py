"""From one real PostgreSQL into topics and into another one: changing schemas, changing keys, large values."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client import Admin
from ottla.connect.configuration import ConnectorConfig
from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.positions import read_position, reset_position
from ottla.connect.source_run import run_source
from ottla.testing import Cluster
from tests.connect.change_topics import check_transactions, read_keys, read_values
from tests.connect.in_process import confirmed, execute, rows, run_sink_to_end, running_source
from tests.connect.workload import table_hash

NewDatabase = Callable[[], str]


async def sink(broker: Cluster, prefix: str, url: str, **settings: Any) -> dict[str, Any]:
    chosen = {"apply_schema_changes": True, **settings}
    return await run_sink_to_end(broker.bootstrap_servers, "postgres-sink", "replica", url=url, prefix=prefix, **chosen)


async def changes(broker: Cluster, topic: str) -> list[dict[str, Any] | None]:
    values = await read_values(broker.bootstrap_servers, topic)
    return [None if value is None else json.loads(value) for value in values]


async def test_the_envelope_and_its_transactions(broker: Cluster, new_database: NewDatabase, prefix: str) -> None:
    url = new_database()
    execute(url, "CREATE TABLE a (id int PRIMARY KEY, n int)", "CREATE TABLE b (id int PRIMARY KEY)")
    execute(url, "INSERT INTO a VALUES (1, 10)")
    async with running_source(broker.bootstrap_servers, prefix, url, ["a", "b"]):
        execute(
            url,
            "BEGIN; INSERT INTO a VALUES (2, 20); INSERT INTO b VALUES (1); UPDATE a SET n = 11 WHERE id = 1; COMMIT",
        )
        execute(url, "UPDATE a SET id = 3 WHERE id = 2", "DELETE FROM a WHERE id = 1", "TRUNCATE a, b")
        await confirmed(url)
    found = await changes(broker, f"{prefix}.public.a")
    shown = [None if each is None else (each["op"], each["before"], each["after"]) for each in found]
    assert shown == [
        ("r", None, {"id": 1, "n": 10}),
        ("c", None, {"id": 2, "n": 20}),
        ("u", None, {"id": 1, "n": 11}),
        ("d", {"id": 2}, None),
        None,
        ("c", None, {"id": 3, "n": 20}),
        ("d", {"id": 1}, None),
        None,
        ("t", None, None),
    ]
    second = found[1]
    assert second is not None
    assert second["source"]["connector"] == "postgresql"
    assert (second["source"]["schema"], second["source"]["table"], second["source"]["snapshot"]) == (
        "public",
        "a",
        "false",
    )
    orders = [
        (each["transaction"]["total_order"], each["transaction"]["data_collection_order"])
        for each in found[1:3]
        if each
    ]
    assert orders == [(1, 1), (3, 2)]
    boundaries = [each for each in await changes(broker, f"{prefix}.transaction") if each]
    ends = {each["id"]: each for each in boundaries if each["status"] == "END"}
    assert ends[second["transaction"]["id"]]["data_collections"] == [
        {"data_collection": "public.a", "event_count": 2},
        {"data_collection": "public.b", "event_count": 1},
    ]
    assert await check_transactions(broker.bootstrap_servers, prefix) == 9
    async with Admin(broker.bootstrap_servers) as admin:
        topic = await admin.describe_topic(f"{prefix}.public.a")
    assert len(topic.partitions) == 1


async def test_a_table_without_rows_has_a_topic(broker: Cluster, new_database: NewDatabase, prefix: str) -> None:
    """So that its readers can start before its first row exists."""
    url = new_database()
    execute(url, "CREATE TABLE bare (id int PRIMARY KEY)")
    async with running_source(broker.bootstrap_servers, prefix, url, ["bare"]):
        await confirmed(url)
    assert await changes(broker, f"{prefix}.public.bare") == []


async def test_schemas_that_change(broker: Cluster, new_database: NewDatabase, prefix: str) -> None:
    url, target = new_database(), new_database()
    execute(url, "CREATE TABLE t (id int PRIMARY KEY, old text, gone text)", "INSERT INTO t VALUES (1, 'one', 'x')")
    async with running_source(broker.bootstrap_servers, prefix, url, ["t"]):
        execute(url, "ALTER TABLE t ADD COLUMN added int DEFAULT 5", "INSERT INTO t VALUES (2, 'two', 'y', 6)")
        execute(url, "ALTER TABLE t RENAME COLUMN old TO new", "INSERT INTO t VALUES (3, 'three', 'z', 7)")
        execute(url, "ALTER TABLE t DROP COLUMN gone", "UPDATE t SET new = 'ONE' WHERE id = 1")
        await confirmed(url)
        await sink(broker, prefix, target)
        execute(url, "ALTER TABLE t ALTER COLUMN added TYPE bigint", "UPDATE t SET added = 2 ^ 40 WHERE id = 3")
        await confirmed(url)
    assert rows(target, "SELECT id, new, added FROM t ORDER BY id") == [(1, "ONE", 5), (2, "two", 6), (3, "three", 7)]
    with pytest.raises(NeedsHelpError, match=r"out of range.*Nothing of the transaction was applied.*ALTER TABLE"):
        await sink(broker, prefix, target)
    execute(target, "ALTER TABLE t ALTER COLUMN added TYPE bigint")
    await sink(broker, prefix, target)
    assert rows(target, "SELECT id, new, added FROM t ORDER BY id") == rows(
        url, "SELECT id, new, added FROM t ORDER BY id"
    )


async def test_a_forged_type_runs_no_sql_in_the_target(broker: Cluster, new_database: NewDatabase, prefix: str) -> None:
    """Write access to the schema topic must not give control over the target database."""
    from ottla.client import Producer

    url, target = new_database(), new_database()
    execute(url, "CREATE TABLE t (id int PRIMARY KEY, n numeric(5, 2))", "INSERT INTO t VALUES (1, 1.5)")
    execute(target, "CREATE TABLE precious (id int)")
    async with running_source(broker.bootstrap_servers, prefix, url, ["t"]):
        await confirmed(url)
    (described,) = await changes(broker, f"{prefix}.schema")
    source = (await changes(broker, f"{prefix}.public.t"))[0]
    assert described is not None
    assert source is not None
    described["columns"][1]["type"] = "numeric(5,2), PRIMARY KEY (id)); DROP TABLE precious; CREATE TABLE other (id int"
    async with Producer(broker.bootstrap_servers) as producer:
        await producer.send(f"{prefix}.schema", json.dumps(described).encode(), source["source"]["schema_id"].encode())
    with contextlib.suppress(ConnectorError):
        await sink(broker, prefix, target)
    assert rows(target, "SELECT to_regclass('precious')::text, to_regclass('other')::text") == [("precious", None)]


async def test_a_target_that_does_not_fit_says_what_to_type(
    broker: Cluster, new_database: NewDatabase, prefix: str
) -> None:
    url, target = new_database(), new_database()
    with pytest.raises(ConnectorError, match=f'no topic "{prefix}.transaction" yet.*--prefix {prefix}'):
        await sink(broker, prefix, target)
    execute(url, "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1)")
    async with running_source(broker.bootstrap_servers, prefix, url, ["t"]):
        await confirmed(url)
    with pytest.raises(NeedsHelpError, match=r'CREATE TABLE "public"."t" \("id" integer, "n" integer, PRIMARY KEY'):
        await sink(broker, prefix, target, apply_schema_changes=False)
    execute(target, "CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(
        NeedsHelpError, match=r'ALTER TABLE "public"."t" ADD COLUMN "n" integer;.*--apply-schema-changes'
    ):
        await sink(broker, prefix, target, apply_schema_changes=False)
    execute(target, "ALTER TABLE t ADD COLUMN n int CHECK (n > 1)")
    with pytest.raises(NeedsHelpError, match=r"violates check constraint"):
        await sink(broker, prefix, target, apply_schema_changes=False)
    execute(target, "ALTER TABLE t DROP CONSTRAINT t_n_check")
    await sink(broker, prefix, target, apply_schema_changes=False)
    assert rows(target, "SELECT * FROM t") == [(1, 1)]


async def test_large_values_that_do_not_change(broker: Cluster, new_database: NewDatabase, prefix: str) -> None:
    url, target = new_database(), new_database()
    execute(
        url,
        "CREATE TABLE plain (id int PRIMARY KEY, body text, n int)",
        "CREATE TABLE full_rows (id int PRIMARY KEY, body text, n int)",
        "ALTER TABLE full_rows REPLICA IDENTITY FULL",
    )
    async with running_source(broker.bootstrap_servers, prefix, url, ["plain", "full_rows"]):
        for table in ("plain", "full_rows"):
            body = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) i)"
            execute(url, f"INSERT INTO {table} VALUES (1, {body}, 1), (2, {body}, 1)")
            execute(url, f"UPDATE {table} SET n = 2", f"UPDATE {table} SET id = 3 WHERE id = 2")
        await confirmed(url)
    last = [(await changes(broker, f"{prefix}.public.{table}"))[-1] for table in ("plain", "full_rows")]
    assert last[0] is not None
    assert last[1] is not None
    assert (last[0]["after"]["body"], last[0]["source"]["unchanged"]) == ("__debezium_unavailable_value", ["body"])
    assert len(last[1]["after"]["body"]) == 32_000
    await sink(broker, prefix, target)
    for table in ("plain", "full_rows"):
        assert table_hash(url, table) == table_hash(target, table)
    assert rows(target, "SELECT id, length(body), n FROM plain ORDER BY id") == [(1, 32_000, 2), (3, 32_000, 2)]


async def test_a_row_has_the_same_key_in_the_snapshot_and_in_the_stream(
    broker: Cluster, new_database: NewDatabase, prefix: str
) -> None:
    url = new_database()
    for table, identity in (("plain", "DEFAULT"), ("full_rows", "FULL")):
        execute(url, f"CREATE TABLE {table} (a int, b text, n int, PRIMARY KEY (b, a))")
        execute(url, f"ALTER TABLE {table} REPLICA IDENTITY {identity}", f"INSERT INTO {table} VALUES (1, 'x', 1)")
    async with running_source(broker.bootstrap_servers, prefix, url, ["plain", "full_rows"]):
        execute(url, "UPDATE plain SET n = 2", "UPDATE full_rows SET n = 2")
        await confirmed(url)
    for table in ("plain", "full_rows"):
        keys = await read_keys(broker.bootstrap_servers, f"{prefix}.public.{table}")
        assert keys == [b'{"a":1,"b":"x"}'] * 2


async def test_a_very_large_transaction_goes_in_parts_and_arrives_whole(
    broker: Cluster, new_database: NewDatabase, prefix: str
) -> None:
    url, target = new_database(), new_database()
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)")
    async with running_source(broker.bootstrap_servers, prefix, url, ["t"], batch_records=100):
        execute(url, "INSERT INTO t SELECT generate_series(1, 50000)")
        await confirmed(url)
    assert await check_transactions(broker.bootstrap_servers, prefix) == 50_000
    await sink(broker, prefix, target)
    assert table_hash(url, "t") == table_hash(target, "t")


async def test_a_source_that_begins_anew_takes_back_what_it_wrote(
    broker: Cluster, new_database: NewDatabase, prefix: str
) -> None:
    url, target = new_database(), new_database()
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    async with running_source(broker.bootstrap_servers, prefix, url, ["t"]):
        await confirmed(url)
    execute(url, "DELETE FROM t WHERE id = 1")
    assert not await reset_position(broker.bootstrap_servers, "nobody")
    assert await reset_position(broker.bootstrap_servers, prefix)
    async with running_source(broker.bootstrap_servers, prefix, url, ["t"]):
        await confirmed(url)
    found = [each["op"] for each in await changes(broker, f"{prefix}.public.t") if each]
    assert found == ["r", "r", "t", "r"]
    await sink(broker, prefix, target)
    assert rows(target, "SELECT * FROM t") == [(2,)]
    position = await read_position(broker.bootstrap_servers, prefix)
    assert position is not None
    assert (position["phase"], position["attempt"]) == ("stream", 2)


async def test_what_is_no_change_goes_to_the_dead_letters(
    broker: Cluster, new_database: NewDatabase, prefix: str
) -> None:
    from ottla.client import Producer

    url, target = new_database(), new_database()
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    async with running_source(broker.bootstrap_servers, prefix, url, ["t"]):
        await confirmed(url)
        async with Producer(broker.bootstrap_servers) as producer:
            await producer.send(f"{prefix}.public.t", b"not a change")
    with pytest.raises(NeedsHelpError, match=r"not a change written by .*--dead-letters TOPIC"):
        await sink(broker, prefix, target)
    said = await sink(broker, prefix, target, dead_letters=f"dead-{prefix}")
    assert said["dead_letters"] == 1
    assert rows(target, "SELECT * FROM t") == [(1,)]


async def test_a_topic_with_several_partitions_is_refused(
    broker: Cluster, new_database: NewDatabase, prefix: str
) -> None:
    import asyncio

    url = new_database()
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    broker.create_topic(f"{prefix}.public.t", partitions=3)
    config = ConnectorConfig(prefix, "postgres-cdc", broker.bootstrap_servers, {"url": url, "tables": ["t"]})
    with pytest.raises(NeedsHelpError, match=f"ottla topics delete {prefix}.public.t"):
        await run_source(prefix, broker.bootstrap_servers, config.build(), asyncio.Event(), lambda _: None)  # type: ignore[arg-type] # a source
