"""The table of results, and the survivors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.mutation.equivalents import entry
from tests.mutation.runner import Result, Verdict

COLUMNS = (
    ("mutants", None),
    ("killed", Verdict.KILLED),
    ("timed out", Verdict.TIMED_OUT),
    ("equivalent", Verdict.EQUIVALENT),
    ("survivors", Verdict.SURVIVED),
    ("not run", Verdict.NOT_RUN),
)


def table(results: Sequence[Result]) -> str:
    """Returns one row for each module and one for all. Mutants that do not compile are not counted."""
    counted = [result for result in results if result.verdict is not Verdict.INVALID]
    modules = sorted({result.mutant.module for result in counted})
    rows = [("module", *(title for title, _ in COLUMNS))]
    for name in [*modules, "all"]:
        verdicts = Counter(each.verdict for each in counted if name in (each.mutant.module, "all"))
        rows.append((name, *(str(verdicts[kind] if kind else verdicts.total()) for _, kind in COLUMNS)))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for first, *rest in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]))
    return "\n".join(lines)


def survivors(results: Sequence[Result]) -> str:
    """Returns a diff and an entry for equivalent.toml for each survivor."""
    parts = []
    for result in results:
        if result.verdict is Verdict.SURVIVED:
            mutant = result.mutant
            title = f"{mutant.module}:{mutant.line}: {mutant.operator} in {mutant.function or 'the module'}"
            parts.append(f"{title}\n{mutant.diff}\n\n{entry(mutant.identity)}\n")
    return "\n".join(parts)
