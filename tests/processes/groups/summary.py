"""The figures of a run, added up by library and protocol."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from tests.processes.groups.group import Kind
from tests.processes.groups.history import Outcome
from tests.processes.groups.rounds import Judged

COLUMNS = (
    "rounds",
    "started",
    "killed",
    "paused",
    "left",
    "coordinator gone",
    "assignments",
    "lost",
    "records",
    "processed",
    "commits",
    "refused",
    "unknown",
    "zombie commits refused",
    "anomalies",
)


def figures_of(judged: Judged) -> Counter[str]:
    history = judged.history
    processed = sum(run.last - run.first + 1 for one in history.ownerships for run in one.processed)
    outcomes = Counter(one.outcome for one in history.commits)
    return Counter(
        {
            "rounds": 1,
            **{kind: len(history.events[kind]) for kind in ("started", "killed", "paused", "left")},
            "coordinator gone": len(history.events["away"]),
            "assignments": len({(one.member, one.began_us) for one in history.ownerships}),
            "lost": len({(one.member, one.ended_us) for one in history.ownerships if one.end == "lost"}),
            "records": sum(history.log_ends.values()),
            "processed": processed,
            "commits": outcomes[Outcome.ACKED],
            "refused": outcomes[Outcome.REFUSED],
            "unknown": outcomes[Outcome.UNKNOWN],
            "zombie commits refused": sum(one.error != "none" for one in history.zombies),
            "anomalies": sum(map(len, judged.findings.sentences.values())),
        }
    )


def render(all_judged: Iterable[Judged]) -> str:
    totals: defaultdict[Kind | str, Counter[str]] = defaultdict(Counter)
    for judged in all_judged:
        figures = figures_of(judged)
        totals[judged.kind] += figures
        totals["all"] += figures
    width = max((len(str(kind)) for kind in totals), default=0)
    names = [name.split() for name in COLUMNS]
    widths = [max(8, *map(len, words)) for words in names]
    lines = []
    for level in range(max(map(len, names))):
        words = (words[level] if level < len(words) else "" for words in names)
        lines.append(" " * width + "".join(f" {word:>{size}}" for word, size in zip(words, widths, strict=True)))
    for kind, counts in totals.items():
        values = (f" {counts[name]:>{size}}" for name, size in zip(COLUMNS, widths, strict=True))
        lines.append(f"{kind!s:{width}}" + "".join(values))
    return "\n".join(lines)
