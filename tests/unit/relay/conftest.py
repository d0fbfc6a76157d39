import signal
from collections.abc import Iterator

import pytest

from relay.logs import logger


@pytest.fixture(autouse=True)
def process_wide_state_is_restored() -> Iterator[None]:
    """The command line configures its process: logging and signals. Here it runs inside the test's."""
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate
    for number, handler in signals.items():
        signal.signal(number, handler)
