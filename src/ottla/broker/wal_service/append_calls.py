"""Append: one writer's stream into one log.

Messages are appended in the order of arrival, with no await in between, and each gets its reply when it is
acknowledged; the next message does not wait for that. Replies of one turn of the loop are sent together, with adjacent
ranges merged.

Flow control: the bytes of a message count as held until it is settled. The stream grants no more credit while too many
bytes are held, while the writer does not read its replies, or while the broker's backlog is full: the writer is then
stopped by its own window.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.partition.writers import ALL, append_as_writer, committed, time_of_append
from ottla.broker.wal_service.logs import Logs, is_passing, refusal_failure
from ottla.broker.wal_service.open_streams import OpenStreams
from ottla.broker.wal_service.stream_start import StreamStart, begin
from ottla.machines.writers.resumption import LoggedIds, RejectedIds, sequence_of
from ottla.machines.writers.rules import Fenced, UnknownEpoch, judge_append
from ottla.net.grpc.status import RpcError, Status
from ottla.net.grpc.stream import Receiver
from ottla.protocol.model.acl import Operation
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import HEADER_BYTES
from ottla.protocol.records.bridge import RowEncoder, Traits, seal
from ottla.protocol.wire.wal_append import (
    AcknowledgedIds,
    Acks,
    AppendReply,
    AppendRun,
    Begin,
    Code,
    RefusedIds,
    StreamBegun,
    WalFailure,
    decode_append_request,
    encode_append_reply,
)
from ottla.protocol.wire.wal_calls import LogName
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.net.grpc.server import Call

_REFUSAL_WAITS = branch("the refusal of a conditional append waits for its cause", __name__)
_FENCE_WAITS = branch("a fenced writer is told only when the fence is committed", __name__)

HELD_BYTES_MAX = 8 * 1024 * 1024
"""Maximum number of unsettled bytes of one stream before its writer has to wait."""
UNREAD_BYTES_MAX = 64 * 1024
"""Maximum number of bytes of replies that the writer has not read."""

_KAFKA_ACKS = {Acks.ALL: ALL, Acks.LEADER: 1, Acks.NONE: 0}


class AppendStream(Receiver):
    """The server side of one Append call."""

    def __init__(self, broker: Broker, logs: Logs, streams: OpenStreams, call: Call) -> None:
        self._broker = broker
        self._logs = logs
        self._streams = streams
        self._call = call
        self._log = LogName("")
        self._begun: StreamStart | None = None
        self._acks = ALL
        self._next_id = 0
        self._early: deque[bytes] | None = None
        """Messages that arrived while the stream begins; None before that."""
        self._held_bytes = 0
        self._owed_bytes = 0
        """Credit that is withheld."""
        self._waits = 0
        """Number of replies that wait for a commit."""
        self._acknowledged: list[AcknowledgedIds] = []
        self._refused: list[RefusedIds] = []
        self._is_flushing = False
        self._is_over = False

    @property
    def epoch(self) -> int:
        """The epoch of the writer, or 0 before the stream has begun."""
        return self._begun.epoch if self._begun is not None else 0

    # -- messages and events ----------------------------------------------------------------------------------

    def on_message(self, message: bytes) -> None:
        if self._is_over:
            self._call.stream.credit(len(message))
        elif self._begun is not None:
            self._take(message)
        elif self._early is not None:
            self._early.append(message)  # without credit: the stream's window bounds it
        else:
            self._begin(message)

    def on_end(self, trailers: dict[str, str]) -> None:
        """The writer sends no more. It still gets the replies that it waits for."""
        self._end_if_done(is_ending=True)

    def on_lost(self, error: RpcError) -> None:
        self._close()

    def on_drained(self) -> None:
        self._give_credit()

    # -- beginning --------------------------------------------------------------------------------------------

    def _begin(self, message: bytes) -> None:
        try:
            request = decode_append_request(message)
        except ValueError as error:
            self._abandon(Status.INVALID_ARGUMENT, str(error))
            return
        self._call.stream.credit(len(message))
        if not isinstance(request, Begin):
            self._abandon(Status.INVALID_ARGUMENT, "the first message of a stream has to say which log: `begin`")
            return
        self._early = deque()
        self._log = LogName(request.topic, request.partition)
        self._acks = _KAFKA_ACKS[request.acks]
        self._streams.start_task(self._begin_with(request))

    async def _begin_with(self, request: Begin) -> None:
        outcome = await begin(self._broker, self._logs, request, partial(self._streams.add_writer, self))
        if self._is_over:
            return
        if isinstance(outcome, WalFailure):
            self._fail(outcome)
            return
        self._begun = outcome
        self._next_id = outcome.next_id
        last_id = outcome.next_id - 1 if outcome.next_id else None
        committed_end, bytes_max = outcome.partition.high_watermark, outcome.partition.log.config.max_message_bytes
        begun = StreamBegun(outcome.writer_id, last_id, committed_end, bytes_max)
        self._call.send(encode_append_reply(AppendReply(begun=begun)))
        for account in outcome.accounts:
            self._settle_account(outcome, account)
        if outcome.fenced is not None:
            self._fail_when_committed(outcome.fenced)
            return
        early, self._early = self._early or (), None
        for message in early:
            if not self._is_over:
                self._take(message)
        self._end_if_done(is_ending=self._call.stream.has_ended)

    def _settle_account(self, begun: StreamStart, account: LoggedIds | RejectedIds) -> None:
        """Settles ids that an earlier stream of this writer left without a reply."""
        if isinstance(account, LoggedIds):
            self._wait(account.first_id, account.record_count, account.base_offset, account.end_offset, 0)
        else:
            failure = WalFailure(Code.UNEXPECTED_END, "it was refused before", offset=begun.partition.log.end_offset)
            if begun.may_be_trimmed:
                start = begun.partition.log.start_offset
                failure = WalFailure(Code.TRIMMED, "it is not known: the log was trimmed since", offset=start)
            self._refuse_when_committed(account.first_id, account.record_count, failure)

    # -- records ----------------------------------------------------------------------------------------------

    def _take(self, message: bytes) -> None:
        try:
            run = decode_append_request(message)
        except ValueError as error:
            self._abandon(Status.INVALID_ARGUMENT, str(error))
            return
        if not isinstance(run, AppendRun):
            self._abandon(Status.INVALID_ARGUMENT, "a stream begins once")
            return
        if run.first_id < self._next_id:
            why = f"the id {run.first_id} comes after {self._next_id - 1}: ids grow"
            self._fail(WalFailure(Code.INVALID, why))
            return
        refused = self._logs.refusal(self._log.topic, Operation.WRITE)
        if refused is not None:
            self._fail(refused)
            return
        self._next_id = run.first_id + len(run.data)
        self._owed_bytes += len(message)
        if run.data:
            self._append(run)
        self._give_credit()

    def _append(self, run: AppendRun) -> None:
        """Appends a run, in as many batches as necessary, or in one if it has to be atomic."""
        assert self._begun is not None
        self._broker.metadata.check_lease()
        time_ms = time_of_append(self._begun.partition, self._broker.clock.now_ms())
        budget = self._begun.partition.log.config.max_message_bytes - HEADER_BYTES
        is_whole = run.atomic or run.expected_end is not None
        encoder = RowEncoder((1 << 31) - 1 - HEADER_BYTES if is_whole else budget)
        rows = [(None, data, (), time_ms) for data in run.data]
        at = 0
        while at < len(rows) and not self._is_over:
            end = encoder.extend(rows, at)
            traits = Traits(
                producer_id=self._begun.writer_id, producer_epoch=0, base_sequence=sequence_of(run.first_id + at)
            )
            batch = seal(encoder.take(), traits)
            self._append_batch(run.first_id + at, end - at, batch, run.expected_end, time_ms)
            at = end

    def _append_batch(
        self, first_id: int, count: int, batch: bytearray, expected_end: int | None, time_ms: int
    ) -> None:
        begun = self._begun
        assert begun is not None
        partition = begun.partition
        refused = partition.refusal_for(self._acks)
        if refused is not None:
            self._fail(self._logs.failure(self._log, refused))
            return
        log = partition.log
        refusal = judge_append(begun.epoch, log.producers.writer_epoch, log.end_offset, expected_end)
        if isinstance(refusal, Fenced | UnknownEpoch):
            self._fail_when_committed(refusal_failure(refusal))
            return
        if refusal is not None:
            self._refuse_when_committed(first_id, count, refusal_failure(refusal))
            return
        outcome = append_as_writer(partition, batch, time_ms)
        if isinstance(outcome, Refused):
            failure = self._logs.failure(self._log, outcome)
            if is_passing(failure):
                self._fail(failure)
            else:
                self._refuse(first_id, count, failure)
            return
        self._wait(first_id, count, outcome.base_offset, outcome.end_offset, len(batch))

    def _wait(self, first_id: int, count: int, base_offset: int, end_offset: int, held_bytes: int) -> None:
        assert self._begun is not None
        partition = self._begun.partition
        if self._acks == 0 or end_offset <= partition.acknowledged_for(self._acks):
            self._acknowledge(first_id, count, base_offset)
            return
        self._held_bytes += held_bytes
        self._waits += 1
        settled = partial(self._settled, first_id, count, base_offset, held_bytes)
        partition.when_acknowledged(end_offset, settled, self._acks)

    def _settled(self, first_id: int, count: int, base_offset: int, held_bytes: int, error: ErrorCode) -> None:
        self._held_bytes -= held_bytes
        self._waits -= 1
        if self._is_over:
            return
        if error is not ErrorCode.none:
            self._fail(self._logs.failure(self._log, error))
            return
        self._acknowledge(first_id, count, base_offset)
        self._give_credit()

    # -- rejections -------------------------------------------------------------------------------------------

    def _refuse_when_committed(self, first_id: int, count: int, failure: WalFailure) -> None:
        """Rejects ids once the reason is committed: another leader could still undo it (safety: conditional-append)."""
        assert self._begun is not None
        partition = self._begun.partition
        if partition.log.end_offset <= partition.high_watermark:
            self._refuse(first_id, count, failure)
            return

        _REFUSAL_WAITS()

        def settled(error: ErrorCode) -> None:
            self._waits -= 1
            if self._is_over:
                return
            if error is ErrorCode.none:
                self._refuse(first_id, count, failure)
            else:
                self._fail(self._logs.failure(self._log, error))

        self._waits += 1
        partition.when_acknowledged(partition.log.end_offset, settled, ALL)

    def _fail_when_committed(self, failure: WalFailure) -> None:
        """Ends the stream for a reason that has to be committed first. Until then it accepts nothing more."""
        assert self._begun is not None
        begun, self._begun = self._begun, None
        self._early = deque()
        self._streams.start_task(self._fail_later(begun, failure))

    async def _fail_later(self, begun: StreamStart, failure: WalFailure) -> None:
        if begun.partition.log.end_offset > begun.partition.high_watermark:
            _FENCE_WAITS()
        error = await committed(begun.partition, begun.partition.log.end_offset)
        if not self._is_over:
            self._fail(failure if error is ErrorCode.none else self._logs.failure(self._log, error))

    def fence(self, failure: WalFailure) -> None:
        """Ends the stream because a later writer's fence is committed. All records of this writer are below
        the fence."""
        if not self._is_over:
            self._fail(failure)

    def stop(self) -> None:
        """Ends the stream because the broker stops. Accepted records still get their replies; no more are accepted."""
        if self._is_over:
            return
        failure = WalFailure(Code.UNAVAILABLE, "the broker stops")
        if self._begun is None:
            self._fail(failure)
        else:
            self._fail_when_committed(failure)

    # -- replies ----------------------------------------------------------------------------------------------

    def _acknowledge(self, first_id: int, count: int, first_offset: int) -> None:
        acknowledged = self._acknowledged
        if acknowledged:
            last = acknowledged[-1]
            if last.first_id + last.record_count == first_id and last.first_offset + last.record_count == first_offset:
                acknowledged[-1] = AcknowledgedIds(last.first_id, last.record_count + count, last.first_offset)
                return
        acknowledged.append(AcknowledgedIds(first_id, count, first_offset))
        self._flush_soon()

    def _refuse(self, first_id: int, count: int, failure: WalFailure) -> None:
        self._refused.append(RefusedIds(first_id, count, failure))
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self, failure: WalFailure | None = None) -> None:
        self._is_flushing = False
        if self._call.is_over or not (self._acknowledged or self._refused or failure is not None):
            return
        reply = AppendReply(None, self._acknowledged, self._refused, failure)
        self._acknowledged, self._refused = [], []
        self._call.send(encode_append_reply(reply), now=True)
        if not self._is_over:
            self._end_if_done(is_ending=self._call.stream.has_ended)

    def _give_credit(self) -> None:
        if self._is_over or not self._owed_bytes:
            return
        if self._held_bytes > HELD_BYTES_MAX or self._call.unsent_bytes > UNREAD_BYTES_MAX:
            return
        backlog = self._broker.backlog
        if self._held_bytes and backlog.is_full:
            backlog.wait(self)
            return
        self._call.stream.credit(self._owed_bytes)
        self._owed_bytes = 0

    def on_backlog_drained(self) -> None:
        """Gives the writer the withheld credit, unless another limit still applies."""
        self._give_credit()

    # -- closing ----------------------------------------------------------------------------------------------

    def _end_if_done(self, *, is_ending: bool) -> None:
        is_done = self._begun is not None and not (self._waits or self._acknowledged or self._refused)
        if is_ending and is_done and not self._is_over:
            self._close()
            self._call.finish()

    def _fail(self, failure: WalFailure) -> None:
        """Ends the stream with an error that the writer understands."""
        if not self._is_over:
            self._close()
            self._flush(failure)
            self._call.finish()

    def _abandon(self, status: Status, why: str) -> None:
        self._close()
        self._call.finish(status, why)

    def supersede(self) -> None:
        """Ends the stream because the same writer has begun another one."""
        if not self._is_over:
            self._abandon(Status.CANCELLED, "this writer has begun another stream")

    def _close(self) -> None:
        self._is_over = True
        self._broker.backlog.forget(self)
        self._streams.forget_writer(self)
