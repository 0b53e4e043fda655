"""`ottla pipeline run FILE`: functions as queries, a clean stop, and error messages for invalid files."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.cli.program import main
from ottla.spark.pipeline_file import PipelineFileError, load_pipeline
from ottla.testing import Cluster
from tests.spark.topics import NewTopic, produce, read_committed, with_admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 120
EXAMPLE = Path(__file__).parents[2] / "examples" / "pipelines" / "page_views.py"
Run = Callable[..., tuple[int, str]]


def click(page: str, second: int) -> bytes:
    moment = f"2026-11-16T12:{second // 60:02}:{second % 60:02}Z"
    return json.dumps({"user": "ann", "page": page, "ts": moment}).encode()


@pytest.fixture
def run(spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns the exit code and the output."""

    def call(file: Path, *options: str) -> tuple[int, str]:
        where = ["--checkpoints", str(tmp_path / "checkpoints"), "-b", cluster.bootstrap_servers]
        code = main(["pipeline", "run", str(file), *where, *options])
        return code, capsys.readouterr().err

    return call


def test_the_example_counts_pages(run: Run, cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    with_admin(servers, lambda admin: admin.create_topic("clicks", partitions=1))
    produce(servers, "clicks", [click("/?x=1", 1), click("/a", 2), click("/", 3), b"no click"])
    code, said = run(EXAMPLE, "--only", "page_views", "--only", "page_clicks")
    assert (code, "page_clicks: done, 4 rows read, 1 of clicks bad" in said) == (0, True), said
    clicks = read_committed(servers, "page-clicks")
    assert [(each.key, json.loads(each.value or b"")["page"]) for each in clicks] == [
        (b"/", "/"),
        (b"/a", "/a"),
        (b"/", "/"),
    ]
    views = {each.key: json.loads(each.value or b"") for each in read_committed(servers, "page-views")}
    assert views == {b"/": {"page": "/", "count": 2}, b"/a": {"page": "/a", "count": 1}}
    (letter,) = read_committed(servers, "clicks-dead-letters")
    assert (letter.value, dict(letter.headers)["reason"]) == (b"no click", b"the value is not JSON")
    assert [step.name for step in load_pipeline(EXAMPLE).in_order()] == ["page_clicks", "page_views", "minutes"]


def test_it_stops_cleanly_at_an_interrupt_and_goes_on_there(
    run: Run, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, sink = new_topic(1), new_topic(1)
    file = tmp_path / "copy.py"
    file.write_text(
        "from ottla.spark.pipeline_file import Pipeline\n"
        "pipeline = Pipeline()\n"
        f"@pipeline.stream(reads='{source}', writes='{sink}', format='string')\n"
        "def copy(rows):\n"
        "    return rows.select('page')\n"
    )
    produce(cluster.bootstrap_servers, source, [click("/", 1)])

    def interrupt() -> None:
        end_s = time.monotonic() + WAIT_S
        while not ended.is_set() and time.monotonic() < end_s:
            if read_committed(cluster.bootstrap_servers, sink):
                os.kill(os.getpid(), signal.SIGINT)
                return
            ended.wait(0.1)

    ended = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    waiting = threading.Thread(target=interrupt)
    waiting.start()
    try:
        code, said = run(file, "--continuous", "--every", "200ms")
    finally:
        ended.set()
        waiting.join()
        signal.signal(signal.SIGINT, before)
    assert code == 130
    assert "copy: running" in said
    assert "Traceback" not in said
    produce(cluster.bootstrap_servers, source, [click("/a", 2)])
    assert run(file)[0] == 0
    assert [each.value for each in read_committed(cluster.bootstrap_servers, sink)] == [b"/", b"/a"]
    file.write_text(file.read_text().replace("pipeline.stream", "pipeline.table"))
    code, said = run(file)
    assert (code, "the checkpoint copy" in said, "belongs to another function" in said) == (1, True, True)


START = "from ottla.spark.pipeline_file import Pipeline\npipeline = Pipeline()\n"
STREAM = "@pipeline.stream(reads='a', writes='b')\n"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def f(:\n", "line 1: invalid syntax"),
        (START + "x = 1 / 0\n", "line 3: ZeroDivisionError: division by zero"),
        (START + "import nosuchmodule\n", "line 3: ModuleNotFoundError"),
        ("x = 1\n", "must have exactly one Pipeline(), not 0"),
        (START, "has no function with @pipeline.stream"),
        (START + STREAM + "def f(a): ...\n" + STREAM + "def f(a): ...\n", "line 5: there are two functions f"),
        (START + "pipeline.topic('a', schema='x NUMBERISH')\n", "line 3: topic a: NUMBERISH is not a type"),
        (START + "pipeline.topic('a', format='xml')\n", "line 3: topic a: format must be one of"),
        (START + "@pipeline.stream(reads='a', writes='b', format='xml')\ndef f(a): ...\n", 'line 3: format="xml"'),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(tmp_path: Path, source: str, sentence: str) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(source)
    with pytest.raises(PipelineFileError) as caught:
        load_pipeline(file)
    assert str(caught.value).startswith(str(file))
    assert sentence in str(caught.value)


def test_functions_run_after_those_that_write_what_they_read(tmp_path: Path) -> None:
    file = tmp_path / "order.py"
    file.write_text(
        START
        + "@pipeline.stream(reads=['b', 'x'], writes='c')\ndef last(b, x): ...\n"
        + "@pipeline.stream(reads='a', writes='b')\ndef first(a): ...\n"
    )
    pipeline = load_pipeline(file)
    assert [step.name for step in pipeline.in_order()] == ["first", "last"]
    assert [step.name for step in pipeline.in_order(["last"])] == ["last"]
    with pytest.raises(PipelineFileError, match="there is no function lost"):
        pipeline.in_order(["lost"])
    file.write_text(file.read_text() + "@pipeline.stream(reads='c', writes='a')\ndef circle(c): ...\n")
    with pytest.raises(PipelineFileError, match="form a cycle"):
        load_pipeline(file).in_order()


def test_what_a_function_does_wrong_is_told(run: Run, cluster: Cluster, new_topic: NewTopic, tmp_path: Path) -> None:
    source, empty = new_topic(1), new_topic(1)
    produce(cluster.bootstrap_servers, source, [click("/", 1)])
    file = tmp_path / "wrong.py"
    for reads, kind, body, sentence in [
        (source, "stream", "rows.select('pge')", "line 5, in f: AnalysisException"),
        (source, "stream", "rows.select('pge')", "pge"),
        (source, "stream", "None", "f returns NoneType, not a DataFrame"),
        (source, "stream", "rows.sparkSession.range(3)", "that is not a stream"),
        (source, "table", "rows.select('page')", "the table f must be grouped"),
        (source, "stream", "rows.groupBy('page').count()", "f: a stream emits a group only when it is complete"),
        (empty, "stream", "rows", "is empty, so its columns are unknown; pipeline.topic("),
        ("nowhere", "stream", "rows", "no stream or topic nowhere"),
    ]:
        file.write_text(
            START + f"@pipeline.{kind}(reads='{reads}', writes='{source}-out')\ndef f(rows):\n    return {body}\n"
        )
        code, said = run(file, "--checkpoints", str(tmp_path / f"c{abs(hash((kind, body, reads)))}"))
        assert (code, sentence in said, "Traceback" in said) == (1, True, False), said
