"""Runs the fetcher of a consumer and waits for the data that it fetches."""

from __future__ import annotations

import asyncio

from ottla.client.brokers import Brokers
from ottla.client.consumer.fetcher import Fetcher, FetchSettings
from ottla.client.consumer.partition_reader import PartitionReader
from ottla.client.consumer.subscription import Subscription
from ottla.client.errors import ClientClosedError
from ottla.client.groups.session import GroupSession
from ottla.client.metadata import Metadata


class Arrivals:
    """The fetched data of a consumer, by partition."""

    def __init__(
        self,
        settings: FetchSettings,
        brokers: Brokers,
        metadata: Metadata,
        subscription: Subscription,
        group: GroupSession | None,
    ) -> None:
        self.is_closed = False
        self._settings = settings
        self._brokers = brokers
        self._metadata = metadata
        self._subscription = subscription
        self._group = group
        self._fetcher: Fetcher | None = None

    @property
    def is_started(self) -> bool:
        """Whether records are being fetched."""
        return self._fetcher is not None

    def start(self) -> None:
        """Starts fetching."""
        self._fetcher = Fetcher(
            self._settings, self._brokers, self._metadata, self._subscription.readers, self._on_metadata
        )
        if self._group is not None:
            self._group.start(self._fetcher.notify, self._fetcher.wake)

    async def close(self) -> None:
        """Stops fetching."""
        self.is_closed = True
        if self._fetcher is not None:
            await self._fetcher.close()

    def require_open(self) -> Fetcher:
        """Returns the fetcher. Raises ClientClosedError if the consumer was not started or is closed."""
        if self.is_closed:
            raise ClientClosedError("the consumer is closed")
        if self._fetcher is None:
            raise ClientClosedError("the consumer was not started: use `async with Consumer(...)` or `await start()`")
        return self._fetcher

    def wake(self) -> None:
        """Lets the fetcher look for partitions to fetch, because something changed."""
        if self._fetcher is not None:
            self._fetcher.wake()

    def notify(self) -> None:
        """Lets `ready` check again, because something changed."""
        if self._fetcher is not None:
            self._fetcher.notify()

    async def ready(self, deadline_s: float | None, *, keep_ends: bool = False) -> list[PartitionReader]:
        """Waits for partitions with data; empty after the deadline. `keep_ends` keeps the limits of `fetch_range`."""
        if not keep_ends and self._subscription.lift_ends():
            self.wake()
        if self._group is None:
            return await self._wait(deadline_s, None)
        self.require_open()
        self._group.user_came()
        try:
            return await self._wait(deadline_s, self._group)
        finally:
            self._group.user_went()

    async def _wait(self, deadline_s: float | None, group: GroupSession | None) -> list[PartitionReader]:
        loop = asyncio.get_running_loop()
        while True:
            fetcher = self.require_open()
            if group is not None:
                await group.attend()
            failure = self._subscription.take_failure()
            if failure is not None:
                fetcher.wake()  # the failed partition is retried, and nothing else wakes the fetcher
                raise failure
            ready = [each for each in self._subscription.readers.values() if each.has_data and not each.paused]
            if ready:
                return ready
            left_s = None if deadline_s is None else deadline_s - loop.time()
            if left_s is not None and left_s <= 0:
                return []
            await fetcher.wait_arrived(left_s)

    def _on_metadata(self) -> None:
        self._subscription.discover()
        assert self._fetcher is not None
        if self._group is not None:
            self._group.on_metadata()
        self._subscription.note_unknown_topics(asyncio.get_running_loop().time(), self._fetcher.notify)
