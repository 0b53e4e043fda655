"""`ottla pipeline` from the first record to the restored file, and its error messages."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.archive.manifest import ManifestLog
from ottla.archive.ranges import OffsetRange
from ottla.archive.store import Store
from ottla.cli.program import main
from ottla.testing import Cluster
from tests.spark.jobs.archives import append
from tests.spark.jobs.change_logs import produce_raw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_table_is_archived_made_and_restored(
    spark: SparkSession,
    cluster: Cluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, broker = new_topic(1), ["--bootstrap", cluster.bootstrap_servers]
    archive, table, out = (str(tmp_path / name) for name in ("archive", "table", "out.csv"))

    def pipeline(*arguments: str) -> tuple[int, str, str]:
        code = main(["pipeline", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    produce_raw(cluster.bootstrap_servers, topic, [(b"%d" % number, b'{"id": %d}' % number) for number in range(9)])
    code, said, progress = pipeline("archive", "run", topic, "--into", archive, "--batch-offsets", "5", *broker)
    assert (code, said.splitlines()[-1].startswith("archived 9 records in 2 batches")) == (0, True)
    assert "rows/s  lag 4" in progress
    code, said, _ = pipeline("archive", "show", archive, "--json")
    assert [(each["topic"], each["offsets"], each["records"]) for each in json.loads(said)] == [(topic, "0-8", 9)]
    code, said, _ = pipeline("archive", "verify", archive, "--deep")
    assert (code, said.splitlines()[-1]) == (0, "2 files, 9 records, 9 offsets: 0 faults")
    code, said, _ = pipeline("materialize", topic, "--table", table, "--archive", archive, *broker)
    assert (code, said.splitlines()[0]) == (0, "snapshot 0: 9 rows, up to offsets 0:9")
    code, said, _ = pipeline("materialize", topic, "--table", table, "--archive", archive, "--offline")
    assert (code, said) == (0, "nothing has changed since the last snapshot\n")

    produce_raw(cluster.bootstrap_servers, topic, [(b"%d" % number, None) for number in range(9)])
    sources = ["--table", table, "--archive", archive, "--key-column", "id"]
    code, said, _ = pipeline("restore", topic, "--at", "12", "--to", out, *sources, *broker)
    assert (code, "6 rows restored to the state before offsets 0:12" in said) == (0, True)
    with (tmp_path / "out.csv").open(newline="") as lines:
        assert sorted(row["id"] for row in csv.DictReader(lines)) == ["3", "4", "5", "6", "7", "8"]

    for arguments, complaint in [
        (["restore", topic, "--at", "12", "--to", out, *broker], "already exists; --overwrite replaces it"),
        (["restore", topic, "--at", "99", "--to", "x.csv", *broker], "this point is after the end of the log"),
        (["restore", topic, "--at", "12", "--to", "postgresql://127.0.0.1:1/db", *broker], "Nothing was changed"),
        (["restore", "nowhere", "--at", "end", "--to", "x.csv", *broker], '"nowhere"'),
        (["archive", "run", "nowhere", "--into", archive, *broker], '"nowhere"'),
        (["materialize", topic, "--table", archive + "2", "--schema", "id NUMBERISH", *broker], "is not a schema"),
    ]:
        code, _, complained = pipeline(*arguments)
        assert (code, complaint in complained, complained.count("\n")) == (1, True, 1), complained
    assert pipeline("restore", topic, "--at", "someday", "--to", "x.csv", *broker)[0] == 2


def test_verify_names_what_is_wrong_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(str(tmp_path))
    append(store, OffsetRange(0, 10))
    (path,) = ManifestLog(store).load().files
    store.delete(path)
    assert main(["pipeline", "archive", "verify", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "missing" in said.out
    assert "1 fault\n" in said.out
    assert "is incomplete or damaged" in said.err
    assert main(["pipeline", "archive", "verify", str(tmp_path / "elsewhere")]) == 1
    assert "is not an archive" in capsys.readouterr().err
