"""Which tests a mutant meets, and what comes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutation import python_operators
from tests.mutation.__main__ import choose, main
from tests.mutation.call_record import RecordedTest, load, save
from tests.mutation.mutants import Mutant
from tests.mutation.report import survivors, table
from tests.mutation.runner import Result, Verdict, failed_test
from tests.mutation.sandbox import Outcome
from tests.mutation.selection import Selection, importing, mirrors_of, simulations_of
from tests.mutation.targets import ROOT

RETENTION = "src/ottla/broker/storage/retention.py"
MIRROR = "tests/unit/broker/storage/test_retention.py"


def mutant_of(module: str = RETENTION, name: str = "f") -> Mutant:
    source = f"def {name}(a):\n    return a < 1\n".encode()
    return next(each for each in python_operators.mutants_of(module, source) if each.operator == "off-by-one")


def test_the_mirror_of_a_module() -> None:
    assert mirrors_of(RETENTION)[0] == MIRROR
    assert "tests/unit/broker/adapters/test_disk_files.py" in mirrors_of("src/ottla/broker/adapters/_disk.pyx")
    of_folder = mirrors_of("src/ottla/broker/storage/compaction/segment_pieces.py")
    assert "tests/unit/broker/storage/compaction/test_compaction.py" in of_folder


def test_without_a_record_the_tests_that_import_the_module(tmp_path: Path) -> None:
    tests = Selection(tmp_path / "none.json").tests_for(mutant_of())
    assert tests[0] == MIRROR
    through_support = "tests/unit/broker/storage/test_file_log.py"
    assert tests.index(through_support) < tests.index("tests/properties/test_log_model.py")
    assert "tests/unit/machines/test_writers.py" not in tests
    assert len(set(tests)) == len(tests)


def test_an_extension_is_reached_through_its_users() -> None:
    assert "tests/properties/test_records_properties.py" in importing("src/ottla/protocol/records/_decoding.pyx")


def test_with_a_record_the_tests_that_reach_the_function(tmp_path: Path) -> None:
    log, model = "tests/unit/broker/storage/test_file_log.py", "tests/properties/test_log_damage.py"
    names = {file: re.findall(r"def (test_\w+)", (ROOT / file).read_text()) for file in (MIRROR, log, model)}
    mirrored, (slow, long, quick, other), (model_test, *_) = names[MIRROR][0], names[log][:4], names[model]
    times = {
        f"{model}::{model_test}": (0.1, ["f"]),
        f"{log}::{slow}": (5.0, ["f", "g"]),
        f"{log}::{long}": (500.0, ["f"]),
        f"{log}::{quick}[disk]": (0.1, ["f"]),
        f"{log}::{quick}[cache]": (0.2, ["h"]),
        f"{log}::{other}": (0.1, ["g"]),
        f"{MIRROR}::{mirrored}[x]": (1.0, ["f"]),
        f"{log}::test_that_is_gone": (0.1, ["f"]),
        "tests/unit/test_gone.py::test_a": (0.1, ["f"]),
    }
    record = tmp_path / "calls.json"
    tests = {
        test: RecordedTest(seconds, frozenset(f"{RETENTION}:{name}" for name in names))
        for test, (seconds, names) in times.items()
    }
    save(record, tests)
    assert load(record) == tests
    selection = Selection(record)
    chosen = selection.tests_for(mutant_of())
    assert chosen == [f"{MIRROR}::{mirrored}", f"{log}::{quick}", f"{log}::{slow}", f"{model}::{model_test}"]
    assert selection.seconds_of(chosen) == pytest.approx(6.4)
    assert selection.seconds_of([MIRROR]) is None
    assert len(selection.tests_for(mutant_of(name="unreached"))) == 5, "those that reach the module"


def test_simulations_by_module() -> None:
    assert simulations_of(RETENTION) == [""]
    assert simulations_of("src/ottla/machines/groups/shard.py") == ["", "--groups"]


def test_samples_are_repeated_by_their_seed() -> None:
    first = choose([RETENTION], [], 10, 1)
    assert len(first) == 10
    assert [each.line for each in first] == sorted(each.line for each in first)
    assert first == choose([RETENTION], [], 10, 1)
    assert first != choose([RETENTION], [], 10, 2)
    assert {each.operator for each in choose([RETENTION], ["off-by-one"], None, 0)} == {"off-by-one"}


def test_a_module_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--module", "ottla.nothing", "--list"]) == 2
    assert "ottla.nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("FAILED tests/unit/test_a.py::test_b[a - b] - assert 1 == 2\n1 failed", "tests/unit/test_a.py::test_b[a"),
        ("ERROR tests/unit/test_a.py\n", "tests/unit/test_a.py"),
        ("ImportError while loading conftest", None),
    ],
)
def test_the_test_that_failed(output: str, expected: str | None) -> None:
    assert failed_test(Outcome(1, output)) == expected


def test_the_report() -> None:
    results = [
        Result(mutant_of(), Verdict.KILLED, "a test"),
        Result(mutant_of(), Verdict.SURVIVED),
        Result(mutant_of(), Verdict.EQUIVALENT, "why"),
        Result(mutant_of(), Verdict.INVALID),
        Result(mutant_of("src/ottla/broker/app.py"), Verdict.TIMED_OUT),
        Result(mutant_of("src/ottla/broker/app.py"), Verdict.NOT_RUN),
    ]
    rows = [line.split() for line in table(results).splitlines()]
    assert rows[1:] == [
        ["src/ottla/broker/app.py", "2", "0", "1", "0", "0", "1"],
        [RETENTION, "3", "1", "0", "1", "1", "0"],
        ["all", "5", "1", "1", "1", "1", "1"],
    ]
    text = survivors(results)
    assert text.count("[[equivalent]]") == 1
    assert "-    return a < 1\n+    return a <= 1" in text
