"""The methods of the service of `wal.proto` on one broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.partition.record_deletion import delete_records
from ottla.broker.partition.writers import append_fence, committed
from ottla.broker.wal_service.append_calls import AppendStream
from ottla.broker.wal_service.logs import Logs, refusal_failure
from ottla.broker.wal_service.open_streams import OpenStreams
from ottla.broker.wal_service.read_calls import ReadStream
from ottla.machines.writers.rules import Fenced
from ottla.net.grpc.server import Call, Method, unary
from ottla.protocol.model.acl import Operation
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.writer_ids import producer_id_of
from ottla.protocol.wire.wal_append import Code, WalFailure
from ottla.protocol.wire.wal_calls import (
    LogRequest,
    Numbers,
    OpenReply,
    OpenRequest,
    decode_log_request,
    decode_open_request,
    encode_numbers,
    encode_open_reply,
)

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.topics.topics import Topic

SERVICE = "ottla.wal.v1.Wal"
TRIM_TIMEOUT_MS = 30_000.0


class WalService:
    """Serves write-ahead logs on one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.logs = Logs(broker)
        self._streams = OpenStreams()

    def methods(self) -> dict[str, Method]:
        """Returns the handlers of all methods of the service, by path."""
        return {
            f"/{SERVICE}/Append": self._append,
            f"/{SERVICE}/Read": self._read,
            f"/{SERVICE}/Open": unary("Open", self._open),
            f"/{SERVICE}/Tail": unary("Tail", self._tail),
            f"/{SERVICE}/Trim": unary("Trim", self._trim),
            f"/{SERVICE}/Fence": unary("Fence", self._fence),
        }

    def _append(self, call: Call) -> AppendStream:
        return AppendStream(self.broker, self.logs, self._streams, call)

    def _read(self, call: Call) -> ReadStream:
        stream = ReadStream(self.logs, self._streams, call)
        self._streams.add_reader(stream)
        return stream

    def stop(self) -> None:
        """Ends all streams because the broker stops."""
        self._streams.stop()

    # -- calls ------------------------------------------------------------------------------------------------

    async def _open(self, message: bytes) -> bytes:
        request = decode_open_request(message)
        topic = self.logs.refusal(request.log.topic, Operation.DESCRIBE) or await self._topic(request)
        if isinstance(topic, WalFailure):
            return bytes(encode_open_reply(OpenReply(failure=topic)))
        if not topic.has(request.log.partition):
            failure = WalFailure(Code.NOT_FOUND, f"{topic.name} has {topic.partition_count} partitions")
            return bytes(encode_open_reply(OpenReply(failure=failure)))
        leader, servers = self.logs.leader_of(request.log), self.logs.servers()
        return bytes(encode_open_reply(OpenReply(leader, servers, topic.config.durability.value)))

    async def _topic(self, request: OpenRequest) -> Topic | WalFailure:
        broker, name = self.broker, request.log.topic
        topic = broker.topics.get(name)
        if topic is None:  # another broker may have created it a moment ago
            refused = await broker.metadata.refresh()
            if refused is not None:
                return self.logs.failure(request.log, refused)
            topic = broker.topics.get(name)
        if topic is not None:
            return topic
        if request.create is None:
            return WalFailure(Code.NOT_FOUND, f"there is no topic {name!r}")
        forbidden = self.logs.refused_creation(name)
        if forbidden is not None:
            return forbidden
        wanted = request.create
        created = await broker.metadata.admin.create_topic(
            name, max(wanted.partitions, 1), wanted.configs, replication_factor=wanted.replicas or -1
        )
        if not isinstance(created, Refused):
            return created
        if created.error is ErrorCode.topic_already_exists:
            return broker.topics.get(name) or WalFailure(Code.UNAVAILABLE, f"the topic {name!r} is being created")
        return self.logs.failure(request.log, created)

    async def _tail(self, message: bytes) -> bytes:
        request = decode_log_request(message)
        partition = self.logs.led(request.log, Operation.DESCRIBE)
        if isinstance(partition, WalFailure):
            return bytes(encode_numbers(Numbers(failure=partition), 3))
        # An uncommitted epoch may still be undone.
        writer = partition.log.producers.get(producer_id_of(partition.log.producers.writer_epoch))
        error = await committed(partition, writer.batches[0].end_offset if writer is not None and writer.batches else 0)
        if error is ErrorCode.none and not partition.is_watermark_known:
            error = ErrorCode.offset_not_available
        if error is not ErrorCode.none or not partition.is_led_here:
            failure = self.logs.failure(request.log, error or ErrorCode.not_leader_or_follower)
            return bytes(encode_numbers(Numbers(failure=failure), 3))
        numbers = partition.log.start_offset, partition.high_watermark, partition.log.producers.writer_epoch
        return bytes(encode_numbers(Numbers(numbers), 3))

    async def _trim(self, message: bytes) -> bytes:
        request = decode_log_request(message)
        return bytes(encode_numbers(await self._trimmed(request), 1))

    async def _trimmed(self, request: LogRequest) -> Numbers:
        partition = self.logs.led(request.log, Operation.DELETE)
        if isinstance(partition, WalFailure):
            return Numbers(failure=partition)
        if partition.topic.internal or "delete" not in partition.topic.config.cleanup_policy:
            return Numbers(failure=WalFailure(Code.INVALID, "internal and compacted topics are not trimmed"))
        before = request.number or 0
        if before < 0:
            return Numbers(failure=WalFailure(Code.INVALID, f"there is no offset {before}"))
        outcome = await delete_records(partition, before, self.broker.clock, TRIM_TIMEOUT_MS)
        if isinstance(outcome, Refused):
            return Numbers(failure=self.logs.failure(request.log, outcome))
        return Numbers([outcome])

    async def _fence(self, message: bytes) -> bytes:
        request = decode_log_request(message)
        return bytes(encode_numbers(await self._fenced(request), 2))

    async def _fenced(self, request: LogRequest) -> Numbers:
        partition = self.logs.led(request.log, Operation.WRITE)
        if isinstance(partition, WalFailure):
            return Numbers(failure=partition)
        outcome = append_fence(partition, request.number, self.broker.clock.now_ms())
        if isinstance(outcome, Refused):
            return Numbers(failure=self.logs.failure(request.log, outcome))
        error = await committed(partition, partition.log.end_offset)
        if error is not ErrorCode.none:
            return Numbers(failure=self.logs.failure(request.log, error))
        if isinstance(outcome, Fenced):
            return Numbers(failure=refusal_failure(outcome))
        self._streams.end_earlier(partition, Fenced(outcome.epoch))
        return Numbers([outcome.epoch, outcome.offset])
