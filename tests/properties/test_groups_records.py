"""Round trips of records; arbitrary bytes in a log are decoded or rejected, without a crash."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ottla.machines.coordinators import Instant
from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.coordinator import GroupCoordinator
from ottla.machines.groups.encoding import decode, encode
from ottla.machines.groups.records import (
    Assignment,
    ClassicGeneration,
    ClassicMember,
    ClassicProtocols,
    ClassicRecord,
    CommittedOffset,
    ConsumerMember,
    CurrentAssignment,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    MemberState,
    OffsetRecord,
    Record,
    RegexRecord,
    ResolvedRegex,
    SubscribedTopicsRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicFacts,
    Unknown,
    Unreadable,
)
from ottla.machines.groups.requests import TopicsChanged
from ottla.protocol.model.ids import TopicId

texts = st.text(st.characters(codec="utf-8"), max_size=12)
names = st.sampled_from(["g", "h", "member", ""])
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
topic_ids = st.builds(TopicId, st.builds(UUID, int=st.integers(0, 3)))
assignments: st.SearchStrategy[Assignment] = st.frozensets(st.tuples(topic_ids, int32s), max_size=5)
offsets = st.builds(CommittedOffset, int64s, int32s, texts, int64s, st.just(-1)) | st.builds(
    CommittedOffset, int64s, st.just(-1), texts, int64s, st.integers(0, 1 << 60)
)
classic_members = st.builds(
    ClassicMember,
    texts,
    st.none() | texts,
    texts,
    texts,
    st.integers(0, 1 << 30),
    int32s,
    st.binary(max_size=9),
    st.binary(max_size=9),
)
generations = st.builds(
    ClassicGeneration,
    texts,
    int32s,
    st.none() | texts,
    st.none() | texts,
    int64s,
    st.lists(classic_members, max_size=3).map(tuple),
)
protocols = st.builds(
    ClassicProtocols, int32s, st.lists(st.tuples(texts, st.binary(max_size=9)), max_size=3).map(tuple)
)
consumers = st.builds(
    ConsumerMember,
    st.none() | texts,
    st.none() | texts,
    texts,
    texts,
    st.lists(texts, max_size=3).map(tuple),
    st.none() | texts,
    int32s,
    st.none() | texts,
    st.none() | protocols,
)
currents = st.builds(CurrentAssignment, int32s, int32s, st.sampled_from(MemberState), assignments, assignments)
facts = st.dictionaries(texts, st.builds(TopicFacts, topic_ids, int32s), max_size=3)
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(OffsetRecord, names, texts, int32s, st.none() | offsets),
    st.builds(ClassicRecord, names, st.none() | generations),
    st.builds(GroupEpochRecord, names, st.none() | int32s),
    st.builds(SubscribedTopicsRecord, names, st.none() | facts.map(lambda found: tuple(sorted(found.items())))),
    st.builds(MemberRecord, names, names, st.none() | consumers),
    st.builds(TargetEpochRecord, names, st.none() | int32s),
    st.builds(TargetRecord, names, names, st.none() | assignments),
    st.builds(CurrentRecord, names, names, st.none() | currents),
    st.builds(
        RegexRecord,
        names,
        texts,
        st.none() | st.builds(ResolvedRegex, st.lists(texts, max_size=3).map(tuple), int64s, int64s),
    ),
)


@given(records)
def test_there_and_back(record: Record) -> None:
    assert decode(*encode(record)) == record


@given(records, st.data())
def test_a_record_that_was_cut_or_changed_is_refused_or_another(record: Record, data: st.DataObject) -> None:
    key, value = encode(record)
    if value is not None and data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(value) - 1))
        assert isinstance(decode(key, value[:cut]), Unreadable)
    else:
        place, byte = data.draw(st.integers(0, len(key) - 1)), data.draw(st.integers(0, 255))
        decode(key[:place] + bytes([byte]) + key[place + 1 :], value)


@given(st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_whatever_bytes(key: bytes, value: bytes | None) -> None:
    found = decode(key, value)
    if not isinstance(found, Unknown | Unreadable):
        assert decode(*encode(found)) == found


@given(st.lists(records, max_size=12))
def test_a_log_of_any_records_is_loaded(log: list[Record]) -> None:
    """Even if it is inconsistent, such as assignments without members."""
    coordinator = GroupCoordinator(GroupConfig())
    for record in log:
        coordinator.replay(*encode(record))
    assert not coordinator.unreadable
    coordinator.loaded(TopicsChanged(topics={}), Instant(0, 0))
    coordinator.tick(Instant(10**10, 10**10))
