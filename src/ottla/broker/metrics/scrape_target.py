"""The inputs of a page: one broker, its server, and state that only metrics need."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.broker.broker import Broker
from ottla.broker.metrics.group_metrics import GroupLags
from ottla.broker.metrics.hanging_transactions import HangingTransactions
from ottla.broker.metrics.loop_delay import LoopDelay
from ottla.broker.server.server import Server


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """The objects that collectors read."""

    broker: Broker
    server: Server
    group_lags: GroupLags
    hanging: HangingTransactions
    loop_delay: LoopDelay
    started_ms: int
    """Wall-clock time."""
