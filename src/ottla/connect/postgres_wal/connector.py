"""The connector `postgres-wal` in a configuration file: runs the receiver under the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ottla.connect.configuration import DEFAULT_WAL
from ottla.connect.contract import Reports
from ottla.connect.failures import NeedsHelpError
from ottla.connect.operator_messages import say
from ottla.connect.postgres_wal.failures import PostgresError
from ottla.connect.postgres_wal.log_location import LogLocation, settings_of_new_log
from ottla.connect.postgres_wal.receiver import Receiver, ReceiverSettings
from ottla.connect.postgres_wal.server import APPLICATION_NAME

REQUIRED = ("url", "log")
OPTIONAL = ("wal", "slot", "standby_name", "replicas", "durability", "unbounded_slot")
REPORT_EVERY_S = 1.0


def build(name: str, settings: Mapping[str, Any], bootstrap: str) -> PostgresWalConnector:
    """Creates the connector from its settings."""
    place = LogLocation(settings.get("wal") or DEFAULT_WAL, settings["log"])
    try:
        new = settings_of_new_log(settings.get("replicas"), settings.get("durability"))
    except PostgresError as wrong:
        raise NeedsHelpError(str(wrong)) from wrong
    receiver = ReceiverSettings(
        settings["url"],
        slot=settings.get("slot") or APPLICATION_NAME,
        application_name=settings.get("standby_name") or APPLICATION_NAME,
        unbounded_slot=bool(settings.get("unbounded_slot")),
    )
    return PostgresWalConnector(Receiver(receiver, lambda fence: place.open(fence=fence, create=new), say))


class PostgresWalConnector:
    """Implements `ottla.connect.contract.Follower`."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def follow(self, stopping: asyncio.Event, reports: Reports) -> None:
        receiving = asyncio.ensure_future(self._receiver.run())
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            while not receiving.done() and not stopped.done():
                self._report(reports)
                await asyncio.wait([receiving, stopped], timeout=REPORT_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            receiving.cancel()
            await asyncio.wait([receiving])
        if not receiving.cancelled() and (failure := receiving.exception()) is not None:
            raise _as_connectors(failure) from failure

    def _report(self, reports: Reports) -> None:
        if self._receiver.state == "running":
            reports.progress(dict(self._receiver.facts()))
        elif self._receiver.last_failure is not None:
            reports.waiting(self._receiver.last_failure)


def _as_connectors(failure: BaseException) -> BaseException:
    """Converts a failure. The receiver retries temporary failures, so one that ends it needs an operator."""
    return NeedsHelpError(str(failure)) if isinstance(failure, PostgresError) else failure
