"""Which publisher a broker URL gets, and which brokers are refused by name."""

import pytest
from kombu.transport import TRANSPORT_ALIASES

from outbox.errors import ConfigurationError
from relay.broker_url import AMQP, REDIS, UNVOUCHED, Transport, transport_for


@pytest.mark.parametrize(
    ("url", "wanted", "expected"),
    [
        *((f"{scheme}://h", "auto", Transport.REDIS) for scheme in REDIS),
        *((f"{scheme}://h", "auto", Transport.AMQP) for scheme in AMQP),
        ("redis://h/0", "redis", Transport.REDIS),
        ("redis://h/0", "kombu", Transport.KOMBU),
        ("amqp://h", "kombu", Transport.KOMBU),
        ("amqp://a;amqp://b", "amqp", Transport.AMQP),
    ],
)
def test_the_url_chooses(url: str, wanted: str, expected: Transport) -> None:
    assert transport_for(url, wanted, i_know=False) is expected


@pytest.mark.parametrize("scheme", UNVOUCHED)
def test_an_untested_broker_has_to_be_asked_for(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match=f"a broker of {scheme} .* --i-know"):
        transport_for(f"{scheme}://user:secret@h", "auto", i_know=False)
    assert transport_for(f"{scheme}://h", "auto", i_know=True) is Transport.KOMBU


@pytest.mark.parametrize("url", ["rediscluster://h", "redis+cluster://h:6379", "valkey-cluster://h"])
def test_a_redis_cluster_is_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Redis Cluster is not supported"):
        transport_for(url, "auto", i_know=True)


@pytest.mark.parametrize(
    ("url", "wanted"), [("amqp://h", "redis"), ("redis://h", "amqp"), ("memory://", "redis"), ("sqs://", "amqp")]
)
def test_a_transport_that_does_not_fit_the_url_is_refused(url: str, wanted: str) -> None:
    with pytest.raises(ConfigurationError, match="OUTBOX_TRANSPORT"):
        transport_for(url, wanted, i_know=True)


@pytest.mark.parametrize("url", ["", "redis", "secret@host://x", "http://secret@h", "se:cret://h"])
def test_anything_else_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not supported") as raised:
        transport_for(url, "auto", i_know=True)
    assert "secret" not in str(raised.value)
    assert "cret" not in str(raised.value)


def test_the_names_are_kombus() -> None:
    """A transport that kombu gains has to be judged: vouched for, or not."""
    ours = {*REDIS, *AMQP, *UNVOUCHED}
    assert {name.lower() for name in TRANSPORT_ALIASES} <= ours
