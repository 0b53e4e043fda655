"""Suppresses messages that Spark prints at every start and that nobody can act on: that a Java module is incubating,
where its logging settings come from, that Hadoop has no native library.

Warnings and errors of a running session are unchanged. Users who configure Spark's logging themselves
(`log4j2.configurationFile`, or a SPARK_CONF_DIR) keep their settings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SUBMIT = "spark-submit"
_LOGGING = "quiet-log4j2.properties"
_LOGGING_OPTION = "log4j2.configurationFile"
_LEVEL_OPTION = "ottla.log.level"

# Java prints this before anything can be configured, so the line is removed from the JVM's output.
_SUBMIT_SCRIPT = """#!/usr/bin/env bash
if command -v grep > /dev/null; then
  exec 2> >(exec grep --line-buffered -vxF 'WARNING: Using incubator modules: jdk.incubator.vector' >&2)
fi
exec '{real}' "$@"
"""

# Like Spark's own settings, to stderr. The gateway's logger has the root level, because Spark otherwise reports that it
# changes the level.
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
    """Adds the files to a Spark home."""
    script = home / "bin" / SUBMIT
    script.write_text(_SUBMIT_SCRIPT.format(real=real_submit))
    script.chmod(0o700)
    (home / _LOGGING).write_text(_LOGGING_SETTINGS)


def quiet_options(home: Path | None, settings: Mapping[str, str], java_options: str) -> str:
    """Returns the JVM options of a driver; empty if the user has configured logging."""
    if home is None or _LOGGING_OPTION in java_options or os.environ.get("SPARK_CONF_DIR"):
        return ""
    level = settings.get("spark.log.level", "WARN").lower()
    return f"-D{_LOGGING_OPTION}={home / _LOGGING} -D{_LEVEL_OPTION}={level}"
