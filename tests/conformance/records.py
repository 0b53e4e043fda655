"""The records that every client writes and reads, in all forms that a record can have."""

from __future__ import annotations

import time

from tests.conformance.clients.interface import Ability, Client, Record

TIME_MS = (int(time.time()) - 3600) * 1000  # recent, or retention would delete the records


def sample(client: Client) -> list[Record]:
    """Returns sample records without the forms that this client cannot write."""
    records = [
        Record(b"first", b"key"),
        Record(b"no key"),
        Record(None, b"no value"),
        Record(b"unicode: \xc3\xa9\xe2\x82\xac\xf0\x9f\x90\x9e", "schl\u00fcssel".encode()),
        *(Record(b"compressible " * 40, b"key %d" % number) for number in range(40)),
    ]
    if Ability.ADMIN in client.abilities:  # kcat's delimiters and -Z exclude these two
        records += [Record(b"", b""), Record(bytes(range(256)), bytes(range(255, -1, -1)))]
    if Ability.HEADERS in client.abilities:
        records += [Record(b"headers", b"h", (("name", b"value"), ("name", b"again"), ("empty", b"")))]
    if Ability.TIMESTAMPS in client.abilities:
        records += [Record(b"time", b"t", timestamp_ms=TIME_MS + number) for number in range(3)]
    return records


def contents(records: list[Record]) -> list[Record]:
    return [record.content() for record in records]
