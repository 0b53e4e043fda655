"""Pickles readers and writers so that a worker without this package reports a clear error.

Spark pickles them for its tasks. A pickle that refers to a class of this package fails on a worker that lacks it, with
"No module named 'ottla'" at the end of a traceback. So the pickle made here is a function with its code, which a worker
can load without this package, and the actual pickle is its argument. The function checks for the package first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from ottla import __version__


def _load_on_worker(pickled: bytes, version: str) -> Any:
    """Loads a pickle on a worker. It is sent by value, so it may not refer to anything outside of itself."""
    import importlib.util
    import os
    import platform
    import sys

    from pyspark import cloudpickle

    def refuse(sentence: str) -> ModuleNotFoundError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the process reports the exception and exits
        return ModuleNotFoundError(f"The Python of a Spark worker ({sys.executable} on {platform.node()}) {sentence}")

    fix = f"Install ottla[spark]=={version} there, or set PYSPARK_PYTHON to a Python that has it."
    for name in ("ottla", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            raise refuse(f"has no module {name}. {fix}")
    try:
        kind, state = cloudpickle.loads(pickled)
    except Exception as failure:
        from ottla import __version__ as found

        if found == version:
            raise
        raise refuse(f"has ottla {found}, but the driver has {version}: {failure}. {fix}") from None
    loaded = kind.__new__(kind)
    loaded.__dict__.update(state)
    return loaded


_load_on_worker.__module__ = "__main__"  # cloudpickle pickles functions of this module by value


class WorkerPickle:
    """Base class of objects that are sent to workers."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes, str]]:
        state = (type(self), self.__getstate__())
        pickled = cloudpickle.dumps(state)  # type: ignore[no-untyped-call] # PySpark has no type for it
        return _load_on_worker, (pickled, __version__)
