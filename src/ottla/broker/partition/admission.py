"""Decides whether a producer's batch may enter a log, by Kafka's rules.

The broker checks the 61 bytes of the header and the CRC; it does not open the batch. There are few exceptions: a topic
whose `compression.type` is not the producer's, a compacted topic (which rejects null keys), and a batch whose header
has a timestamp out of range (the reply names the records).
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.partition.invalid_records import reject
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.topic_config import TopicConfig
from ottla.protocol.records.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    crc_matches,
    read_header,
    set_log_append_time,
)
from ottla.protocol.records.codecs import topic_compression
from ottla.protocol.records.errors import CorruptRecords, TooLarge
from ottla.protocol.records.validation import null_key_in, recompress

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
Admitted = tuple[BatchHeader, memoryview]


def admit(records: memoryview | None, config: TopicConfig, now_ms: int) -> Admitted | Refused:
    """Returns the header and the writable batch to append, or the reason for rejecting it."""
    if records is None or len(records) < HEADER_BYTES:
        return Refused(
            ErrorCode.invalid_record, "a produce request must contain exactly one record batch per partition"
        )
    header = read_header(records)
    refused = _check_header(header, len(records), config)
    if refused is not None:
        return refused
    if not crc_matches(records, header):
        return Refused(ErrorCode.corrupt_message, "the record batch does not match its CRC")
    if "compact" in config.cleanup_policy or config.compression_type != "producer":
        opened = _open_batch(header, records, config, now_ms)
        if isinstance(opened, Refused):
            return opened
        header, records = opened
    if config.message_timestamp_type == "LogAppendTime":
        header = set_log_append_time(records, header, now_ms)
    else:
        refused = _check_timestamps(header, config, now_ms)
        if refused is not None:
            return reject(records, header.record_count, config, now_ms, DECOMPRESSED_BYTES_MAX, whole=refused)
    return header, records


class OpaqueLimits(NamedTuple):
    """The limits that `ProduceRun.admit` checks, for a topic whose batches are never opened or changed."""

    size_bytes_max: int
    after_max_ms: int
    before_max_ms: int


def opaque_limits(config: TopicConfig) -> OpaqueLimits | None:
    """Returns the limits, or None if the topic's batches have to be validated one by one."""
    opens = "compact" in config.cleanup_policy or config.compression_type != "producer"
    if opens or config.message_timestamp_type == "LogAppendTime":
        return None
    return OpaqueLimits(
        config.max_message_bytes, config.message_timestamp_after_max_ms, config.message_timestamp_before_max_ms
    )


def _check_header(header: BatchHeader, size: int, config: TopicConfig) -> Refused | None:
    if header.magic != MAGIC:
        error = ErrorCode.unsupported_for_message_format if header.magic in (0, 1) else ErrorCode.corrupt_message
        return Refused(error, f"record batch format {header.magic} is not supported, only format {MAGIC}")
    if header.batch_length + LOG_OVERHEAD_BYTES != size:
        if HEADER_BYTES <= header.batch_length + LOG_OVERHEAD_BYTES < size:
            return Refused(
                ErrorCode.invalid_record, "a produce request must contain exactly one record batch per partition"
            )
        return Refused(ErrorCode.corrupt_message, "the length field of the record batch does not match its size")
    too_large = _check_size(size, config)
    if too_large is not None:
        return too_large
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        return Refused(
            ErrorCode.invalid_record,
            f"the record count {header.record_count} does not match the last offset delta {header.last_offset_delta}",
        )
    if header.is_control:
        return Refused(ErrorCode.invalid_record, "clients are not allowed to write control batches")
    if header.is_log_append_time:
        return Refused(ErrorCode.invalid_timestamp, "producers are not allowed to set the timestamp type LogAppendTime")
    if header.compression > 4:
        return Refused(ErrorCode.unsupported_compression_type, f"unknown compression codec {header.compression}")
    if header.is_transactional and header.producer_id < 0:
        return Refused(ErrorCode.invalid_record, "a transactional batch needs a producer id")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return Refused(ErrorCode.invalid_record, "a batch of an idempotent producer needs an epoch and a sequence")
    return None


def _open_batch(header: BatchHeader, records: memoryview, config: TopicConfig, now_ms: int) -> Admitted | Refused:
    """Opens a batch in the cases that the module docstring lists as exceptions."""
    try:
        if "compact" in config.cleanup_policy and null_key_in(records, DECOMPRESSED_BYTES_MAX):
            whole = Refused(ErrorCode.invalid_record, "a compacted topic does not accept records without a key")
            return reject(records, header.record_count, config, now_ms, DECOMPRESSED_BYTES_MAX, whole)
        if config.compression_type != "producer":
            codec = topic_compression(config.compression_type, header.compression)
            if codec != header.compression:
                again = memoryview(recompress(records, codec, DECOMPRESSED_BYTES_MAX))
                return _check_size(len(again), config) or (read_header(again), again)
    except TooLarge as error:
        return Refused(ErrorCode.message_too_large, str(error))
    except CorruptRecords as error:
        return Refused(ErrorCode.corrupt_message, str(error))
    return header, records


def _check_size(size: int, config: TopicConfig) -> Refused | None:
    if size <= config.max_message_bytes:
        return None
    return Refused(
        ErrorCode.message_too_large, f"a batch of {size} bytes exceeds max.message.bytes={config.max_message_bytes}"
    )


def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> Refused | None:
    after_max, before_max = config.message_timestamp_after_max_ms, config.message_timestamp_before_max_ms
    if header.max_timestamp - now_ms > after_max:
        return Refused(
            ErrorCode.invalid_timestamp,
            f"timestamp {header.max_timestamp} is more than message.timestamp.after.max.ms={after_max} "
            "ahead of the broker's clock",
        )
    if header.base_timestamp >= 0 and now_ms - header.base_timestamp > before_max:
        return Refused(
            ErrorCode.invalid_timestamp,
            f"timestamp {header.base_timestamp} is more than message.timestamp.before.max.ms={before_max} "
            "behind the broker's clock",
        )
    return None
