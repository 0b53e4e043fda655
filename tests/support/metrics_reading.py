"""Reads a metrics page with Prometheus's own parser, which is independent of Ottla's code."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


class Scraped:
    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
        self._samples: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append(sample)

    @classmethod
    def of(cls, url: str) -> Scraped:
        with urllib.request.urlopen(url, timeout=20) as reply:
            assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return cls(reply.read().decode())

    @property
    def names(self) -> set[str]:
        return set(self._samples)

    def matching(self, name: str, **labels: str) -> Iterator[Sample]:
        for sample in self._samples.get(name, ()):
            if labels.items() <= sample.labels.items():
                yield sample

    def sum(self, name: str, **labels: str) -> float:
        """Returns the sum of the samples; 0 if there are none."""
        return sum(sample.value for sample in self.matching(name, **labels))

    def value(self, name: str, **labels: str) -> float:
        (sample,) = self.matching(name, **labels)
        return sample.value
