"""Commits a batch and dies at a step: a process without Spark that is cheap to kill.

`python -m tests.spark.dying_commit '{"options": {…}, "query": …, "run": …, "batch": 5, "die.at": …, "writes": [[…]]}'`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from ottla.client import PreparedTransaction
from ottla.spark.sink.commit import TaskWrite
from ottla.spark.sink.options import read_sink_options
from tests.spark.dying_sinks import Death, DyingCommit


def main() -> None:
    plan = json.loads(sys.argv[1])
    death = Death({"die.at": plan["die.at"], "die.batch": "0", "die.group": str(os.getpgrp())})
    writes = [
        TaskWrite(plan["query"], plan["run"], task, 0, 0, False, PreparedTransaction(*transaction))
        for task, transaction in enumerate(plan["writes"])
    ]
    committing = DyingCommit(read_sink_options(plan["options"], streaming=True), plan["query"], plan["run"], death)
    asyncio.run(committing.commit(plan["batch"], writes))


if __name__ == "__main__":
    main()
