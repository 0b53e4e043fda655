"""A process that appends words: python -m tests.conformance.coordination.writer DIRECTORY NAME [TIMEOUT_MS]

Prints `sent WORD` before each commit, and `committed`, `refused` or `unknown` after it, until it is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from ottla.coordination.port import Committed, HasVersion, IsAbsent, OutcomeUnknownError, Put, UnavailableError
from tests.conformance.coordination.appending import KEY, words_of
from tests.conformance.coordination.stores import Place


async def write(directory: str, name: str, timeout_ms: int) -> None:
    client = await Place("sqlite", directory).client(timeout_ms)
    for turn in itertools.count():
        entry = await client.get(KEY)
        word = f"{name}-{turn}"
        value = ",".join([*words_of(entry), word]).encode()
        print("sent", word, flush=True)
        try:
            condition = IsAbsent(KEY) if entry is None else HasVersion(KEY, entry.version)
            outcome = await client.commit([condition], [Put(KEY, value)])
            print("committed" if isinstance(outcome, Committed) else "refused", word, flush=True)
        except UnavailableError:
            print("refused", word, flush=True)
        except OutcomeUnknownError:
            print("unknown", word, flush=True)
            return


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 5000))
