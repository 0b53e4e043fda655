"""Variants that break the rules for groups: committed state, failover, fencing, single ownership."""

from __future__ import annotations

from ottla.broker.coordinators.led_shard import LedShard
from ottla.machines.groups import consumer_members, offset_requests
from tests.simulation.broken.editing import Edit
from tests.simulation.broken.variants import Variant, groups

LOST = frozenset({"commits", "fencing", "generations", "one owner"})
"""The checkers that may report lost group state, which has many symptoms."""

VARIANTS = (
    Variant(
        "a coordinator answers before it is committed",
        rule="coordinators",
        breaks="Replies are sent when their records are appended, before the high watermark has reached them.",
        edits=(Edit(LedShard, "_let_go", "if end <= self.partition.high_watermark:", "if True:"),),
        checkers=LOST,
        simulation=groups,
        seeds=(0,),
    ),
    Variant(
        "a coordinator loads up to the watermark that it knows",
        rule="after-failover, coordinators",
        breaks="A new leader loads the log up to a high watermark that may be below what was acknowledged.",
        edits=(Edit(LedShard, "_replay", "end = partition.log.end_offset", "end = partition.high_watermark"),),
        checkers=LOST | {"alive"},
        simulation=groups,
        seeds=(0,),
    ),
    Variant(
        "a deposed coordinator answers what it held back",
        rule="coordinators",
        breaks="Replies that wait for their commit are sent although leadership ended before it.",
        edits=(Edit(LedShard, "_settle", "if error is ErrorCode.none:", "if True:"),),
        checkers=LOST,
        simulation=groups,
        seeds=(0,),
    ),
    Variant(
        "a generation that is over may commit",
        rule="ADR 10",
        breaks="The generation of a commit is not compared with that of the group.",
        edits=(
            Edit(offset_requests, "_classic_commit_refusal", "if refusal is not None:", "if False:"),
            Edit(offset_requests, "_classic_commit_refusal", "if request.generation != group.generation:", "if False:"),
        ),
        checkers=frozenset({"fencing"}),
        simulation=groups,
        seeds=(0,),
    ),
    Variant(
        "a partition is given out before it was given up",
        rule="ADR 10",
        breaks="A member of the consumer protocol gets its target at once, including partitions that others still own.",
        edits=(
            Edit(consumer_members, "reconcile_member", "lambda each: each not in group.owners", "lambda each: True"),
        ),
        checkers=frozenset({"one owner", "fencing"}),
        simulation=groups,
        seeds=(0,),
    ),
)
