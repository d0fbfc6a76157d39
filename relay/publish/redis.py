"""Publish to Redis or Valkey: variadic LPUSH of ready bytes, as kombu's own producer would, many at a time."""

from collections.abc import Iterator, Sequence

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from outbox.errors import ConfigurationError
from relay.encode import Encoded, Encoder
from relay.publication import Copy, Refusal, Refused, Stamp
from relay.publish import BrokerOutage

# Commands over about 1 MB fall off a cliff (measured: 834k/s at 500 messages, 243k/s at 5000).
_MOST_MESSAGES = 500
_MOST_BYTES = 1_000_000


# Redis answers these for one list only; every other error is the server's and says nothing about a message.
_ONE_LIST = ("WRONGTYPE", "NOPERM")


class RedisPublisher:
    """All messages of one batch for one queue go in order, or none of them."""

    keeps_order = True

    def __init__(self, url: str, timeout: float, encoder: Encoder) -> None:
        self._encoder = encoder
        # kombu accepts valkey:// as another name of redis://; redis-py does not.
        plain = url.replace("valkeys://", "rediss://", 1).replace("valkey://", "redis://", 1)
        try:
            self._client = redis.Redis.from_url(
                plain,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                socket_keepalive=True,
                # Retries belong to the relay: it must know that a batch may have arrived twice.
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError:
            # redis-py quotes the part it could not read, which may be the password.
            raise ConfigurationError(
                "OUTBOX_BROKER_URL is malformed; the form is redis://user:password@host:6379/0,"
                " special characters percent-encoded"
            ) from None

    def publish(self, copies: Sequence[Copy], stamp: Stamp) -> Sequence[Refused]:
        batch = [self._encoder.encode(row, stamp, number, tries) for row, number, tries in copies]
        commands = list(chunks(batch))
        try:
            # One command is atomic by itself; several are made so, or the second could go where the first did not.
            with self._client.pipeline(transaction=len(commands) > 1) as pipeline:
                for destination, payloads in commands:
                    pipeline.lpush(destination, *payloads)
                answers = pipeline.execute(raise_on_error=False)
        except redis.RedisError as error:
            raise self._outage(error) from error
        return self._refused(commands, answers)

    def _refused(self, commands: Sequence[tuple[str, list[bytes]]], answers: Sequence[object]) -> list[Refused]:
        refused: list[Refused] = []
        start = 0
        for (destination, payloads), answer in zip(commands, answers, strict=True):
            if isinstance(answer, redis.RedisError):
                if not _of_one_list(answer):
                    raise self._outage(answer) from answer
                why = f"Redis refuses to push to {destination!a}: {answer}"
                refused += [Refused(start + offset, Refusal.QUEUE, why) for offset in range(len(payloads))]
            start += len(payloads)
        return refused

    def ping(self) -> None:
        try:
            self._client.ping()
        except redis.RedisError as error:
            raise self._outage(error) from error

    def _outage(self, error: redis.RedisError) -> BrokerOutage:
        # After a failover the old connection may still lead to the demoted server, which answers and refuses to write.
        self._client.connection_pool.disconnect()
        return BrokerOutage(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        self._client.close()


def _of_one_list(error: redis.RedisError) -> bool:
    # redis-py takes NOPERM off the text and puts it into the class.
    return isinstance(error, redis.exceptions.NoPermissionError) or str(error).upper().startswith(_ONE_LIST)


def chunks(batch: Sequence[Encoded]) -> Iterator[tuple[str, list[bytes]]]:
    """Runs of messages for one list, in order, each small enough for one command."""
    destination, payloads, size = "", list[bytes](), 0
    for message in batch:
        full = len(payloads) >= _MOST_MESSAGES or size + len(message.payload) > _MOST_BYTES
        if payloads and (full or message.destination != destination):
            yield destination, payloads
            payloads, size = [], 0
        destination = message.destination
        payloads.append(message.payload)
        size += len(message.payload)
    if payloads:
        yield destination, payloads
