"""The checker of transactional histories accepts every history of a model with Kafka's semantics, and rejects one that
is changed in a way that loses, moves or uncovers a value.

The model runs transactions concurrently, one step at a time. Appends go to the end of a log at once; a reader sees them
up to the first one of an open transaction, except those of aborted ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.anomalies.checker import Anomaly, check
from tests.support.anomalies.history import Append, History, Outcome, Read, Transaction

KEYS = ("x", "y", "z")


@dataclass(slots=True)
class Model:
    chance: Random
    concurrent: int
    now: float = 0.0
    logs: dict[str, list[tuple[str, Transaction]]] = field(default_factory=lambda: {key: [] for key in KEYS})
    ended: set[int] = field(default_factory=set)
    """Identities of transactions that have ended."""
    positions: dict[tuple[str, str], int] = field(default_factory=dict)
    history: list[Transaction] = field(default_factory=list)

    def run(self, count: int) -> History:
        running: list[Transaction] = []
        for number in range(count):
            running.append(Transaction(f"T{number}"))
            self.history.append(running[-1])
            while running and (len(running) >= self.concurrent or number == count - 1):
                one = self.chance.choice(running)
                if self._step(one):
                    running.remove(one)
        return History(self.history, {key: self._committed(key) for key in KEYS})

    def _step(self, one: Transaction) -> bool:
        began = self._tick()
        choice = self.chance.random()
        key = self.chance.choice(KEYS)
        if choice < 0.5:
            value = f"{one.name}.{len(one.operations)}"
            self.logs[key].append((value, one))
            offset = len(self.logs[key]) - 1 if self.chance.random() < 0.8 else None
            one.operations.append(Append(key, value, began, self._tick(), offset))
            return False
        if choice < 0.75:
            one.operations.append(self._read(one, key, began))
            return False
        self._end(one, began)
        return True

    def _read(self, one: Transaction, key: str, began: float) -> Read:
        first = self.positions.get((one.name, key), 0)
        log = self.logs[key]
        stable = next((at for at, (_, each) in enumerate(log) if id(each) not in self.ended), len(log))
        end = stable if self.chance.random() < 0.5 else self.chance.randint(min(first, stable), stable)
        records = tuple(
            (at, log[at][0]) for at in range(first, max(first, end)) if log[at][1].outcome is not Outcome.ABORTED
        )
        self.positions[one.name, key] = end = max(first, end)
        return Read(key, first, end, records, began, self._tick(), is_to_the_end=end == stable)

    def _end(self, one: Transaction, began: float) -> None:
        self.ended.add(id(one))
        if self.chance.random() < 0.3:
            one.outcome = Outcome.ABORTED
            if self.chance.random() < 0.3:
                one.commit_began = began
        else:
            one.outcome, one.commit_began = Outcome.COMMITTED, began
            one.commit_ended = self._tick()

    def forget_outcomes(self) -> None:
        """Some clients do not learn the outcome of a commit that they requested."""
        for one in self.history:
            if one.commit_began <= self.now and self.chance.random() < 0.2:
                one.outcome, one.commit_ended = Outcome.UNKNOWN, float("inf")

    def _committed(self, key: str) -> list[tuple[int, str]]:
        log = enumerate(self.logs[key])
        return [(at, value) for at, (value, one) in log if one.outcome is Outcome.COMMITTED]

    def _tick(self) -> float:
        self.now += self.chance.choice((0.0, 0.5, 1.0))
        return self.now


seeds = st.integers(0, 1 << 32)


@given(seed=seeds, concurrent=st.integers(1, 5), count=st.integers(1, 25))
@settings(deadline=None)
def test_histories_of_the_model_are_valid(seed: int, concurrent: int, count: int) -> None:
    model = Model(Random(seed), concurrent)
    history = model.run(count)
    assert check(history) == []
    model.forget_outcomes()
    assert check(history) == []


@given(seed=seeds, count=st.integers(1, 25))
@settings(deadline=None)
def test_serial_histories_have_no_cycles_of_whole_transactions(seed: int, count: int) -> None:
    assert check(Model(Random(seed), 1).run(count), interleaved=False) == []


@given(seed=seeds, concurrent=st.integers(1, 5))
@settings(deadline=None)
def test_a_value_that_disappears_is_found(seed: int, concurrent: int) -> None:
    chance = Random(seed)
    history = Model(chance, concurrent).run(20)
    places = [(key, at) for key, log in history.logs.items() for at in range(len(log))]
    if not places:
        return
    key, at = chance.choice(places)
    logs = {each: [*log[:at], *log[at + 1 :]] if each == key else log for each, log in history.logs.items()}
    assert Anomaly.LOST in {each.anomaly for each in check(replace(history, logs=logs))}


@given(seed=seeds, concurrent=st.integers(1, 5))
@settings(deadline=None)
def test_a_value_of_an_aborted_transaction_is_found(seed: int, concurrent: int) -> None:
    chance = Random(seed)
    model = Model(chance, concurrent)
    history = model.run(20)
    aborted = [
        (key, at, value)
        for key, log in model.logs.items()
        for at, (value, one) in enumerate(log)
        if one.outcome is Outcome.ABORTED
    ]
    if not aborted:
        return
    key, at, value = chance.choice(aborted)
    logs = {each: sorted([*log, (at, value)]) if each == key else log for each, log in history.logs.items()}
    assert Anomaly.ABORTED_READ in {each.anomaly for each in check(replace(history, logs=logs))}


@given(seed=seeds)
@settings(deadline=None)
def test_values_in_another_order_than_they_were_appended_are_found(seed: int) -> None:
    """Each append ends before the next one begins, so that two values of a log cannot change places."""
    chance = Random(seed)
    values = [f"v{number}" for number in range(chance.randint(2, 12))]
    history = [
        Transaction(
            f"T{value}", [Append("x", value, at * 10, at * 10 + 1)], Outcome.COMMITTED, at * 10 + 2, at * 10 + 3
        )
        for at, value in enumerate(values)
    ]
    order = chance.sample(values, len(values))
    found = {each.anomaly for each in check(History(history, {"x": list(enumerate(order))}))}
    assert found == (set() if order == values else {Anomaly.ORDER})
