"""Works around a race in Spark when several streams start in one session.

Spark 4.3 keeps one environment for the processes of all readers of a source, in a Scala map without a lock. Each stream
reader adds four names to it when it starts. Two that do so at the same time can leave the map with a wrong size, and
from then on the session cannot send any task: "Illegal size 5 of collection, expected 7".

Names that already exist do not change the map. Their values do not matter: every reader, planner and task sets its own
before it starts a process.
"""

from __future__ import annotations

import logging
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("ottla.spark")

SOURCE = "ottla"
NAMES = {
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""The names that `PythonStreamingSourceRunner.init` adds, with Spark's own defaults. A test pins them."""


def settle_reader_environment(spark: SparkSession) -> None:
    """Adds the names before any reader does. Spark searches for its Python sources here, if it has not done so yet.

    This uses internals of Spark. If another version differs, nothing is done.
    """
    try:
        sources = spark._jsparkSession.sessionState().dataSourceManager()
        environment = sources.lookupDataSource(SOURCE).dataSourceCls().envVars()
        for name, value in NAMES.items():
            environment.putIfAbsent(name, value)
    except Exception as error:  # py4j's and Java's errors have no other class in common
        log.debug("could not change the environment of Spark's readers: %s", error)
