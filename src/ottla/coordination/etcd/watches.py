"""Watches of etcd: one stream each, resumed on the next member when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import grpc.aio

from ottla.coordination.etcd.endpoints import ATTEMPT_S_MAX, PAUSE_S, Endpoints, stream, unary, write
from ottla.coordination.etcd.keys import Namespace
from ottla.coordination.etcd.messages import (
    DELETED,
    RANGE,
    WATCH,
    Event,
    RangeRequest,
    RangeResponse,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from ottla.coordination.port import Batch, Change, Resync, Revision, UnavailableError, Watch


class EtcdWatches:
    """The watches of one client."""

    def __init__(self, endpoints: Endpoints, namespace: Namespace) -> None:
        self._endpoints = endpoints
        self._namespace = namespace
        self._cluster_id = 0
        self._closed = False

    def close(self) -> None:
        """Ends all watches: their streams are cancelled and not resumed."""
        self._closed = True
        self._endpoints.cancel_streams()

    async def watch(self, prefix: str, after: Revision) -> Watch:
        """Yields batches after a revision, until the client is closed or a resync is needed."""
        while not self._closed:
            try:
                channel = await self._endpoints.connected()
            except UnavailableError:
                continue
            call = stream(channel, WATCH, WatchResponse)
            self._endpoints.track(call, channel)
            try:
                request: WatchRequest | None = self._request(prefix, after)
                while (response := await _next(call, request)) is not None:
                    request = None
                    if await self._is_over(response, after):
                        yield Resync()
                        return
                    for batch in self._batches(response.events):
                        yield batch
                        after = batch.revision
            finally:
                self._endpoints.forget(call)
                call.cancel()
            if not self._closed:
                self._endpoints.leave(channel)
                await asyncio.sleep(PAUSE_S)

    def _request(self, prefix: str, after: Revision) -> WatchRequest:
        start, end = self._namespace.range(prefix)
        return WatchRequest(WatchCreateRequest(start, end, after + 1))

    async def _is_over(self, response: WatchResponse, after: Revision) -> bool:
        """Returns whether the watch cannot continue: the history was compacted, or the store is a different or older
        one."""
        if response.canceled:
            return response.compact_revision > 0
        if not response.created:
            return False
        if self._cluster_id not in (0, response.header.cluster_id):
            self._cluster_id = response.header.cluster_id
            return True
        self._cluster_id = response.header.cluster_id
        if response.header.revision >= after:
            return False
        return await self._revision() < after  # unless this member only lags behind the others

    async def _revision(self) -> int:
        try:
            request = RangeRequest(self._namespace.full(" "))
            return (await self._endpoints.send(unary(RANGE, request, RangeResponse))).header.revision
        except UnavailableError:
            return 0

    def _batches(self, events: Iterable[Event]) -> Iterator[Batch]:
        """Groups events into one batch for each revision. etcd never splits the events of one revision."""
        for revision, changed in groupby(events, key=lambda event: event.kv.mod_revision):
            yield Batch(tuple(self._change(event) for event in changed), Revision(revision))

    def _change(self, event: Event) -> Change:
        if event.type == DELETED:
            return Change(self._namespace.key(event.kv.key), None)
        entry = self._namespace.entry(event.kv)
        return Change(entry.key, entry)


async def _next(call: Any, request: WatchRequest | None) -> WatchResponse | None:
    """Sends the request, if there is one, and reads a response. Returns None if the stream is broken or was abandoned,
    or if etcd does not confirm the watch promptly: a request sent into a breaking connection may be lost silently."""
    try:
        async with asyncio.timeout(None if request is None else ATTEMPT_S_MAX):
            if request is not None:
                await write(call, request)
            response = await call.read()
    except (grpc.aio.AioRpcError, TimeoutError):
        return None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return None  # the stream was cancelled, not its reader
    return response if isinstance(response, WatchResponse) else None
