"""The progress line and the summary of `ottla produce`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.output import count_text, size_text

if TYPE_CHECKING:
    from ottla.client import Producer

PROGRESS_EVERY_S = 0.2
LOOK_AT_CLOCK_EVERY = 64


class Summary(NamedTuple):
    """The result of one call."""

    topic: str
    sent: int
    acknowledged: int
    size_bytes: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Returns the result as `ottla produce --json` prints it; seconds are rounded to milliseconds."""
        return {
            "topic": self.topic,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
        }

    def text(self) -> str:
        """Returns the summary as a sentence."""
        rate = self.acknowledged / self.seconds if self.seconds else 0.0
        amount = f"{count_text(self.acknowledged, 'record')} of {self.sent:,} acknowledged by {self.topic}"
        return f"{amount}: {size_text(self.size_bytes)} in {self.seconds:.2f} s, {rate:,.0f} records/s"


class Progress:
    """Counts records, and shows the counts on one line of stderr if that is a terminal."""

    def __init__(self, producer: Producer) -> None:
        self.sent = 0
        self._bytes = 0
        self._producer = producer
        self._shown_s = 0.0
        self._is_terminal = sys.stderr.isatty()

    def add(self, size_bytes: int) -> None:
        """Counts one record."""
        self.sent += 1
        self._bytes += size_bytes
        if self._is_terminal and self.sent % LOOK_AT_CLOCK_EVERY == 0:
            self._show()

    def _show(self) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= PROGRESS_EVERY_S:
            self._shown_s = now_s
            acknowledged = self._producer.acknowledged_count
            print(f"\r{self.sent:,} sent, {acknowledged:,} acknowledged ", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Erases the progress line."""
        if self._is_terminal and self._shown_s:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def summary(self, topic: str, seconds: float) -> Summary:
        """Returns the final counts, with the acknowledged records as the producer counted them."""
        return Summary(topic, self.sent, self._producer.acknowledged_count, self._bytes, seconds)
