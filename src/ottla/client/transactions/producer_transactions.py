"""The transactions of a producer, one after another: its identity, the contents of a transaction, and how it ends.

    READY --begin--> OPEN --commit--> ENDING --> READY
                      |                  ^
                      +------abort-------+
                      |
                      +--prepare--> PREPARED, ended elsewhere

- After a failure, a transaction can only be aborted: nothing more is sent, and a commit aborts.
- No batch is in flight when the end is requested.
- With transaction version 2 (KIP-890), writing to a partition adds it to the transaction, and the reply to the end has
  the epoch of the next one. Before version 2, partitions are added first, and a producer that aborts requests a new
  epoch, because sequences may have gaps.
- A producer that is fenced, or that does not learn the outcome of the end, stops: `Sender.fatal` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum, auto

from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import (
    BrokerRefusedError,
    ClientError,
    DeliveryError,
    TransactionAbortedError,
    TransactionStateError,
    TransactionUnresolvedError,
    refused,
)
from ottla.client.groups.offsets import GroupProgress
from ottla.client.producer.batches import Identity
from ottla.client.producer.sender import Sender
from ottla.client.producer.settings import ProducerSettings
from ottla.client.transactions import failures, requests
from ottla.client.transactions.coordinator import TransactionCoordinators
from ottla.client.transactions.prepared_transactions import PreparedTransaction
from ottla.client.transactions.verdicts import Verdict, verdict_of
from ottla.net.apis import PRODUCE_IN_V1, PRODUCE_IN_V2, ClientApi
from ottla.protocol.model.errors import ErrorCode

_NOTHING_TO_ABORT = frozenset({ErrorCode.invalid_producer_id_mapping, ErrorCode.unknown_producer_id})


class Phase(Enum):
    """The state of a producer's transactions."""

    READY = auto()
    OPEN = auto()
    ENDING = auto()
    PREPARED = auto()


