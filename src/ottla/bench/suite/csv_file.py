"""Writes `results.csv`: a line for each measurement, with the configuration first."""

from __future__ import annotations

import csv
from pathlib import Path

from ottla.bench.suite.figures import FIGURES
from ottla.bench.suite.run_results import Results
from ottla.bench.suite.settings import SETTINGS

CSV_FILE = "results.csv"


def write_csv(directory: Path, results: Results) -> Path:
    """Writes the file next to the results and returns its path. Figures that no line has are left out."""
    path = (directory if directory.is_dir() else directory.parent) / CSV_FILE
    figures = [name for name in FIGURES if any(name in line["figures"] for line in results.lines)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["target", "label", "repetition", *SETTINGS, *figures, "commit", "measured_at"])
        for line in results.lines:
            configuration = [line["configuration"].get(name, "") for name in SETTINGS]
            values = [line["figures"].get(name, "") for name in figures]
            head = [line["target"], line["label"], line["repetition"] + 1]
            writer.writerow([*head, *configuration, *values, line["commit"], line["measured_at"]])
    return path
