"""The follower's side of an incremental fetch session (KIP-227): requests carry only changes since the last one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar
from uuid import UUID

from ottla.protocol.wire.fetch import FetchPartition, FetchRequest
from ottla.protocol.wire.produce import TopicKey
from ottla.protocol.wire.replica_fetch import pack_request

Key = tuple[UUID, int]
T = TypeVar("T")
WAIT_MS_MAX = 500
EPOCH_MAX = 2**31 - 1
MIN_BYTES = 1
READ_ALL = 0


class ReplicaSession:
    """The fetch session with one leader."""

    def __init__(self, broker_id: int, broker_epoch: int) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._session_id = 0
        self._epoch = 0
        self._known: dict[Key, FetchPartition] = {}

    @property
    def asked(self) -> Mapping[Key, FetchPartition]:
        """The partitions and positions that the leader knows from earlier requests."""
        return self._known

    @property
    def is_new(self) -> bool:
        """Whether the leader has no session yet, so that the next request must list every partition."""
        return self._epoch == 0

    def request(self, wanted: Mapping[Key, FetchPartition], bytes_max: int, wait_ms: int = WAIT_MS_MAX) -> FetchRequest:
        """Returns a request for all wanted partitions."""
        changed = {key: partition for key, partition in wanted.items() if self._known.get(key) != partition}
        forgotten = [key for key in self._known if key not in wanted]
        self._known = dict(wanted)
        return self._request(changed, forgotten, bytes_max, wait_ms)

    def request_again(
        self, changes: Mapping[Key, FetchPartition | None], bytes_max: int, wait_ms: int = WAIT_MS_MAX
    ) -> FetchRequest:
        """Returns a request for the same partitions with changes; None removes a partition."""
        known = self._known
        changed, forgotten = dict[Key, FetchPartition](), list[Key]()
        for key, partition in changes.items():
            if partition is None:
                if known.pop(key, None) is not None:
                    forgotten.append(key)
            elif known.get(key) != partition:
                known[key] = changed[key] = partition
        return self._request(changed, forgotten, bytes_max, wait_ms)

    def pack_one(self, key: Key, partition: FetchPartition, bytes_max: int) -> bytes:
        """Encodes the request that `request_again` would return for one change."""
        self._known[key] = partition
        index, epoch, offset, last_epoch, start, partition_bytes_max, _, watermark, end = partition
        return pack_request(
            (WAIT_MS_MAX, MIN_BYTES, bytes_max, READ_ALL, self._session_id, self._epoch),
            key[0],
            (index, epoch, offset, last_epoch, start, partition_bytes_max, watermark, end),
            (self._broker_id, self._broker_epoch),
        )

    def _request(
        self, changed: Mapping[Key, FetchPartition], forgotten: list[Key], bytes_max: int, wait_ms: int
    ) -> FetchRequest:
        return FetchRequest(
            replica_id=self._broker_id,
            replica_epoch=self._broker_epoch,
            max_wait_ms=wait_ms,
            min_bytes=MIN_BYTES,
            max_bytes=bytes_max,
            isolation_level=READ_ALL,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=_grouped(changed),
            forgotten=_grouped({key: key[1] for key in forgotten}),
        )

    def on_reply(self, session_id: int) -> None:
        """Takes the session id of a reply and advances the epoch."""
        if session_id == 0:
            self.reset()
            return
        self._session_id = session_id
        self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1

    def reset(self) -> None:
        """Starts over because the leader does not know the session or has no room for one: the next request lists
        everything."""
        self._session_id = self._epoch = 0
        self._known = {}


def _grouped(by_key: Mapping[Key, T]) -> list[tuple[TopicKey, list[T]]]:
    topics: dict[TopicKey, list[T]] = {}
    for (topic_id, _), value in by_key.items():
        topics.setdefault(topic_id, []).append(value)
    return list(topics.items())
