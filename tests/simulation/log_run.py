"""Compares the `disk` logs of one broker with a model under all operations of a replica's log: appends, truncations,
flushes, start offset changes, failing segments, and crashes in between.

After each crash a log holds everything that it acknowledged, nothing that was durably truncated, and no damage that was
not injected. An interrupted truncation is either complete or has no effect.
"""

from __future__ import annotations

from collections import Counter

from ottla.broker.storage.truncation import Truncation
from ottla.protocol.records.batch import read_header
from ottla.sim.disk import Keep
from tests.simulation.cluster_run import Violation
from tests.simulation.log_world import LogModel, LogWorld, read_all

ROUNDS = 5
KEEPS: list[Keep] = ["some", "all", "none"]
ACKNOWLEDGED, CONTENT, DAMAGE, PRODUCERS = "log: acknowledged", "log: content", "log: damage", "log: producers"


class LogRun:
    """One seed. `harsh_log_run` has more faults."""

    leader_changes = 0

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.fault_counts: Counter[str] = Counter()
        self.acknowledged = 0
        self.world = LogWorld(seed, log_count=2, inline=seed % 2 == 0)
        self.random = self.world.random
        self._cuts: dict[int, int] = {}
        """The offset of each unfinished truncation, by the model's index."""

    @property
    def plan(self) -> str:
        return (
            f"{ROUNDS} rounds of appends, truncations, failing segments and a crash, on {len(self.world.models)} logs"
        )

    def check(self) -> None:
        """Everything was checked after each crash."""

    def execute(self) -> None:
        for _ in range(ROUNDS):
            for _ in range(self.random.randint(20, 150)):
                self._act(self.random.randrange(len(self.world.models)))
            keep = self.random.choice(KEEPS)
            self.world.crash(keep)
            self.fault_counts[f"crash keeps {keep}"] += 1
            self.acknowledged = sum(model.acknowledged_end for model in self.world.models)
            self._start()
            for place, model in enumerate(self.world.models):
                self._check(place, model)
            self._cuts.clear()
            if self._is_over:
                return

    @property
    def _is_over(self) -> bool:
        """Whether the run ends before all its rounds."""
        return False

    def _start(self) -> None:
        self.world.start()

    def _act(self, place: int) -> None:
        world, random, model = self.world, self.random, self.world.models[place]
        action = random.random()
        if action < 0.60:
            if place not in self._cuts:
                world.append(model, random.choice([10, 100, 1500]))
        elif action < 0.80:
            world.steps(random.randint(1, 6))
        elif action < 0.87:
            world.settle(random.choice([1.0, 25.0]))
        elif action < 0.92:
            world.flush(everything=random.random() < 0.5)
        elif action < 0.96:
            self._truncate(place, model)
        elif action < 0.98:
            if place not in self._cuts:
                world.advance_start(model)
        else:
            self._fail_a_segment()

    def _fail_a_segment(self) -> None:
        """Fails one sync at a time: a segment that fails again while it is rewritten has failed for good."""
        self.fault_counts["segment fails"] += 1
        self.world.disk.faults.clear()
        self.world.disk.faults.fail_sync(self.random.randint(1, 3), path=".log")

    def _truncate(self, place: int, model: LogModel) -> None:
        world, log = self.world, self.world.log(model)
        targets = [read_header(batch).base_offset for batch in model.batches[-12:]]
        # Not at the start itself: after a crash that reads as a reset, which forgets the producers.
        targets = [offset for offset in targets if offset > log.start_offset]
        if not targets or place in self._cuts or log.truncating or log.failed is not None:
            return
        cut = self._cuts[place] = self.random.choice(targets)

        def done(error: OSError | None) -> None:
            if error is None:
                del self._cuts[place]
                self._take_back(model, cut)
                self._check_producers(place, model, model.batches)

        assert world.store.flusher is not None
        world.epoch += 1
        Truncation(log, world.store.flusher, cut, done).begin()

    def _take_back(self, model: LogModel, cut: int) -> None:
        model.batches = [batch for batch in model.batches if read_header(batch).next_offset <= cut]
        model.acknowledged_end = min(model.acknowledged_end, cut)
        model.next_sequence = read_header(model.batches[-1]).last_sequence + 1 if model.batches else 0

    # -- invariants ----------------------------------------------------------------------------------------------

    def _check(self, place: int, model: LogModel) -> None:
        log = self.world.log(model)
        if log.damages:
            raise Violation(DAMAGE, f"log {place}: {log.damages[0]}")
        if place in self._cuts and log.end_offset == self._cuts[place]:
            self._take_back(model, self._cuts[place])
        if log.end_offset < model.acknowledged_end:
            raise Violation(ACKNOWLEDGED, f"log {place}: up to {model.acknowledged_end}, it ends at {log.end_offset}")
        kept = [batch for batch in model.batches if read_header(batch).next_offset <= log.end_offset]
        try:
            found = read_all(log)
        except AssertionError as error:
            raise Violation(CONTENT, f"log {place} cannot be read: {error}") from error
        if found != [batch for batch in kept if read_header(batch).next_offset > log.start_offset]:
            raise Violation(CONTENT, f"log {place} holds something else than was appended up to {log.end_offset}")
        self._check_producers(place, model, kept)
        model.batches = kept
        model.acknowledged_end = log.acknowledged_end

    def _check_producers(self, place: int, model: LogModel, kept: list[bytes]) -> None:
        entry = self.world.log(model).producers.get(7)
        last = read_header(kept[-1]).last_sequence if kept else None
        if (entry.batches[-1].last_sequence if entry and entry.batches else None) != last:
            raise Violation(PRODUCERS, f"log {place} knows {entry}, its last batch ends with {last}")
        model.next_sequence = 0 if last is None else last + 1
