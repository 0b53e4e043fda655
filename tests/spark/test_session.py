"""A session starts with the settings of a laptop, and says what is missing where there is no Java."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.spark.session import JavaMissingError, find_java_home, new_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_has_the_settings_of_a_laptop(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.range(10).count() == 10


def test_settings_win(spark: SparkSession) -> None:
    again = new_session("tests", settings={"spark.sql.shuffle.partitions": "3"})
    try:
        assert again is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        new_session("tests")
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_no_java_is_told_with_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match=r"Java 17 or later.*Install.*JAVA_HOME"):
        new_session("none")


def test_a_java_that_does_not_run_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match=f"JAVA_HOME={tmp_path} does not run"):
        find_java_home()


@pytest.mark.parametrize(
    ("printed", "version"), [('openjdk version "11.0.2" 2019-01-15', 11), ('java version "1.8.0_1"', 8)]
)
def test_an_old_java_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: str, version: int) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match=f"is {version}\\."):
        find_java_home()
