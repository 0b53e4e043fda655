"""The key-value store as a process: one line per request and reply. Several on one log form a replicated store.

    python examples/kv/server.py --wal 127.0.0.1:9192 --port 7000                   # leads
    python examples/kv/server.py --wal 127.0.0.1:9192 --port 7001 --follow          # takes over when the leader fails

    PUT key value -> OK offset      GET key -> VALUE value | NONE     DEL key -> OK offset
    AT offset key -> VALUE value | NONE                               LEAD -> OK offset
    SNAPSHOT -> OK offset           POSITION -> OK offset leads|follows

Any other reply than OK, VALUE or NONE is `ERROR text`. A PUT without a reply may or may not be applied.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the store is beside this file

from store import HEARTBEAT_S, KvStore

from ottla.recovery import Point, SnapshotStore
from ottla.wal import LogSettings


class Server:
    def __init__(self, store: KvStore, take_over_after_s: float) -> None:
        self._store = store
        self._take_over_after_s = take_over_after_s
        self._changing = asyncio.Lock()

    async def answer(self, line: str) -> str:
        words = line.split()
        try:
            match words:
                case ["PUT", key, value]:
                    return f"OK {await self._store.put(key.encode(), value.encode())}"
                case ["DEL", key]:
                    return f"OK {await self._store.delete(key.encode())}"
                case ["GET", key]:
                    return _shown(self._store.get(key.encode()))
                case ["AT", offset, key]:
                    return _shown((await self._store.at(Point(offset=int(offset)))).get(key.encode()))
                case ["SNAPSHOT"]:
                    return f"OK {(await self._store.snapshot(trim=True)).position.next_offset}"
                case ["LEAD"]:
                    await self.lead()
                    return f"OK {self._store.position.next_offset}"
                case ["POSITION"]:
                    role = "leads" if self._store.is_leading else "follows"
                    return f"OK {self._store.position.next_offset} {role}"
            return "ERROR say PUT key value, GET key, DEL key, AT offset key, SNAPSHOT, LEAD or POSITION"
        except Exception as error:
            return f"ERROR {type(error).__name__}: {error}".replace("\n", " ")

    async def lead(self) -> None:
        async with self._changing:
            if not self._store.is_leading:
                await self._store.lead()
                print("kv leads", flush=True)

    async def watch(self) -> None:
        """Takes over as leader if a follower hears nothing; follows if a leader was replaced."""
        while True:
            await asyncio.sleep(HEARTBEAT_S * random.uniform(0.5, 1.5))
            try:
                if self._store.is_following and self._store.silent_s > self._take_over_after_s > 0:
                    await self.lead()
                elif not self._store.is_leading and not self._store.is_following:
                    async with self._changing:
                        await self._store.follow()
                        print("kv follows", flush=True)
            except Exception as error:
                print(f"kv tries again: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while line := await reader.readline():
                writer.write((await self.answer(line.decode(errors="replace")) + "\n").encode())
                await writer.drain()
        writer.close()


def _shown(value: bytes | None) -> str:
    return "NONE" if value is None else f"VALUE {value.decode()}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wal", required=True, help="host:port,... of the brokers' WAL service")
    parser.add_argument("--log", default="kv")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--snapshots", help="a directory, or s3://...")
    parser.add_argument("--durability", default="disk", choices=["disk", "cache", "memory"])
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="processes that replay a long log")
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--take-over-after", type=float, default=2.0, help="seconds of silence; 0: never by itself")
    arguments = parser.parse_args()
    snapshots = None if arguments.snapshots is None else SnapshotStore(arguments.snapshots)
    settings = LogSettings(replicas=arguments.replicas, durability=arguments.durability, retention_ms=-1)
    workers = arguments.workers
    async with KvStore(arguments.wal, arguments.log, snapshots, create=settings, workers=workers) as store:
        await (store.follow() if arguments.follow else store.lead())
        server = Server(store, arguments.take_over_after)
        listening = await asyncio.start_server(server.serve, "127.0.0.1", arguments.port)
        port = listening.sockets[0].getsockname()[1]
        role = "follows" if arguments.follow else "leads"
        print(f"kv ready port={port} {role} at {store.position.next_offset}", flush=True)
        await server.watch()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
