"""One log of each class compared with a list, step by step, with crashes; Hypothesis shrinks what it finds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.batch import read_header
from ottla.sim.disk import Keep
from tests.support.sim_logs import LogBench

numbers = st.integers(0, 1)
CLASSES = ["disk", "cache"]


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = LogBench(*CLASSES, tail_bytes=3000, settings={"segment_bytes": "1024"})
        self.batches: list[list[bytes]] = [[], []]
        self.crashes = 0

    @rule(number=numbers, records=st.integers(1, 4), value_bytes=st.sampled_from([1, 100, 900, 3000]))
    def append(self, number: int, records: int, value_bytes: int) -> None:
        batch = self.bench.append(number, records=records, value_bytes=value_bytes)
        assert isinstance(batch, bytes)
        self.batches[number].append(batch)

    @rule(ms=st.sampled_from([0.0, 1.0, 30.0]))
    def wait(self, ms: float) -> None:
        self.bench.settle(ms)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.bench.clock.run_one()

    @rule()
    def flush(self) -> None:
        self.bench.flush()

    @rule(number=numbers, share=st.integers(0, 100))
    def move_start(self, number: int, share: int) -> None:
        log = self.bench.log(number)
        log.advance_start(log.start_offset + (log.acknowledged_end - log.start_offset) * share // 100, lambda _: None)
        self.bench.settle()
        self.bench.retain(number)

    @rule(keep=st.sampled_from(["none", "some", "all"]))
    def crash(self, keep: Keep) -> None:
        acknowledged = [self.bench.log(number).acknowledged_end for number in range(2)]
        starts = [self.bench.log(number).start_offset for number in range(2)]
        self.crashes += 1
        self.bench.crash(keep, seed=self.crashes)
        self.bench.start()
        for number, durability in enumerate(CLASSES):
            log = self.bench.log(number)
            if durability == "disk" or keep == "all":
                assert log.end_offset >= acknowledged[number]
            if durability == "disk":
                assert log.start_offset == starts[number]
            self.batches[number] = [b for b in self.batches[number] if read_header(b).next_offset <= log.end_offset]
            last = self.batches[number][-1:]
            assert log.end_offset == (read_header(last[0]).next_offset if last else 0)

    @invariant()
    def every_acknowledged_offset_reads_as_it_was_appended(self) -> None:
        for number in range(2):
            log = self.bench.log(number)
            for batch in self.batches[number]:
                header = read_header(batch)
                if header.next_offset <= log.acknowledged_end and header.base_offset >= log.start_offset:
                    assert self.bench.read(header.last_offset, number) == [batch]
            assert not log.damages
            assert self.bench.read(log.acknowledged_end, number) in ([], ErrorCode.offset_out_of_range)


LogMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
test_a_log_is_a_list = LogMachine.TestCase
