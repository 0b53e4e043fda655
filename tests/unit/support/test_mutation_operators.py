"""The bugs that mutation testing plants, and how they are told apart."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation import cython_operators, equivalents, python_operators
from tests.mutation.equivalents import BadListError
from tests.mutation.mutants import Mutant
from tests.mutation.targets import NoSuchModuleError, modules, mutants_of
from tests.mutation.vocabulary import known_attributes

MODULE = "src/ottla/module.py"


def changes(source: str, operator: str) -> list[str]:
    """The mutated lines of each mutant of a function body."""
    text = "async def f(self, log, now_ms, start_ms):\n" + "".join(f"    {line}\n" for line in source.splitlines())
    found = python_operators.mutants_of(MODULE, text.encode())
    for mutant in found:
        ast.parse(mutant.mutated)
    return [mutant.identity.becomes for mutant in found if mutant.operator == operator]


def cython_changes(source: str, operator: str) -> list[str]:
    text = "cdef int f(Log log) nogil:\n" + "".join(f"    {line}\n" for line in source.splitlines())
    found = cython_operators.mutants_of("src/ottla/module.pyx", text.encode())
    return [mutant.identity.becomes for mutant in found if mutant.operator == operator]


@pytest.mark.parametrize(
    ("source", "operator", "expected"),
    [
        ("g(a, b, c)", "swap-arguments", ["g(b, a, c)", "g(a, c, b)"]),
        ("g(a, *b)", "swap-arguments", []),
        ("x = min(a, b)", "swap-arguments", []),
        ("g(a, a)", "swap-arguments", []),
        ("x = a < b <= c", "off-by-one", ["x = a <= b <= c", "x = a < b < c"]),
        ("x = (a)  > (b)", "off-by-one", ["x = (a)  >= (b)"]),
        ("x = y[a + 1 :]", "off-by-one", ["x = y[a :]"]),
        ("x = a - 2", "off-by-one", []),
        ("if a:\n    return", "remove-guard", ["if False:"]),
        ("if a:\n    b()", "remove-guard", []),
        ("if a:\n    return\nelse:\n    b()", "remove-guard", []),
        ("while a:\n    if b:\n        c()\n        continue\n    d()", "remove-guard", ["if False:"]),
        ("if a or b:\n    return", "drop-condition", ["if False or b:", "if a or False:"]),
        ("x = a and b", "drop-condition", ["x = True and b", "x = a and True"]),
        ("if a:\n    b()", "negate-condition", ["if not (a):"]),
        ("a()\nb(1)", "swap-statements", ["b(1)\na()"]),
        ("await a()\nif b:\n    c()", "swap-statements", ["if b:\nc()\nawait a()"]),
        ("a()\nx = 1\nb()", "swap-statements", []),
        ("await a(b)", "drop-await", ["a(b)"]),
        ("x = await a(b)", "drop-await", []),
        ("files.sync_dir(a)", "drop-sync", ["pass"]),
        ("await self._disk.flush()", "drop-sync", ["pass"]),
        ("files.remove(a)", "drop-sync", []),
        ("g(now_ms)", "replace-variable", ["g(start_ms)"]),
        ("end_ms = 1\ng(a_s, end_ms)", "replace-variable", ["g(a_s, now_ms)", "g(a_s, start_ms)"]),
        ("g(log.start_offset)", "replace-attribute", ["g(log.acknowledged_end)", "g(log.end_offset)"]),
        ("log.start_offset = 1", "replace-attribute", []),
        ("assert a < b, f(a, b)", "off-by-one", []),
        ("log.error(a, b)", "swap-arguments", []),
        ("x = f'{a < b}'", "off-by-one", []),
    ],
)
def test_python(source: str, operator: str, expected: list[str]) -> None:
    assert changes(source, operator) == expected


@pytest.mark.parametrize(
    ("source", "operator", "expected"),
    [
        ("g(a, b)", "swap-arguments", ["g(b, a)"]),
        ('g("a, b", c[1, 2])', "swap-arguments", ['g(c[1, 2], "a, b")']),
        ("x = h(g(a, b))", "swap-arguments", ["x = h(g(b, a))"]),
        ("if a < b:", "off-by-one", ["if a <= b:"]),
        ("x = <int>a + 1", "off-by-one", ["x = <int>a"]),
        ("x = a  # b < c", "off-by-one", []),
        ("if a == 0:\n    return 1", "remove-guard", ["if False:"]),
        ("if a == 0: break", "remove-guard", ["if False: break"]),
        ("if a == 0:\n    b()", "remove-guard", []),
        ("if a == 0:\n    b()", "negate-condition", ["if not (a == 0):"]),
        ("lock(&a)\ng(b)", "swap-statements", ["g(b)\nlock(&a)"]),
        ("if a:\n    g(b)\nh(c)", "swap-statements", []),
        ("error = fdatasync(fd)", "drop-sync", ["error = 0"]),
        ("self.file.sync(fd)", "drop-sync", ["0"]),
        ("x = log.start_offset", "replace-attribute", ["x = log.acknowledged_end", "x = log.end_offset"]),
        ("cdef int x = a < b", "off-by-one", []),
    ],
)
def test_cython(source: str, operator: str, expected: list[str]) -> None:
    assert cython_changes(source, operator) == expected


def test_cython_declarations_and_c_code_are_left_alone() -> None:
    source = b'''"""a < b"""

cdef extern from * nogil:
    """
    static int f(int a) { return a < 1; }
    """
    int f(int, int)

cdef class Thread:
    cdef int a

    def run(self, a,
            b):
        """Whether a < b."""
        return a < b
'''
    (mutant,) = cython_operators.mutants_of("src/ottla/module.pyx", source)
    assert (mutant.operator, mutant.function, mutant.line) == ("off-by-one", "Thread.run", 15)


def test_only_the_mutated_lines_change() -> None:
    source = "def f(a):\n    # ä\n    if (a  <  1):  # why\n        return 'ä'\n".encode()
    (shifted,) = [each for each in python_operators.mutants_of(MODULE, source) if each.operator == "off-by-one"]
    assert shifted.mutated == source.replace(b"<", b"<=")
    assert shifted.diff.splitlines()[3:] == [
        " def f(a):",
        "     # ä",
        "-    if (a  <  1):  # why",
        "+    if (a  <=  1):  # why",
        "         return 'ä'",
    ]


def test_functions_are_named_as_python_names_them() -> None:
    source = b"class A:\n    def f(self):\n        def g():\n            return 1 < 2\n        return g\n"
    (mutant,) = python_operators.mutants_of(MODULE, source)
    assert mutant.function == "A.f.<locals>.g"


def test_an_attribute_is_replaced_only_by_one_that_the_object_has() -> None:
    known = known_attributes([("a.py", "x = partition.log.end_offset\ny = segment.end_offset + segment.base_offset")])
    source = b"def f(log, segment):\n    return log.start_offset, segment.base_offset\n"
    found = python_operators.mutants_of(MODULE, source, known)
    assert [mutant.identity.becomes for mutant in found] == [
        "return log.end_offset, segment.base_offset",
        "return log.start_offset, segment.end_offset",
    ]


# -- identities --------------------------------------------------------------------------------------------------------


def mutant_of(source: bytes) -> Mutant:
    (mutant,) = python_operators.mutants_of(MODULE, source)
    return mutant


def test_an_identity_outlives_changes_elsewhere() -> None:
    before = mutant_of(b"def f():\n    return 1 < 2\n")
    after = mutant_of(b"import os\n\ndef f():\n    # why\n    return 1 < 2\n")
    assert before.identity == after.identity
    assert before.identity != mutant_of(b"def g():\n    return 1 < 2\n").identity
    assert before.identity != mutant_of(b"def f():\n    return 1 > 2\n").identity


def test_a_printed_entry_is_read_back(tmp_path: Path) -> None:
    mutant = mutant_of(b"def f():\n    return 'a\"' < '''\\\\n'''\n")
    path = tmp_path / "list.toml"
    entry = equivalents.entry(mutant.identity)
    path.write_text(entry.replace('reason = ""', 'reason = "both are never equal"'))
    assert equivalents.read(path) == {mutant.identity: "both are never equal"}
    path.write_text(entry)
    with pytest.raises(BadListError, match="its reason"):
        equivalents.read(path)


def test_the_list_names_mutants_that_exist() -> None:
    listed = equivalents.read()
    there = {mutant.identity for module in {each.module for each in listed} for mutant in mutants_of(module)}
    assert set(listed) <= there, "the source has changed: remove these, or review them again"


# -- modules -----------------------------------------------------------------------------------------------------------


def test_modules_are_named_by_path_or_dots() -> None:
    retention = "src/ottla/broker/storage/retention.py"
    assert modules([retention]) == modules(["ottla.broker.storage.retention"]) == [retention]
    assert "src/ottla/broker/adapters/_disk.pyx" in modules(["src/ottla/broker/adapters"])
    assert modules(["ottla.broker.adapters._disk"]) == ["src/ottla/broker/adapters/_disk.pyx"]
    with pytest.raises(NoSuchModuleError, match=r"ottla\.nothing"):
        modules(["ottla.nothing"])


def test_by_default_all_modules_that_protect_data() -> None:
    found = modules()
    assert {"src/ottla/broker/app.py", "src/ottla/protocol/records/_decoding.pyx"} < set(found)
    assert all(name.startswith("src/ottla/") for name in found)


@pytest.mark.parametrize(
    ("module", "becomes"),
    [
        ("src/ottla/broker/topics/housekeeping.py", "yield Candidate(partition.log, partition.high_watermark)"),
        (
            "src/ottla/broker/topics/housekeeping.py",
            "apply_retention(log, self._context.store.flusher, wall_ms, partition.log.end_offset)",
        ),
        ("src/ottla/broker/adapters/files.py", "pass"),
    ],
)
def test_bugs_that_once_passed_all_tests_are_among_the_mutants(module: str, becomes: str) -> None:
    assert becomes in {mutant.identity.becomes for mutant in mutants_of(module)}


def test_the_marker_before_the_flush_is_among_the_mutants() -> None:
    swaps = [each for each in mutants_of("src/ottla/broker/app.py") if each.operator == "swap-statements"]
    assert any(each.identity.source.startswith("await self.broker.stop()") for each in swaps)
