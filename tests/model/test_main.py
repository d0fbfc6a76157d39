"""`python -m tests.model` prints what goes into the documentation."""

from __future__ import annotations

import pytest

from tests.model.__main__ import main


def test_trace_is_a_numbered_list_under_the_violated_guarantee(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", "ack_after_commit"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "receipts: without `ack_after_commit`, `no_loss` fails:",
        "",
        "1. W1 takes a copy",
        "2. W1 dies, its copy with it",
    ]


def test_unknown_protection_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--trace", "luck"])
    assert "epoch_in_write" in capsys.readouterr().err
