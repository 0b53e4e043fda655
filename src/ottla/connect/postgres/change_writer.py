"""Converts decoded changes to records: Debezium's envelope, one topic per table, and one topic for transactions. Pure.

PREFIX.SCHEMA.TABLE    key: the primary key; value: before, after, source, op, ts_ms, transaction; a delete is
                       followed by a tombstone
PREFIX.transaction     BEGIN and END of each transaction, with the number of its changes
PREFIX.schema          key: the id that records refer to as source.schema_id; value: the columns and their types
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from ottla import __version__
from ottla.connect.contract import Rows
from ottla.connect.postgres.pgoutput import UNCHANGED, Begin, Delete, Insert, Row, Truncate, Update
from ottla.connect.postgres.replication import POSTGRES_EPOCH_US
from ottla.connect.postgres.tables import TableShape

NEW_KEY_HEADER = "__debezium.newkey"
OLD_KEY_HEADER = "__debezium.oldkey"
_VALUE = (
    b'{"before":%b,"after":%b,"source":{%b,"lsn":%d%b},"op":"%b","ts_ms":%d,'
    b'"transaction":{"id":"%b","total_order":%d,"data_collection_order":%d}}'
)
_SOURCE = b'%b,"schema":%b,"table":%b,"schema_id":"%b","snapshot":"%b","txId":%b,"ts_ms":%d'


def table_topic(prefix: str, table: str) -> str:
    """Returns the topic of a table, which is given as `schema.table`."""
    return f"{prefix}.{table}"


def transaction_topic(prefix: str) -> str:
    """Returns the topic of BEGIN and END records, named as Debezium names it."""
    return f"{prefix}.transaction"


def schema_topic(prefix: str) -> str:
    """Returns the topic of schema changes."""
    return f"{prefix}.schema"


@dataclass(slots=True)
class _Open:
    """The transaction that is being written."""

    id: bytes
    xid: int
    committed_ms: int
    events: int = 0
    snapshot: bytes = b"false"


class ChangeWriter:
    """Buffers the records of changes, which are added in order, until `take` returns them."""

    def __init__(self, prefix: str, database: str, *, tombstones: bool = True) -> None:
        self._prefix = prefix
        self._transaction_topic = transaction_topic(prefix)
        self._tombstones = tombstones
        self._source = b'"version":"ottla-%b","connector":"postgresql","name":%b,"db":%b' % (
            __version__.encode(),
            orjson.dumps(prefix),
            orjson.dumps(database),
        )
        self._rows: dict[str, Rows] = {}
        self._open: _Open | None = None
        self._orders: dict[str, int] = {}
        self._sources: dict[int, bytes] = {}
        self._known_schemas: set[str] = set()
        self._skip = 0
        self._now_ms = 0
        self.record_count = 0
        self.size_bytes = 0

    @property
    def events(self) -> int:
        """The number of changes in the open transaction so far, including those that an earlier run has written."""
        return 0 if self._open is None else self._open.events

    def take(self) -> dict[str, Rows]:
        """Returns the buffered records by topic, and empties the buffer."""
        rows, self._rows = self._rows, {}
        self.record_count = self.size_bytes = 0
        return rows

    # Transactions.

    def begin(self, begin: Begin, *, skip: int = 0) -> None:
        """Begins a transaction. `skip` is the number of its changes that are already in the log."""
        committed_ms = (begin.committed_us + POSTGRES_EPOCH_US) // 1000
        self._begin(_Open(b"%d:%d" % (begin.xid, begin.commit_lsn), begin.xid, committed_ms), skip)

    def begin_snapshot(self, lsn: int, chunk: int) -> None:
        """Begins a chunk of a snapshot, which is a transaction of its own."""
        now_ms = time.time_ns() // 1_000_000
        self._begin(_Open(b"snapshot-%d:%d" % (chunk, lsn), 0, now_ms, snapshot=b"true"), 0)

    def _begin(self, opened: _Open, skip: int) -> None:
        self._open = opened
        self._orders.clear()
        self._sources.clear()
        self._skip = skip
        self._now_ms = time.time_ns() // 1_000_000

    def end(self) -> None:
        """Ends the transaction. A transaction without changes leaves no records."""
        opened = self._open
        assert opened is not None
        self._open = None
        if not opened.events:
            return
        collections = [{"data_collection": name, "event_count": count} for name, count in self._orders.items()]
        self._note_transaction(opened, b"END", b"%d" % opened.events, orjson.dumps(collections))

    def _note_transaction(self, opened: _Open, status: bytes, count: bytes, collections: bytes) -> None:
        value = b'{"status":"%b","id":"%b","event_count":%b,"data_collections":%b,"ts_ms":%d}'
        noted = value % (status, opened.id, count, collections, opened.committed_ms)
        self._add(self._transaction_topic, b'{"id":"%b"}' % opened.id, noted)

    # Changes.

    def insert(self, shape: TableShape, change: Insert, lsn: int) -> None:
        """Adds the record of an inserted row (`op` c)."""
        self._write(shape, b"c", lsn, key_row=change.new, after=change.new)

    def read(self, shape: TableShape, row: Row, lsn: int) -> None:
        """Writes a row of a snapshot."""
        self._write(shape, b"r", lsn, key_row=row, after=row)

    def update(self, shape: TableShape, change: Update, lsn: int) -> None:
        """Writes an update. An update that changes the key becomes a delete and a create."""
        old, new = change.old, change.new
        full_old = old if change.has_full_old else None
        if full_old is not None:
            new = [old_value if value is UNCHANGED else value for value, old_value in zip(new, full_old, strict=True)]
        if old is None:
            self._write(shape, b"u", lsn, key_row=new, after=new)
            return
        shape.fill_key(new, old)
        old_key, new_key = shape.key_json(old), shape.key_json(new)
        if old_key == new_key:
            self._write(shape, b"u", lsn, key_row=new, before=full_old, after=new)
            return
        self._write(shape, b"d", lsn, key_row=old, before=full_old, header=(NEW_KEY_HEADER, new_key))
        self._write(shape, b"c", lsn, key_row=new, after=new, header=(OLD_KEY_HEADER, old_key))

    def delete(self, shape: TableShape, change: Delete, lsn: int) -> None:
        """Adds the record of a deleted row (`op` d). `before` is null unless the identity is FULL."""
        self._write(shape, b"d", lsn, key_row=change.old, before=change.old if change.has_full_old else None)

    def truncate(self, shapes: Mapping[int, TableShape], change: Truncate, lsn: int) -> None:
        """Adds one record (`op` t) for each truncated table that is captured."""
        for oid in change.oids:
            shape = shapes.get(oid)
            if shape is not None:
                self._write(shape, b"t", lsn)

    def empty(self, shape: TableShape, lsn: int) -> None:
        """Writes a truncate that invalidates the table's earlier records, because a snapshot starts over."""
        self._write(shape, b"t", lsn)

    def _write(
        self,
        shape: TableShape,
        op: bytes,
        lsn: int,
        *,
        key_row: Row | None = None,
        before: Row | None = None,
        after: Row | None = None,
        header: tuple[str, bytes] | None = None,
    ) -> None:
        opened = self._open
        assert opened is not None
        opened.events += 1
        order = self._orders[shape.name] = self._orders.get(shape.name, 0) + 1
        if opened.events <= self._skip:
            return
        if opened.events == 1:
            self._note_transaction(opened, b"BEGIN", b"null", b"null")
        key = None if key_row is None else shape.key_json(key_row)
        before_json = b"null"
        if before is not None:
            before_json = shape.row_json(before)
        elif op == b"d":
            assert key is not None
            before_json = key
        gaps = b"" if after is None or UNCHANGED not in after else b',"unchanged":' + orjson.dumps(shape.gaps(after))
        value = _VALUE % (
            before_json,
            b"null" if after is None else shape.row_json(after),
            self._source_of(shape, opened),
            lsn,
            gaps,
            op,
            self._now_ms,
            opened.id,
            opened.events,
            order,
        )
        topic = table_topic(self._prefix, shape.name)
        self._add(topic, key, value, header)
        if op == b"d" and self._tombstones:
            self._add(topic, key, None)

    def _source_of(self, shape: TableShape, opened: _Open) -> bytes:
        """Returns the `source` fields, which are the same for all changes of one transaction to one table."""
        known = self._sources.get(id(shape))
        if known is None:
            if shape.schema_id not in self._known_schemas:
                self._add(schema_topic(self._prefix), shape.schema_id.encode(), shape.schema_json)
                self._known_schemas.add(shape.schema_id)
            known = self._sources[id(shape)] = _SOURCE % (
                self._source,
                orjson.dumps(shape.relation.schema),
                orjson.dumps(shape.relation.table),
                shape.schema_id.encode(),
                opened.snapshot,
                b"%d" % opened.xid if opened.xid else b"null",
                opened.committed_ms,
            )
        return known

    def _add(self, topic: str, key: bytes | None, value: bytes | None, header: tuple[str, bytes] | None = None) -> None:
        rows = self._rows.get(topic)
        if rows is None:
            rows = self._rows[topic] = Rows()
        if header is not None:
            rows.headers[len(rows)] = [header]
        rows.add(key, value)
        self.record_count += 1
        self.size_bytes += len(value or b"") + len(key or b"")
