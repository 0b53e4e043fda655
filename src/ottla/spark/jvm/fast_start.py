"""Cuts Spark's start-up time by more than half, and its CPU use by half, in two ways that change nothing else.

*Compiled modules.* Spark puts a zip of PySpark first on the path of its Python processes. Python does not cache
compiled modules from a zip, so each process compiles PySpark again: a second of work instead of 0.2. In a home without
the zip, the processes import the installed PySpark, which is the same.

*A class archive* (AppCDS) stores the classes that Spark loads in the JVM's in-memory format. `prepare` creates it once
for each Java and PySpark, and sessions that find it use it. The JVM itself rejects an archive that does not match.

If either is unavailable, for whatever reason, Spark starts as usual.
"""

from __future__ import annotations

import contextlib
import logging
import os
import site
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ottla.spark.jvm.cache import cache_directory, key_of, make_once
from ottla.spark.jvm.java import Java
from ottla.spark.jvm.quiet_start import QUIET_FILES, SUBMIT, fill_quiet

log = logging.getLogger("ottla.spark")

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_QUIET = "-Xlog:cds*=off"
"""Suppresses messages about an archive that does not match, which the user cannot act on."""
_HOME = "SPARK_HOME"


def lean_home(settings: Mapping[str, str]) -> Path | None:
    """Returns a SPARK_HOME whose Python processes import the installed PySpark.

    Returns None if they would not find it, or if the user has chosen a home or a Python.
    """
    import pyspark

    installed = Path(pyspark.__file__).resolve().parent
    chosen = {os.environ.get("PYSPARK_PYTHON", sys.executable), settings.get("spark.pyspark.python", sys.executable)}
    if os.environ.get(_HOME) or chosen != {sys.executable} or not _is_found_by_others(installed.parent):
        return None

    def fill(home: Path) -> None:
        for each in installed.iterdir():
            if each.name not in {"python", "bin"}:
                (home / each.name).symlink_to(each)
        (home / "bin").mkdir()
        for each in (installed / "bin").iterdir():
            if each.name != SUBMIT:
                (home / "bin" / each.name).symlink_to(each)
        fill_quiet(home, installed / "bin" / SUBMIT)

    try:
        key = key_of(pyspark.__version__, str(installed), *QUIET_FILES)
        return make_once(cache_directory() / f"home-{key}", fill)
    except OSError as failure:
        log.debug("Spark starts with its own home: %s", failure)
        return None


def _is_found_by_others(directory: Path) -> bool:
    """Returns whether other processes of this Python have the directory on their path."""
    places = [*site.getsitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return directory in [Path(each).resolve() for each in places if each]


@contextlib.contextmanager
def home_of_jvm(home: Path | None) -> Iterator[None]:
    """Sets SPARK_HOME only for the JVM that is started inside the block."""
    if home is None:
        yield
        return
    os.environ[_HOME] = str(home)
    try:
        yield
    finally:
        del os.environ[_HOME]


def archive_place(java: Java, home: Path) -> Path:
    """Returns the path of the archive for this Java and these jars, whether it exists or not. Raises OSError like
    `cache_directory`."""
    import pyspark

    jars = home / "jars"
    key = key_of(java.command, java.version_text, pyspark.__version__, str(jars), str(jars.stat().st_mtime_ns))
    return cache_directory() / f"classes-{key}.jsa"


def archive_options(java: Java, home: Path | None) -> str:
    """Returns the JVM options that use the archive; empty if there is none."""
    if home is None:
        return ""
    try:
        place = archive_place(java, home)
        return f"-XX:SharedArchiveFile={place} {_QUIET}" if place.exists() else ""
    except OSError as failure:
        log.debug("Spark starts without a class archive: %s", failure)
        return ""


def recording_options(place: Path) -> str:
    """Returns the JVM options that write the archive at exit."""
    return f"-XX:ArchiveClassesAtExit={place} {_QUIET}"
