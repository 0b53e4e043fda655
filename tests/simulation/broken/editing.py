"""Breaks one function of the real code for the duration of a `with` block.

One place in the function's source is replaced, and the compiled result replaces the function's code object, so every
importer gets the broken version. If the place does not occur exactly once, because the code has changed, an error is
raised and the test cannot pass.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType, ModuleType
from typing import NamedTuple


class StaleEditError(Exception):
    """The code no longer matches the edit."""


class Edit(NamedTuple):
    owner: type | ModuleType
    name: str
    """The name of a function of the module, or of a method or property of the class."""
    old: str
    new: str


@contextmanager
def edited(edits: Iterable[Edit]) -> Iterator[None]:
    """Applies the edits; several may change the same function."""
    functions: dict[tuple[type | ModuleType, str], list[Edit]] = {}
    for edit in edits:
        functions.setdefault((edit.owner, edit.name), []).append(edit)
    with ExitStack() as stack:
        for (owner, name), of_one in functions.items():
            function = _function_of(owner, name)
            broken = _compiled(function, of_one)
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = broken.__code__
        yield


def _function_of(owner: type | ModuleType, name: str) -> FunctionType:
    found = vars(owner).get(name)
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if not isinstance(found, FunctionType) or found.__module__ != _module_of(owner):
        raise StaleEditError(f"{_module_of(owner)} has no function {name} of its own")
    if found.__code__.co_freevars:
        raise StaleEditError(f"{name} takes variables from the function around it, and cannot be compiled by itself")
    return found


def _module_of(owner: type | ModuleType) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else owner.__module__


def _compiled(function: FunctionType, edits: list[Edit]) -> FunctionType:
    lines = textwrap.dedent(inspect.getsource(function)).splitlines(keepends=True)
    while lines[0].startswith("@"):
        del lines[0]
    source = "".join(lines)
    for edit in edits:
        if source.count(edit.old) != 1:
            raise StaleEditError(f"{function.__qualname__} has {source.count(edit.old)} times, not once: {edit.old}")
        source = source.replace(edit.old, edit.new)
    made: dict[str, FunctionType] = {}
    code = compile(f"from __future__ import annotations\n{source}", f"<broken {function.__qualname__}>", "exec")
    exec(code, function.__globals__, made)
    return made[function.__name__]
