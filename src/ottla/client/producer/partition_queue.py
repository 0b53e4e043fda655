"""The batches of one partition on their way to its leader. Pure: time is an argument, and nothing is sent here.

    open ---close---> closed ---take---> sent (in flight) ---acknowledged---> gone
                                          |        ^
                                          +-retry--+

Ordering and exactly-once delivery rest on five rules:

- Batches are sent in order. After a failure the queue recovers: it waits until nothing is in flight, then resends
  unresolved batches, oldest first and one at a time.
- Batches are in flight to one broker at a time. After a leader change, the replies of the old leader are awaited
  first. Otherwise a new batch could overtake the retries of older ones. Also, a broker remembers five batches of a
  producer, so the sixth makes it forget the first, whose retry then looks like a gap.
- A retry has the same bytes and sequence, so the broker recognises a batch that it already has.
- The first batch of a sequence is sent alone. A broker that does not know a producer accepts any sequence number, so it
  would accept the second batch after rejecting the first.
- A batch that is given up leaves a gap in the sequence. The sequence then restarts at zero with the next epoch, but
  only for batches that are certainly not in the log. Batches that may be in the log are given up as well, because the
  broker could not recognise them under a new number.
"""

from __future__ import annotations

from collections import deque
from itertools import islice, takewhile

from ottla.client.producer.batches import SEQUENCE_MASK, Batch, Identity, OpenBatch
from ottla.protocol.records.envelope import Traits

EPOCH_MAX = 0x7FFF


class EpochsUsedUpError(Exception):
    """The sequence was restarted more often than an epoch can count."""


