"""Hand messages to a broker: one protocol, one module per transport.

`publish` returns when the broker has answered for every message of the batch, and names those it refused. An outage
is an exception, not an outcome of a message: it says nothing about any of them, so all are published again later and
consumers absorb what had arrived.
"""

from collections.abc import Sequence
from typing import Protocol

from relay.publication import Copy, Refused, Stamp


class BrokerOutage(Exception):
    """The broker did not accept the batch, or the answer was lost. Part of it may have arrived."""


class Publisher(Protocol):
    keeps_order: bool
    """Messages of one batch for one queue all go, or none: several of one ordering key may share a batch."""

    def publish(self, copies: Sequence[Copy], stamp: Stamp) -> Sequence[Refused]:
        """Every message that is not named in the answer was accepted. Raises BrokerOutage when that is not known."""

    def ping(self) -> None:
        """Raises BrokerOutage unless the broker answers."""

    def close(self) -> None: ...
