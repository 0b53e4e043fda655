"""Variants that break the rules for writers of the append stream: state after a truncation, fences, conditions."""

from __future__ import annotations

from ottla.broker.partition import writers
from ottla.broker.wal_service import stream_start as beginning
from ottla.broker.wal_service.append_calls import AppendStream
from ottla.machines.writers import rules
from tests.simulation.broken.editing import Edit
from tests.simulation.broken.variants import Variant, wal

LINEARIZABLE = frozenset({"linearizable"})

VARIANTS = (
    Variant(
        "a writer's last id is forgotten when it comes again",
        rule="duplicates",
        breaks="After a reconnect a writer learns that no pending record is in the log, and sends them again.",
        edits=(Edit(beginning, "begin", "last_id = last_id_of(known, settled_id)", "last_id = settled_id"),),
        checkers=LINEARIZABLE,
        simulation=wal,
        seeds=(0,),
    ),
    Variant(
        "a writer's last id is one too high when it comes again",
        rule="duplicates",
        breaks="After a reconnect the first record that is not in the log counts as refused.",
        edits=(Edit(writers, "last_id_of", "else id_of(last, settled_id)", "else id_of(last, settled_id) + 1"),),
        checkers=LINEARIZABLE | {"requests"},
        simulation=wal,
        seeds=(0,),
    ),
    Variant(
        "only the batches that are remembered count when a writer comes again",
        rule="duplicates",
        breaks="Records before the last five batches of a writer are reported as refused, but are in the log.",
        edits=(
            Edit(
                writers,
                "batches_of",
                "if not known or known[0].first_id <= settled_id + 1 or len(numbered) < len(entry.batches):",
                "if True:",
            ),
        ),
        checkers=LINEARIZABLE | {"resumed"},
        simulation=wal,
        seeds=(0,),
    ),
    Variant(
        "a writer that was fenced goes on",
        rule="conditional-append",
        breaks="Appends of an earlier epoch are accepted behind the fence of a later one.",
        edits=(
            Edit(
                rules,
                "judge_epoch",
                "return Fenced(current_epoch) if epoch < current_epoch else UnknownEpoch()",
                "return None",
            ),
        ),
        checkers=LINEARIZABLE,
        simulation=wal,
        seeds=(1,),
    ),
    Variant(
        "a condition is not looked at",
        rule="conditional-append",
        breaks="A conditional append is accepted regardless of the log's end.",
        edits=(Edit(rules, "judge_append", "expected_end != end_offset", "expected_end > end_offset"),),
        checkers=LINEARIZABLE,
        simulation=wal,
        seeds=(0,),
    ),
    Variant(
        "a refusal is told before its cause is committed",
        rule="conditional-append",
        breaks="A conditional append is refused because of records that a failover removes.",
        edits=(
            Edit(
                AppendStream,
                "_refuse_when_committed",
                "if partition.log.end_offset <= partition.high_watermark:",
                "if True:",
            ),
        ),
        checkers=LINEARIZABLE,
        simulation=wal,
        seeds=(4,),
    ),
    Variant(
        "a fence counts before it is committed",
        rule="conditional-append",
        breaks="A deposed leader confirms a fence that is not committed.",
        edits=(Edit(writers, "committed", "if end_offset <= partition.high_watermark:", "if True:"),),
        checkers=LINEARIZABLE,
        simulation=wal,
        seeds=(0,),
    ),
    Variant(
        "an append is acknowledged when it is appended",
        rule="acknowledged-end",
        breaks="A record is acknowledged before the other in-sync replicas have it.",
        edits=(Edit(AppendStream, "_wait", "end_offset <= partition.acknowledged_for(self._acks)", "True"),),
        checkers=LINEARIZABLE,
        simulation=wal,
        seeds=(10,),
    ),
)
