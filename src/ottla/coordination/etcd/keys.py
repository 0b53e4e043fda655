"""The key namespace of one cluster in etcd."""

from __future__ import annotations

from ottla.coordination.etcd.messages import KeyValue
from ottla.coordination.port import Entry, LeaseId, Revision


class Namespace:
    """Maps between keys of the port and keys in etcd."""

    def __init__(self, cluster: str) -> None:
        self._prefix = f"/ottla/{cluster}/".encode()

    def full(self, key: str) -> bytes:
        """Returns the key in etcd: the cluster's prefix and the port's key."""
        return self._prefix + key.encode()

    def key(self, full: bytes) -> str:
        """Returns the port's key of a key in etcd, which must have the cluster's prefix."""
        return full[len(self._prefix) :].decode()

    def range(self, prefix: str) -> tuple[bytes, bytes]:
        """Returns the first key with this prefix and the first key after all such keys. UTF-8 has no byte 255."""
        start = self.full(prefix)
        return start, start[:-1] + bytes([start[-1] + 1])

    def entry(self, found: KeyValue) -> Entry:
        """Converts a key-value pair of etcd to an entry. Its version is etcd's `mod_revision`."""
        lease = LeaseId(found.lease) if found.lease else None
        return Entry(self.key(found.key), found.value, Revision(found.mod_revision), lease)
