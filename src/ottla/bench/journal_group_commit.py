"""The journal compared with one sync per request. Calls `benchmarks/journal.py`, which has the whole table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from ottla.bench.quotients import per
from ottla.bench.results import Goal, Row
from ottla.bench.workbench import Workbench

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "journal.py"
IN_FLIGHT = 64
RECORD_BYTES = 1024
GOAL = 20.0


def estimate_s(seconds: float, repetitions: int) -> float:
    """Returns the estimated duration of the measurement in seconds."""
    return repetitions * (2 * seconds + 0.8)


def measure(bench: Workbench, seconds: float) -> list[Row]:
    """Measures serial writes and the journal in turn, so that noise affects both."""
    if not SCRIPT.exists():
        return []
    journal: list[tuple[float, float, float]] = []
    serial: list[tuple[float, float, float]] = []
    for _ in range(bench.pace.repetitions):
        bench.advance(0, "journal: one sync a request")
        serial.append(bench.driver.call(run_serial, str(bench.directory), seconds))
        bench.advance(seconds, "journal: 64 requests in flight")
        journal.append(bench.driver.call(run_journal, str(bench.directory), seconds))
        bench.advance(seconds + 0.8, "")
    times = median(per(grouped[0], alone[0]) for grouped, alone in zip(journal, serial, strict=True))
    return [
        Row("journal alone", "1 KB, one sync a request", "", _figures(serial)),
        Row(
            "journal alone",
            f"1 KB, {IN_FLIGHT} in flight",
            "",
            {**_figures(journal), "times_serial": times},
            Goal("times one sync a request", times, GOAL),
        ),
    ]


def _figures(runs: list[tuple[float, float, float]]) -> dict[str, float]:
    rate, p50_ms, p99_ms = (median(values) for values in zip(*runs, strict=True))
    return {
        "mb_per_s": rate * RECORD_BYTES / 1e6,
        "requests_per_s": rate,
        "p50_us": p50_ms * 1000,
        "p99_us": p99_ms * 1000,
    }


def run_serial(directory: str, seconds: float) -> tuple[float, float, float]:
    """Measures one write and one sync for each request. Returns requests/s, and the p50 and p99 in ms."""
    return _as_tuple(_script().measure_serial(RECORD_BYTES, directory, seconds))


def run_journal(directory: str, seconds: float) -> tuple[float, float, float]:
    """Measures the journal, which writes many requests at once. Returns the same figures as `run_serial`."""
    import uvloop

    script = _script()
    load = script.Load(IN_FLIGHT, 1, RECORD_BYTES)
    return _as_tuple(uvloop.run(script.measure("journal", load, directory, seconds)))


def _as_tuple(result: Any) -> tuple[float, float, float]:
    return result.requests_per_s, result.p50_ms, result.p99_ms


def _script() -> ModuleType:
    name = "ottla_benchmarks_journal"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
