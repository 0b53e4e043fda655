"""Variants that break what holds between the end of a log and its start: compaction and retention."""

from __future__ import annotations

from ottla.broker.topics.housekeeping import Housekeeping
from tests.simulation.broken.editing import Edit
from tests.simulation.broken.variants import Variant, long

VARIANTS = (
    Variant(
        "compact up to the high watermark",
        rule="after-failover",
        breaks="Compaction takes records of open transactions for the last ones of their keys.",
        edits=(Edit(Housekeeping, "_compacted_logs", "partition.last_stable_offset", "partition.high_watermark"),),
        checkers=frozenset({"committed", "replicas", "compacted"}),
        simulation=long,
        seeds=(0,),
    ),
    Variant(
        "retention passes the high watermark",
        rule="after-failover",
        breaks="Retention removes records that the leader has and its followers do not.",
        edits=(Edit(Housekeeping, "_apply_retention", "wall_ms, partition.high_watermark)", "wall_ms)"),),
        checkers=frozenset({"log start"}),
        simulation=long,
        seeds=(2,),
    ),
)
