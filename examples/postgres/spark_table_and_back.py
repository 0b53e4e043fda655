"""From PostgreSQL to a Spark table and back: changes go into topics, and from there into a replica and a Parquet table;
then the table as it was before a delete is restored into PostgreSQL.

    python examples/postgres/spark_table_and_back.py
    python examples/postgres/spark_table_and_back.py postgresql://postgres@127.0.0.1/shop      # on your own server

Needs a PostgreSQL server's programs (`apt-get install postgresql`), PySpark and Java 17. It starts everything, and
removes it at the end. Your own server needs `wal_level = logical` and a superuser; the example creates the table
`ottla_orders`, the databases `ottla_undo` and `ottla_replica`, a slot and a publication there, and removes them.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # scene.py is beside this file

import pyarrow.parquet as pq
from scene import Scene, drop_slot, result, sql, step, wait_until

TOPIC = "shop.public.ottla_orders"
ROWS = "SELECT id, what, price FROM ottla_orders ORDER BY id"
DATABASES = ("ottla_undo", "ottla_replica")
CLEAN = (
    "DROP TABLE IF EXISTS ottla_orders",
    "DROP PUBLICATION IF EXISTS ottla_shop",
    *(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in DATABASES),
)


def main(address: str | None) -> None:
    with Scene() as scene:
        brokers = scene.brokers()
        url = address or scene.server(wal_level="logical").url
        sql(url, *CLEAN, *(f"CREATE DATABASE {name}" for name in DATABASES))
        sql(
            url,
            "CREATE TABLE ottla_orders (id int PRIMARY KEY, what text, price numeric)",
            "INSERT INTO ottla_orders SELECT n, 'thing ' || n, n * 1.25 FROM generate_series(1, 1000) n",
        )
        try:
            story(scene, url, brokers.bootstrap)
        finally:
            drop_slot(url, "ottla_shop")
            sql(url, *CLEAN)


def story(scene: Scene, url: str, bootstrap: str) -> None:
    undo, replica = (in_database(url, name) for name in DATABASES)
    brokers = ["--bootstrap", bootstrap]

    def is_same() -> bool:
        return rows_of(replica) == sql(url, ROWS)

    step("every change of the table into a topic, beginning with the rows that are there")
    source = ["connect", "postgres-cdc", "--name", "shop", "--url", url, "--table", "ottla_orders", *brokers]
    with scene.running(*source, until=lambda: has_slot(url)):
        step("and into another database, in the order of the transactions")
        sink = ["connect", "postgres-sink", "--name", "replica", "--url", replica, "--prefix", "shop"]
        with scene.running(*sink, "--apply-schema-changes", *brokers, until=is_same):
            result(f"the replica has the same {len(rows_of(replica))} rows")
            sql(url, "UPDATE ottla_orders SET price = price + 1 WHERE id <= 10")
            wait_until(is_same)
            before, moment = sql(url, ROWS), now(url)
            sql(url, "DELETE FROM ottla_orders WHERE id % 2 = 0")
            wait_until(is_same)
            result(f"{len(before)} rows, and after a delete {len(rows_of(replica))}")

    step("a Spark table of the topic: Parquet")
    table = scene.directory / "tables" / "orders"
    said = scene.ottla(
        *["pipeline", "materialize", TOPIC, "--table", str(table), "--envelope", "debezium", "--json", *brokers]
    )
    count = pq.read_table(table / json.loads(said)["path"]).num_rows
    result(f"{count} rows in the table, {len(sql(url, ROWS))} in PostgreSQL")

    step("the table as it was before the delete, into PostgreSQL")
    at = ["--at", moment, "--envelope", "debezium", "--to", f"{undo}#ottla_orders"]
    scene.ottla("pipeline", "restore", TOPIC, *at, *brokers)
    found = sql(undo, ROWS.replace("price", "price::numeric"))
    result(f"{len(found)} rows as they were: {found == before}")
    if found != before or count != len(sql(url, ROWS)):
        sys.exit(1)


def has_slot(url: str) -> bool:
    """Returns whether the slot is in use, which means that the snapshot is taken."""
    return bool(sql(url, "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'ottla_shop' AND active"))


def in_database(url: str, name: str) -> str:
    """Returns the URL of another database on the same server."""
    head, _, options = url.partition("?")
    place = head.rsplit("/", 1)[0]
    return f"{place}/{name}" + (f"?{options}" if options else "")


def rows_of(url: str) -> list[tuple[object, ...]]:
    if sql(url, "SELECT to_regclass('public.ottla_orders')") == [(None,)]:
        return []
    return sql(url, ROWS)


def now(url: str) -> str:
    """Returns a time after the changes in the topic and before later ones: times are those of the topic's records."""
    (moment,) = sql(url, "SELECT clock_timestamp()")[0]
    time.sleep(0.1)
    return str(moment.astimezone(UTC).isoformat())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