class Transactions:
    """The transactions of one producer.

    `flush` waits until everything sent is settled. `drop` gives up unsent records and waits for those in flight.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        coordinators: TransactionCoordinators,
        flush: Callable[[], Awaitable[None]],
        drop: Callable[[DeliveryError], Awaitable[None]],
    ) -> None:
        assert settings.transactional_id is not None
        self.transactional_id = settings.transactional_id
        self.number = 0
        """The number of the open transaction, or of the last one."""
        self._settings = settings
        self._coordinators = coordinators
        self._flush = flush
        self._drop = drop
        self._sender: Sender | None = None
        self._identity = requests.NO_IDENTITY
        self._version = 1
        self._phase = Phase.READY
        self._failure: ClientError | None = None
        self._has_begun = False
        """Whether the coordinator may know of the transaction."""
        self._added: set[TopicPartition] = set()
        self._wanted: set[TopicPartition] = set()
        self._adding: asyncio.Task[None] | None = None
        self._groups: set[str] = set()
        self._sending_offsets = asyncio.Lock()
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> Identity:
        """Fences the previous producer with the transactional id. Returns once its open transaction is aborted."""
        request = requests.init_producer(self.transactional_id, self._settings.transaction_timeout_ms, None)
        self._identity = requests.identity_in(await self._coordinators.ask(request), self._identity)
        return self._identity

    def attach(self, sender: Sender) -> None:
        """Sets the sender, which is created after `start`."""
        self._sender = sender

    # Calls from the producer.

    async def begin(self) -> None:
        """Begins a transaction. Raises TransactionStateError if one is open."""
        while self._ending is not None:  # left over from a caller that was cancelled meanwhile
            await asyncio.wait([self._ending])
        if self._fatal is not None:
            raise self._fatal
        if self._phase is not Phase.READY:
            raise TransactionStateError("a transaction is already open; a producer has one at a time")
        self.number += 1
        self._version = self._coordinators.version
        self._failure = None
        self._has_begun = False
        self._added, self._wanted, self._groups = set(), set(), set()
        self._phase = Phase.OPEN

    def require_open(self, number: int | None = None) -> None:
        """Raises if records cannot be sent now, or not in the transaction with this number."""
        if self._fatal is not None:
            raise self._fatal
        if self._phase is not Phase.OPEN or number not in (None, self.number):
            raise TransactionStateError("no transaction is open; send inside `async with producer.transaction()`")
        if self._failure is not None:
            raise failures.aborted(self._failure, "leave its block, then retry it")

    async def send_offsets(self, progress: GroupProgress) -> None:
        """Commits these offsets to the group if and only if the transaction is committed."""
        self.require_open()
        if not progress.offsets:
            return
        async with self._sending_offsets:
            try:
                await self._add_offsets(progress)
            except ClientError as failure:
                told = self._failed(failures.offsets_refused(failure, progress.group_id))
                if told is failure:
                    raise
                raise told from failure

    async def _add_offsets(self, progress: GroupProgress) -> None:
        self._has_begun = True
        if self._version < 2 and progress.group_id not in self._groups:
            await self._ask(requests.add_offsets(self.transactional_id, self._identity, progress.group_id))
            self._groups.add(progress.group_id)
        await self._coordinators.ask_group(progress.group_id, lambda: self._commit_request(progress))

    async def prepare(self) -> PreparedTransaction | None:
        """Waits until nothing is in flight, and leaves the transaction open. Returns None if it is empty."""
        self.require_open()
        try:
            await self._flush()
        except DeliveryError as failure:
            self._failure = self._failure or failure
        if self._fatal is not None:
            raise self._fatal
        if self._failure is not None:
            cause = self._failure
            await self.end(commit=False)
            raise failures.aborted(cause, "it can be retried") from cause
        if not self._has_begun:
            self._phase = Phase.READY
            return None
        self._phase = Phase.PREPARED
        return PreparedTransaction(self.transactional_id, *self._identity, self._version)

    async def end(self, *, commit: bool) -> None:
        """Ends the transaction, even if the caller is cancelled."""
        if self._phase is not Phase.OPEN:
            raise TransactionStateError("no transaction is open")
        self._phase = Phase.ENDING
        self._ending = asyncio.create_task(self._end(commit))
        self._ending.add_done_callback(self._on_ended)
        await asyncio.shield(self._ending)

    async def close(self) -> None:
        """Aborts an open transaction."""
        if self._phase is Phase.OPEN and self._fatal is None:
            await self.end(commit=False)
        elif self._ending is not None:
            await asyncio.wait([self._ending])

    # Calls from the sender.

    @property
    def produce_api(self) -> ClientApi:
        """The versions of Produce that the transaction version allows."""
        return PRODUCE_IN_V2 if self._version >= 2 else PRODUCE_IN_V1

    def admits(self, topic: str, partition: int) -> bool:
        """Returns whether a batch may be sent to this partition now. The sender is woken once it may."""
        at = TopicPartition(topic, partition)
        if self._version >= 2:
            self._has_begun = True
            return True
        if at in self._added:
            return True
        self._wanted.add(at)
        if self._adding is None:
            self._adding = asyncio.create_task(self._add_partitions())
            self._adding.add_done_callback(self._on_added)
        return False

    def batch_failed(self, reason: DeliveryError) -> None:
        """Makes the transaction one that can only be aborted, because the sender gave up records."""
        if self._fatal is None and self._failure is None:
            self._failure = reason
            self._the_sender.drop(failures.aborted(self._failure, "with these records"))

    # Continuation.

    async def _add_partitions(self) -> None:
        while self._wanted:
            asked = frozenset(self._wanted)
            self._has_begun = True
            await self._ask(requests.add_partitions(self.transactional_id, self._identity, asked))
            self._wanted -= asked
            self._added |= asked
            self._the_sender.wake()

    def _on_added(self, task: asyncio.Task[None]) -> None:
        self._adding = None
        failure = None if task.cancelled() else task.exception()
        if isinstance(failure, ClientError):
            self._failed(failure)
        elif failure is not None:
            self._stop(DeliveryError(f"the producer failed unexpectedly: {type(failure).__name__}: {failure}"))

    def _commit_request(self, progress: GroupProgress) -> requests.Request:
        member = progress.member()
        if member is None:
            raise refused(ErrorCode.unknown_member_id, f'group "{progress.group_id}"')
        return requests.commit_offsets(
            self.transactional_id, self._identity, self._version, progress.group_id, member, progress.offsets
        )

    async def _end(self, commit: bool) -> None:
        # Held so that no request of this transaction is in flight when its end is requested
        async with self._sending_offsets:
            await (self._commit() if commit else self._abort())

    async def _commit(self) -> None:
        try:
            await self._flush()
        except DeliveryError as failure:
            self._failure = self._failure or failure
        if self._fatal is not None:
            raise self._fatal
        if self._failure is None and self._has_begun:
            try:
                await self._ask_to_end(commit=True)
            except BrokerRefusedError as refusal:
                self._failure = refusal
        if self._failure is not None:
            await self._abort()
            raise failures.aborted(self._failure, "it can be retried") from self._failure

    async def _abort(self) -> None:
        if self._adding is not None:
            self._adding.cancel()
            await asyncio.wait([self._adding])
        aborted = TransactionAbortedError("the transaction was aborted, with these records")
        self._failure = self._failure or aborted
        await self._drop(aborted)
        if self._fatal is not None:
            raise self._fatal
        if not self._has_begun:
            self._the_sender.restart(self._identity)
            return
        has_new_epoch = self._version >= 2
        try:
            await self._ask_to_end(commit=False)
        except BrokerRefusedError as refusal:
            if self._version >= 2 and refusal.error not in _NOTHING_TO_ABORT:
                raise self._stop(failures.stopped(refusal, "aborting the transaction")) from refusal
            has_new_epoch = False
        if not has_new_epoch:
            await self._renew_epoch()

    async def _ask_to_end(self, *, commit: bool) -> None:
        """Requests the end. Raises an error after which the transaction can still be aborted or begun again."""
        request = requests.end(self.transactional_id, self._identity, self._version, commit=commit)
        try:
            reply = await self._coordinators.ask(request)
        except BrokerRefusedError as refusal:
            verdict = verdict_of(refusal.error)
            if verdict is Verdict.AGAIN:
                raise self._unresolved(refusal, commit) from refusal
            if verdict is Verdict.FENCED or (commit and refusal.error is ErrorCode.invalid_txn_state):
                # Kafka's coordinators return INVALID_TXN_STATE for a commit of what they aborted one epoch ago.
                raise self._fenced(refusal, unsure=commit and self._coordinators.unsure) from refusal
            if commit and verdict is Verdict.STOP:
                raise self._stop(failures.stopped(refusal, request.what)) from refusal
            raise
        except ClientError as failure:
            raise self._unresolved(failure, commit) from failure
        self._identity = requests.identity_in(reply, self._identity)
        self._the_sender.restart(self._identity)

    async def _renew_epoch(self) -> None:
        timeout_ms = self._settings.transaction_timeout_ms
        try:
            reply = await self._ask(requests.init_producer(self.transactional_id, timeout_ms, self._identity))
        except ClientError as failure:
            raise self._stop(failures.stopped(failure, "continuing after the abort")) from failure
        self._identity = requests.identity_in(reply, self._identity)
        self._the_sender.restart(self._identity)

    async def _ask(self, request: requests.Request) -> object:
        try:
            return await self._coordinators.ask(request)
        except BrokerRefusedError as refusal:
            if verdict_of(refusal.error) is Verdict.FENCED:
                raise self._fenced(refusal) from refusal
            raise

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        self._ending = None
        self._phase = Phase.READY
        if task.cancelled():
            self._stop(TransactionUnresolvedError("the event loop ended before the end of a transaction was confirmed"))
        else:
            # Marks it as retrieved: the caller raises it, and a stopped producer raises it at its next use
            task.exception()

    # Failures.

    @property
    def _fatal(self) -> DeliveryError | None:
        return self._the_sender.fatal

    @property
    def _the_sender(self) -> Sender:
        assert self._sender is not None, "the producer was started"
        return self._sender

    def _failed(self, failure: ClientError) -> ClientError:
        """Handles the failure of a request other than a batch. Returns the exception to raise."""
        if self._fatal is not None:
            return self._fatal
        verdict = verdict_of(failure.error) if isinstance(failure, BrokerRefusedError) else Verdict.ABORT
        if verdict is Verdict.FENCED:
            assert isinstance(failure, BrokerRefusedError)
            return self._fenced(failure)
        if verdict is Verdict.STOP:
            return self._stop(failures.stopped(failure, "the transaction"))
        if self._failure is None:
            self._failure = failure
            self._the_sender.drop(failures.aborted(self._failure, "with these records"))
        return failure

    def _fenced(self, refusal: BrokerRefusedError, *, unsure: bool = False) -> DeliveryError:
        return self._stop(failures.fenced(self._settings, refusal, unsure=unsure))

    def _unresolved(self, failure: ClientError, commit: bool) -> DeliveryError:
        return self._stop(failures.unresolved(self._settings, failure, commit=commit))

    def _stop(self, reason: DeliveryError) -> DeliveryError:
        """Stops the producer for good. The first reason stays."""
        self._the_sender.abandon(reason)
        return self._fatal or reason
