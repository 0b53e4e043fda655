"""The controller returns leadership to preferred replicas, for example after a restart
(`auto.leader.rebalance.enable`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.machines.controller.preferred_leaders import imbalanced
from ottla.ports import Clock, Timer

if TYPE_CHECKING:
    from ottla.broker.cluster.controller_loop import ControllerLoop
    from ottla.broker.cluster.membership import Membership
    from ottla.protocol.model.broker_config import BrokerConfig

log = logging.getLogger("ottla.controller")


class LeaderRebalance:
    """Checks the balance of leaders periodically. Every broker runs the timer; only the controller acts."""

    def __init__(self, controller: ControllerLoop, membership: Membership, clock: Clock, config: BrokerConfig) -> None:
        self._controller = controller
        self._membership = membership
        self._clock = clock
        self._is_enabled = config.auto_leader_rebalance_enable
        self._interval_ms = config.leader_imbalance_check_interval_seconds * 1000.0
        self._percent_max = config.leader_imbalance_per_broker_percentage
        self._timer: Timer | None = None

    def start(self) -> None:
        """Schedules the next check, if automatic rebalancing is enabled."""
        if self._is_enabled:
            self._timer = self._clock.call_later(self._interval_ms, self._look)

    def stop(self) -> None:
        """Cancels the next check."""
        self._is_enabled = False
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        try:
            if self._controller.entry is not None:
                wanted = imbalanced(self._membership.image, self._percent_max)
                if wanted:
                    log.info("moving %d partition(s) to their preferred leader", len(wanted))
                    self._controller.prefer(wanted)
        finally:
            self.start()
