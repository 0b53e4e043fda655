"""A transactional producer of the Java client in its own JVM (`java/Transactions.java`)."""

from __future__ import annotations

import subprocess
from types import TracebackType

from tests.conformance.clients.java_client import CACHE


class JavaTransactions:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        classes = f"{CACHE}/classes:{CACHE}/libraries/*"
        flags = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
        self._jvm = subprocess.Popen(
            ["java", *flags, "-cp", classes, "Transactions", bootstrap, transactional_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ok"

    def __enter__(self) -> JavaTransactions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._jvm.kill()
        self._jvm.communicate(timeout=60)

    def ask(self, *words: object) -> str:
        assert self._jvm.stdin is not None
        self._jvm.stdin.write(" ".join(str(word) for word in words) + "\n")
        self._jvm.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._jvm.stdout is not None
        return self._jvm.stdout.readline().strip()
