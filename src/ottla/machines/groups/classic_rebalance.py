"""Rebalances of a classic group, from one generation to the next (see `classic_group` for the states)."""

from __future__ import annotations

from ottla.machines.groups.classic_group import ClassicGroup, ClassicState, Member
from ottla.machines.groups.records import ClassicRecord
from ottla.machines.groups.replies import JoinReply, SyncReply
from ottla.machines.groups.shard import Shard
from ottla.machines.groups.timers import TimerKind
from ottla.protocol.model.errors import ErrorCode


def rebalance_or_complete(shard: Shard, group: ClassicGroup) -> None:
    """Continues after the set of members has changed."""
    if group.state is ClassicState.PREPARING:
        complete_if_all_joined(shard, group)
    else:
        prepare(shard, group)


def complete_if_all_joined(shard: Shard, group: ClassicGroup) -> None:
    """Completes the join phase early. The first generation after the group was empty always waits for its initial
    delay."""
    if group.state is ClassicState.PREPARING and not group.is_initial and group.have_all_joined:
        complete_join(shard, group)


def prepare(shard: Shard, group: ClassicGroup) -> None:
    """Starts a rebalance: every member has to rejoin."""
    if group.state is ClassicState.COMPLETING:
        for member in group.members.values():
            answer_sync(shard, group, member, ErrorCode.rebalance_in_progress)
    group.unsynced.clear()
    shard.stop_timer(TimerKind.SYNC, group.name)
    group.turn(ClassicState.PREPARING, shard.now.wall_ms)
    if group.is_initial:
        group.has_new_member = False
        group.initial_delay_ms = shard.config.initial_rebalance_delay_ms
        group.initial_remaining_ms = max(0, group.rebalance_timeout_ms - group.initial_delay_ms)
        shard.start_timer(TimerKind.JOIN, group.name, group.initial_delay_ms)
    elif group.have_all_joined:
        complete_join(shard, group)
    else:
        shard.start_timer(TimerKind.JOIN, group.name, group.rebalance_timeout_ms)


def on_join_timeout(shard: Shard, name: str) -> None:
    """Ends the join phase, or extends the initial delay once more."""
    group = shard.classic.get(name)
    if group is None or group.state is not ClassicState.PREPARING:
        return
    if group.is_initial and group.has_new_member and group.initial_remaining_ms > 0:
        # Other members joined in the meantime; there may be more.
        group.has_new_member = False
        delay_ms = min(shard.config.initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.initial_remaining_ms = max(0, group.initial_remaining_ms - group.initial_delay_ms)
        group.initial_delay_ms = delay_ms
        shard.start_timer(TimerKind.JOIN, name, delay_ms)
    else:
        complete_join(shard, group)


def complete_join(shard: Shard, group: ClassicGroup) -> None:
    """Ends the join phase. Members that have not joined are removed, except static ones, whose sessions decide."""
    shard.stop_timer(TimerKind.JOIN, group.name)
    for member in list(group.members.values()):
        if not member.is_joining and member.instance_id is None:
            remove(shard, group, member.member_id)
    if group.members and not group.elect_joined_leader():
        # Only silent static members are left: wait until they rejoin or their sessions expire.
        shard.start_timer(TimerKind.JOIN, group.name, group.rebalance_timeout_ms)
        return
    group.begin_generation(shard.now.wall_ms)
    shard.emit(ClassicRecord(group.name, group.record(is_assigned=False)))
    if group.state is ClassicState.EMPTY:
        return
    for member in group.members.values():
        answer_join(shard, group, member, current_generation(group, member))
        keep_session(shard, group, member)
        member.is_new = False
        group.unsynced.add(member.member_id)
    shard.start_timer(TimerKind.SYNC, group.name, group.rebalance_timeout_ms)


def current_generation(group: ClassicGroup, member: Member) -> JoinReply:
    """Returns the JoinGroup reply for the current generation."""
    is_leader = member.member_id == group.leader
    return JoinReply(
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader or "",
        members=group.joined_members() if is_leader else (),
    )


def on_sync_timeout(shard: Shard, name: str) -> None:
    """Removes members that did not send SyncGroup in time, and rebalances."""
    group = shard.classic.get(name)
    if group is None or group.state not in (ClassicState.COMPLETING, ClassicState.STABLE) or not group.unsynced:
        return
    for member_id in list(group.unsynced):
        remove(shard, group, member_id)
    prepare(shard, group)


def on_session_timeout(shard: Shard, name: str, member_id: str) -> None:
    """Removes a member whose session expired."""
    group = shard.classic.get(name)
    if group is None:
        return
    if member_id in group.pending:
        group.pending.discard(member_id)
        if group.state is ClassicState.PREPARING and group.have_all_joined:
            complete_join(shard, group)
        shard.forget_if_bare(name)
        return
    member = group.members.get(member_id)
    if member is not None and not member.may_be_silent:
        remove(shard, group, member_id)
        settle_after_removal(shard, group)


def settle_after_removal(shard: Shard, group: ClassicGroup) -> None:
    """Rebalances, or completes the join phase, after a member was removed."""
    if group.state in (ClassicState.STABLE, ClassicState.COMPLETING):
        prepare(shard, group)
    elif group.state is ClassicState.PREPARING and group.have_all_joined:
        complete_join(shard, group)


def remove(shard: Shard, group: ClassicGroup, member_id: str) -> None:
    """Removes a member, or an id that was only given out. Its waiting requests get UNKNOWN_MEMBER_ID."""
    shard.stop_timer(TimerKind.SESSION, group.name, member_id)
    member = group.remove(member_id)
    if member is not None:
        answer_join(shard, group, member, JoinReply(error=ErrorCode.unknown_member_id))
        answer_sync(shard, group, member, ErrorCode.unknown_member_id)


def keep_session(shard: Shard, group: ClassicGroup, member: Member) -> None:
    """Restarts the session timeout of a member."""
    shard.start_timer(TimerKind.SESSION, group.name, member.session_timeout_ms, member.member_id)


def answer_join(shard: Shard, group: ClassicGroup, member: Member, reply: JoinReply) -> None:
    """Replies to the member's JoinGroup, if it waits for one."""
    if member.join_ticket is not None:
        shard.answer(member.join_ticket, reply)
        member.join_ticket = None


def answer_sync(shard: Shard, group: ClassicGroup, member: Member, error: ErrorCode) -> None:
    """Replies to the member's SyncGroup, if it waits for one."""
    if member.sync_ticket is None:
        return
    if error is ErrorCode.none:
        reply = SyncReply(protocol_type=group.protocol_type, protocol=group.protocol, assignment=member.assignment)
    else:
        reply = SyncReply(error=error)
    shard.answer(member.sync_ticket, reply)
    member.sync_ticket = None
    if member.member_id in group.members:
        # Its session could not expire while it waited.
        keep_session(shard, group, member)
