"""A matrix from TOML: its expansion, and the messages for mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.bench.suite.matrix import key_of, rows_of
from ottla.bench.suite.matrix_file import MatrixError, parse_matrix, read_matrix
from ottla.bench.suite.settings import DEFAULTS, SETTINGS

TARGET = '[targets.ottla]\nkind = "ottla"\n'
READY_FILES = sorted((Path(__file__).resolve().parents[3] / "benchmarks").glob("*.toml"))


def labels(text: str, path: Path = Path("m.toml")) -> list[str]:
    return [row.label for row in rows_of(parse_matrix(text, path))]


def mistake(text: str, path: Path = Path("m.toml")) -> str:
    with pytest.raises(MatrixError) as caught:
        parse_matrix(text, path)
    return str(caught.value)


def test_lists_are_multiplied() -> None:
    text = '[producer]\nmode = ["sync", "async"]\nacks = [0, 1, "all"]\n' + TARGET
    assert labels(text) == [
        "sync, acks=0", "sync, acks=1", "sync, acks=all", "async, acks=0", "async, acks=1", "async, acks=all",
    ]  # fmt: skip


def test_what_does_not_go_together_is_left_out() -> None:
    text = '[producer]\nacks = [1, "all"]\nidempotence = [false, true]\n' + TARGET
    assert labels(text) == ["acks=1, idempotence=no", "acks=all, idempotence=no", "acks=all, idempotence=yes"]


def test_exclude_takes_combinations_out() -> None:
    text = (
        '[producer]\nmode = ["sync", "async"]\nacks = [0, 1]\n[[exclude]]\nproducer.mode = "sync"\nproducer.acks = 0\n'
    )
    assert labels(text + TARGET) == ["sync, acks=1", "async, acks=0", "async, acks=1"]


def test_a_list_has_labels_goals_and_values_of_its_own() -> None:
    text = """
        combine = "list"
        topic.partitions = 3
        [[list]]
        label = "curve"
        producer.rate = [100, 200]
        goals = ["p99_us <= 0.5"]
        [[list]]
        topic.partitions = 6
    """
    matrix = parse_matrix(text + TARGET, Path("m.toml"))
    rows = rows_of(matrix)
    assert [row.label for row in rows] == ["curve, rate=100", "curve, rate=200", "partitions=6"]
    assert [row.configuration["topic.partitions"] for row in rows] == [3, 3, 6]
    assert rows[0].goals[0].is_met(0.4)
    assert not rows[0].goals[0].is_met(0.6)


def test_the_same_configuration_is_measured_once() -> None:
    text = 'combine = "list"\n[[list]]\nlabel = "one"\n[[list]]\nlabel = "two"\nproducer.acks = "all"\n' + TARGET
    assert labels(text) == ["one"]


def test_a_default_that_is_written_out_changes_no_key() -> None:
    assert key_of(DEFAULTS) == key_of({"producer.acks": "all"}) == key_of({})
    assert key_of({"producer.acks": 1}) != key_of({"producer.acks": 0})


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("[producer]\nack = 1", 2, "there is no key producer.ack. Did you mean producer.acks?"),
        ("\nproducer.linger = 1", 2, "there is no key producer.linger. Did you mean producer.linger_ms?"),
        ("repetition = 3", 1, "there is no key repetition. Did you mean repetitions?"),
        ("[producer]\n\nacks = [1, 2]", 3, 'producer.acks must be 0, 1 or "all", not 2'),
        ("[topic]\ndurability = 'dsik'", 2, "topic.durability must be one of disk, cache, memory, not 'dsik'"),
        ("[topic]\npartitions = 0", 2, "topic.partitions must be at least 1, not 0"),
        ("[topic]\npartitions = true", 2, "topic.partitions must be an integer, not True"),
        ("[topic]\npartitions = []", 2, "topic.partitions has no value"),
        ("repetitions = '3'", 1, "repetitions must be an integer, not '3'"),
        ("[targets.x]\nkind = 'ottla'\nbrokes = 3", 3, "there is no key brokes. Did you mean brokers?"),
        ("[targets.x]\nkind = 'ottla'\nbrokers = 2", 3, "brokers must be 1 or 3"),
        ("[targets.x]\nkind = 'pulsar'", 2, "the kind of target x must be one of ottla, kafka, bootstrap"),
        ("[targets.x]\nkind = 'bootstrap'", 1, 'target x: kind = "bootstrap" needs bootstrap = "host:port,..."'),
        ("peer = 'kafak'", 1, "there is no target kafak. There are ottla."),
        ("goals = ['speed >= 2']", 1, '"speed" is not a figure; there are records_per_s, '),
        ("goals = ['p99_us < 2']", 1, '"p99_us < 2" is not a goal like "records_per_s >= 1.5"'),
        ("[producer]\nidempotence = true\nacks = 1", 1, 'producer.idempotence needs producer.acks = "all"'),
        ("[[list]]\n[[list]]\ntopic.min_insync = 2", 2, "topic.min_insync must be at most topic.replication"),
        ("[[list]]\nproducer.ack = 0", 2, "there is no key producer.ack. Did you mean producer.acks?"),
        (
            "[[list]]\nlabel = 'most'\n[[list]]\nproducer.rate_of = 'mots'",
            4,
            "there is no row mots. Did you mean most?",
        ),
        (
            "[[list]]\nproducer.rate_of = 'a'\nproducer.rate = 1",
            1,
            "producer.rate and producer.rate_of cannot be combined",
        ),
        ("combine = 'pairs'", 1, "combine must be one of product, pairwise, list"),
        ("combine = 'list'", 1, 'combine = "list" needs [[list]]'),
        (
            "producer.records_file = 'no.txt'",
            1,
            "producer.records_file: the file no.txt does not exist in the directory of the matrix",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, line: int, sentence: str) -> None:
    whole = text if "targets" in text else f"{text}\n{TARGET}"
    assert mistake(whole).startswith(f"m.toml, line {line}: {sentence}")


def test_what_has_no_line_is_named_too() -> None:
    assert mistake("") == 'm.toml: a matrix needs a target, such as [targets.ottla] with kind = "ottla"'
    assert mistake("[producer\n").startswith("m.toml is not valid TOML: ")


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(MatrixError, match="cannot be read: No such file"):
        read_matrix(Path("nowhere.toml"))


@pytest.mark.parametrize("name", SETTINGS)
def test_defaults_are_allowed(name: str) -> None:
    found = SETTINGS[name]
    assert found.problem_with(found.default) is None


@pytest.mark.parametrize("path", READY_FILES, ids=[path.stem for path in READY_FILES])
def test_ready_files_are_valid(path: Path) -> None:
    assert rows_of(read_matrix(path))


def test_the_page_names_every_setting_and_every_ready_file() -> None:
    page = (READY_FILES[0].parents[1] / "docs" / "guides" / "bench-suite.md").read_text(encoding="utf-8")
    assert [name for name in SETTINGS if f"| `{name}` |" not in page] == []
    assert [path.name for path in READY_FILES if f"`benchmarks/{path.name}`" not in page] == []
