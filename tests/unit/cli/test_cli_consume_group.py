"""`ottla consume --group` rejects conflicting options before it connects."""

from __future__ import annotations

import pytest

from ottla.cli.program import main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--group", "billing", "--offset", "3"], "--group cannot be combined with"),
        (["--group", "billing", "--since", "1h"], "--group cannot be combined with"),
        (["--group", "billing", "--partition", "0"], "--group cannot be combined with"),
        (["--instance-id", "one"], "--instance-id needs --group"),
        (["--group", "billing", "--protocol", "modern"], "'classic', 'consumer'"),
    ],
)
def test_what_does_not_go_together(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", "orders", "--bootstrap", "127.0.0.1:1", *arguments]) == 2
    assert sentence in " ".join(capsys.readouterr().err.replace("│", " ").split())
