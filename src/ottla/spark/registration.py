"""`register(spark)`: makes `format("ottla")` work in a session that does not find it, and safe for several streams.

Spark searches for sources with the Python of PYSPARK_DRIVER_PYTHON or PYSPARK_PYTHON, or with the first `python3` on
the path. In a notebook, or if a virtual environment is used without being activated, that is often not the program's
Python, and Spark reports DATA_SOURCE_NOT_FOUND.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from ottla.spark.reader_environment import settle_reader_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the source and the sink in this session.

    With a local master they run with the Python of this program, unless PYSPARK_PYTHON or `spark.pyspark.python` names
    another. Nothing else in the session changes.
    """
    context = spark.sparkContext
    before = context.pythonExec
    if _is_free(context.master, context.getConf().get("spark.pyspark.python")):
        context.pythonExec = sys.executable
    try:
        spark.dataSource.register(_by_value())
    finally:
        context.pythonExec = before
    settle_reader_environment(spark)


def _is_free(master: str | None, configured: str | None) -> bool:
    local = master is not None and (master == "local" or master.startswith("local["))
    return local and configured is None and "PYSPARK_PYTHON" not in os.environ


def _by_value() -> type[DataSource]:
    """Returns the class to register. It is pickled with its code, so that a Python without this package can report
    that."""

    class OttlaSource(DataSource):
        def __new__(cls, options: dict[str, str]) -> Any:
            import importlib.util
            import os
            import sys

            if importlib.util.find_spec("ottla") is None:
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the process reports the exception and exits
                raise ModuleNotFoundError(
                    f"The Python that plans Spark's queries ({sys.executable}) has no module ottla. Install "
                    "ottla[spark] there, or set PYSPARK_PYTHON to a Python that has it."
                )
            from ottla.spark.data_source import OttlaDataSource

            return OttlaDataSource(options)

        @classmethod
        def name(cls) -> str:
            return "ottla"

    OttlaSource.__module__ = "__main__"  # cloudpickle pickles classes of this module by value
    OttlaSource.__qualname__ = "OttlaSource"
    return OttlaSource
