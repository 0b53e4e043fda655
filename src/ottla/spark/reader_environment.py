"""Streams that start side by side in one session, without a damaged environment.

Spark 4.3 keeps one environment for the processes of all readers of a source: a Scala map that no lock guards. Each
reader of a stream puts four names into it when it starts. Two that do so at the same time can leave the map with a
wrong size, and from then on no task of the session can be sent: "Illegal size 5 of collection, expected 7".

Names that are there already are no change of the map. Their values mean nothing here: whoever starts a process, a
reader, a planner or a task, sets its own first.
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
"""What `PythonStreamingSourceRunner.init` puts in, with Spark's own defaults; a test pins it."""


def settle_reader_environment(spark: SparkSession) -> None:
    """Puts the names in before any reader does. Spark finds its Python sources here, if it has not done so yet.

    This is inside of Spark, where another version may have something else: then nothing is done.
    """
    try:
        sources = spark._jsparkSession.sessionState().dataSourceManager()
        environment = sources.lookupDataSource(SOURCE).dataSourceCls().envVars()
        for name, value in NAMES.items():
            environment.putIfAbsent(name, value)
    except Exception as error:  # py4j's and Java's have no other class in common
        log.debug("the environment of Spark's readers was left as it is: %s", error)
