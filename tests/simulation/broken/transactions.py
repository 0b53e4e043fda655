"""Variants that break the rules for transactions: decisions, markers, readers, fencing, offsets."""

from __future__ import annotations

from ottla.broker.api.produce_in_transaction import TransactionalBatches
from ottla.broker.storage.startup import state_file
from ottla.broker.transactions.led_shard import LedShard
from ottla.machines.groups.offset_table import OffsetTable
from ottla.machines.transactions import identity, markers, participation
from ottla.machines.transactions import transaction_end as ending
from ottla.machines.transactions.coordinator import TransactionCoordinator
from ottla.machines.transactions.partition_table import PartitionTransactions
from tests.simulation.broken.editing import Edit
from tests.simulation.broken.variants import Variant, transactions

TORN = frozenset({"torn", "committed", "aborted", "aborted read", "offsets"})
"""The checkers that may report a transaction that was not atomic."""

VARIANTS = (
    Variant(
        "markers are sent before the decision is committed",
        rule="last-stable-offset",
        breaks="Markers are sent when their decision is appended, before the high watermark has reached it.",
        edits=(Edit(LedShard, "_begin_when_committed", "if end <= self.partition.high_watermark:", "if True:"),),
        checkers=TORN | {"decision"},
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "a coordinator that takes over forgets what was decided",
        rule="last-stable-offset",
        breaks="Transactions that were prepared when the coordinator changed get no markers.",
        edits=(Edit(TransactionCoordinator, "loaded", "if transaction.state.is_prepared:", "if False:"),),
        checkers=TORN | {"liveness"},
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "complete with the first marker",
        rule="last-stable-offset",
        breaks="A transaction is complete as soon as one of its partitions has its marker.",
        edits=(Edit(markers, "written", "if not progress.unmarked:", "if len(progress.unmarked) < 2:"),),
        checkers=TORN | {"complete", "liveness"},
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "readers do not wait for open transactions",
        rule="last-stable-offset",
        breaks="The last stable offset is the high watermark, regardless of open transactions.",
        edits=(
            Edit(
                PartitionTransactions,
                "_first_open_offset",
                "next(iter(self._open.values()), self._high_watermark)",
                "self._high_watermark",
            ),
        ),
        checkers=frozenset({"last stable offset", "aborted read"}),
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "a marker counts before it is committed",
        rule="last-stable-offset",
        breaks="The last stable offset passes a transaction whose marker is not below the high watermark.",
        edits=(
            Edit(PartitionTransactions, "last_stable_offset", "*(each.first_offset for each in self._ended), ", ""),
        ),
        checkers=frozenset({"last stable offset", "aborted read"}),
        simulation=transactions,
        seeds=(3,),
    ),
    Variant(
        "open transactions are forgotten with a restart",
        rule="ADR 13",
        breaks="A log that is opened again has no open transactions.",
        edits=(Edit(PartitionTransactions, "_sort_open", "for first_offset, name in sorted(found)", "for _ in ()"),),
        checkers=frozenset({"last stable offset", "aborted read"}),
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "the index of aborted transactions is lost with a restart",
        rule="ADR 13",
        breaks="The state file of a log does not contain the index.",
        edits=(Edit(state_file, "_encode_transactions", " + transactions.aborted.encode(0, offset)", ""),),
        checkers=frozenset({"aborted read"}),
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "a zombie is not fenced",
        rule="ADR 12",
        breaks="Any epoch of the producer id is accepted.",
        edits=(Edit(identity, "identify", "return Identity.FENCED if", "return Identity.CURRENT if"),),
        checkers=TORN | {"fencing"},
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "whoever asks again is fenced",
        rule="ADR 12",
        breaks="A producer whose reply was lost is treated as one of an earlier epoch.",
        edits=(Edit(identity, "identify", "if brought == last and", "if False and"),),
        checkers=frozenset({"fenced"}),
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "a time-out does not fence",
        rule="ADR 12",
        breaks="Aborting a transaction without its producer does not raise the epoch.",
        edits=(
            Edit(
                ending,
                "abort_and_fence",
                "transaction.producer_epoch + 1 if can_bump else EPOCH_MAX",
                "transaction.producer_epoch",
            ),
        ),
        checkers=TORN | {"complete"},
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "a late AddPartitionsToTxn is taken",
        rule="KIP-890",
        breaks="Partitions are added for any epoch, also for that of an aborted transaction.",
        edits=(
            Edit(
                participation,
                "_refusal",
                "refusal(identify(transaction, request.producer_id, request.producer_epoch))",
                "None",
            ),
        ),
        checkers=TORN | {"fencing"},
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "a first batch is taken whatever the coordinator says",
        rule="KIP-890",
        breaks="The coordinator is asked, but its reply is ignored.",
        edits=(Edit(TransactionalBatches, "ask", "if error is not ErrorCode.none:", "if False:"),),
        checkers=TORN | {"fencing", "liveness"},
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "an end may be asked for again with another outcome",
        rule="ADR 12",
        breaks="A repeated EndTxn succeeds with either outcome.",
        edits=(Edit(ending, "_outcome_again", "if state.is_commit != is_commit:", "if False:"),),
        checkers=TORN | {"outcome"},
        simulation=transactions,
        seeds=(0,),
    ),
    Variant(
        "offsets of an aborted transaction count",
        rule="last-stable-offset",
        breaks="An abort marker commits the offsets of its transaction.",
        edits=(Edit(OffsetTable, "complete", "if is_committed and not", "if not"),),
        checkers=frozenset({"offsets"}),
        simulation=transactions,
        seeds=(0,),
    ),
)
