"""What every statement needs: the brokers, the catalog, a Spark session that starts when it is first used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.spark.sql import brokers
from ottla.spark.sql.catalog import Catalog
from ottla.spark.sql.definitions import Definition
from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.running import Progress, Running
from ottla.spark.sql.sources import dead_letter_records, infer
from ottla.spark.sql.writing import Writing, start_appends

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY = "1 second"


@dataclass(slots=True)
class Context:
    servers: str
    catalog: Catalog
    spark: Callable[[], SparkSession]
    tell: Callable[[str], None]
    """News for a person."""
    every: str | None = EVERY
    """How often a query looks for more; None: it takes what is there and ends."""
    dead_letters: str | None = None
    """For topics that are not declared: a topic, or `none`."""
    running: dict[str, Running] = field(default_factory=dict)
    """By the name of the query; dead letters by the name of their topic."""
    sources: dict[str, dict[str, Definition]] = field(default_factory=dict)
    """What the queries that write topics read, by the name of the query."""

    def find(self, name: str) -> Definition:
        """A stream that is declared, or a topic. SqlError without a place if it is neither."""
        known = self.catalog.stream(name)
        if known is None:
            return infer(self.servers, name, self.dead_letters)
        if known.topic not in brokers.topic_sizes(self.servers):
            raise SqlError(f"there is no topic {known.topic}, which the stream {known.name} is declared for")
        return known

    def start_dead_letters(self, definition: Definition, *, once: bool | None = None) -> Running | None:
        """Each bad record of a stream is in its dead-letter topic once, however many queries read the stream: one
        search with a checkpoint of its own does it for all of them. None if there is nothing to do here."""
        topic = definition.dead_letters
        if topic is None:
            return None
        known = self.running.get(topic)
        if known is not None:
            if known.poll():
                return known
            known.stop()
        locks = contextlib.ExitStack()
        if not locks.enter_context(self.catalog.running("dead-letters", definition.name)):
            locks.close()  # another process does it
            return None
        if brokers.create_topic(self.servers, topic):
            self.tell(f"created topic {topic}, for records of {definition.name} that do not parse")
        ends = self.every is None if once is None else once
        writing = Writing(
            self.servers,
            topic,
            topic,
            self.catalog.dead_letters_checkpoint(definition.name),
            None if ends else self.every,
        )
        spark = self.spark()
        started = Running(
            topic, lambda: start_appends(dead_letter_records(spark, self.servers, definition), writing), locks
        )
        self.running[topic] = started
        started.begin()
        return started

    def tend(self) -> list[Progress]:
        """News of all queries; for streams with bad records the search for them is started. Raises what one failed
        with."""
        news: list[Progress] = []
        for running in list(self.running.values()):
            running.poll()
            news += running.news()
            for source in self.sources.get(running.name, {}).values():
                if running.bad[source.name]:
                    self.start_dead_letters(source)
        return news

    def is_active(self) -> bool:
        return any(each.poll() for each in self.running.values())

    def stop(self) -> None:
        """A search for bad records stays owed: a batch may have ended whose bad records nobody was told of."""
        for each in list(self.running.values()):
            each.stop()
        self.running.clear()
        self.sources.clear()
