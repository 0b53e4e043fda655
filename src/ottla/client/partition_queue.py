"""The batches of one partition on their way to its leader. Pure: time comes in as an argument, nothing is sent here.

    open ---close---> closed ---take---> sent (in flight) ---acknowledged---> gone
                                          |        ^
                                          +-retry--+

Order and exactness rest on five rules:

* Batches leave in order. After a failure the queue recovers: it waits until nothing is in flight, then sends what
  is unresolved again, oldest first and one at a time.
* Batches are in flight to one broker at a time. If another one leads by now, what the old one has not answered lands
  first. Else a new batch could come before the retries of the older ones; and a broker remembers five batches of a
  producer, so that the sixth makes it forget the first, whose retry then looks like a gap.
* A retry has the same bytes and sequence, so the broker recognises a batch that it already has.
* The first batch of a numbering travels alone. A broker that does not know a producer takes any sequence, so it would
  take the second batch where the first was refused.
* A batch that is given up leaves a gap in the sequences. The numbering then starts again at zero with the next
  epoch, but only for batches that are certainly not in the log; those that may be are given up as well, because
  with a new number the broker could not recognise them.
"""

from __future__ import annotations

from collections import deque
from itertools import islice, takewhile

from ottla.client.batches import SEQUENCE_MASK, Batch, Identity, OpenBatch
from ottla.records.envelope import Traits

EPOCH_MAX = 0x7FFF


class EpochsUsedUpError(Exception):
    """The numbering was restarted more often than an epoch can count."""


class PartitionQueue:
    """`identity` is None for a producer without idempotence."""

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
        """Who has those that are in flight."""
        self._recovering = False
        self._numbering_broken = False
        self._not_before_s = 0.0

    @property
    def is_empty(self) -> bool:
        return self.open is None and not self._closed and not self._sent

    @property
    def unresolved(self) -> list[Batch]:
        return [*self._sent, *self._closed]

    def close_open(self, traits: Traits) -> None:
        if self.open is not None:
            batch, self.open = self.open.close(traits), None
            self._closed.append(batch)

    def append(self, batch: Batch) -> None:
        """A batch that was made elsewhere, from a table."""
        self._closed.append(batch)

    def can_send(self, now_s: float) -> bool:
        """Whether `take` would give a batch, apart from an open one that is not due."""
        if now_s < self._not_before_s:
            return False
        if self._recovering or not self._broker_knows_us:
            if self._in_flight:
                return False
            if self._recovering:
                return True
        return bool(self._closed) or (self.open is not None and self.open.ready_at_s <= now_s)

    def may_go_to(self, leader: int) -> bool:
        return not self._in_flight or leader == self._leader

    def next_event_s(self, now_s: float) -> float:
        """When time alone changes something: a pause ends, an open batch is due, a batch is past its deadline."""
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
        """The size of the batch that `take` would give, if it gives one."""
        if self._recovering:
            return len(self._sent[0].payload) if self._sent else 0
        if self._closed:
            return len(self._closed[0].payload)
        return 0 if self.open is None else self.open.size_bytes

    def take(self, now_s: float, traits: Traits, leader: int) -> Batch | None:
        """The next batch to send, from now on in flight to this leader. Call `give_up_unnumberable` before."""
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
        """Whether everything before it is settled and the numbering has no gap of our own making."""
        return bool(self._sent) and self._sent[0] is batch and not self._numbering_broken

    def acknowledged(self, batch: Batch, base_offset: int) -> None:
        self._landed(batch)
        self._sent.remove(batch)
        self._broker_knows_us = True
        if base_offset >= 0:
            self.last_acked_offset = base_offset + batch.count - 1
        if not self._sent and not self._numbering_broken:
            self._recovering = False

    def retry(self, batch: Batch, *, may_be_written: bool, not_before_s: float) -> None:
        """The batch stays; it is sent again when nothing of this partition is in flight."""
        self._landed(batch)
        batch.may_be_written = batch.may_be_written or may_be_written
        self._recovering = True
        self._not_before_s = max(self._not_before_s, not_before_s)

    def given_up(self, batch: Batch) -> None:
        """The batch leaves without being written, as far as is known."""
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
        """Too large as one: its halves take its place and its sequences."""
        self._landed(batch)
        at = self._sent.index(batch)
        halves = batch.cut_in_two()
        self._sent[at : at + 1] = halves
        self._recovering = True
        return halves

    def restart_numbering(self) -> None:
        """The broker forgot this producer: what was not written is numbered anew before the next send."""
        if self._identity is not None:
            self._numbering_broken = self._recovering = True

    def give_up_unnumberable(self) -> list[Batch]:
        """Restarts a broken numbering as soon as nothing is in flight.

        Gives back the batches that may be in the log under their old number, and so cannot be sent again.
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
        """Batches past their deadline that are not in flight; those that are have an answer or a timeout coming."""
        late = [batch for batch in self._sent if batch.deadline_s <= now_s and not batch.in_flight]
        return late + list(takewhile(lambda batch: batch.deadline_s <= now_s, self._closed))

    def _landed(self, batch: Batch) -> None:
        batch.in_flight = False
        self._in_flight -= 1
