"""Spark's daemon for Python workers, with the modules that tasks need imported before the first fork.

Spark's own daemon imports nothing, because a library may start threads on import, and threads do not survive a fork. So
each worker imports PySpark, Arrow and this package again, which takes half a second. The modules imported here start no
threads, except one of jemalloc, which handles forks itself. If that changes, Spark's own daemon takes over.

`new_session` selects this daemon (`spark.python.daemon.module`) if Spark runs on this machine.
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
    "ottla.spark.source.batch",
    "ottla.spark.source.stream",
    "ottla.spark.sink.writers",
)
_FORK_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})


def main() -> None:
    """Imports the modules and runs the daemon."""
    for name in MODULES:
        importlib.import_module(name)
    if has_threads():
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    gc.freeze()  # keeps memory shared with the workers
    from pyspark import daemon

    daemon.manager()


def has_threads() -> bool:
    """Returns whether a fork would lose a thread. Where /proc is not available, only Python's own threads are
    counted."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        return threading.active_count() > 1
    own = str(os.getpid())
    names = [(each / "comm").read_text().strip() for each in tasks.iterdir() if each.name != own]
    return any(name not in _FORK_SAFE_THREADS for name in names)


if __name__ == "__main__":
    main()
