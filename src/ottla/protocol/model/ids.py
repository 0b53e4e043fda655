"""A distinct type for each kind of number, so that an offset is never passed where an epoch is expected."""

from __future__ import annotations

from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
BrokerId = NewType("BrokerId", int)
PartitionIndex = NewType("PartitionIndex", int)
TopicId = NewType("TopicId", UUID)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
Sequence = NewType("Sequence", int)
TimestampMs = NewType("TimestampMs", int)

NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_TIMESTAMP = TimestampMs(-1)
NO_PRODUCER = ProducerId(-1)
NO_TOPIC_ID = TopicId(UUID(int=0))


class LogKey(NamedTuple):
    """Identifies the log of one partition, on disk and in the journal.

    It has the topic's id, not its name: a topic that is deleted and recreated is another log. The generation
    distinguishes a log that was rebuilt in place, with its data set aside, from the one before.
    """

    topic_id: TopicId
    partition: PartitionIndex
    generation: int = 0
