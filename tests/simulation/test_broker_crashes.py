"""Compares a whole broker, without sockets, with a model: topics are created and deleted, records written, power cut.

After each crash, every topic is as it was last changed, no deleted topic exists, each log of the class `disk` holds
what it acknowledged, once and in order, and no log ever shows a record of an earlier topic of the same name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random

import pytest

from ottla.broker.partition.batch_validation import Appended
from ottla.broker.topics.topics import Topic
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.sim.disk import Keep
from tests.support.sim_broker import BrokerBench

SEEDS = max(int(os.environ.get("OTTLA_SIM_SEEDS", "300")) // 6, 10)
KEEPS: list[Keep] = ["some", "all", "none"]
CLASSES = ["disk", "disk", "cache", "memory"]


@dataclass
class LogModel:
    appended: list[bytes] = field(default_factory=list)
    """Records that may be in the log, in order."""
    acknowledged: int = 0
    next_sequence: int = 0


@dataclass
class TopicModel:
    topic: Topic
    life: int
    logs: list[LogModel]
    retention_ms: int = -1

    @property
    def durability(self) -> str:
        return self.topic.config.durability.value


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bench = BrokerBench(seed=seed, log_retention_ms="-1", ottla_tail_cache_bytes="20000")
        self.topics: dict[str, TopicModel] = {}
        self.lives = 0

    async def act(self) -> None:
        random = self.random
        name = random.choice("abc")
        model = self.topics.get(name)
        if model is None:
            await self.create(name)
            return
        action = random.random()
        if action < 0.80:
            for _ in range(random.randint(1, 8)):
                self.produce(name, model)
                for _ in range(random.randint(0, 6)):
                    self.bench.clock.run_one()
        elif action < 0.88:
            await self.bench.settle(random.choice([5, 300, 6000]))
        elif action < 0.93:
            total = len(model.logs) + random.randint(1, 2)
            assert await self.bench.until(self.bench.admin.create_partitions(model.topic, total)) is None
            model.logs += [LogModel() for _ in range(total - len(model.logs))]
        elif action < 0.97:
            model.retention_ms = random.choice([-1, 10_000_000])
            overrides = {"retention.ms": str(model.retention_ms)}
            assert await self.bench.until(self.bench.admin.alter_topic_configs(model.topic, overrides)) is None
        else:
            assert await self.bench.until(self.bench.admin.delete_topic(model.topic)) is None
            del self.topics[name]

    async def create(self, name: str) -> None:
        count = self.random.randint(1, 3)
        topic = await self.bench.create(
            name, count, durability=self.random.choice(CLASSES), segment_bytes="4096", retention_ms="-1"
        )
        self.lives += 1
        self.topics[name] = TopicModel(topic, self.lives, [LogModel() for _ in range(count)])

    def produce(self, name: str, model: TopicModel) -> None:
        index = self.random.randrange(len(model.logs))
        log = model.logs[index]
        value = b"%s life %d partition %d number %d." % (name.encode(), model.life, index, log.next_sequence)
        value *= self.random.choice([1, 1, 20])
        outcome = self.bench.append(name, index, value=value, producer=(7, 0, log.next_sequence))
        assert isinstance(outcome, Appended), outcome
        log.appended.append(value)
        log.next_sequence += 1
        count = len(log.appended)

        def settled(error: ErrorCode) -> None:
            if error is ErrorCode.none:
                log.acknowledged = max(log.acknowledged, count)

        partition = self.bench.partition(name, index)
        if outcome.end_offset <= partition.high_watermark:
            settled(ErrorCode.none)
        else:
            partition.when_acknowledged(outcome.end_offset, settled)

    def crash(self) -> Keep:
        keep = self.random.choice(KEEPS)
        self.bench.restart(keep)
        return keep

    async def check(self, keep: Keep) -> None:
        broker = self.bench.broker
        assert {topic.name: topic.id for topic in broker.topics} == {
            name: model.topic.id for name, model in self.topics.items()
        }
        for name, model in self.topics.items():
            topic = broker.topics.get(name)
            assert topic is not None
            model.topic = topic
            assert len(topic.partitions) == len(model.logs)
            assert topic.config.retention_ms == model.retention_ms
            for index, log in enumerate(model.logs):
                await self.check_log(name, index, model, log, keep)
        known = {model.topic.id.hex for model in self.topics.values()}
        assert {name.partition("-")[0] for name in self.bench.log_directories()} <= known
        assert not self.bench.disk.files.exists("/data/set-aside"), "what was deleted is known to be"

    async def check_log(self, name: str, index: int, model: TopicModel, log: LogModel, keep: Keep) -> None:
        values = await self.bench.values(name, index)
        if model.durability == "memory":
            assert values == []
            log.appended = []
        else:
            assert values == log.appended[: len(values)]
            promised = log.acknowledged if model.durability == "disk" or keep == "all" else 0
            assert len(values) >= promised, f"{promised} were acknowledged, {len(values)} are there"
            log.appended = values
        log.acknowledged = len(log.appended)
        log.next_sequence = self.next_sequence(name, index, log, model)

    def next_sequence(self, name: str, index: int, log: LogModel, model: TopicModel) -> int:
        """The sequence number that the broker expects: the one after the last record that it kept."""
        entry = self.bench.partition(name, index).log.producers.get(7)
        if model.durability == "memory" or not log.appended:
            assert entry is None
            return log.next_sequence
        assert entry is not None
        number = int(log.appended[-1].split(b".")[0].rpartition(b" ")[2])
        assert entry.batches[-1].last_sequence == number
        return number + 1


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in range(SEEDS)])
async def test_a_broker_keeps_what_it_acknowledged(seed: int) -> None:
    world = World(seed)
    for _ in range(4):
        for _ in range(world.random.randint(5, 40)):
            await world.act()
        await world.check(world.crash())
    for name, model in world.topics.items():
        for index in range(len(model.logs)):
            assert isinstance(await world.bench.produce(name, index), int)


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in range(max(SEEDS // 4, 5))])
async def test_a_clean_stop_keeps_everything(seed: int) -> None:
    world = World(seed)
    for _ in range(3):
        for _ in range(world.random.randint(5, 40)):
            await world.act()
        await world.bench.stop()
        for model in world.topics.values():
            for log in model.logs:
                log.acknowledged = len(log.appended)
        world.bench.restart("none")
        assert world.bench.broker.context.store.replayed.batches == 0
        await world.check("all")


async def test_a_refused_produce_changes_nothing() -> None:
    world = World(1)
    await world.create("a")
    refused = world.bench.append("a", producer=(7, 0, 0))
    assert isinstance(refused, Appended)
    assert isinstance(world.bench.append("a", producer=(7, 0, 9)), Refused)
    assert world.bench.partition("a").log.end_offset == 1
