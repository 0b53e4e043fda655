"""Benchmarks do not divide by a measured time or rate: on a fast or a busy machine it can be zero."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.tree import files, relative

MEASURED = re.compile(r"(^|_)(s|seconds|elapsed|took|per_s)$")
"""Names of measured times and rates."""
CLOCK = re.compile(r"(perf_counter|monotonic|process_time|thread_time|time)(_ns)?\(\)")
QUOTIENTS = "src/ottla/bench/quotients.py"
BENCHMARKS = [
    path
    for path in files()
    if path.suffix == ".py" and relative(path).startswith(("src/ottla/bench/", "benchmarks/", "src/ottla/demo/"))
]


def measured_divisors(source: str) -> list[str]:
    """Divisions by a plain measured name or by the difference of two clocks, unless guarded in the same expression."""
    tree = ast.parse(source)
    guarded = {id(part) for node in ast.walk(tree) if isinstance(node, ast.IfExp) for part in ast.walk(node.body)}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or id(node) in guarded:
            continue
        name = {ast.Name: "id", ast.Attribute: "attr"}.get(type(node.right))
        is_clock = isinstance(node.right, ast.BinOp) and CLOCK.search(ast.unparse(node.right))
        if is_clock or (name is not None and MEASURED.search(getattr(node.right, name))):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_the_rule_sees_what_it_should() -> None:
    assert measured_divisors("a = count / took_s")
    assert measured_divisors("a = count / row.seconds")
    assert measured_divisors("a = rows[0].cpu_s / rows[2].cpu_s")
    assert measured_divisors("a = count / (time.perf_counter() - start)")
    assert not measured_divisors("a = count / took_s if took_s else 0.0")
    assert not measured_divisors("a = rate(count, took_s) / 1e6")


@pytest.mark.parametrize("path", BENCHMARKS, ids=relative)
def test_measured_times_divide_through_quotients(path: Path) -> None:
    found = measured_divisors(path.read_text(encoding="utf-8"))
    assert not found, f"use rate, per or ratio of {QUOTIENTS}"
