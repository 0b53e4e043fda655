"""Stores definitions of streams, tables and queries in a directory of small files, next to their checkpoints.

streams/pages.json      what the topic contains
queries/pages.json      the statement that fills it
checkpoints/pages/      the query's progress, written by Spark
dead-letters/clicks/    the progress of the search for bad records, written by Spark
owed/pages--clicks      marks a query that may have met bad records that were not searched for yet
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

from ottla.archive.failures import PipelineError
from ottla.archive.store import Store
from ottla.spark.sql.definitions import Definition, QueryDefinition


class Catalog:
    """The definitions in a directory. Names are case-insensitive, as in SQL."""

    def __init__(self, directory: str) -> None:
        self._store = Store(directory)
        self.directory = directory

    # Streams and tables.

    def stream(self, name: str) -> Definition | None:
        """Returns the stream or table with this name, or None."""
        found = self._read(_stream_path(name))
        return None if found is None else Definition.from_json(found)

    def streams(self) -> list[Definition]:
        """Returns all streams and tables."""
        return [Definition.from_json(each) for each in self._read_all("streams")]

    def add_stream(self, definition: Definition) -> bool:
        """Adds a stream. Returns False if the name is taken."""
        return self._create(_stream_path(definition.name), definition.to_json())

    def drop_stream(self, name: str) -> None:
        """Removes a stream. Queries that read it keep its definition, their checkpoints and their outstanding
        searches."""
        self._store.delete(_stream_path(name))
        self._store.delete_directory(f"dead-letters/{name.lower()}")

    # Queries.

    def query(self, name: str) -> QueryDefinition | None:
        """Returns the query with this name, or None."""
        found = self._read(_query_path(name))
        return None if found is None else QueryDefinition.from_json(found)

    def queries(self) -> list[QueryDefinition]:
        """Returns all queries."""
        return [QueryDefinition.from_json(each) for each in self._read_all("queries")]

    def add_query(self, query: QueryDefinition) -> bool:
        """Stores a query. Returns False, and stores nothing, if the name is taken."""
        return self._create(_query_path(query.name), query.to_json())

    def drop_query(self, name: str) -> None:
        """Removes a query, its checkpoint and its outstanding searches, so that a later query of this name starts from
        the beginning."""
        query = self.query(name)
        self._store.delete(_query_path(name))
        self._store.delete_directory(f"checkpoints/{name.lower()}")
        for source in query.sources.values() if query is not None else ():
            self.settle(name, source.name)

    # Checkpoints.

    def checkpoint(self, name: str) -> str:
        """Returns the checkpoint directory of a query."""
        return self._store.spark_path(f"checkpoints/{name.lower()}")

    def dead_letters_checkpoint(self, name: str) -> str:
        """Returns the checkpoint directory of a query's dead letters."""
        return self._store.spark_path(f"dead-letters/{name.lower()}")

    def owes(self, query: str, stream: str) -> bool:
        """Returns whether a run of the query ended without a search for the bad records that it may have met."""
        return self._store.exists(_owed_path(query, stream))

    def owe(self, query: str, stream: str) -> None:
        """Records that a search for bad records is outstanding."""
        self._store.create(_owed_path(query, stream), b"")

    def settle(self, query: str, stream: str) -> None:
        """Records that the search is done."""
        self._store.delete(_owed_path(query, stream))

    @contextlib.contextmanager
    def running(self, kind: str, name: str) -> Iterator[bool]:
        """Locks a name. Yields False if another process on this machine has it. The lock is released when its process
        ends."""
        if not self._store.is_local:
            yield True
            return
        import fcntl

        self._store.make_directory("locks")
        lock = os.open(self._store.full_path(f"locks/{kind}-{name.lower()}"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(lock)

    # Files.

    def _read(self, path: str) -> dict[str, object] | None:
        if not self._store.exists(path):
            return None
        try:
            found = json.loads(self._store.read(path))
        except ValueError:
            raise PipelineError(f"{self.directory}/{path} is damaged: it is not JSON") from None
        return dict(found)

    def _read_all(self, directory: str) -> list[dict[str, object]]:
        found = [self._read(each.path) for each in self._store.list_files(directory) if each.path.endswith(".json")]
        return [each for each in found if each is not None]

    def _create(self, path: str, content: dict[str, object]) -> bool:
        return self._store.create(path, json.dumps(content, indent=2).encode())


def _stream_path(name: str) -> str:
    return f"streams/{name.lower()}.json"


def _owed_path(query: str, stream: str) -> str:
    return f"owed/{query.lower()}--{stream.lower()}"


def _query_path(name: str) -> str:
    return f"queries/{name.lower()}.json"
