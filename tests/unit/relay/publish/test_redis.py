import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.errors import ConfigurationError
from relay.encode import Encoded, Encoder
from relay.publish.redis import RedisPublisher, chunks
from relay.routing import DefaultQueue
from tests.unit.outbox.payloads import repeatable

MOST_MESSAGES = 500
MOST_BYTES = 1_000_000

batches = st.lists(
    st.builds(
        Encoded,
        st.sampled_from(["celery", "mail", "mail\x06\x163"]),
        st.sampled_from([1, 10, 999, 400_000, 600_000, 999_999, 1_000_000, 1_000_001, 2_500_000]).map(bytes),
    ),
    max_size=30,
)


def messages(count: int, size: int = 10, destination: str = "celery") -> list[Encoded]:
    return [Encoded(destination, b"%0*d" % (size, number)) for number in range(count)]


def sizes(batch: list[Encoded]) -> list[int]:
    return [len(payloads) for _, payloads in chunks(batch)]


def test_nothing_is_no_command() -> None:
    assert list(chunks([])) == []


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [1]), (499, [499]), (500, [500]), (501, [500, 1]), (1250, [500, 500, 250])]
)
def test_a_command_carries_at_most_500_messages(count: int, expected: list[int]) -> None:
    assert sizes(messages(count)) == expected


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [(250_000, 4, [4]), (250_001, 4, [3, 1]), (600_000, 3, [1, 1, 1]), (1_000_000, 2, [1, 1])],
)
def test_a_command_carries_at_most_a_megabyte(size: int, count: int, expected: list[int]) -> None:
    assert sizes(messages(count, size)) == expected


def test_a_message_over_a_megabyte_goes_alone() -> None:
    assert sizes([*messages(2), *messages(1, 3_000_000), *messages(2)]) == [2, 1, 2]


def test_a_change_of_list_begins_a_new_command() -> None:
    batch = [*messages(2, destination="a"), *messages(1, destination="b"), *messages(3, destination="a")]
    assert [(destination, len(payloads)) for destination, payloads in chunks(batch)] == [("a", 2), ("b", 1), ("a", 3)]


@repeatable
@given(batches)
def test_every_message_is_sent_once_in_order_and_within_the_limits(batch: list[Encoded]) -> None:
    found = list(chunks(batch))
    assert [Encoded(destination, payload) for destination, payloads in found for payload in payloads] == batch
    for _, payloads in found:
        assert 1 <= len(payloads) <= MOST_MESSAGES
        assert len(payloads) == 1 or sum(map(len, payloads)) <= MOST_BYTES


@pytest.mark.parametrize(
    "url", ["redis://h/0", "rediss://h/0", "valkey://h/0", "valkeys://h/0", "redis://u:p@[::1]:6379/1"]
)
def test_kombus_names_of_redis_are_accepted(url: str) -> None:
    RedisPublisher(url, 1.0, Encoder(DefaultQueue("celery").queue_for)).close()


@pytest.mark.parametrize("url", ["redis", "redis://[::1", "redis://h:port/0", "redis://h/0?socket_timeout=soon"])
def test_a_malformed_url_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="OUTBOX_BROKER_URL is malformed"):
        RedisPublisher(url, 1.0, Encoder(DefaultQueue("celery").queue_for))
