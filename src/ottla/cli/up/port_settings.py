"""The settings with a port that differs between the brokers of a cluster on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.app import BrokerSettings

METRICS_PORT = "ottla.metrics.port"
WAL_PORT = "ottla.wal.port"


def port_of(settings: BrokerSettings, name: str, number: int) -> int:
    """Returns the port of a broker's append stream or metrics page. 0 stays 0, which means a free port.

    Each broker has its own metrics page, as Prometheus expects: a target that does not answer is a broker that is down.
    """
    first = int(settings.properties.get(name, "0"))
    return first + number - 1 if first else 0
