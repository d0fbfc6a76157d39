"""What to do when a server the tests want is not there."""

import os
from typing import NoReturn

import pytest


def missing(what: str, how: str) -> NoReturn:
    """Skip loudly on a developer's machine; fail in continuous integration, where nothing may go untested."""
    message = f"{what} is missing: {how}"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
