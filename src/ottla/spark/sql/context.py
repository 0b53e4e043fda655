"""The state shared by all statements: the brokers, the catalog, and a Spark session that starts on first use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.spark.sql import brokers
from ottla.spark.sql.catalog import Catalog
from ottla.spark.sql.definitions import Definition
from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.query_output import QueryOutput, start_appends
from ottla.spark.sql.running_query import Progress, RunningQuery
from ottla.spark.sql.sources import dead_letter_records, infer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY = "1 second"


@dataclass(slots=True)
class Context:
    """The state shared by all statements."""

    servers: str
    catalog: Catalog
    spark: Callable[[], SparkSession]
    tell: Callable[[str], None]
    """Prints a message for the user."""
    every: str | None = EVERY
    """How often a query looks for new records; None: it processes what is there and ends."""
    dead_letters: str | None = None
    """The dead-letter topic for topics that are not declared, or `none`."""
    running: dict[str, RunningQuery] = field(default_factory=dict)
    """The running queries by name; searches for dead letters by the name of their topic."""
    sources: dict[str, dict[str, Definition]] = field(default_factory=dict)
    """The definitions that each query reads and that have dead letters, by query name."""

    def find(self, name: str) -> Definition:
        """Returns a declared stream or the inferred definition of a topic. Raises SqlError without a position if there
        is neither."""
        known = self.catalog.stream(name)
        if known is None:
            return infer(self.servers, name, self.dead_letters)
        if known.topic not in brokers.topic_sizes(self.servers):
            raise SqlError(f"the topic {known.topic} of the stream {known.name} does not exist")
        return known

    def start_dead_letters(self, definition: Definition, *, once: bool | None = None) -> RunningQuery | None:
        """Starts the search for bad records of a stream. Returns None if there is nothing to do here.

        Each bad record is written to the dead-letter topic exactly once, however many queries read the stream, because
        one search with a checkpoint of its own serves them all.
        """
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
            locks.close()  # another process runs the search
            return None
        if brokers.create_topic(self.servers, topic):
            self.tell(f"created topic {topic}, for records of {definition.name} that do not parse")
        ends = self.every is None if once is None else once
        writing = QueryOutput(
            self.servers,
            topic,
            topic,
            self.catalog.dead_letters_checkpoint(definition.name),
            None if ends else self.every,
        )
        spark = self.spark()
        started = RunningQuery(
            topic, lambda: start_appends(dead_letter_records(spark, self.servers, definition), writing), locks
        )
        self.running[topic] = started
        started.begin()
        return started

    def tend(self) -> list[Progress]:
        """Returns the progress of all queries, and starts the search for bad records where there are some.

        Raises the error of a failed query.
        """
        news: list[Progress] = []
        for running in list(self.running.values()):
            running.poll()
            news += running.news()
            for source in self.sources.get(running.name, {}).values():
                if running.bad[source.name]:
                    self.start_dead_letters(source)
        return news

    def is_active(self) -> bool:
        """Returns whether any query runs."""
        return any(each.poll() for each in self.running.values())

    def stop(self) -> None:
        """Stops all queries. Searches for bad records stay outstanding, because bad records of a finished batch may not
        have been reported yet."""
        for each in list(self.running.values()):
            each.stop()
        self.running.clear()
        self.sources.clear()
