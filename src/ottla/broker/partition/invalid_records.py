"""Names the records that make the leader reject a batch (KIP-467).

A batch is stored whole or not at all, so one invalid record rejects all of them. The reply lists the invalid ones by
their index in the batch: the producer reports those to its user as invalid, and the rest as valid records that were
sent with invalid ones, which it may send again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ottla.protocol.model.errors import ErrorCode, RecordError, Refused
from ottla.protocol.model.topic_config import TopicConfig
from ottla.protocol.records.batch import Buffer
from ottla.protocol.records.errors import CorruptRecords, TooLarge
from ottla.protocol.records.validation import keys_and_timestamps

LISTED_RECORDS_MAX = 100_000
"""A batch of more records is rejected without a list: a small compressed batch must not make the broker write a reply
of gigabytes."""
NO_TIMESTAMP = -1


class RecordRules(NamedTuple):
    """The conditions that a topic puts on each record."""

    needs_key: bool
    earliest_ms: int
    latest_ms: int

    @classmethod
    def of(cls, config: TopicConfig, now_ms: int) -> RecordRules:
        """Returns the rules of a topic for records that arrive at this wall-clock time."""
        return cls(
            "compact" in config.cleanup_policy,
            now_ms - config.message_timestamp_before_max_ms,
            now_ms + config.message_timestamp_after_max_ms,
        )


def reject(
    batch: Buffer, record_count: int, config: TopicConfig, now_ms: int, limit_bytes: int, whole: Refused
) -> Refused:
    """Returns the rejection of a batch with the list of its invalid records, or `whole` if they cannot be listed:
    there are too many, or the header of the batch contradicts its records."""
    if record_count > LISTED_RECORDS_MAX:
        return whole
    try:
        errors = list(_invalid_records(batch, config, now_ms, limit_bytes))
    except TooLarge as error:
        return Refused(ErrorCode.message_too_large, str(error))
    except CorruptRecords as error:
        return Refused(ErrorCode.corrupt_message, str(error))
    if not errors:
        return whole
    codes = {code for code, _ in errors}
    code = ErrorCode.invalid_timestamp if ErrorCode.invalid_timestamp in codes else ErrorCode.invalid_record
    listed = tuple(error for _, error in errors)
    summary = f"One or more records have been rejected: {len(listed)} of {record_count}. The first: {listed[0].message}"
    return Refused(code, summary, listed)


def _invalid_records(
    batch: Buffer, config: TopicConfig, now_ms: int, limit_bytes: int
) -> Iterator[tuple[ErrorCode, RecordError]]:
    """Checks the key of a record before its timestamp: a record has at most one error."""
    rules = RecordRules.of(config, now_ms)
    checks_time = config.message_timestamp_type != "LogAppendTime"
    for index, (has_key, timestamp_ms) in enumerate(keys_and_timestamps(batch, limit_bytes)):
        if rules.needs_key and not has_key:
            message = "a compacted topic does not accept a record without a key"
            yield ErrorCode.invalid_record, RecordError(index, message)
        elif checks_time and timestamp_ms != NO_TIMESTAMP and not rules.earliest_ms <= timestamp_ms <= rules.latest_ms:
            message = f"timestamp {timestamp_ms} is outside of [{rules.earliest_ms}, {rules.latest_ms}]"
            yield ErrorCode.invalid_timestamp, RecordError(index, message)