class PartitionQueue:
    """The queue of one partition. `identity` is None for a producer without idempotence."""

    def __init__(self, topic: str, partition: int, identity: Identity | None) -> None:
        self.topic = topic
        self.partition = partition
        self.open: OpenBatch | None = None
        self.last_acked_offset = -1
        self._identity = identity
        self._next_sequence = 0
        self._broker_knows_us = identity is None
        self._closed: deque[Batch] = deque()
        self._sent: list[Batch] = []
        self._in_flight = 0
        self._leader = -1
        """The broker that batches are in flight to."""
        self._recovering = False
        self._numbering_broken = False
        self._not_before_s = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether there are neither records nor batches."""
        return self.open is None and not self._closed and not self._sent

    @property
    def unresolved(self) -> list[Batch]:
        """All closed batches without a final outcome, oldest first."""
        return [*self._sent, *self._closed]

    def close_open(self, traits: Traits) -> None:
        """Closes the open batch, if there is one."""
        if self.open is not None:
            batch, self.open = self.open.close(traits), None
            self._closed.append(batch)

    def append(self, batch: Batch) -> None:
        """Adds a batch that was built elsewhere, from a table."""
        self._closed.append(batch)

    def can_send(self, now_s: float) -> bool:
        """Returns whether `take` would return a batch. An open batch counts only if it is due."""
        if now_s < self._not_before_s:
            return False
        if self._recovering or not self._broker_knows_us:
            if self._in_flight:
                return False
            if self._recovering:
                return True
        return bool(self._closed) or (self.open is not None and self.open.ready_at_s <= now_s)

    def may_go_to(self, leader: int) -> bool:
        """Returns whether batches may be sent to this leader, because none is in flight to another broker."""
        return not self._in_flight or leader == self._leader

    def next_event_s(self, now_s: float) -> float:
        """Returns when time alone changes something: a backoff ends, an open batch is due, or a deadline passes."""
        times = [batch.deadline_s for batch in (*self._sent[:1], *islice(self._closed, 1)) if not batch.in_flight]
        if self._not_before_s > now_s:
            times.append(self._not_before_s)
        if self.open is not None and not self._closed:
            times.append(self.open.deadline_s)
            if self.open.ready_at_s > now_s:
                times.append(self.open.ready_at_s)
        return min(times, default=float("inf"))

    @property
    def next_bytes(self) -> int:
        """The size of the batch that `take` would return."""
        if self._recovering:
            return len(self._sent[0].payload) if self._sent else 0
        if self._closed:
            return len(self._closed[0].payload)
        return 0 if self.open is None else self.open.size_bytes

    def take(self, now_s: float, traits: Traits, leader: int) -> Batch | None:
        """Returns the next batch, which is then in flight to this leader. Call `give_up_unnumberable` first."""
        if not self.can_send(now_s) or not self.may_go_to(leader):
            return None
        if self._recovering:
            batch = self._sent[0]
        else:
            if not self._closed:
                self.close_open(traits)
            batch = self._closed.popleft()
            self._sent.append(batch)
            self._number(batch)
        batch.in_flight = True
        self._leader = leader
        self._in_flight += 1
        return batch

    def _number(self, batch: Batch) -> None:
        if self._identity is not None:
            batch.number(self._identity, self._next_sequence)
            self._next_sequence = (self._next_sequence + batch.count) & SEQUENCE_MASK

    def is_first_unresolved(self, batch: Batch) -> bool:
        """Returns whether all earlier batches are settled and no given-up batch left a gap in the sequence."""
        return bool(self._sent) and self._sent[0] is batch and not self._numbering_broken

    def acknowledged(self, batch: Batch, base_offset: int) -> None:
        """Removes an acknowledged batch."""
        self._landed(batch)
        self._sent.remove(batch)
        self._broker_knows_us = True
        if base_offset >= 0:
            self.last_acked_offset = base_offset + batch.count - 1
        if not self._sent and not self._numbering_broken:
            self._recovering = False

    def retry(self, batch: Batch, *, may_be_written: bool, not_before_s: float) -> None:
        """Keeps the batch; it is sent again when nothing of this partition is in flight."""
        self._landed(batch)
        batch.may_be_written = batch.may_be_written or may_be_written
        self._recovering = True
        self._not_before_s = max(self._not_before_s, not_before_s)

    def given_up(self, batch: Batch) -> None:
        """Removes a batch that, as far as is known, was not written."""
        if batch.in_flight:
            self._landed(batch)
        if batch not in self._sent:
            self._closed.remove(batch)
            return
        self._sent.remove(batch)
        if self._identity is not None:
            self._numbering_broken = self._recovering = True
        elif not self._sent:
            self._recovering = False

    def cut(self, batch: Batch) -> tuple[Batch, Batch]:
        """Replaces a batch that is too large by its halves, which share its sequence numbers."""
        self._landed(batch)
        at = self._sent.index(batch)
        halves = batch.cut_in_two()
        self._sent[at : at + 1] = halves
        self._recovering = True
        return halves

    def restart_numbering(self) -> None:
        """Restarts the sequence before the next send, because the broker forgot this producer."""
        if self._identity is not None:
            self._numbering_broken = self._recovering = True

    def give_up_unnumberable(self) -> list[Batch]:
        """Restarts a broken sequence once nothing is in flight.

        Returns the batches that may be in the log under their old number, and so cannot be sent again.
        """
        if not self._numbering_broken or self._in_flight:
            return []
        assert self._identity is not None
        lost = [batch for batch in self._sent if batch.may_be_written]
        self._sent = [batch for batch in self._sent if not batch.may_be_written]
        if self._identity.epoch >= EPOCH_MAX:
            raise EpochsUsedUpError
        self._identity = Identity(self._identity.producer_id, self._identity.epoch + 1)
        self._next_sequence = 0
        self._broker_knows_us = False
        for batch in self._sent:
            self._number(batch)
        self._numbering_broken = False
        self._recovering = bool(self._sent)
        return lost

    def expired(self, now_s: float) -> list[Batch]:
        """Returns batches past their deadline that are not in flight; those in flight will get a reply or a timeout."""
        late = [batch for batch in self._sent if batch.deadline_s <= now_s and not batch.in_flight]
        return late + list(takewhile(lambda batch: batch.deadline_s <= now_s, self._closed))

    def _landed(self, batch: Batch) -> None:
        batch.in_flight = False
        self._in_flight -= 1
