"""The stage of scenarios about transactions: producers, the coordinator, and the partitions that they write to.

A producer has a name and remembers the replies it got, unless the reply is `lost`. With `v2` it knows that each end of
a transaction bumps its epoch. Markers are in flight until `markers` writes them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ottla.machines.transactions.config import TransactionConfig
from ottla.machines.transactions.effects import WriteMarkers
from ottla.machines.transactions.encoding import encode
from ottla.machines.transactions.records import NO_EPOCH, NO_PRODUCER_ID, TopicPartition, TransactionRecord
from ottla.machines.transactions.replies import (
    AbortTransactionReply,
    AddPartitionsReply,
    DescribeTransactionReply,
    EndTransactionReply,
    InitProducerReply,
    ListTransactionsReply,
)
from ottla.machines.transactions.requests import (
    AbortTransaction,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducer,
    ListTransactions,
)
from ottla.machines.transactions.shard import apply
from ottla.machines.transactions.verification import NO_GUARD
from ottla.protocol.model.errors import ErrorCode, Refused
from tests.support.transactions_driver import Batch, Coordinated, PartitionLog, partition, partitions

if TYPE_CHECKING:
    from tests.scenarios.stages import Command


@dataclass
class Producer:
    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH
    version: int = 0
    asked: int = NO_GUARD
    """The guard that it holds while the coordinator's reply is in flight."""


