"""Commits, fetches, deletes and expires offsets.

A member of the current generation or epoch may commit. Anybody else may commit only while the group has no members, and
without naming a generation: an administrator, or a consumer that assigns its partitions itself (a simple group).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.machines.coordinators import Ticket
from ottla.machines.groups.classic_group import ClassicGroup, ClassicState
from ottla.machines.groups.consumer_rules import offset_commit_refusal, offset_fetch_refusal, subscribed_names
from ottla.machines.groups.offset_table import OffsetKey
from ottla.machines.groups.records import NO_TIME, CommittedOffset, OffsetRecord
from ottla.machines.groups.replies import (
    NONE,
    CommitReply,
    DeleteOffsetsReply,
    FetchedOffset,
    FetchOffsetsReply,
)
from ottla.machines.groups.requests import CommitOffsets, DeleteOffsets, FetchOffsets, OffsetToCommit
from ottla.machines.groups.shard import Shard
from ottla.machines.groups.timers import TimerKind
from ottla.protocol.model.errors import ErrorCode
from ottla.reach import branch

_OFFSET_EXPIRED = branch("a committed offset expires", __name__)

TIME_MAX_MS = (1 << 63) - 1

Expiry = Callable[[CommittedOffset], int]
"""Returns the time from which the retention of an offset counts."""


def commit_offsets(shard: Shard, ticket: Ticket, request: CommitOffsets) -> None:
    """OffsetCommit and TxnOffsetCommit."""
    refusal = _commit_refusal(shard, request)
    if refusal is not None:
        shard.answer(ticket, CommitReply((refusal,) * len(request.offsets)))
        return
    _keep_session(shard, request)
    shard.answer(ticket, CommitReply(tuple(_commit(shard, request, offset) for offset in request.offsets)))


def _commit(shard: Shard, request: CommitOffsets, offset: OffsetToCommit) -> ErrorCode:
    if len(offset.metadata) > shard.config.offset_metadata_max_bytes:
        return ErrorCode.offset_metadata_too_large
    now_ms = shard.now.wall_ms
    value = CommittedOffset(offset.offset, offset.leader_epoch, offset.metadata, now_ms)
    if request.retention_ms >= 0:
        # The record version with an expiry has no leader epoch. Neither do the clients that ask for a retention.
        value = value._replace(leader_epoch=-1, expires_ms=min(now_ms + request.retention_ms, TIME_MAX_MS))
    record = OffsetRecord(request.group, offset.topic, offset.partition, value)
    if request.producer_id is None:
        shard.emit(record)
    else:
        shard.emit_in_transaction(record, request.producer_id, request.producer_epoch)
    return NONE


def _commit_refusal(shard: Shard, request: CommitOffsets) -> ErrorCode | None:
    is_transactional = request.producer_id is not None
    consumer_group = shard.tables.consumer.get(request.group)
    if consumer_group is not None:
        refusal = offset_commit_refusal(consumer_group, request)
        if is_transactional and refusal is ErrorCode.stale_member_epoch:
            return ErrorCode.illegal_generation
        return refusal
    group = shard.classic.get(request.group)
    if group is not None:
        return _classic_commit_refusal(group, request)
    if request.generation < 0:
        return None
    if shard.tables.offsets.has_group(request.group):
        return ErrorCode.unknown_member_id
    if request.knows_epochs and not is_transactional:
        return ErrorCode.group_id_not_found
    return ErrorCode.illegal_generation


def _classic_commit_refusal(group: ClassicGroup, request: CommitOffsets) -> ErrorCode | None:
    is_transactional = request.producer_id is not None
    if request.generation < 0 and group.state is ClassicState.EMPTY:
        return None
    if request.generation >= 0 or request.member_id or request.instance_id is not None:
        refusal = group.refusal(request.member_id, request.instance_id)
        if refusal is not None:
            return refusal
        if request.generation != group.generation:
            return ErrorCode.illegal_generation
    elif not is_transactional:
        return ErrorCode.unknown_member_id
    if not is_transactional and group.state is ClassicState.COMPLETING:
        return ErrorCode.rebalance_in_progress
    return None


def _keep_session(shard: Shard, request: CommitOffsets) -> None:
    """Renews the session: a commit by a classic member counts as a heartbeat."""
    group = shard.classic.get(request.group)
    if group is None or request.producer_id is not None:
        return
    member = group.members.get(request.member_id)
    if member is not None and group.state in (ClassicState.STABLE, ClassicState.PREPARING):
        shard.start_timer(TimerKind.SESSION, group.name, member.session_timeout_ms, member.member_id)


def fetch_offsets(shard: Shard, ticket: Ticket, request: FetchOffsets) -> None:
    """OffsetFetch for one group."""
    group = shard.tables.consumer.get(request.group)
    refusal = None if group is None else offset_fetch_refusal(group, request)
    if refusal is not None:
        shard.answer(ticket, FetchOffsetsReply(refusal))
        return
    found = (_fetched(shard, key, request.require_stable) for key in _wanted(shard, request))
    shard.answer(ticket, FetchOffsetsReply(NONE, tuple(found)))


def _wanted(shard: Shard, request: FetchOffsets) -> Iterable[OffsetKey]:
    if request.topics is None:
        offsets = shard.tables.offsets
        return [key for key in offsets.keys(request.group) if offsets.get(key) is not None]
    return _keys(request.group, request.topics)


def _keys(group: str, topics: Iterable[tuple[str, tuple[int, ...]]]) -> list[OffsetKey]:
    return [OffsetKey(group, topic, partition) for topic, partitions in topics for partition in partitions]


def _fetched(shard: Shard, key: OffsetKey, require_stable: bool) -> FetchedOffset:
    offsets = shard.tables.offsets
    if require_stable and offsets.is_pending(key):
        return FetchedOffset(key.topic, key.partition, None, ErrorCode.unstable_offset_commit)
    return FetchedOffset(key.topic, key.partition, offsets.get(key))


def delete_offsets(shard: Shard, ticket: Ticket, request: DeleteOffsets) -> None:
    """OffsetDelete."""
    refusal = _delete_refusal(shard, request.group)
    if refusal is not None:
        shard.answer(ticket, DeleteOffsetsReply(refusal))
        return
    is_subscribed = _subscription(shard, request.group)
    done = tuple(
        (key.topic, key.partition, _delete(shard, key, is_subscribed(key.topic)))
        for key in _keys(request.group, request.topics)
    )
    shard.answer(ticket, DeleteOffsetsReply(NONE, done))


def _delete_refusal(shard: Shard, name: str) -> ErrorCode | None:
    if not name:
        return ErrorCode.invalid_group_id
    if not shard.exists(name):
        return ErrorCode.group_id_not_found
    group = shard.classic.get(name)
    if group is not None and group.state is not ClassicState.EMPTY and not group.uses_consumer_protocol:
        # Only such members know what they read.
        return ErrorCode.non_empty_group
    return None


def _delete(shard: Shard, key: OffsetKey, is_subscribed: bool) -> ErrorCode:
    if is_subscribed:
        return ErrorCode.group_subscribed_to_topic
    if shard.tables.offsets.get(key) is not None or shard.tables.offsets.is_pending(key):
        remove(shard, key)
    return NONE


def _subscription(shard: Shard, name: str) -> Callable[[str], bool]:
    """Returns a predicate: whether a member of the group subscribes to a topic."""
    consumer_group = shard.tables.consumer.get(name)
    if consumer_group is not None:
        return subscribed_names(consumer_group).__contains__
    group = shard.classic.get(name)
    topics = frozenset[str]() if group is None else group.subscribed()
    if topics is None:
        # A consumer whose subscription cannot be read may read any topic; other members do not subscribe to topics.
        may_be = group is not None and group.uses_consumer_protocol
        return lambda _: may_be
    return topics.__contains__


def remove(shard: Shard, key: OffsetKey) -> None:
    """Writes a tombstone for one offset."""
    shard.emit(OffsetRecord(key.group, key.topic, key.partition, None))


def remove_all(shard: Shard, group: str) -> None:
    """Writes tombstones for all offsets of a group."""
    for key in list(shard.tables.offsets.keys(group)):
        remove(shard, key)


def remove_of_topics(shard: Shard, topics: Iterable[str]) -> None:
    """Removes the offsets of deleted topics. A topic created again under the same name starts without offsets."""
    gone = frozenset(topics)
    if not gone:
        return
    for group in sorted(shard.tables.offsets.groups()):
        for key in list(shard.tables.offsets.keys(group)):
            if key.topic in gone:
                remove(shard, key)


def expire(shard: Shard, group: str) -> bool:
    """Removes offsets whose retention has expired. Returns whether none is left, committed or pending."""
    offsets = shard.tables.offsets
    base = _expiry(shard, group)
    if base is None:
        return not offsets.has_group(group)
    is_subscribed = _subscription(shard, group)
    for key in list(offsets.keys(group)):
        value = offsets.get(key)
        if value is None or offsets.is_pending(key) or is_subscribed(key.topic):
            continue
        if _is_expired(shard, value, base):
            _OFFSET_EXPIRED()
            remove(shard, key)
    return not offsets.has_group(group)


def _is_expired(shard: Shard, value: CommittedOffset, base: Expiry) -> bool:
    now_ms = shard.now.wall_ms
    if value.expires_ms != NO_TIME:
        return now_ms >= value.expires_ms
    return now_ms - base(value) >= shard.config.offsets_retention_ms


def _expiry(shard: Shard, name: str) -> Expiry | None:
    """Returns how retention is counted for a group; None if nothing expires now."""
    group = shard.classic.get(name)
    if group is None or group.protocol_type is None:
        return _since_commit
    if group.state is ClassicState.EMPTY:
        since_ms = group.since_ms
        return _since_commit if since_ms == NO_TIME else lambda _: since_ms
    if group.state is ClassicState.STABLE and group.subscribed() is not None:
        return _since_commit
    return None


def _since_commit(value: CommittedOffset) -> int:
    return value.committed_ms
