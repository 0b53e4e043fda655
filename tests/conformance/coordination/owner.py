"""A process that owns a lease: python -m tests.conformance.coordination.owner KIND WHERE KEY TTL_MS

Puts the key under its lease and renews it four times per time to live. Prints `owns` then, and `lost` when the lease
has ended, after which it exits. SIGUSR1 blocks its event loop until SIGUSR2; its threads continue.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from ottla.coordination.port import Committed, Put, UnavailableError
from tests.conformance.coordination.stores import Place


async def own(place: Place, key: str, ttl_ms: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, signal.sigwait, {signal.SIGUSR2})
    client = await place.client()
    lease = await client.open_lease(ttl_ms)
    assert isinstance(await client.commit([], [Put(key, b"mine", lease.id)]), Committed)
    print("owns", flush=True)
    while True:
        try:
            if not await lease.renew():
                break
        except UnavailableError:
            pass
        await asyncio.sleep(lease.ttl_ms / 4000)
    print("lost", flush=True)
    await client.close()


if __name__ == "__main__":
    asyncio.run(own(Place(sys.argv[1], sys.argv[2]), sys.argv[3], int(sys.argv[4])))
