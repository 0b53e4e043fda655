"""The options of the sink: those of Spark's Kafka connector, and the delivery guarantee."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla.spark.options_kafka import FOR_PRODUCERS, bootstrap_servers, kafka_settings
from ottla.spark.options_text import OptionError, check_names, to_int
from ottla.spark.source.options import KNOWN as KNOWN_OF_SOURCE

DELIVERY, APP_ID, VERSION = "ottla.delivery", "ottla.txn.app.id", "ottla.txn.version"
DECISIONS, LOST = "ottla.decisions.topic", "ottla.lost.transactions"
KNOWN = (*KNOWN_OF_SOURCE, APP_ID, VERSION)
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
TRANSACTION_TIMEOUT_MS = 900_000
"""The default maximum of brokers. A driver that dies can be restarted within this time."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,150}")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of the sink."""

    servers: str
    topic: str | None
    exactly_once: bool
    app_id: str | None
    """With a version, identifies a batch write that is applied once, however often it is run."""
    app_version: int | None
    decisions_topic: str | None
    accept_lost: bool
    producer: Mapping[str, Any]
    """Arguments for `ottla.client.Producer`."""


def read_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parses options. Raises OptionError for a missing, invalid or unsupported option."""
    check_names(options, KNOWN)
    delivery = _one_of(options, DELIVERY, (EXACTLY_ONCE, AT_LEAST_ONCE))
    exactly_once = delivery == EXACTLY_ONCE
    producer = kafka_settings(options, FOR_PRODUCERS)
    if exactly_once:
        if producer.get("idempotence") is False or producer.get("acks", "all") != "all":
            raise OptionError(DELIVERY, delivery, "needs kafka.acks=all and idempotence; or choose at-least-once")
        producer.setdefault("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS)
    elif producer.get("acks", "all") != "all":
        producer.setdefault("idempotence", False)
    app_id, version = options.get(APP_ID), options.get(VERSION)
    if (app_id is None) != (version is None):
        raise OptionError(f"{APP_ID}, {VERSION}", "", "must be set together")
    if app_id is not None and (streaming or not exactly_once):
        raise OptionError(APP_ID, app_id, "is only for batch writes with exactly-once delivery")
    return SinkOptions(
        servers=bootstrap_servers(options),
        topic=options.get("topic", "").strip() or None,
        exactly_once=exactly_once,
        app_id=_name(APP_ID, app_id),
        app_version=None if version is None else to_int(VERSION, version),
        decisions_topic=_name(DECISIONS, options.get(DECISIONS)),
        accept_lost=_one_of(options, LOST, ("fail", "accept")) == "accept",
        producer=producer,
    )


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    chosen = options.get(name, allowed[0]).strip().lower()
    if chosen not in allowed:
        raise OptionError(name, chosen, f"must be one of {', '.join(allowed)}")
    return chosen


def _name(option: str, text: str | None) -> str | None:
    if text is not None and _NAME.fullmatch(text) is None:
        raise OptionError(option, text, "must consist of at most 150 letters, digits, '.', '_' and '-'")
    return text
