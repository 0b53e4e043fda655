"""Variants that break the rules between brokers: acknowledgement, ISR membership, epochs, elections."""

from __future__ import annotations

from ottla.broker.cluster import controller_loop as controller_duty
from ottla.broker.cluster.isr_changes import IsrChanges
from ottla.broker.cluster.roles import PartitionRoles
from ottla.broker.partition import batch_validation as judging
from ottla.broker.partition import divergence
from ottla.broker.partition.follower_partition import FollowerPartition
from ottla.broker.partition.partition import Partition
from ottla.machines.controller import broker_requests, election, isr
from ottla.machines.controller.election import View
from ottla.machines.replication import LeaderReplication
from tests.simulation.broken.editing import Edit
from tests.simulation.broken.variants import Variant

VARIANTS = (
    Variant(
        "acknowledge before the followers have it",
        rule="acknowledged-end",
        breaks="The high watermark is the leader's own acknowledged end, regardless of its followers.",
        edits=(
            Edit(
                LeaderReplication, "_advance", "for members in (self.isr, self.proposed or ()):", "for members in ():"
            ),
        ),
        checkers=frozenset({"watermark", "holders"}),
        seeds=(0,),
    ),
    Variant(
        "acknowledge before the ISR change is stored",
        rule="isr-changes",
        breaks="A shrink of the ISR counts when it is sent, before the store has confirmed it.",
        edits=(
            Edit(
                IsrChanges,
                "check",
                "leading.on_isr_sent(wanted)",
                "leading.on_isr_sent(wanted); leading.isr = dict(wanted)\n"
                "    if leading._advance():\n        partition.on_watermark()",
            ),
        ),
        checkers=frozenset({"watermark", "holders"}),
        seeds=(4,),
    ),
    Variant(
        "an expansion counts when it is stored",
        rule="isr-changes",
        breaks="A joining replica does not hold back the high watermark until the store has confirmed it.",
        edits=(Edit(LeaderReplication, "_advance", "(self.isr, self.proposed or ())", "(self.isr,)"),),
        checkers=frozenset({"watermark", "holders"}),
        seeds=(5,),
    ),
    Variant(
        "accept a stale epoch",
        rule="synced-ends",
        breaks="Records of an old epoch count for a follower, although that epoch ends earlier in the leader's log.",
        edits=(
            Edit(
                divergence,
                "divergence",
                "if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:",
                "if epoch < wanted.last_fetched_epoch:",
            ),
        ),
        checkers=frozenset({"committed", "replicas", "watermark", "acknowledged", "joining", "holders"}),
        seeds=(11,),
    ),
    Variant(
        "a deposed leader stores its ISR",
        rule="controller-writes",
        breaks="A leader writes its ISR without comparing the partition's epoch, and so undoes an election.",
        edits=(Edit(isr, "isr_change", "return Write(tuple(conditions),", "return Write((),"),),
        checkers=frozenset({"election", "one leader an epoch", "committed", "watermark", "joining", "holders"}),
        seeds=(67,),
    ),
    Variant(
        "go on in the old epoch after a restart",
        rule="one-history",
        breaks="A leader that restarts inside its lease continues in its previous leader epoch.",
        edits=(
            Edit(View, "leader_stands", "and registration.epoch == state.leader_broker_epoch", ""),
            Edit(
                election,
                "_led_by",
                "is_new_epoch = current != state.leader_member",
                "is_new_epoch = current.broker_id != state.leader",
            ),
        ),
        checkers=frozenset({"one leader an epoch", "one history an epoch"}),
        seeds=(0,),
    ),
    Variant(
        "elect outside the ISR",
        rule="eligible-replicas",
        breaks="Any live replica may lead, in the order of the replicas.",
        edits=(
            Edit(
                election,
                "decide",
                "in_sync = [member for member in state.isr if view.is_alive(member)]",
                "in_sync = [view.current(each) for each in state.replicas if view.can_lead(each)]",
            ),
        ),
        checkers=frozenset({"election", "joining", "committed", "holders"}),
        seeds=(4, 5),
    ),
    Variant(
        "elect an empty memory replica",
        rule="lost-incarnation",
        breaks="A restarted `memory` replica counts as the ISR member that it was before.",
        edits=(
            Edit(
                broker_requests,
                "kept_since",
                "if start.process_id and start.process_id == previous.process_id:",
                "if True:",
            ),
        ),
        checkers=frozenset({"election", "committed", "holders"}),
        seeds=(4,),
    ),
    Variant(
        "a cache replica survives a power cut",
        rule="lost-incarnation",
        breaks="Neither the boot id nor a clean shutdown is checked: unsynced pages count as kept.",
        edits=(
            Edit(
                broker_requests,
                "kept_since",
                "had_its_pages = start.boot_id == previous.boot_id or start.clean_shutdown_epoch == previous.epoch",
                "had_its_pages = True",
            ),
        ),
        checkers=frozenset({"election", "committed", "holders"}),
        seeds=(20,),
    ),
    Variant(
        "a replaced disk counts as the old one",
        rule="lost-incarnation",
        breaks="The directory id is not compared: a broker with an empty disk counts as the ISR member that it was.",
        edits=(
            Edit(
                broker_requests,
                "kept_since",
                "if previous is not None and previous.directory_id == start.directory_id:",
                "if previous is not None:",
            ),
        ),
        checkers=frozenset({"election", "committed", "holders"}),
        seeds=(22,),
    ),
    Variant(
        "skip a truncation",
        rule="journal-order",
        breaks="A follower whose history diverges from its leader's keeps its records and continues fetching.",
        edits=(Edit(divergence, "divergence", "if wanted.last_fetched_epoch < 0:", "if True:"),),
        checkers=frozenset({"joining", "committed", "replicas", "watermark", "acknowledged", "holders"}),
        seeds=(1, 11),
    ),
    Variant(
        "truncate to the watermark",
        rule="after-failover",
        breaks="A follower of a new leader truncates its log at the high watermark it knows, which may be stale.",
        edits=(
            Edit(
                PartitionRoles,
                "_follow",
                "self.fetchers.follow(partition, registration)",
                "partition.log.truncating or watermark < partition.log.start_offset or "
                "self._context.store.truncate(partition.log, watermark, lambda _: None); "
                "self.fetchers.follow(partition, registration)",
            ),
        ),
        checkers=frozenset({"committed", "watermark", "holders"}),
        seeds=(0, 4),
    ),
    Variant(
        "a follower acknowledges before its sync",
        rule="acknowledged-end, synced-ends",
        breaks="The fetch offset of a follower counts as its synced end.",
        edits=(Edit(LeaderReplication, "on_fetched", "if self._acknowledges_by_fetch:", "if True:"),),
        checkers=frozenset({"watermark", "committed", "holders"}),
        seeds=(0,),
    ),
    Variant(
        "two are enough",
        rule="acknowledged-end",
        breaks="The high watermark is what two replicas have, not what every member of the ISR has.",
        edits=(
            Edit(
                LeaderReplication,
                "_advance",
                "follower is not None else UNKNOWN)",
                "follower is not None else UNKNOWN)\n"
                "    ends = sorted([self._acknowledged_end, *(f.acknowledged_end for f in self._followers.values())])\n"
                "    least = min(self._acknowledged_end, ends[-2])",
            ),
        ),
        checkers=frozenset({"watermark", "holders"}),
        seeds=(0,),
    ),
    Variant(
        "the last replica standing moves the watermark",
        rule="eligible-replicas",
        breaks="The high watermark advances below min.insync.replicas, past what eligible replicas have.",
        edits=(
            Edit(LeaderReplication, "_advance", "if not self.has_enough_in_sync or self._has_eligible:", "if False:"),
        ),
        checkers=frozenset({"committed", "seen", "holders"}),
        seeds=(6,),
    ),
    Variant(
        "join the ISR without the epoch's start",
        rule="isr-changes",
        breaks="A replica joins the ISR as soon as it fetches.",
        edits=(
            Edit(LeaderReplication, "_in_sync_epoch", "and follower.acknowledged_end >= self.high_watermark", ""),
            Edit(LeaderReplication, "_in_sync_epoch", "and follower.acknowledged_end >= self._epoch_start", ""),
            Edit(
                LeaderReplication,
                "_in_sync_epoch",
                "and now_ms - follower.caught_up_ms <= self._lag_max_ms",
                "",
            ),
        ),
        checkers=frozenset({"joining", "watermark", "committed", "holders"}),
        seeds=(1,),
    ),
    Variant(
        "show what is not committed",
        rule="after-failover",
        breaks="A consumer reads up to the end of the leader's log.",
        edits=(
            Edit(
                Partition,
                "read",
                "return self.log.read(offset, max_bytes, upto, keeps_empty=False)",
                "return self.log.read(offset, max_bytes, self.log.end_offset, keeps_empty=False)",
            ),
        ),
        checkers=frozenset({"seen", "order of reading"}),
        seeds=(1, 6),
    ),
    Variant(
        "answer a duplicate at once",
        rule="duplicates",
        breaks="A duplicate is acknowledged before the original is.",
        edits=(
            Edit(
                judging,
                "judge",
                "return Appended(batch.base_offset, batch.end_offset,",
                "return Appended(batch.base_offset, 0,",
            ),
        ),
        checkers=frozenset({"acknowledged", "committed", "holders"}),
        seeds=(4,),
    ),
    Variant(
        "forget producers at a failover",
        rule="duplicates",
        breaks="A follower does not update its producer state from the leader's batches.",
        edits=(
            Edit(
                FollowerPartition,
                "_append",
                "log.append_run(run)",
                "log.append_run(run); log.producers.expire(1 << 62)",
            ),
            Edit(
                FollowerPartition,
                "_append_one",
                "log.append(header, batch)",
                "log.append(header, batch); log.producers.expire(1 << 62)",
            ),
        ),
        checkers=frozenset({"once", "order"}),
        seeds=(11,),
    ),
    Variant(
        "a fenced controller writes on",
        rule="controller-writes",
        breaks="Controller writes are not conditional on the controller's entry and the partitions' versions. "
        "The controller is also slow, which alone is harmless.",
        edits=(
            Edit(
                controller_duty.ControllerLoop,
                "_try",
                "revision = await commit(self._membership.store, write)",
                "await sleep(self._clock, 1000.0); "
                'revision = await commit(self._membership.store, write if "control" in write.why else '
                "type(write)((), write.operations, write.why))",
            ),
        ),
        checkers=frozenset({"election", "one leader an epoch", "committed", "watermark", "holders"}),
        seeds=(18,),
    ),
)
