"""The cost of a run of produce requests in the interpreter: no sockets, all data in the processor's caches.

    python benchmarks/run_path.py [--seconds 0.5] [--lengths 1 8 32] [--calls]

One broker runs in this process. Frames of one small record are passed to the handler as a connection does. The time is
that of the calls themselves, from the frames to the replies or to the promise of replies; what a `disk` log does when
its group is durable is printed as a second figure. `--calls` counts the Python calls of a run instead.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections import Counter
from statistics import median
from types import FrameType
from typing import Any

import uvloop

from ottla.bench.frames import prepare_batch, produce_frame
from ottla.bench.produce import TOPIC_CONFIGS
from ottla.broker.api.api import ConnectionState
from ottla.broker.api.dispatch import dispatch
from ottla.broker.api.produce import handle_run
from ottla.broker.app import BrokerSettings, RunningBroker, start_broker
from ottla.client.admin.admin import Admin

CLASSES = ("memory", "cache", "disk")
RECORD_BYTES = 100
CONNECTION = ConnectionState("benchmark")


async def measure(running: RunningBroker, frame: bytes, length: int, seconds: float) -> tuple[float, float]:
    """Returns the microseconds of a run until the handler returns, and until its replies are there on an idle loop."""
    taken: list[float] = []
    whole: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        frames = [memoryview(bytearray(frame[4:])) for _ in range(length)]
        began = time.perf_counter()
        outcome, count = handle_run(running.broker, CONNECTION, frames, 0, length)
        took = time.perf_counter() - began
        if not count:  # the log first allocates space, as for the first batch of a segment
            reply = dispatch(running.broker, CONNECTION, frames[0])
            if isinstance(reply, asyncio.Future):
                await reply
            continue
        if isinstance(outcome, asyncio.Future):
            await outcome
        taken.append(took)
        whole.append(time.perf_counter() - began)
        await asyncio.sleep(0)
    return median(taken) * 1e6, median(whole) * 1e6


def count_calls(running: RunningBroker, frame: bytes, length: int) -> Counter[str]:
    frames = [memoryview(bytearray(frame[4:])) for _ in range(length)]
    calls: Counter[str] = Counter()

    def note(where: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[f"{where.f_code.co_filename.rpartition('ottla/')[2]} {where.f_code.co_qualname}"] += 1
        elif event == "c_call":
            calls[f"C {getattr(argument, '__qualname__', argument)}"] += 1

    sys.setprofile(note)
    try:
        handle_run(running.broker, CONNECTION, frames, 0, length)
    finally:
        sys.setprofile(None)
    return calls


async def run(seconds: float, lengths: list[int], calls: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="ottla-run-path-") as directory:
        running = await start_broker(BrokerSettings(data_dir=directory, port=0))
        admin = Admin(running.bootstrap)
        batch = prepare_batch(RECORD_BYTES, RECORD_BYTES, int(time.time() * 1000))
        try:
            for durability in CLASSES:
                await admin.create_topic(durability, configs={**TOPIC_CONFIGS, "ottla.durability": durability})
                frame = produce_frame(durability, batch)
                for length in lengths:
                    await measure(running, frame, length, seconds / 4)
                    if calls:
                        counted = count_calls(running, frame, length)
                        print(f"{durability}, {length} requests: {sum(counted.values())} calls")
                        for name, count in counted.most_common():
                            print(f"  {count:>4} {name}")
                        continue
                    gc.collect()
                    taken, whole = await measure(running, frame, length, seconds)
                    print(f"{durability:<8} {length:>3} requests: {taken:>7.1f} us, with the answer {whole:>7.1f} us")
        finally:
            await admin.close()
            await running.stop(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the interpreter's cost of a run of produce requests.")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--calls", action="store_true", help="count the calls of a run instead")
    options = parser.parse_args()
    uvloop.run(run(options.seconds, options.lengths, options.calls))


if __name__ == "__main__":
    main()
