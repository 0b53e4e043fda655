"""Collects metrics of requests and connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ottla.broker.api.registry import HANDLERS
from ottla.broker.metrics import definitions as declared
from ottla.broker.metrics.page import Page
from ottla.broker.metrics.scrape_target import ScrapeTarget
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.model.histogram import Histogram

PRODUCE_KEY, FETCH_KEY = 0, 1
ACKS = {-1: "all", 0: "0", 1: "1"}
READERS = {False: "consumer", True: "replica"}
YES_OR_NO = {False: "no", True: "yes"}


def requests(watched: ScrapeTarget, page: Page) -> Iterator[None]:
    """Adds the counts and durations of requests by API."""
    meters = watched.broker.meters
    for (api_key, version), count in sorted(meters.requests.items()):
        page.add(declared.REQUESTS, count, api_name(api_key), version)
    for (api_key, error), count in sorted(meters.errors.items()):
        page.add(declared.REQUEST_ERRORS, count, api_name(api_key), error_name(error))
    yield
    durations = {
        PRODUCE_KEY: _sum(meters.produce_s.values()),
        FETCH_KEY: _sum(meters.fetch_s.values()),
        **meters.durations_s,
    }
    for api_key, found in sorted(durations.items()):
        page.add_histogram(declared.REQUEST_SECONDS, found, api_name(api_key))
    yield
    for acks, found in meters.produce_s.items():
        page.add_histogram(declared.PRODUCE_SECONDS, found, ACKS[acks])
    for (is_replica, has_waited), found in meters.fetch_s.items():
        page.add_histogram(declared.FETCH_SECONDS, found, READERS[is_replica], YES_OR_NO[has_waited])
    page.add(declared.COLD_READS, meters.cold_reads)
    page.add(declared.FETCH_SESSIONS, len(watched.broker.fetch_sessions))


def connections(watched: ScrapeTarget, page: Page) -> Iterator[None]:
    """Adds the metrics of connections, requests in flight and the backlog."""
    server = watched.server
    page.add(declared.CONNECTIONS, server.connection_count)
    page.add(declared.CONNECTIONS_ACCEPTED, server.accepted_count)
    page.add(declared.CONNECTIONS_REFUSED, server.turned_away_count)
    page.add(declared.CONNECTIONS_UNAUTHENTICATED, server.unauthenticated_count)
    page.add(declared.HANDSHAKES_FAILED, server.failed_handshake_count)
    for listener, certificate in server.certificates():
        page.add(declared.CERTIFICATE_EXPIRES, int(certificate.not_after.timestamp()), listener)
    page.add(declared.REQUESTS_IN_FLIGHT, server.inflight_count)
    page.add(declared.REQUEST_MEMORY, server.buffered_bytes)
    backlog = watched.broker.backlog
    page.add(declared.BACKLOG, backlog.size_bytes)
    page.add(declared.BACKLOG_LIMIT, backlog.limit_bytes)
    page.add(declared.BACKLOG_WAITS, backlog.waits)
    yield


def api_name(api_key: int) -> str:
    """Returns the name of an API, or its key if it is unknown."""
    handler = HANDLERS.get(api_key)
    return str(api_key) if handler is None else handler.api.name


def error_name(error: int) -> str:
    """Returns the name of an error as Kafka spells it, or its code if it is unknown."""
    try:
        return ErrorCode(error).name.upper()
    except ValueError:
        return str(error)


def _sum(parts: Iterable[Histogram]) -> Histogram:
    whole = Histogram()
    for part in parts:
        whole.add(part)
    return whole
