"""Resolves the names in a SELECT to Spark views: declared streams, or topics whose columns are inferred."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.spark.sql import brokers
from ottla.spark.sql.decode import bad_records, count_bad, good_rows, parse_records, row_type
from ottla.spark.sql.definitions import DELAY, Definition, dead_letters_of, default_event_time
from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.inference import infer_columns, quoted
from ottla.spark.sql.spark_errors import keep_quiet, missing_relation, position_of, to_sql_error
from ottla.spark.sql.statements import Column, Select

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, Observation, SparkSession

BAD = "bad"
ROWS_A_BATCH = 10_000
"""Maximum number of plain rows per batch for a terminal."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How the topics of a SELECT are read."""

    streaming: bool
    start: str = "earliest"
    offsets_max: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class AnalyzedSelect:
    """A SELECT that Spark has analyzed, and what it reads."""

    rows: DataFrame
    sources: dict[str, Definition]
    observations: dict[str, Observation]
    """The number of bad records by stream, for a batch."""


def read_records(spark: SparkSession, servers: str, topic: str, reading: ReadSettings) -> DataFrame:
    """Returns the records of a topic as a DataFrame."""
    reader = spark.readStream if reading.streaming else spark.read
    made = reader.format("ottla").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    made = made.option("includeHeaders", "true").option("kafka.isolation.level", "read_committed")
    made = made.option("startingOffsets", reading.start)
    if reading.offsets_max is not None and reading.streaming:
        made = made.option("maxOffsetsPerTrigger", str(reading.offsets_max))
    for name, value in reading.options.items():
        made = made.option(name, value)
    return made.load()


def metric_name(stream: str) -> str:
    """Returns the name of the metric that counts the bad records of a stream."""
    return f"{BAD} {stream}"


def dead_letter_records(spark: SparkSession, servers: str, definition: Definition) -> DataFrame:
    """Returns the bad records from the beginning. Records that retention deleted before they were read are not an
    error."""
    reading = ReadSettings(streaming=True, options={"failOnDataLoss": "false"})
    return bad_records(parse_records(read_records(spark, servers, definition.topic, reading), definition))


def infer(servers: str, topic: str, dead_letters: str | None = None) -> Definition:
    """Infers the definition of a topic from its last values.

    Raises SqlError, without a position, if there is no such topic or nothing to infer columns from.
    """
    if topic not in brokers.topic_sizes(servers):
        raise SqlError(f"there is no stream or topic {topic}")
    samples = brokers.sample_values(servers, topic)
    found = infer_columns(samples)
    declare = f"declare it: CREATE STREAM name (column type, ...) WITH (topic = '{topic}', format = ...)"
    if not [each for each in samples if each is not None]:
        raise SqlError(f"the topic {topic} is empty, so its columns are unknown; {declare}")
    if not found.columns:
        raise SqlError(f"none of the last {len(samples)} values of {topic} is a JSON object; {declare}")
    if found.clash is not None:
        raise SqlError(f"the fields {' and '.join(found.clash)} of {topic} differ only in case; {declare}")
    return Definition(
        name=topic,
        topic=topic,
        format="json",
        columns=found.columns,
        event_time=default_event_time(found.columns),
        delay=DELAY,
        dead_letters=dead_letters_of(topic, dead_letters),
        is_declared=False,
    )


class Views:
    """Opens a SELECT in a session of its own, so that the views of different statements are separate."""

    def __init__(
        self, spark: SparkSession, servers: str, find: Callable[[str], Definition], reading: ReadSettings
    ) -> None:
        keep_quiet()
        self._spark = spark.newSession()
        self._servers = servers
        self._find = find
        self._reading = reading
        self._sources: dict[str, Definition] = {}
        self._observations: dict[str, Observation] = {}

    @property
    def session(self) -> SparkSession:
        """The session in which the views exist."""
        return self._spark

    def open(self, select: Select, text: str) -> AnalyzedSelect:
        """Opens a SELECT. Raises SqlError with the position of a name that neither Spark nor the catalog knows."""
        from pyspark.errors import AnalysisException

        while True:
            try:
                rows = self._spark.sql(select.body)
            except AnalysisException as failure:
                self._add_missing(failure, select, text)
            else:
                return AnalyzedSelect(rows, self._sources, self._observations)

    def _add_missing(self, failure: PySparkException, select: Select, text: str) -> None:
        parts = missing_relation(failure)
        if parts is None:
            raise to_sql_error(failure, text) from None
        position, name = position_of(failure, text), parts[-1]
        if len(parts) > 1:
            whole = ".".join(parts)
            raise SqlError(f"a name with '.' must be in backticks: `{whole}`", text, position)
        if name in self._sources:
            raise to_sql_error(failure, text) from None
        try:
            definition = self._find(name)
            self._rows(definition, select).createOrReplaceTempView(quoted(name))
        except SqlError as mistake:
            raise SqlError(mistake.sentence, text, position) from None
        self._sources[name] = definition

    def _rows(self, definition: Definition, select: Select) -> DataFrame:
        """Returns the rows with a watermark, and counts bad records."""
        from pyspark.sql import Observation

        records = read_records(self._spark, self._servers, definition.topic, self._reading)
        if definition.is_table and not self._reading.streaming:
            records = last_of_each_key(records)
        parsed = parse_records(records, definition)
        if self._reading.streaming:
            parsed = parsed.observe(metric_name(definition.name), count_bad().alias(BAD))
        else:
            self._observations[definition.name] = Observation(metric_name(definition.name))
            parsed = parsed.observe(self._observations[definition.name], count_bad().alias(BAD))
        rows = good_rows(parsed, definition, select.names)
        time = definition.event_time or ("_timestamp" if "_timestamp" in select.names else None)
        return rows.withWatermark(time, definition.delay) if time is not None and self._reading.streaming else rows


def last_of_each_key(records: DataFrame) -> DataFrame:
    """Returns the current content of a table. Keys do not change their partition."""
    from pyspark.sql import functions as sf

    whole = sf.max_by(sf.struct(*records.columns), sf.col("offset")).alias("last")
    return records.where("key IS NOT NULL").groupBy("key").agg(whole).select("last.*").where("value IS NOT NULL")


def columns_of(definition: Definition) -> tuple[Column, ...]:
    """Returns the columns as a SELECT sees them."""
    return tuple(Column(each.name, row_type(definition, each)) for each in definition.columns)
