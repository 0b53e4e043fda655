"""Protects PostgreSQL with three brokers: it is destroyed with its disk, and all confirmed commits are restored.

    python examples/postgres/protect.py

Needs a PostgreSQL server's programs (`apt-get install postgresql`). It starts everything, and removes it at the end.
docs/guides/postgres.md does the same for your own server.
"""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # scene.py is beside this file

import psycopg
from scene import Scene, commits_wait, is_streaming, result, sql, step, wait_until

from ottla.testing.postgres import unprivileged

COMMITS = 600


class Client(threading.Thread):
    """Commits one row after another, and remembers those whose commit returned."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.seen: list[int] = []

    def run(self) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                number = 0
                while True:
                    connection.execute("INSERT INTO payments VALUES (%s, %s)", [number, f"payment {number}"])
                    self.seen.append(number)
                    number += 1
        except psycopg.OperationalError:
            pass  # the server is gone


def main() -> None:
    with Scene() as scene:
        brokers = scene.brokers()
        wal = ",".join(broker.wal_server for broker in brokers.brokers)
        server = scene.server(max_slot_wal_keep_size="1GB")
        store = str(scene.directory / "backups")

        step("its WAL goes to a log with three replicas; a commit returns when they have it")
        following = ["connect", "postgres-wal", server.url, "--wal", wal, "--replicas", "3"]
        with scene.running(*following, until=is_streaming(server.url, "ottla")):
            commits_wait(server.url, on=True)
            result(f"standbys: {sql(server.url, 'SELECT application_name, state FROM pg_stat_replication')}")
            sql(server.url, "CREATE TABLE payments (id int PRIMARY KEY, what text)")

            step("a base backup, and the proof that it can be restored")
            scene.ottla("backup", "postgres", server.url, "--store", store, "--wal", wal)
            scene.ottla("backup", "check", "--store", store, "--wal", wal)

            step("a client commits; a broker is killed (-9) and comes back; then the server, with its disk")
            client = Client(server.url)
            client.start()
            wait_until(lambda: len(client.seen) > COMMITS // 3)
            brokers.broker(1).kill()
            print("killed broker 1", flush=True)
            wait_until(lambda: len(client.seen) > COMMITS * 2 // 3)
            brokers.broker(1).start()
            wait_until(lambda: len(client.seen) > COMMITS)
            server.kill()
            shutil.rmtree(server.data_dir)
            client.join()
            result(f"the client saw {len(client.seen)} commits, and the server and its disk are gone")

        step("another server, from the backup and the log")
        restored = scene.empty_server(hot_standby="off")
        owner = ["--server-user", unprivileged().file_owner]
        scene.ottla("restore", "postgres", "--to", restored.data_dir, "--store", store, "--wal", wal, *owner)
        restored.spawn()
        restored.wait_until_recovered()
        found = {row[0] for row in sql(restored.url, "SELECT id FROM payments")}
        missing = set(client.seen) - found
        result(f"{len(found)} rows restored; of the commits that the client saw, {len(missing)} are missing")
        sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
