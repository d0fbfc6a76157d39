"""Hand messages to a broker: one protocol, one module per transport.

`publish` returns when the broker has accepted the whole batch. An outage is an exception, not an outcome of a message:
it says nothing about any of them, so all are published again later and consumers absorb what had arrived.
"""

from collections.abc import Sequence
from typing import Protocol

from relay.encode import Encoded


class BrokerOutage(Exception):
    """The broker did not accept the batch, or the answer was lost. Part of it may have arrived."""


class Publisher(Protocol):
    def publish(self, batch: Sequence[Encoded]) -> None:
        """Raises BrokerOutage unless every message was accepted."""

    def ping(self) -> None:
        """Raises BrokerOutage unless the broker answers."""

    def close(self) -> None: ...
