"""Limits the size of import cycles and of classes, so that a part can be read and tested without all the others."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
CYCLE_MAX = 3
METHODS_MAX = 30
ATTRIBUTES_MAX = 20
JUSTIFICATION = "large because"
"""A docstring with these words says why its class exceeds the limits."""

Imports = Mapping[str, set[str]]


def modules(root: Path) -> dict[str, ast.Module]:
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(trees: Mapping[str, ast.Module]) -> Imports:
    """Returns what each module imports from the others, under TYPE_CHECKING and in functions too."""
    found: dict[str, set[str]] = {name: set() for name in trees}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found[name].update(each.name for each in node.names if each.name in trees)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for each in node.names:
                    inner = f"{node.module}.{each.name}"
                    found[name].update(
                        module for module in (inner, node.module) if module in trees and inner not in trees
                    )
                    found[name].update({inner} & trees.keys())
        found[name].discard(name)
    return found


def cycles(graph: Imports) -> list[list[str]]:
    """Returns the strongly connected components of more than one module."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        _visit(graph, start, seen, order)
    backwards: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            backwards[target].add(name)
    seen = set()
    found = []
    for start in reversed(order):
        component: list[str] = []
        _visit(backwards, start, seen, component)
        if len(component) > 1:
            found.append(sorted(component))
    return found


def _visit(graph: Imports, start: str, seen: set[str], order: list[str]) -> None:
    """Adds everything that can be reached from `start` to `order`, each module after those it leads to."""
    if start in seen:
        return
    seen.add(start)
    waiting = [(start, iter(sorted(graph.get(start, ()))))]
    while waiting:
        name, targets = waiting[-1]
        following = next((target for target in targets if target not in seen), None)
        if following is None:
            order.append(name)
            waiting.pop()
        else:
            seen.add(following)
            waiting.append((following, iter(sorted(graph.get(following, ())))))


def classes(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, ast.ClassDef]]:
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield f"{name}.{node.name}", node


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def attributes(node: ast.ClassDef) -> set[str]:
    """Returns the attributes that methods assign on self."""
    return {
        each.attr
        for method in methods(node)
        for each in ast.walk(method)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def test_import_cycles_are_small() -> None:
    large = [cycle for cycle in cycles(imports(modules(SOURCES))) if len(cycle) > CYCLE_MAX]
    assert not large, "\n".join(" <-> ".join(cycle) for cycle in large)


def test_classes_are_small_or_say_why_not() -> None:
    large = [
        f"{name}: {len(methods(node))} methods, {len(attributes(node))} attributes"
        for name, node in classes(modules(SOURCES))
        if len(methods(node)) > METHODS_MAX or len(attributes(node)) > ATTRIBUTES_MAX
        if JUSTIFICATION not in " ".join((ast.get_docstring(node) or "").split())
    ]
    assert not large, "\n".join(large)


@pytest.mark.parametrize("hidden", ["", "if TYPE_CHECKING:\n    "])
def test_a_hidden_cycle_is_found(tmp_path: Path, hidden: str) -> None:
    for name, target in (("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")):
        (tmp_path / f"{name}.py").write_text(f"{hidden}from {target} import X\n")
    assert cycles(imports(modules(tmp_path))) == [["a", "b", "c", "d"]]
