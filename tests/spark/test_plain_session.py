"""`format("ottla")` in a session without preparation: Spark's defaults, on this machine and on a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from ottla.testing import Cluster
from tests.spark.standalone import ROOT, SETTINGS, StandaloneSpark
from tests.spark.topics import NewTopic, produce, values_of

RECORDS = [b"%d" % number for number in range(10)]
LOCAL = {"spark.master": "local[2]", "spark.driver.memory": "600m", "spark.driver.bindAddress": "127.0.0.1"}
WORKS = ["read", "filter", "filter_pushed", "write", "stream"]
SENTENCES = {
    "unknown_topic": "ottla.spark.source.offsets_lookup.MissingTopicError: there is no topic there-is-none at ",
    "misspelt_option": "OptionError: option startingoffset is not an option; did you mean startingOffsets?",
    "unknown_column": "ColumnError: there is no column ofset; the columns are key, value, topic",
    "stream_of_unknown_topic": "MissingTopicError: there is no topic there-is-none at ",
    "stream_with_an_end": "OptionError: option endingOffsets='latest' is only for batch queries",
    "misspelt_option_of_sink": "OptionError: option topics is not an option; did you mean topic?",
    "invalid_topic_of_sink": 'BrokerRefusedError: topic "a/b": the name is not a valid topic name',
}


def run(settings: dict[str, str], steps: list[str], environment: dict[str, str], **plan: Any) -> dict[str, Any]:
    """Returns the result of each step of `plain_driver`."""
    given = json.dumps({"settings": settings, "steps": steps, **plan})
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spark.plain_driver", given],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


@pytest.fixture
def plan(cluster: Cluster, new_topic: NewTopic, tmp_path: Path) -> dict[str, Any]:
    servers = cluster.bootstrap_servers
    topic, sink = new_topic(), new_topic(prefix="sink")
    produce(servers, topic, RECORDS)
    return {"servers": servers, "topic": topic, "sink": sink, "directory": str(tmp_path / "checkpoints")}


def python_without(tmp_path: Path) -> str:
    """A Python of the same version in a new environment: with Arrow, which Spark itself needs, and without Ottla."""
    import pyarrow

    venv.create(tmp_path / "bare", symlinks=True)
    (packages,) = (tmp_path / "bare" / "lib").glob("python*/site-packages")
    (packages / "pyarrow").symlink_to(Path(pyarrow.__file__).parent)
    return str(tmp_path / "bare" / "bin" / "python")


@pytest.fixture(autouse=True)
def _no_python_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the variables that sessions of other tests in this process have set."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_spark_with_its_defaults_reads_and_writes_and_says_what_is_wrong(plan: dict[str, Any]) -> None:
    told = run(LOCAL, [*WORKS, *SENTENCES], {}, **plan)
    assert told["read"] == 10
    assert told["filter"] == told["filter_pushed"] == [7, 8, 9]
    assert [told["write"], told["stream"]] == [None, None]
    assert sorted(values_of(plan["servers"], plan["sink"])) == sorted([*RECORDS, b"0", b"1", b"2"])
    for step, sentence in SENTENCES.items():
        text = told[step]["failed"]
        assert sentence in text
        assert "Traceback" not in text
        assert "UnboundLocalError" not in text


def test_register_takes_the_python_of_the_program_and_guards_streams(plan: dict[str, Any], tmp_path: Path) -> None:
    """As in a notebook: the first python3 on the path is another one, and Spark by itself finds no source."""
    python = python_without(tmp_path)
    path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    refused = run(LOCAL, ["read"], {"PATH": path}, **plan)
    assert "DATA_SOURCE_NOT_FOUND" in refused["read"]["failed"], "else this test shows nothing"
    told = run(LOCAL, ["read", "streams_at_once"], {"PATH": path}, register=True, **plan)
    assert told == {"read": 10, "streams_at_once": None}
    chosen = run(LOCAL, ["read"], {"PYSPARK_PYTHON": python}, register=True, **plan)
    assert "has no module ottla. Install ottla[spark] there, or set PYSPARK_PYTHON" in chosen["read"]["failed"]
    assert "Traceback" not in chosen["read"]["failed"]


def test_a_cluster_reads_and_writes(plan: dict[str, Any], tmp_path: Path) -> None:
    with StandaloneSpark(tmp_path / "spark") as spark:
        settings = {**SETTINGS, "spark.master": spark.master}
        told = run(settings, WORKS, {"PYSPARK_PYTHON": sys.executable}, **plan)
        assert told["read"] == 10
        assert told["filter"] == told["filter_pushed"] == [7, 8, 9]
        assert sorted(values_of(plan["servers"], plan["sink"])) == sorted([*RECORDS, b"0", b"1", b"2"])
