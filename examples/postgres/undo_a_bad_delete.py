"""Undoes a DELETE without a WHERE: its rows are restored, and nothing that was done after it is lost.

    python examples/postgres/undo_a_bad_delete.py
    python examples/postgres/undo_a_bad_delete.py postgresql://postgres@127.0.0.1/shop      # on your own server

Needs a PostgreSQL server's programs (`apt-get install postgresql`), of the same version as the server. It starts
everything, and removes it at the end. On your own server it needs a superuser; the example creates the table
`ottla_accounts` and the slot `ottla_example` there, and removes them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # scene.py is beside this file

import psycopg
from scene import Scene, drop_slot, is_streaming, result, sql, step, wait_until

from ottla.testing.postgres import unprivileged

ROWS = "SELECT id, balance FROM ottla_accounts ORDER BY id"
SLOT = "ottla_example"


def transaction(url: str, statement: str) -> int:
    """Returns its id, as log_line_prefix = '%x' writes it to the server's log."""
    with psycopg.connect(url) as connection:
        connection.execute(statement)
        (xid,) = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
    print(f"$ psql -c {statement!r}    # transaction {xid}", flush=True)
    return int(xid)


def put_back(source: str, target: str) -> int:
    """Copies the rows that this database lacks from the other one, as pg_dump --data-only | psql does."""
    with psycopg.connect(source) as copy, psycopg.connect(target) as shop, shop.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE old (LIKE ottla_accounts)")
        with copy.cursor().copy("COPY ottla_accounts TO STDOUT") as rows, cursor.copy("COPY old FROM STDIN") as sink:
            for block in rows:
                sink.write(block)
        cursor.execute("INSERT INTO ottla_accounts SELECT * FROM old ON CONFLICT DO NOTHING")
        return cursor.rowcount


def main(address: str | None) -> None:
    with Scene() as scene:
        brokers = scene.brokers()
        wal = ",".join(broker.wal_server for broker in brokers.brokers)
        url = address or scene.server(max_slot_wal_keep_size="1GB").url
        store = str(scene.directory / "backups")
        sql(url, "DROP TABLE IF EXISTS ottla_accounts", "CREATE TABLE ottla_accounts (id int PRIMARY KEY, balance int)")

        step("its WAL goes to the log")
        following = ["connect", "postgres-wal", url, "--wal", wal, "--slot", SLOT, "--name", SLOT]
        following += ["--unbounded-slot"] if address else []
        try:
            with scene.running(*following, until=is_streaming(url, SLOT)):
                story(scene, url, store, wal)
        finally:
            drop_slot(url, SLOT)
            sql(url, "DROP TABLE ottla_accounts")


def story(scene: Scene, url: str, store: str, wal: str) -> None:
    sql(url, "INSERT INTO ottla_accounts SELECT n, n * 10 FROM generate_series(1, 1000) n")
    scene.ottla("backup", "postgres", url, "--store", store, "--wal", wal)

    step("a day goes by; then somebody forgets a WHERE; and others go on")
    transaction(url, "UPDATE ottla_accounts SET balance = balance + 1 WHERE id <= 500")
    before = sql(url, ROWS)
    bad = transaction(url, "DELETE FROM ottla_accounts")
    transaction(url, "INSERT INTO ottla_accounts VALUES (2000, 7)")
    result(f"{len(before)} rows before, {len(sql(url, ROWS))} now")
    now = sql(url, "SELECT pg_current_wal_lsn()")[0][0]
    asked = f"SELECT 1 FROM pg_stat_replication WHERE application_name = '{SLOT}' AND flush_lsn >= '{now}'"
    wait_until(lambda: bool(sql(url, asked)))  # these commits did not wait for the log

    step("a copy of the database as it was just before, beside the one that runs")
    copy = scene.empty_server(hot_standby="off")
    at = ["--at", str(bad), "--before"]
    owner = ["--server-user", unprivileged().file_owner]
    scene.ottla("restore", "postgres", "--to", copy.data_dir, *at, "--store", store, "--wal", wal, *owner)
    copy.spawn()
    copy.wait_until_recovered()
    result(f"{len(sql(copy.url, ROWS))} rows in the copy")

    step("the rows go back")
    count = put_back(copy.url, url)
    is_whole = sql(url, ROWS) == sorted([*before, (2000, 7)])
    result(f"{count} rows put back; all as before, and what came after it: {is_whole}")
    if not is_whole:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
