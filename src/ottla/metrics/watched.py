"""What a page is made of: one broker, its server, and what only a watcher wants to know."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.broker.broker import Broker
from ottla.metrics.hanging_transactions import HangingTransactions
from ottla.metrics.loop_delay import LoopDelay
from ottla.metrics.of_groups import GroupLags
from ottla.server.server import Server


@dataclass(frozen=True, slots=True)
class Watched:
    broker: Broker
    server: Server
    group_lags: GroupLags
    hanging: HangingTransactions
    loop_delay: LoopDelay
    started_ms: int
    """Wall-clock time."""
