"""Optimizations of Spark's start are used where they apply, and do no harm where they do not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pyspark
import pytest

from ottla.archive.failures import PipelineError
from ottla.spark.jvm import fast_start
from ottla.spark.jvm.cache import cache_directory, make_once
from ottla.spark.jvm.class_archive import prepare
from ottla.spark.jvm.fast_start import archive_options, archive_place, home_of_jvm, lean_home
from ottla.spark.jvm.java import Java, find_java
from ottla.spark.jvm.quiet_start import quiet_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("OTTLA_CACHE_DIRECTORY", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    return tmp_path / "cache"


def test_a_lean_home_has_all_but_the_zip_of_pyspark(cache: Path) -> None:
    home = lean_home({})
    assert home is not None
    assert (home / "bin" / "spark-submit").exists()
    assert list((home / "jars").glob("spark-core*.jar"))
    assert not (home / "python").exists()
    assert lean_home({}) == home, "made once"


def test_python_processes_import_what_is_installed(spark: SparkSession) -> None:
    def where(_: object) -> str:
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]
    assert "SPARK_HOME" not in os.environ, "it was for the JVM only"


def test_workers_start_with_what_they_need(spark: SparkSession) -> None:
    def loaded(_: object) -> bool:
        import sys

        return "ottla.spark.sink.writers" in sys.modules and "pyarrow" in sys.modules

    assert spark.sparkContext.parallelize([0], 1).map(loaded).collect() == [True]


@pytest.mark.parametrize(("before", "found"), [("", 0), ("Thread(target=Event().wait, daemon=True).start()", 1)])
def test_a_daemon_with_threads_is_noticed(before: str, found: int) -> None:
    """Threads would not survive a fork. Runs in a separate process, with everything imported."""
    imports = "import sys, importlib; from threading import Event, Thread; from ottla.spark import worker_daemon as it"
    loads = "[importlib.import_module(name) for name in it.MODULES]"
    script = f"{imports}; {loads}; {before or 'pass'}; sys.exit(it.has_threads())"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == found


@pytest.mark.parametrize("variable", ["SPARK_HOME", "PYSPARK_PYTHON"])
def test_what_somebody_has_chosen_stays(cache: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "/elsewhere")
    assert lean_home({}) is None
    with pytest.raises(PipelineError, match="is set"):
        prepare()


def test_another_python_in_the_settings_stays(cache: Path) -> None:
    assert lean_home({"spark.pyspark.python": "/usr/bin/python3"}) is None


def test_a_pyspark_that_others_would_not_find_keeps_its_zip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.getsitepackages", list)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert lean_home({}) is None
    monkeypatch.setenv("PYTHONPATH", str(Path(pyspark.__file__).parents[1]))
    assert lean_home({}) is not None


def test_without_a_cache_spark_starts_as_it_always_did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OTTLA_CACHE_DIRECTORY", str(tmp_path / "file"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert lean_home({}) is None
    assert archive_options(Java("java", None, "17"), None) == ""
    assert archive_options(Java("java", None, "17"), tmp_path) == ""


def test_a_path_with_a_space_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark would split it into two options."""
    monkeypatch.setenv("OTTLA_CACHE_DIRECTORY", str(tmp_path / "my cache"))
    with pytest.raises(OSError, match="contains characters"):
        cache_directory()


def test_an_archive_belongs_to_one_java_and_one_pyspark(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = lean_home({})
    assert home is not None
    java = Java("/usr/bin/java", None, 'openjdk version "17.0.15"')
    place = archive_place(java, home)
    assert archive_options(java, home) == "", "there is none yet"
    place.touch()
    assert f"-XX:SharedArchiveFile={place}" in archive_options(java, home)
    assert archive_options(Java("/usr/bin/java", None, 'openjdk version "17.0.16"'), home) == ""
    monkeypatch.setattr(pyspark, "__version__", "9.9.9")
    assert archive_options(java, home) == ""


def test_a_home_that_many_make_at_once_is_whole(tmp_path: Path) -> None:
    together = threading.Barrier(8)
    found: list[list[str]] = []

    def fill(place: Path) -> None:
        together.wait(30)
        for name in "abc":
            (place / name).touch()

    def make() -> None:
        place = make_once(tmp_path / "made", fill)
        found.append(sorted(each.name for each in place.iterdir()))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [["a", "b", "c"]] * 8
    assert [each.name for each in tmp_path.iterdir()] == ["made"], "nothing is left behind"


def test_the_home_is_for_the_jvm_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with home_of_jvm(tmp_path):
        assert os.environ["SPARK_HOME"] == str(tmp_path)
    assert "SPARK_HOME" not in os.environ


def test_an_archive_that_is_not_made_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = lean_home({})
    assert home is not None

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        Path(command[-1]).write_bytes(b"half of")
        return subprocess.CompletedProcess(command, 1, "", "there is no space left\n")

    failing = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("ottla.spark.jvm.class_archive.subprocess", failing)
    with pytest.raises(PipelineError, match="no class archive was created: there is no space left"):
        prepare()
    assert [each.name for each in cache_directory().iterdir()] == [home.name]
    assert archive_options(find_java(), home) == ""


def test_a_session_maps_the_archive_that_is_there(spark: SparkSession) -> None:
    """Only after `ottla pipeline prepare`, which takes as long as ten sessions."""
    home = fast_start.lean_home({})
    if home is None or not archive_place(find_java(), home).exists():
        pytest.skip("ottla pipeline prepare was not run here")
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "the session has a JVM"
    jvm = gateway.proc.pid
    assert str(archive_place(find_java(), home)) in [each.path for each in psutil.Process(jvm).memory_maps()]


SAYS_SOMETHING = """
from ottla.spark.session import new_session

spark = new_session("quiet")
assert spark.range(3).count() == 3
log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.spark.Something")
log.error("this is an error")
spark._jvm.java.lang.System.err.println("said by Java")
spark.stop()
"""


def test_a_start_says_nothing_and_errors_are_told() -> None:
    ended = subprocess.run([sys.executable, "-c", SAYS_SOMETHING], capture_output=True, text=True, check=True)
    assert ended.stdout == ""
    one, other = ended.stderr.splitlines()
    assert one.endswith("ERROR Something: this is an error")
    assert other == "said by Java"


def test_logging_that_somebody_has_chosen_stays(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = lean_home({})
    assert home is not None
    assert "quiet-log4j2.properties" in quiet_options(home, {}, "-Xss1m")
    assert quiet_options(home, {}, "-Dlog4j2.configurationFile=mine.properties") == ""
    assert quiet_options(None, {}, "") == "", "a home of somebody else"
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert quiet_options(home, {}, "") == ""
