"""Configuration files in both syntaxes, and mistakes that are named with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli.config_file import Setting, parse_properties, read_config_file
from ottla.cli.failures import FailedError


def written(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def test_properties_as_java_reads_them() -> None:
    text = (
        "# a comment\n"
        "! another\n"
        "\n"
        "plain=1\n"
        "  indented = two words  \n"
        "colon:3\n"
        "blank 4\n"
        "long=a,\\\n"
        "    b\n"
        "escaped\\=key=\\u0041\\tB\\\\\n"
        "empty=\n"
        "last=5"
    )
    assert list(parse_properties(text)) == [
        Setting("plain", "1", 4),
        Setting("indented", "two words", 5),
        Setting("colon", "3", 6),
        Setting("blank", "4", 7),
        Setting("long", "a,b", 8),
        Setting("escaped=key", "A\tB\\", 10),
        Setting("empty", "", 11),
        Setting("last", "5", 12),
    ]


def test_a_file_of_kafkas_names(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "server.properties",
        "listeners=PLAINTEXT://0.0.0.0:9094\nadvertised.listeners=PLAINTEXT://broker.example:9094\n"
        "log.dirs=somewhere\nlog.retention.ms=60000\nnum.partitions=3\n",
    )
    found = read_config_file(path)
    assert (found.host, found.port, found.advertised_host) == ("0.0.0.0", 9094, "broker.example")
    assert found.data_dir == "somewhere"
    assert found.properties == {"log.retention.ms": "60000", "num.partitions": "3"}


def test_the_same_in_toml(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "ottla.toml",
        'listeners = "PLAINTEXT://:9094"\nnum.partitions = 3\n"auto.create.topics.enable" = false\n'
        "[log]\nretention.ms = 60_000\n[ottla.journal]\nbytes = 16777216\n",
    )
    found = read_config_file(path)
    assert (found.host, found.port) == (None, 9094)
    assert found.properties == {
        "num.partitions": "3",
        "auto.create.topics.enable": "false",
        "log.retention.ms": "60000",
        "ottla.journal.bytes": "16777216",
    }


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.properties", "\nlog.retentoin.ms=5\n", "line 2: .*log.retentoin.ms.*log.retention.ms"),
        (
            "a.toml",
            "[log]\nretention.ms = 5\nretentoin.bytes = 4\n",
            "line 3: .*log.retentoin.bytes.*log.retention.bytes",
        ),
        ("a.properties", "num.partitions=many\n", "line 1: .*num.partitions"),
        ("a.toml", "num.partitions = \n", "not valid TOML.*line 1"),
        ("a.properties", "listeners=SSL://host:1\n", "is not PLAINTEXT://HOST:PORT"),
        ("a.properties", "log.dirs=a,b\n", "several directories"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(FailedError, match=message):
        read_config_file(written(tmp_path, name, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FailedError, match="cannot be read: No such file"):
        read_config_file(tmp_path / "missing.properties")
