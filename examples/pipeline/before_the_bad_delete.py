"""Archives a change log, builds a table from it, and restores the table to the moment before a bad delete.

    python examples/pipeline/before_the_bad_delete.py

Needs PySpark and Java 17. It starts its own broker and removes everything at the end.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from ottla.archive.store import Store
from ottla.archive.verification import verify
from ottla.client import Producer
from ottla.spark.jobs.archive import archive_available
from ottla.spark.jobs.changes import Envelope
from ottla.spark.jobs.live_log import BrokerLog
from ottla.spark.jobs.materialize import materialize
from ottla.spark.jobs.restore import AtOffsets, restore
from ottla.spark.jobs.restore_targets import parse_target, table_for_output, write_output
from ottla.spark.jobs.table_history import History
from ottla.spark.jobs.tables import Table
from ottla.spark.session import new_session
from ottla.testing import Cluster

CUSTOMERS = 100


async def write_changes(bootstrap: str) -> int:
    """Inserts all rows, then deletes them all by mistake. Returns the offset of the first delete."""
    async with Producer(bootstrap) as producer:
        for number in range(CUSTOMERS):
            row = {"id": number, "name": f"customer {number}", "balance": number * 10}
            await producer.enqueue("customers", json.dumps(row).encode(), key=b"%d" % number)
        first_delete = (await producer.send("customers", None, key=b"0")).offset
        for number in range(1, CUSTOMERS):
            await producer.enqueue("customers", None, key=b"%d" % number)
        await producer.flush()
    return first_delete


def main() -> None:
    spark = new_session("before the bad delete")
    with tempfile.TemporaryDirectory() as directory, Cluster() as cluster:
        cluster.create_topic("customers")
        bad_delete = asyncio.run(write_changes(cluster.bootstrap_servers))
        log, archive = BrokerLog(cluster.bootstrap_servers), Store(f"{directory}/archive")
        for batch in archive_available(spark, log, archive, ["customers"]):
            print(f"archived {batch.rows} records, lag {batch.lag}")
        print(f"faults in the archive: {len(verify(archive, deep=True).faults)}")

        history = History.open("customers", archive=archive, log=log)
        now = materialize(spark, history, Table(Store(f"{directory}/table")), Envelope.PLAIN)
        print(f"rows in the table now: {now.rows if now else 0}")

        before = restore(spark, history, AtOffsets({0: bad_delete}), Envelope.PLAIN)
        place = Path(directory, "before.db")
        write_output(table_for_output(before.rows, key_column="id"), parse_target(f"sqlite:{place}", "customers"))
        with closing(sqlite3.connect(place)) as database:
            count, balance = database.execute("SELECT count(*), sum(balance) FROM customers").fetchone()
        print(f"rows before offset {bad_delete}: {count}, with a balance of {balance}")
    spark.stop()


if __name__ == "__main__":
    main()
