"""What Spark says at every start, and what nobody can do anything about, is not said: that a module of Java is an
incubating one, where its own logging settings come from, that Hadoop has no native library here.

Warnings and errors of a running session are as before. Somebody who has settings of their own for Spark's logging
(`log4j2.configurationFile`, or a SPARK_CONF_DIR) keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SUBMIT = "spark-submit"
_LOGGING = "quiet-log4j2.properties"
_LOGGING_OPTION = "log4j2.configurationFile"
_LEVEL_OPTION = "ottla.log.level"

# Java says it by itself, before anything can be set: the one line is taken out of what the JVM writes.
_SUBMIT_SCRIPT = """#!/usr/bin/env bash
if command -v grep > /dev/null; then
  exec 2> >(exec grep --line-buffered -vxF 'WARNING: Using incubator modules: jdk.incubator.vector' >&2)
fi
exec '{real}' "$@"
"""

# As Spark's own, to stderr. The gateway's logger has the level of all others: else Spark says that it sets one.
_LOGGING_SETTINGS = f"""rootLogger.level = ${{sys:{_LEVEL_OPTION}:-warn}}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = ${{sys:{_LEVEL_OPTION}:-warn}}
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""
QUIET_FILES = (_SUBMIT_SCRIPT, _LOGGING_SETTINGS)


def fill_quiet(home: Path, real_submit: Path) -> None:
    """Into a home of Spark."""
    script = home / "bin" / SUBMIT
    script.write_text(_SUBMIT_SCRIPT.format(real=real_submit))
    script.chmod(0o700)
    (home / _LOGGING).write_text(_LOGGING_SETTINGS)


def quiet_options(home: Path | None, settings: Mapping[str, str], java_options: str) -> str:
    """For the command line of a driver's JVM; empty where somebody has chosen how it logs."""
    if home is None or _LOGGING_OPTION in java_options or os.environ.get("SPARK_CONF_DIR"):
        return ""
    level = settings.get("spark.log.level", "WARN").lower()
    return f"-D{_LOGGING_OPTION}={home / _LOGGING} -D{_LEVEL_OPTION}={level}"
