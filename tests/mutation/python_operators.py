"""Mutants of a Python module, from its syntax tree. Only the mutated lines change."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from itertools import pairwise

from tests.mutation.mutants import Edit, Mutant, distinct
from tests.mutation.vocabulary import (
    COMMUTATIVE,
    COMPARISONS,
    REPORTS,
    KnownAttributes,
    is_sync,
    others_of_its_kind,
    owner_of,
    suffix_of,
)

OPERATORS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
UNTOUCHED_FUNCTIONS = frozenset({"__repr__", "__str__", "__hash__"})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def mutants_of(module: str, source: bytes, known: KnownAttributes | None = None) -> list[Mutant]:
    """Returns all mutants of a module. Attributes are replaced only by those that `known` has for the same owner, or by
    all of their kind if it is None."""
    mutator = _Mutator(module, source, known)
    mutator.visit_body(ast.parse(source).body, _Scope())
    return distinct(mutator.found)


@dataclass
class _Scope:
    """The function around a node."""

    qualified_name: str = ""
    is_function: bool = False
    names: dict[str, int] = field(default_factory=dict)
    """Parameters and local variables, with the line of their first assignment."""


class _Mutator:
    def __init__(self, module: str, source: bytes, known: KnownAttributes | None) -> None:
        self.found: list[Mutant] = []
        self._module = module
        self._source = source
        self._known = known
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))

    # -- positions ---------------------------------------------------------------------------------------------

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        return start, self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> bytes:
        start, end = self._span(node)
        return self._source[start:end]

    def _add(self, operator: str, scope: _Scope, node: ast.expr | ast.stmt, *edits: Edit) -> None:
        self.found.append(Mutant(self._module, operator, scope.qualified_name, node.lineno, edits, self._source))

    def _replace(self, operator: str, scope: _Scope, node: ast.expr | ast.stmt, text: bytes) -> None:
        self._add(operator, scope, node, Edit(*self._span(node), text))

    def _swap(self, operator: str, scope: _Scope, one: ast.expr | ast.stmt, other: ast.expr | ast.stmt) -> None:
        edits = Edit(*self._span(one), self._text(other)), Edit(*self._span(other), self._text(one))
        self._add(operator, scope, one, *edits)

    # -- statements --------------------------------------------------------------------------------------------

    def visit_body(self, body: list[ast.stmt], scope: _Scope) -> None:
        for statement in body:
            self._visit_statement(statement, scope)
        for one, other in pairwise(body):
            if scope.is_function and _is_call(one) and _is_call(other):
                self._swap("swap-statements", scope, one, other)

    def _visit_statement(self, statement: ast.stmt, scope: _Scope) -> None:
        if isinstance(statement, FUNCTIONS):
            if statement.name not in UNTOUCHED_FUNCTIONS:
                self.visit_body(statement.body, _scope_of(statement, scope))
            return
        if isinstance(statement, ast.ClassDef):
            name = f"{scope.qualified_name}.{statement.name}" if scope.qualified_name else statement.name
            self.visit_body(statement.body, _Scope(name))
            return
        if isinstance(statement, ast.Assert | ast.Import | ast.ImportFrom | ast.Raise) or _is_for_types(statement):
            return
        if isinstance(statement, ast.If):
            self._remove_guard(statement, scope)
        if isinstance(statement, ast.Expr):
            self._drop(statement, scope)
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.expr) and child is not getattr(statement, "annotation", None):
                self._visit_expression(child, scope)
            elif isinstance(child, ast.withitem):
                self._visit_expression(child.context_expr, scope)
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                self.visit_body(child.body, scope)
        for name in ("body", "orelse", "finalbody"):
            self.visit_body(getattr(statement, name, []), scope)

    def _remove_guard(self, statement: ast.If, scope: _Scope) -> None:
        if isinstance(statement.body[-1], LEAVING) and not statement.orelse:
            self._replace("remove-guard", scope, statement.test, b"False")
        self._replace("negate-condition", scope, statement.test, b"not (" + self._text(statement.test) + b")")

    def _drop(self, statement: ast.Expr, scope: _Scope) -> None:
        value = statement.value
        awaited = isinstance(value, ast.Await)
        call = value.value if isinstance(value, ast.Await) else value
        if not isinstance(call, ast.Call):
            return
        if is_sync(_name_of(call)):
            self._replace("drop-sync", scope, statement, b"pass")
        if awaited:
            start, _ = self._span(statement)
            self._add("drop-await", scope, statement, Edit(start, self._span(call)[0], b""))

    # -- expressions -------------------------------------------------------------------------------------------

    def _visit_expression(self, node: ast.expr, scope: _Scope) -> None:
        if isinstance(node, ast.JoinedStr):
            return
        if isinstance(node, ast.Call):
            if _name_of(node) in REPORTS:
                return
            self._swap_arguments(node, scope)
        elif isinstance(node, ast.Compare):
            self._shift_comparison(node, scope)
        elif isinstance(node, ast.BinOp):
            self._drop_one(node, scope)
        elif isinstance(node, ast.BoolOp):
            neutral = b"True" if isinstance(node.op, ast.And) else b"False"
            for operand in node.values:
                self._replace("drop-condition", scope, operand, neutral)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self._replace_attribute(node, scope)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self._replace_variable(node, scope)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._visit_expression(child, scope)
            elif isinstance(child, ast.keyword):
                self._visit_expression(child.value, scope)
            elif isinstance(child, ast.comprehension):
                for part in (child.iter, *child.ifs):
                    self._visit_expression(part, scope)

    def _swap_arguments(self, node: ast.Call, scope: _Scope) -> None:
        if _name_of(node) in COMMUTATIVE or any(isinstance(each, ast.Starred) for each in node.args):
            return
        for one, other in pairwise(node.args):
            if not (isinstance(one, ast.Constant) and isinstance(other, ast.Constant)):
                self._swap("swap-arguments", scope, one, other)

    def _shift_comparison(self, node: ast.Compare, scope: _Scope) -> None:
        sides = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
            sign = OPERATORS.get(type(operator))
            if sign is None:
                continue
            start, end = self._span(left)[1], self._span(right)[0]
            place = re.search(rb"[<>]=?", self._source[start:end])
            assert place is not None
            edit = Edit(start + place.start(), start + place.end(), COMPARISONS[sign].encode())
            self._add("off-by-one", scope, left, edit)

    def _drop_one(self, node: ast.BinOp, scope: _Scope) -> None:
        is_sum = isinstance(node.op, ast.Add | ast.Sub)
        if is_sum and isinstance(node.right, ast.Constant) and node.right.value == 1:
            self._replace("off-by-one", scope, node, self._text(node.left))

    def _replace_attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        end = self._span(node)[1]
        owner = owner_of(ast.unparse(node.value), self._module)
        for other in others_of_its_kind(node.attr):
            if self._known is None or (owner, other.partition(".")[0]) in self._known:
                edit = Edit(end - len(node.attr.encode()), end, other.encode())
                self._add("replace-attribute", scope, node, edit)

    def _replace_variable(self, node: ast.Name, scope: _Scope) -> None:
        suffix = suffix_of(node.id)
        if suffix is None or not scope.is_function:
            return
        for other, line in scope.names.items():
            if other != node.id and suffix_of(other) == suffix and line < node.lineno:
                self._replace("replace-variable", scope, node, other.encode())


def _scope_of(function: ast.FunctionDef | ast.AsyncFunctionDef, outer: _Scope) -> _Scope:
    parts = [outer.qualified_name, "<locals>" if outer.is_function else "", function.name]
    scope = _Scope(".".join(part for part in parts if part), is_function=True)
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        scope.names[argument.arg] = 0
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            scope.names.setdefault(node.id, node.lineno)
    return scope


def _is_for_types(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def _is_call(statement: ast.stmt) -> bool:
    """Reports whether a statement is a call, or a condition around one."""
    if isinstance(statement, ast.If):
        return len(statement.body) == 1 and not statement.orelse and _is_call(statement.body[0])
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
    return isinstance(value, ast.Call) and _name_of(value) not in REPORTS


def _name_of(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
