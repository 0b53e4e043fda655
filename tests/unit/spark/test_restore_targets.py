"""A restored directory replaces an older one: after a crash at any time, one of them is there and complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.archive.failures import PipelineError
from ottla.spark.jobs.restore_targets import Target, check_is_free, write_output

FILES = ("part-0", "part-1")


class CrashError(BaseException):
    """Simulates the end of the process: no handler of the product catches it."""


def rows(content: str) -> Any:
    """The part of a DataFrame that `write_output` uses."""

    def parquet(address: str) -> None:
        directory = Path(address.removeprefix("file://"))
        directory.mkdir()
        for name in FILES:
            (directory / name).write_text(content)

    settings = SimpleNamespace(get=lambda name: None, set=lambda name, value: None)
    return SimpleNamespace(sparkSession=SimpleNamespace(conf=settings), write=SimpleNamespace(parquet=parquet))


def table(path: Path) -> list[str]:
    return [(path / name).read_text() for name in FILES]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    target = Target("parquet", str(tmp_path / "out"), "unused")
    write_output(rows("old"), target)
    return target


def crash_at(step: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Crashes before a rename, or in the middle of a removal, after that number of them. Returns the finished ones."""
    done: list[str] = []

    def counted(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(path: str, *others: Any, **named: Any) -> None:
            if name == "rmtree" and ".restore-" in str(path):  # the staging directory
                return real(path, *others, **named)
            if len(done) == step:
                if name == "rmtree":
                    os.unlink(os.path.join(path, FILES[0]))
                raise CrashError
            done.append(name)
            return real(path, *others, **named)

        return call

    for module, name in ((os, "rename"), (os, "replace"), (shutil, "rmtree")):
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    return done


@pytest.mark.parametrize("step", range(3))
def test_a_crash_leaves_the_old_table_or_the_new_one(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    with monkeypatch.context() as patched:
        crash_at(step, patched)
        with pytest.raises(CrashError):
            write_output(rows("new"), target, overwrite=True)
    with pytest.raises(PipelineError, match="--overwrite replaces it"):
        check_is_free(target, overwrite=False)
    assert table(tmp_path / "out") in (["old", "old"], ["new", "new"])
    write_output(rows("newer"), target, overwrite=True)
    assert table(tmp_path / "out") == ["newer", "newer"]
    assert os.listdir(tmp_path) == ["out"]


def test_the_steps_of_a_replacement(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = crash_at(99, monkeypatch)
    write_output(rows("new"), target, overwrite=True)
    assert done == ["rename", "replace", "rename"], "the test above crashes at each of them"
    assert table(tmp_path / "out") == ["new", "new"]


def test_a_new_table_that_cannot_be_moved_leaves_the_old_one(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, to: str) -> None:
        raise PermissionError(13, "Permission denied", to)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        write_output(rows("new"), target, overwrite=True)
    assert table(tmp_path / "out") == ["old", "old"]
    assert os.listdir(tmp_path) == ["out"]
