"""Finds the files of a topic by its name, for `ottla log`.

Directories are named by topic id. A standalone broker stores the topic names in its data directory; in a cluster, the
brokers are asked.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from uuid import UUID

from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.output import run

CATALOG = "catalog.db"


def topic_directories(name: str, data: Path, partition: int | None, bootstrap: str) -> list[Path]:
    """Returns the directories of a topic's partitions, in partition order; in a cluster, those of all replicas."""
    if not data.is_dir():
        raise CommandError(
            f"{name} is neither a file nor a directory, and there is no data directory {data} to look for a "
            "topic in; choose it with --data"
        )
    identity = _id_in_catalog(name, data / CATALOG) if (data / CATALOG).exists() else _id_of_brokers(name, bootstrap)
    if identity is None:
        raise CommandError(
            f"{name} is neither a file, nor a directory, nor a topic in {data}; `ottla topics list` lists the topics"
        )
    found: list[tuple[int, Path]] = []
    for path in sorted(data.rglob(f"{identity.hex}-*")):
        number = path.name.rpartition("-")[2]
        if path.is_dir() and number.isdecimal() and partition in (None, int(number)):
            found.append((int(number), path))
    if not found:
        which = "" if partition is None else f" of partition {partition}"
        raise CommandError(f"{data} has no files{which} of the topic {name}; choose another directory with --data")
    return [path for _, path in sorted(found, key=lambda each: each[0])]


def one_replica_each(directories: list[Path]) -> list[Path]:
    """Returns the first directory of each partition."""
    return list({path.name: path for path in reversed(directories)}.values())[::-1]


def _id_in_catalog(name: str, path: Path) -> UUID | None:
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as connection:
            row = connection.execute("SELECT id FROM topics WHERE name = ?", (name,)).fetchone()
    except sqlite3.Error as failure:
        raise CommandError(f"{path} cannot be read: {failure}") from failure
    return None if row is None else UUID(bytes=row[0])


def _id_of_brokers(name: str, bootstrap: str) -> UUID | None:
    async def work() -> UUID | None:
        from ottla.client import Admin

        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            listed = await admin.list_topics(internal=True)
            return next((UUID(str(topic.id)) for topic in listed if topic.name == name), None)

    return run(work())
