"""A type for each number, so that an offset is never passed where an epoch is meant."""

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
    """Names one partition's log on disk and in the journal.

    The topic's id, not its name: a topic that is deleted and created again is another log. The generation tells a
    log that was rebuilt in place (its data set aside) from the one before.
    """

    topic_id: TopicId
    partition: PartitionIndex
    generation: int = 0
