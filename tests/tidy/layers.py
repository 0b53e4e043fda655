"""Generates the page docs/internals/layers.md from the import contracts in pyproject.toml."""

from __future__ import annotations

import ast
import re
import tomllib

from tests.tidy.tree import ROOT

INTRODUCTION = """# Layers

Imports go one way: a package imports only from the layers below its own. `make check` enforces it with import-linter.
This page is generated from the contracts in `pyproject.toml`; after a change, run `make docs`.
"""
WIDTH = 96


def render() -> str:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    parts = [INTRODUCTION]
    for contract in contracts:
        if contract["type"] == "layers":
            (container,) = contract["containers"]
            parts.append(
                f"## {contract['name']}\n\n{_diagram(contract['layers'])}\n\n{_table(container, contract['layers'])}"
            )
    rules = [f"- {each['name']}." for each in contracts if each["type"] == "forbidden"]
    parts.append("## Further rules\n\n" + "\n".join(rules))
    return "\n".join(f"{part.rstrip()}\n" for part in parts)


def _names(layer: str) -> list[str]:
    return re.split(r" [|:] ", layer)


def _diagram(layers: list[str]) -> str:
    """Draws one box per layer, the highest first."""
    lines = ["```text"]
    edge = "+" + "-" * (WIDTH - 2) + "+"
    for layer in layers:
        lines.append(edge)
        row = ""
        for name in _names(layer):
            if len(row) + len(name) + 3 > WIDTH - 4:
                lines.append(f"| {row:<{WIDTH - 4}} |")
                row = ""
            row += f"{name}   "
        lines.append(f"| {row.rstrip():<{WIDTH - 4}} |")
    return "\n".join([*lines, edge, "```"])


def _table(container: str, layers: list[str]) -> str:
    names = [name for layer in layers for name in _names(layer)]
    rows = [f"| `{container}.{name}` | {_first_sentence(container, name)} |" for name in names]
    return "\n".join(["| package | contents |", "|---|---|", *rows])


def _first_sentence(container: str, name: str) -> str:
    place = ROOT / "src" / container.replace(".", "/") / name
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = " ".join((ast.get_docstring(ast.parse(source.read_text())) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", text)[0].replace("|", "\\|")
