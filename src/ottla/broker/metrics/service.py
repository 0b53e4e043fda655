"""Opens the metrics endpoint from the settings `ottla.metrics.host` and `ottla.metrics.port`."""

from __future__ import annotations

import errno
import socket
from functools import partial

from ottla.broker.broker import Broker
from ottla.broker.metrics.endpoint import MetricsEndpoint
from ottla.broker.metrics.group_metrics import GroupLags
from ottla.broker.metrics.hanging_transactions import HangingTransactions
from ottla.broker.metrics.loop_delay import LoopDelay
from ottla.broker.metrics.scrape import scrape
from ottla.broker.metrics.scrape_target import ScrapeTarget
from ottla.broker.server.listener import bind
from ottla.broker.server.server import Server


class MetricsAddressError(Exception):
    """The metrics address is not available. The message is written for the user."""


class MetricsService:
    """The metrics endpoint of a broker.

    The constructor binds the address before the broker does anything, so an address in use fails the start without side
    effects. Serving begins with `start`.
    """

    def __init__(self, host: str, port: int) -> None:
        """Binds the address. Raises MetricsAddressError."""
        try:
            self._sockets = bind(host, port)
        except OSError as error:
            raise MetricsAddressError(_sentence(host, port, error)) from error
        self._endpoint: MetricsEndpoint | None = None
        self._loop_delay: LoopDelay | None = None

    @property
    def url(self) -> str | None:
        """The address of the page, or None before `start`."""
        return self._endpoint.url if self._endpoint is not None else None

    def start(self, broker: Broker, server: Server) -> None:
        """Serves the metrics of this broker."""
        self._loop_delay = LoopDelay(broker.clock)
        lags, hanging = GroupLags(broker), HangingTransactions(broker)
        watched = ScrapeTarget(broker, server, lags, hanging, self._loop_delay, broker.clock.now_ms())
        self._endpoint = MetricsEndpoint(self._sockets, partial(scrape, watched))
        self._endpoint.start()
        self._loop_delay.start()

    def close(self) -> None:
        """Closes the endpoint, or the sockets if it was never started."""
        if self._loop_delay is not None:
            self._loop_delay.stop()
        if self._endpoint is not None:
            self._endpoint.close()
        else:
            close_all(self._sockets)


def close_all(sockets: list[socket.socket]) -> None:
    """Closes the sockets."""
    for each in sockets:
        each.close()


def _sentence(host: str, port: int, error: OSError) -> str:
    where = f"metrics: {host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where} is already in use, perhaps by another broker; stop that broker, or choose another --metrics-port"
        )
    return f"metrics: {error.strerror or error} (ottla.metrics.host, ottla.metrics.port)"
