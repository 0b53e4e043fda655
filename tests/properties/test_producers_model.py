"""The producers' state machine compared with a naive model that remembers every batch it ever accepted.

The model numbers records without wrap-around; the machine sees the numbers modulo 2^31.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.storage.epochs import LeaderEpochs
from ottla.broker.storage.startup.state_file import decode_state, encode_state, trim_state
from ottla.machines.producers import (
    Accepted,
    Duplicate,
    OutOfOrder,
    ProducerBatch,
    ProducerStates,
    StaleEpoch,
    Verdict,
)

WRAP = 2**31


@dataclass(frozen=True)
class Remembered:
    epoch: int
    first: int
    count: int
    base_offset: int
    wall_ms: int


@dataclass
class Model:
    """Everything that one log accepted, by producer."""

    history: dict[int, list[Remembered]] = field(default_factory=dict)
    end: int = 0

    def verdict(self, producer_id: int, epoch: int, first: int, count: int) -> Verdict:
        batches = self.history.get(producer_id)
        if not batches:
            return Accepted()
        latest = batches[-1]
        if epoch < latest.epoch:
            return StaleEpoch(latest.epoch)
        if epoch > latest.epoch:
            return Accepted() if first % WRAP == 0 else OutOfOrder(0)
        for batch in [b for b in batches if b.epoch == epoch][-5:]:
            if (batch.first % WRAP, batch.count) == (first % WRAP, count):
                return Duplicate(as_kept(batch))
        expected = latest.first + latest.count
        return Accepted() if first % WRAP == expected % WRAP else OutOfOrder(expected % WRAP)

    def accept(self, producer_id: int, epoch: int, first: int, count: int, wall_ms: int) -> ProducerBatch:
        batch = Remembered(epoch, first, count, self.end, wall_ms)
        self.history.setdefault(producer_id, []).append(batch)
        self.end += count
        return as_kept(batch)

    def expire(self, before_ms: int) -> None:
        self.history = {
            producer_id: batches
            for producer_id, batches in self.history.items()
            if max(b.wall_ms for b in batches if b.epoch == batches[-1].epoch) >= before_ms
        }


def as_kept(batch: Remembered) -> ProducerBatch:
    last = (batch.first + batch.count - 1) % WRAP
    return ProducerBatch(batch.first % WRAP, last, batch.base_offset, batch.base_offset + batch.count, batch.wall_ms)


@st.composite
def next_batches(draw: st.DrawFn, model: Model) -> tuple[int, int, int, int]:
    """Mostly what a client sends: the next batch, a retry; sometimes a gap, an overlap, another epoch."""
    producer_id = draw(st.integers(1, 3))
    count = draw(st.integers(1, 4))
    batches = model.history.get(producer_id)
    if not batches:
        return producer_id, draw(st.integers(0, 2)), draw(st.sampled_from([0, 5, WRAP - 3, WRAP - 1])), count
    latest = batches[-1]
    kind = draw(st.sampled_from(["next"] * 4 + ["retry"] * 2 + ["shifted", "bump", "bump wrongly", "older"]))
    if kind == "retry":
        batch = draw(st.sampled_from(batches[-8:]))
        return producer_id, batch.epoch, batch.first, batch.count
    if kind == "bump":
        return producer_id, latest.epoch + draw(st.integers(1, 2)), 0, count
    epoch = latest.epoch + {"bump wrongly": 1, "older": -1}.get(kind, 0)
    shift = draw(st.integers(-6, 6)) if kind != "next" else 0
    return producer_id, epoch, max(latest.first + latest.count + shift, 0), count


@given(st.data())
def test_the_machine_says_what_the_model_says(data: st.DataObject) -> None:
    model, states = Model(), ProducerStates()
    wall_ms = 10_000
    for _ in range(data.draw(st.integers(1, 25))):
        wall_ms += data.draw(st.integers(0, 1000))
        if data.draw(st.integers(0, 15)) == 0:
            before_ms = wall_ms - data.draw(st.integers(0, 3000))
            model.expire(before_ms)
            states.expire(before_ms)
        producer_id, epoch, first, count = data.draw(next_batches(model))
        expected = model.verdict(producer_id, epoch, first, count)
        last = (first + count - 1) % WRAP
        assert states.judge(producer_id, epoch, first % WRAP, last) == expected
        if isinstance(expected, Accepted):
            batch = model.accept(producer_id, epoch, first, count, wall_ms)
            states.record(producer_id, epoch, batch)
        assert len(states) == len(model.history)


@given(st.data())
def test_the_state_as_of_an_offset_and_the_rest_of_the_log_give_the_whole(data: st.DataObject) -> None:
    """A restart loads a state written at some offset, or trims one that is ahead, and replays from there."""
    model, states = Model(), ProducerStates()
    accepted: list[tuple[int, int, ProducerBatch]] = []
    for number in range(data.draw(st.integers(1, 25))):
        producer_id, epoch, first, count = data.draw(next_batches(model))
        if isinstance(model.verdict(producer_id, epoch, first, count), Accepted):
            batch = model.accept(producer_id, epoch, first, count, number)
            states.record(producer_id, epoch, batch)
            accepted.append((producer_id, epoch, batch))
    offset = data.draw(st.sampled_from([0, *(batch.end_offset for _, _, batch in accepted)]))
    ahead = decode_state(encode_state(model.end, LeaderEpochs(), states))
    cut = decode_state(encode_state(offset, LeaderEpochs(), states))
    assert ahead is not None
    assert cut is not None
    for start in (cut.producers, trim_state(ahead, offset).producers):
        for producer_id, epoch, batch in accepted:
            if batch.base_offset >= offset:
                start.record(producer_id, epoch, batch)
        by_id = {entry.producer_id: (entry.epoch, entry.batches) for entry in start}
        assert by_id == {entry.producer_id: (entry.epoch, entry.batches) for entry in states}
