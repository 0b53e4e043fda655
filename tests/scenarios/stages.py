"""The commands of the scenarios: one stage for each folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

from ottla.broker.partition.fetch_sessions import FetchPlan, FetchSessions
from ottla.machines.producers import Accepted, Duplicate, OutOfOrder, ProducerBatch, ProducerStates, StaleEpoch
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import read_header
from ottla.protocol.wire.fetch import FetchPartition, FetchRequest, PartitionData
from ottla.protocol.wire.produce import TopicKey
from ottla.sim.disk import Keep, QueueName
from tests.scenarios.member_stage import MemberStage
from tests.scenarios.transactions_stage import TransactionsStage
from tests.support.sim_logs import LogBench


class Command(NamedTuple):
    name: str
    options: dict[str, str]

    def number(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))

    def has(self, flag: str) -> bool:
        return flag in self.options


class Stage(Protocol):
    def perform(self, command: Command) -> str: ...


def perform(stage: object, command: Command) -> str:
    act: Callable[[Command], str] = getattr(stage, command.name.replace("-", "_"))
    return act(command)


class ProducersStage:
    """produce id= epoch= seq= count= | expire silent-ms= | wait ms= | show"""

    def __init__(self) -> None:
        self._states = ProducerStates()
        self._end = 0
        self._now_ms = 0

    def perform(self, command: Command) -> str:
        return perform(self, command)

    def produce(self, command: Command) -> str:
        producer_id, epoch = command.number("id", 7), command.number("epoch", 0)
        first, count = command.number("seq", 0), command.number("count", 1)
        last = (first + count - 1) & 0x7FFFFFFF
        verdict = self._states.judge(producer_id, epoch, first, last)
        match verdict:
            case Accepted():
                self._states.record(
                    producer_id, epoch, ProducerBatch(first, last, self._end, self._end + count, self._now_ms)
                )
                self._end += count
                return f"appended at {self._end - count}"
            case Duplicate(batch):
                return f"a retry of what is at {batch.base_offset}"
            case OutOfOrder(expected):
                return f"out of order, expected {expected}"
            case StaleEpoch(current):
                return f"fenced by epoch {current}"

    def wait(self, command: Command) -> str:
        self._now_ms += command.number("ms", 0)
        return ""

    def expire(self, command: Command) -> str:
        gone = self._states.expire(self._now_ms - command.number("silent-ms", 0))
        return f"forgets {', '.join(map(str, gone)) or 'nobody'}"

    def show(self, command: Command) -> str:
        return "\n".join(
            f"{entry.producer_id} epoch {entry.epoch}: "
            + " ".join(f"{b.first_sequence}-{b.last_sequence}@{b.base_offset}" for b in entry.batches)
            for entry in self._states
        )


class LogsStage:
    """open logs=disk,cache | append log= batches= records= id= epoch= seq= | settle ms= | flush | crash keep=
    | stall queue= | release queue= | fail what= path= count= | start-at log= offset= | retain log= | show log=
    | files log= | producers log= | read log= offset= max= | damage log= offset= | remove log= file= | forget-tail log=
    """

    def __init__(self) -> None:
        self._bench = LogBench("disk")

    def perform(self, command: Command) -> str:
        return perform(self, command)

    def open(self, command: Command) -> str:
        settings = {name: value for name, value in command.options.items() if name not in ("logs", "tail_bytes")}
        logs = command.options["logs"].split(",")
        self._bench = LogBench(*logs, settings=settings, tail_bytes=command.number("tail_bytes", 1 << 20))
        return ""

    def append(self, command: Command) -> str:
        log = command.number("log", 0)
        shown = []
        for _ in range(command.number("batches", 1)):
            producer = (
                command.number("id", -1),
                command.number("epoch", 0 if command.has("id") else -1),
                command.number("seq", -1),
            )
            batch = self._bench.append(log, records=command.number("records", 1), producer=producer)
            if isinstance(batch, Refused):
                shown.append(f"refused: {batch.error.name}")
        return "\n".join(dict.fromkeys(shown))

    def settle(self, command: Command) -> str:
        self._bench.settle(command.number("ms", 50))
        return ""

    def flush(self, command: Command) -> str:
        self._bench.flush()
        return ""

    def crash(self, command: Command) -> str:
        before = len(self._bench.reports)
        self._bench.crash(cast(Keep, command.options.get("keep", "none")))
        self._bench.start()
        return "\n".join(f"told: {report}" for report in self._bench.reports[before:])

    def stall(self, command: Command) -> str:
        self._bench.disk.stall(cast(QueueName, command.options["queue"]))
        return ""

    def release(self, command: Command) -> str:
        self._bench.disk.release(cast(QueueName, command.options["queue"]))
        self._bench.settle()
        return ""

    def fail(self, command: Command) -> str:
        path, count = command.options.get("path", ""), command.number("count", 1)
        plan = getattr(self._bench.disk.faults, f"fail_{command.options['what']}")
        plan(path=path, count=count or None)
        return ""

    def start_at(self, command: Command) -> str:
        self._bench.log(command.number("log", 0)).advance_start(command.number("offset", 0), lambda _: None)
        self._bench.settle()
        return ""

    def retain(self, command: Command) -> str:
        self._bench.retain(command.number("log", 0))
        return ""

    def show(self, command: Command) -> str:
        log = self._bench.log(command.number("log", 0))
        text = f"{log.start_offset}..{log.acknowledged_end} acknowledged, {log.end_offset} appended"
        text += ", failed" if log.failed is not None else ""
        segments = " ".join(
            f"[{s.base_offset}..{s.end_offset}{' synced' if s.synced_end == s.appended_end else ''}]"
            for s in log.segments
        )
        return f"{text}\nsegments {segments}"

    def files(self, command: Command) -> str:
        return "\n".join(self._bench.names(command.number("log", 0)))

    def producers(self, command: Command) -> str:
        return "\n".join(
            f"{entry.producer_id} epoch {entry.epoch}: last {entry.batches[-1].last_sequence}"
            for entry in self._bench.log(command.number("log", 0)).producers
        )

    def read(self, command: Command) -> str:
        found = self._bench.read(
            command.number("offset", 0), command.number("log", 0), max_bytes=command.number("max", 1)
        )
        if isinstance(found, ErrorCode):
            return found.name
        return " ".join(f"{h.base_offset}-{h.last_offset}" for h in map(read_header, found)) or "nothing"

    def damage(self, command: Command) -> str:
        """Damages the value of the batch that begins at the offset."""
        number, offset = command.number("log", 0), command.number("offset", 0)
        (batch,) = cast(list[bytes], self._bench.read(offset, number))
        segment = [s for s in self._bench.log(number).segments if s.base_offset <= offset][-1]
        content = self._bench.disk.files.read_file(segment.path)
        self._bench.disk.damage(segment.path, content.index(batch) + 80, 0xFF)
        return ""

    def remove(self, command: Command) -> str:
        self._bench.disk.files.remove(self._bench.path(command.options["file"], command.number("log", 0)))
        return ""

    def forget_tail(self, command: Command) -> str:
        self._bench.shared.tail.forget(self._bench.log(command.number("log", 0)).writer)
        return ""


class FetchSessionsStage:
    """fetch id= epoch= want=t-0,t-1 forget=t-2 | log t-0=hw[:bytes][:error] | wait ms="""

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._next_id = 100
        self._logs: dict[tuple[TopicKey, int], tuple[int, int, int]] = {}
        self._sessions = FetchSessions(2, lambda: self._now_ms, self._new_id)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def perform(self, command: Command) -> str:
        return perform(self, command)

    def wait(self, command: Command) -> str:
        self._now_ms += command.number("ms", 0)
        return ""

    def log(self, command: Command) -> str:
        for name, value in command.options.items():
            watermark, _, rest = value.partition(":")
            size, _, error = rest.partition(":")
            self._logs[parsed(name)] = int(watermark), int(size or 0), int(error or 0)
        return ""

    def fetch(self, command: Command) -> str:
        wanted = names(command.options.get("want", ""))
        request = FetchRequest(
            -1,
            0,
            0,
            1 << 20,
            0,
            command.number("id", 0),
            command.number("epoch", -1),
            [
                (topic, [FetchPartition(index, -1, command.number("offset", 0), -1, -1, 1000)])
                for topic, index in wanted
            ],
            [(topic, [index]) for topic, index in names(command.options.get("forget", ""))],
        )
        plan = self._sessions.plan(request, by_topic_id=command.has("by-id"))
        if plan.error is not ErrorCode.none:
            return plan.error.name
        return f"session {plan.session_id}, " + self._answer(plan)

    def _answer(self, plan: FetchPlan) -> str:
        answers: list[tuple[TopicKey, PartitionData]] = []
        for topic, partition in plan.partitions:
            watermark, size, error = self._logs.get((topic, partition.partition), (0, 0, 0))
            answers.append(
                (topic, PartitionData(partition.partition, error, watermark, watermark, 0, records_size=size))
            )
        read = " ".join(
            f"{topic}-{partition.partition}@{partition.fetch_offset}" for topic, partition in plan.partitions
        )
        told = " ".join(f"{topic}-{data.partition}" for topic, data in plan.trimmed(answers))
        return f"reads {read or 'nothing'}, answers {told or 'nothing'}"


def names(text: str) -> list[tuple[TopicKey, int]]:
    return [parsed(name) for name in text.split(",") if name]


def parsed(name: str) -> tuple[TopicKey, int]:
    topic, _, index = name.rpartition("-")
    return topic, int(index)


STAGES: dict[str, Callable[[], Stage]] = {
    "producers": ProducersStage,
    "logs": LogsStage,
    "fetch_sessions": FetchSessionsStage,
    "group_members": MemberStage,
    "transactions": TransactionsStage,
}
