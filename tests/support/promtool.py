"""promtool: the system's, or unpacked from the package `prometheus`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.debian import Unavailable, unpack
from tests.support.servers import missing


class Promtool:
    def __init__(self, program: Path) -> None:
        self._program = program

    def run(self, *arguments: str, text: bytes | None = None, cwd: Path | None = None) -> tuple[int, str]:
        """Exit code, and what it said on both outputs."""
        said = subprocess.run(
            [self._program, *arguments], input=text, cwd=cwd, capture_output=True, timeout=60, check=False
        )
        return said.returncode, (said.stdout + said.stderr).decode()


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    if installed := shutil.which("promtool"):
        return Promtool(Path(installed))
    try:
        return Promtool(next(unpack("prometheus").glob("usr/bin/promtool")))
    except (Unavailable, StopIteration) as error:
        missing("promtool", f"install the package prometheus ({error!r})")
