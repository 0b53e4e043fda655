"""The nodes of one cluster in ZooKeeper, and their contents.

/ottla/<cluster>/revision           the latest revision, and the start of the history
/ottla/<cluster>/entries/<key>      one entry: its version, its lease, its value
/ottla/<cluster>/changes/<number>   what the transaction of this revision changed
/ottla/<cluster>/leases/<id>        the keys that were put with this lease, and perhaps more
/ottla/<cluster>/alive/<id>         ephemeral: disappears with the owner's session
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from ottla.coordination.port import Change, Entry, LeaseId, Revision

INLINE_BYTES_MAX = 100_000
"""Maximum total size of values that a change node repeats. Larger values are read from their entries."""

_HEAD = struct.Struct(">qq")
_CHANGE = struct.Struct(">bHqI")
_DELETED, _INLINE, _BY_REFERENCE = range(3)


class Head(NamedTuple):
    """The contents of the revision node."""

    revision: Revision
    history_start: Revision
    """Changes up to this revision have been pruned."""

    def encode(self) -> bytes:
        """Returns the node's contents: two 64-bit numbers."""
        return _HEAD.pack(self.revision, self.history_start)

    @classmethod
    def decode(cls, data: bytes) -> Head:
        """Parses the contents that `encode` returned."""
        revision, start = _HEAD.unpack(data)
        return cls(Revision(revision), Revision(start))


class Reference(NamedTuple):
    """A change whose value is only in its entry."""

    key: str


class Paths:
    """The paths of one cluster's nodes."""

    def __init__(self, cluster: str) -> None:
        root = f"/ottla/{_name(cluster)}"
        self.revision = f"{root}/revision"
        self.entries = f"{root}/entries"
        self.changes = f"{root}/changes"
        self.leases = f"{root}/leases"
        self.alive = f"{root}/alive"

    def entry(self, key: str) -> str:
        """Returns the path of the node with the entry of this key."""
        return f"{self.entries}/{_name(key)}"

    def change(self, revision: int) -> str:
        """Returns the path of the node with the changes of this revision."""
        return f"{self.changes}/{revision:020}"

    def lease(self, lease: LeaseId) -> str:
        """Returns the path of the node that lists the keys put with the lease."""
        return f"{self.leases}/{lease}"

    def alive_of(self, lease: LeaseId) -> str:
        """Returns the path of the ephemeral node that exists while the lease's session does."""
        return f"{self.alive}/{lease}"


def _name(key: str) -> str:
    """Quotes a node name: ZooKeeper accepts no slashes, control characters or single dots."""
    return quote(key, safe="").replace(".", "%2E")


def key_of(name: str) -> str:
    """Returns the key of a node name."""
    return unquote(name)


def encode_entry(entry: Entry) -> bytes:
    """Returns the contents of an entry's node: version, lease (0 for none), value."""
    return _HEAD.pack(entry.version, entry.lease or 0) + entry.value


def decode_entry(key: str, data: bytes) -> Entry:
    """Parses the contents of an entry's node."""
    version, lease = _HEAD.unpack_from(data)
    return Entry(key, data[_HEAD.size :], Revision(version), LeaseId(lease) if lease else None)


def encode_keys(keys: Iterable[str]) -> bytes:
    """Encodes the contents of a lease node."""
    return json.dumps(sorted(keys)).encode()


def decode_keys(data: bytes) -> set[str]:
    """Decodes the contents of a lease node."""
    return set(json.loads(data))


def encode_changes(changes: Sequence[Change]) -> bytes:
    """Encodes the contents of a change node. Large values are replaced by references to their entries."""
    value_bytes = sum(len(change.entry.value) for change in changes if change.entry is not None)
    inline = value_bytes <= INLINE_BYTES_MAX
    out = bytearray()
    for key, entry in ((change.key.encode(), change.entry) for change in changes):
        if entry is None:
            out += _CHANGE.pack(_DELETED, len(key), 0, 0) + key
        elif inline:
            out += _CHANGE.pack(_INLINE, len(key), entry.lease or 0, len(entry.value)) + key + entry.value
        else:
            out += _CHANGE.pack(_BY_REFERENCE, len(key), 0, 0) + key
    return bytes(out)


def decode_changes(data: bytes, revision: Revision) -> list[Change | Reference]:
    """Decodes the contents of a change node."""
    found: list[Change | Reference] = []
    position = 0
    while position < len(data):
        kind, key_bytes, lease, value_bytes = _CHANGE.unpack_from(data, position)
        value_at = position + _CHANGE.size + key_bytes
        key = data[position + _CHANGE.size : value_at].decode()
        position = value_at + value_bytes
        if kind == _DELETED:
            found.append(Change(key, None))
        elif kind == _INLINE:
            entry = Entry(key, data[value_at:position], revision, LeaseId(lease) if lease else None)
            found.append(Change(key, entry))
        else:
            found.append(Reference(key))
    return found
