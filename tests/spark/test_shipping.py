"""Readers and writers are pickled to workers: a Python without Ottla reports that; one with it gets them back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, GreaterThanOrEqual

from ottla.spark.data_source import OttlaDataSource
from ottla.spark.options_text import OptionError
from ottla.spark.source.batch import BatchReader
from ottla.spark.user_errors import HIDE_TRACEBACK, IN_WORKER, in_one_sentence
from tests.spark.topics import columns

LOAD = """
import json, os, sys
from pyspark import cloudpickle
try:
    cloudpickle.loads(sys.stdin.buffer.read())
    print(json.dumps("loaded"))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error), os.environ.get("SPARK_HIDE_TRACEBACK")]))
"""
ROWS, SENT = columns("offset long, value binary"), columns("value binary")


def new_source() -> OttlaDataSource:
    options = CaseInsensitiveDict()
    options.update({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "clicks", "topic": "loud"})
    return OttlaDataSource(options)


MADE: dict[str, Callable[[OttlaDataSource], Any]] = {
    "source": lambda source: source,
    "batch reader": lambda source: source.reader(ROWS),
    "stream reader": lambda source: source.streamReader(ROWS),
    "batch writer": lambda source: source.writer(SENT, False),
    "stream writer": lambda source: source.streamWriter(SENT, False),
}


def sent(made: Any) -> bytes:
    pickled: bytes = cloudpickle.dumps(made)  # type: ignore[no-untyped-call] # PySpark has no type for it
    return pickled


def load_elsewhere(pickled: bytes, directory: Path, *packages: str) -> Any:
    """Loads with a Python that has only these packages."""
    venv.create(directory, symlinks=True)
    (place,) = (directory / "lib").glob("python*/site-packages")
    for name in packages:
        (place / name).symlink_to(Path(sys.modules[name].__file__ or "").parent)
    command = [str(directory / "bin" / "python"), "-c", LOAD]
    done = subprocess.run(command, input=pickled, capture_output=True, check=True, timeout=120)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MADE)
def test_a_python_without_ottla_says_so_in_one_sentence(name: str, tmp_path: Path) -> None:
    assert pyarrow.__name__
    assert pyspark.__name__
    pickled = sent(MADE[name](new_source()))
    kind, sentence, hides = load_elsewhere(pickled, tmp_path / "bare", "pyspark", "py4j", "pyarrow")
    assert kind == "ModuleNotFoundError"
    assert sentence.startswith(f"The Python of a Spark worker ({tmp_path}/bare/bin/python on ")
    assert "has no module ottla. Install ottla[spark]==" in sentence
    assert "or set PYSPARK_PYTHON to a Python that has it." in sentence
    assert hides == "1"


def test_a_python_without_arrow_says_so(tmp_path: Path) -> None:
    pickled = sent(new_source().reader(ROWS))
    _, sentence, _ = load_elsewhere(pickled, tmp_path / "bare", "pyspark", "py4j", "ottla")
    assert "has no module pyarrow. Install ottla[spark]==" in sentence


@pytest.mark.parametrize("name", MADE)
def test_what_is_loaded_is_what_was_sent(name: str) -> None:
    made = MADE[name](new_source())
    loaded = cloudpickle.loads(sent(made))
    assert type(loaded) is type(made)
    assert loaded.__getstate__() == made.__getstate__()


def test_spark_takes_the_reader_with_and_without_pushdown_and_filters_reach_it() -> None:
    """Spark compares `__func__` to see whether a reader supports filters, and rejects one that does by default."""
    reader = new_source().reader(ROWS)
    assert isinstance(reader, BatchReader)
    assert reader.pushFilters.__func__ is DataSourceReader.pushFilters
    condition = GreaterThanOrEqual(("offset",), 7)
    assert list(reader.pushFilters([condition])) == [condition]
    loaded = cloudpickle.loads(sent(reader))
    assert loaded._wanted.offset_min == 7


def test_a_traceback_is_hidden_for_user_errors_in_workers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    @in_one_sentence
    def refuse() -> None:
        raise OptionError("a", "b", "is wrong")

    @in_one_sentence
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.delenv(HIDE_TRACEBACK, raising=False)
    with pytest.raises(OptionError):
        refuse()
    monkeypatch.setenv(IN_WORKER, "PYTHON_WORKER")
    with pytest.raises(ZeroDivisionError):
        fail()
    assert HIDE_TRACEBACK not in os.environ
    monkeypatch.setenv(HIDE_TRACEBACK, "")
    with pytest.raises(OptionError):
        refuse()
    assert os.environ[HIDE_TRACEBACK] == "1"
