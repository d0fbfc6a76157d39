"""Move committed messages from the log to the broker."""

from relay.daemon import Relay
from relay.settings import RelaySettings

__all__ = ["Relay", "RelaySettings"]