class TransactionsStage:
    """configure name=ms | init who= id= timeout= v2 again lost | add who= to= | end who= commit|abort lost
    | produce who= to= seq= plain | ask who= to= | append who= to= | markers to= fail= keep unheard | resend | fail-over
    | wait ms= | abort id= | show id= | list state= producer= older= pattern= | ids on|off|none | epoch who= to=
    | partition of= | hold of= | commit of= | truncate of= to= | forget of=
    """

    def __init__(self) -> None:
        self._world = Coordinated()
        self._producers: dict[str, Producer] = {}
        self._logs: defaultdict[TopicPartition, PartitionLog] = defaultdict(PartitionLog)
        self._kept: list[WriteMarkers] = []

    def perform(self, command: Command) -> str:
        act = getattr(self, "do_" + command.name.replace("-", "_"))
        shown = act(command)
        assert isinstance(shown, str)
        return shown

    def _producer(self, command: Command) -> Producer:
        return self._producers[command.options.get("who", "A")]

    # -- producers -------------------------------------------------------------------------------------------------

    def do_configure(self, command: Command) -> str:
        options = {name.replace("-", "_"): int(value) for name, value in command.options.items()}
        self._world = Coordinated(replace(TransactionConfig(), **options))
        return ""

    def do_init(self, command: Command) -> str:
        """`again`: it continues after an error with its id (KIP-360)."""
        who = command.options.get("who", "A")
        known = self._producers.get(who) or Producer(command.options.get("id", "a"))
        known.version = 2 if command.has("v2") else known.version
        self._producers[who] = known
        goes_on = command.has("again")
        request = InitProducer(
            transactional_id=known.transactional_id,
            timeout_ms=command.number("timeout", 60_000),
            producer_id=known.producer_id if goes_on else NO_PRODUCER_ID,
            producer_epoch=known.epoch if goes_on else NO_EPOCH,
            two_phase_commit=command.has("2pc"),
            keep_prepared=command.has("keep-prepared"),
        )
        ticket = self._world.send(request)
        reply = self._world.answers.pop(ticket, None)
        if reply is None:
            return "waits for a producer id"
        assert isinstance(reply, InitProducerReply)
        return self._told(known, reply, command)

    def do_add(self, command: Command) -> str:
        errors = self._add(self._producer(command), partitions(command.options["to"]))
        return " ".join(dict.fromkeys(error.name for _, error in errors))

    def _add(
        self, producer: Producer, wanted: frozenset[TopicPartition], *, verify_only: bool = False
    ) -> tuple[tuple[TopicPartition, ErrorCode], ...]:
        request = AddPartitions(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            partitions=wanted,
            transaction_version=producer.version,
            verify_only=verify_only,
        )
        return self._world.ask(AddPartitionsReply, request).errors

    def do_end(self, command: Command) -> str:
        producer = self._producer(command)
        request = EndTransaction(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            is_commit=command.has("commit"),
            transaction_version=producer.version,
        )
        ticket = self._world.send(request)
        reply = self._world.answers.pop(ticket, None)
        if reply is None:
            return "waits for a producer id"
        assert isinstance(reply, EndTransactionReply)
        return self._told(producer, reply, command)

    def _told(self, producer: Producer, reply: InitProducerReply | EndTransactionReply, command: Command) -> str:
        if reply.error is not ErrorCode.none:
            return reply.error.name
        shown = f"producer {reply.producer_id} epoch {reply.producer_epoch}"
        if command.has("lost"):
            return f"{shown}, lost"
        if isinstance(reply, InitProducerReply) or producer.version >= 2:
            producer.producer_id, producer.epoch = reply.producer_id, reply.producer_epoch
        return shown

    # -- produce: ask the coordinator, then append -----------------------------------------------------------------

    def do_produce(self, command: Command) -> str:
        if command.has("plain"):
            return self._append(command, NO_GUARD)
        asked = self.do_ask(command)
        return asked if asked not in ("none", "no need to ask") else self.do_append(command)

    def do_ask(self, command: Command) -> str:
        producer, to = self._producer(command), partition(command.options["to"])
        sequence = command.number("seq", 0)
        guard = self._logs[to].table.begin_verification(
            producer.producer_id, producer.epoch, sequence, self._world.now.wall_ms
        )
        if isinstance(guard, ErrorCode):
            return guard.name
        producer.asked = guard
        if guard == NO_GUARD:
            return "no need to ask"
        # With version 2 the produce itself makes the partition part of the transaction.
        return self._add(producer, frozenset({to}), verify_only=producer.version < 2)[0][1].name

    def do_append(self, command: Command) -> str:
        return self._append(command, self._producer(command).asked)

    def _append(self, command: Command, guard: int) -> str:
        producer, log = self._producer(command), self._logs[partition(command.options["to"])]
        verdict = log.table.judge_batch(
            producer.producer_id,
            producer.epoch,
            command.number("seq", 0),
            is_transactional=not command.has("plain"),
            guard=guard,
            transaction_version=producer.version,
        )
        if isinstance(verdict, Refused):
            return f"{verdict.error.name}: {verdict.message}"
        offset = log.append(Batch(producer.producer_id, producer.epoch, is_transactional=not command.has("plain")))
        return f"appended at {offset}"

    # -- markers ---------------------------------------------------------------------------------------------------

    def do_markers(self, command: Command) -> str:
        """`to`: only these partitions reply. `fail`: their error. `keep`: a copy stays on the network. `unheard`: the
        coordinator gets no report."""
        wanted = partitions(command.options.get("to", ""))
        shown = []
        sent, self._world.markers = self._world.markers, []
        for effect in sent:
            if command.has("keep"):
                self._kept.append(effect)
            chosen = frozenset(wanted & effect.partitions if wanted else effect.partitions)
            fails = ErrorCode[command.options["fail"]] if command.has("fail") else None
            results = {each: fails or self._logs[each].mark(effect) for each in sorted(chosen)}
            shown.append(f"{_shown(effect)}: " + " ".join(f"{t}-{p} {e.name}" for (t, p), e in results.items()))
            if effect.partitions - chosen:
                self._world.markers.append(effect._replace(partitions=effect.partitions - chosen))
            if not command.has("unheard"):
                self._world.report_results(effect, results)
        return "\n".join(shown) or "no markers"

    def do_resend(self, command: Command) -> str:
        """Copies of markers that were written before arrive late. Their reports are lost."""
        shown = []
        for effect in self._kept:
            results = {each: self._logs[each].mark(effect) for each in sorted(effect.partitions)}
            shown.append(f"{_shown(effect)}: " + " ".join(f"{t}-{p} {e.name}" for (t, p), e in results.items()))
            if command.has("report"):
                self._world.report_results(effect, results)
        self._kept.clear()
        return "\n".join(shown)

    # -- time, failures, operators ---------------------------------------------------------------------------------

    def do_wait(self, command: Command) -> str:
        self._world.wait(command.number("ms", 0))
        return ""

    def do_fail_over(self, command: Command) -> str:
        self._world.fail_over()
        return f"coordinator epoch {self._world.epoch}"

    def do_ids(self, command: Command) -> str:
        if command.has("on"):
            self._world.allocate()
        elif command.has("none"):
            self._world.refuse_ids()
        else:
            self._world.has_producer_ids = False
        shown = []
        for reply in self._world.answers.values():
            assert isinstance(reply, InitProducerReply | EndTransactionReply)
            shown.append(
                f"producer {reply.producer_id} epoch {reply.producer_epoch}"
                if reply.error is ErrorCode.none
                else reply.error.name
            )
        self._world.answers.clear()
        return "\n".join(shown)

    def do_epoch(self, command: Command) -> str:
        """Skips many transactions: sets the epoch of the transactional id and the producer."""
        producer = self._producer(command)
        producer.epoch = command.number("to", 0)
        raised = replace(self._world.transaction(producer.transactional_id), producer_epoch=producer.epoch)
        record = TransactionRecord(producer.transactional_id, raised)
        self._world.log.append(encode(record))
        apply(self._world.coordinator.tables, record)
        return ""

    def do_abort(self, command: Command) -> str:
        request = AbortTransaction(transactional_id=command.options.get("id", "a"))
        return self._world.ask(AbortTransactionReply, request).error.name

    # -- output ----------------------------------------------------------------------------------------------------

    def do_show(self, command: Command) -> str:
        request = DescribeTransaction(transactional_id=command.options.get("id", "a"))
        reply = self._world.ask(DescribeTransactionReply, request)
        found = reply.transaction
        if found is None:
            return reply.error.name
        shown = f"{found.state.label}, producer {found.producer_id} epoch {found.producer_epoch}"
        return shown + "".join(f" {topic}-{index}" for topic, index in sorted(found.partitions))

    def do_list(self, command: Command) -> str:
        pattern = command.options.get("pattern")
        request = ListTransactions(
            states=frozenset(name for name in command.options.get("state", "").split(",") if name),
            producer_ids=frozenset(int(name) for name in command.options.get("producer", "").split(",") if name),
            running_longer_than_ms=command.number("older", -1),
            id_matches=None if pattern is None else lambda name: re.fullmatch(pattern, name) is not None,
        )
        reply = self._world.ask(ListTransactionsReply, request)
        shown = [f"{each.transactional_id} {each.state} producer {each.producer_id}" for each in reply.transactions]
        shown += [f"no such state: {name}" for name in reply.unknown_states]
        return "\n".join(shown) or "nothing"

    def do_partition(self, command: Command) -> str:
        log = self._logs[partition(command.options["of"])]
        table = log.table
        opened = [f"open: {each.producer_id} since {each.first_offset}" for each in table.open_transactions()]
        aborted = [f"aborted: {each.producer_id} {each.first_offset}..{each.last_offset}" for each in table.aborted]
        ends = f"end {log.end}, watermark {log.watermark}, stable {table.last_stable_offset()}"
        return "\n".join([ends, *opened, *aborted])

    # -- the partitions' own faults --------------------------------------------------------------------------------

    def do_hold(self, command: Command) -> str:
        """Stops the high watermark."""
        self._logs[partition(command.options["of"])].is_watermark_held = True
        return ""

    def do_commit(self, command: Command) -> str:
        log = self._logs[partition(command.options["of"])]
        log.commit(command.number("to", log.end))
        return ""

    def do_forget(self, command: Command) -> str:
        """Expires all producers, as after producer.id.expiration.ms of silence."""
        forgotten = self._logs[partition(command.options["of"])].table.expire(self._world.now.wall_ms)
        return "\n".join(f"forgets producer {producer_id}" for producer_id in forgotten) or "forgets nobody"

    def do_truncate(self, command: Command) -> str:
        self._logs[partition(command.options["of"])].truncate(command.number("to", 0))
        return ""


def _shown(effect: WriteMarkers) -> str:
    outcome = "commit" if effect.is_commit else "abort"
    return f"{outcome} of producer {effect.producer_id} epoch {effect.producer_epoch}"
