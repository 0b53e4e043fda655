"""Spark's daemon of Python workers, which has imported what tasks need before it forks the first of them.

Spark's own imports nothing, as a library may start threads when it is imported, and those are not there after a fork:
so each worker imports PySpark, Arrow and this package anew, half a second of work. What is imported here starts none,
but for one of jemalloc's, which takes care of forks itself. Should that change, Spark's own daemon takes over.

`new_session` names it (`spark.python.daemon.module`) where Spark runs on this machine.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from pathlib import Path

NAME = __name__
MODULES = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.worker.plan_data_source_read",
    "pyarrow",
    "pyarrow.compute",
    "ottla.spark.source_batch",
    "ottla.spark.source_stream",
    "ottla.spark.sink",
)
_FORK_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    if has_threads():
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    gc.freeze()  # what is shared with the workers stays shared
    from pyspark import daemon

    daemon.manager()


def has_threads() -> bool:
    """Whether a fork would leave something behind. Where nobody can say, what Python itself knows counts."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        return threading.active_count() > 1
    own = str(os.getpid())
    names = [(each / "comm").read_text().strip() for each in tasks.iterdir() if each.name != own]
    return any(name not in _FORK_SAFE_THREADS for name in names)


if __name__ == "__main__":
    main()
