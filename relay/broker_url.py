"""What a broker URL asks for, and whether we can stand for it. Pure."""

import re
from enum import Enum

from outbox.errors import ConfigurationError

REDIS = ("redis", "rediss", "valkey", "valkeys", "redis+socket", "sentinel")
AMQP = ("amqp", "amqps", "pyamqp")
# kombu's other names; a contract test compares them with the installed kombu. What they lose, nobody measured.
UNVOUCHED = tuple(
    "azureservicebus azurestoragequeues confluentkafka consul etcd filesystem gcpubsub kafka librabbitmq memory mongodb"
    " pgmq pyro qpid slmq sqla sqlalchemy sqs zookeeper".split()
)
_CLUSTER = re.compile(r"(redis|rediss|valkey|valkeys)[+-]?cluster(\+ssl)?")


class Transport(Enum):
    """Who speaks to the broker."""

    REDIS = "redis"
    AMQP = "amqp"
    KOMBU = "kombu"


def scheme_of(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""


def transport_for(url: str, wanted: str, i_know: bool) -> Transport:
    """The publisher for this URL; raises ConfigurationError for a broker that we do not, or may not, serve."""
    scheme = scheme_of(url)
    # Only a plain word is repeated: what stands before "://" in a malformed URL may be a password.
    named = f" of {scheme}" if re.fullmatch(r"[a-z+-]{1,20}", scheme) else ""
    if _CLUSTER.fullmatch(scheme):
        raise ConfigurationError(
            "Redis Cluster is not supported: kombu's queues cannot live in it; use one server, with Sentinel if it has"
            " to fail over"
        )
    if scheme in REDIS or scheme in AMQP:
        native = Transport.REDIS if scheme in REDIS else Transport.AMQP
        if wanted in ("auto", native.value):
            return native
        if wanted == Transport.KOMBU.value:
            return Transport.KOMBU
        raise ConfigurationError(
            f"transport (OUTBOX_TRANSPORT) is {wanted}, but the broker URL{named} is for {native.value}; set it to auto"
        )
    if scheme not in UNVOUCHED:
        raise ConfigurationError(
            f"the broker URL{named} is not supported; give OUTBOX_BROKER_URL=redis://host:6379/0 or"
            f" amqp://user@host:5672/vhost ({', '.join((*REDIS, *AMQP))})"
        )
    if wanted not in ("auto", Transport.KOMBU.value):
        raise ConfigurationError(f"transport (OUTBOX_TRANSPORT) is {wanted}, but only kombu speaks to brokers{named}")
    if not i_know:
        raise ConfigurationError(
            f"a broker{named} is one that we cannot vouch for: nobody tested what it loses when it dies; use Redis,"
            " Valkey or RabbitMQ, or say --i-know"
        )
    return Transport.KOMBU
