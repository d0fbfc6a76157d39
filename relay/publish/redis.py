"""Publish to Redis or Valkey: variadic LPUSH of ready bytes, as kombu's own producer would, many at a time."""

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import redis

from outbox.errors import ConfigurationError
from relay.encode import Encoded, Encoder
from relay.publication import Copy, Refusal, Refused, Stamp
from relay.publish import BrokerOutage
from relay.publish.redis_client import RedisOptions, make_client
from relay.routing import Undeliverable

# Commands over about 1 MB fall off a cliff (measured: 834k/s at 500 messages, 243k/s at 5000).
_MOST_MESSAGES = 500
_MOST_BYTES = 1_000_000


# Redis answers these for one list only; every other error is the server's and says nothing about a message.
_ONE_LIST = ("WRONGTYPE", "NOPERM")
_QUOTED = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)

Command: TypeAlias = tuple[str, list[bytes]]
"""A list and what is pushed to it."""


class RedisPublisher:
    """All messages of one batch for one queue go in order, or none of them."""

    keeps_order = True

    def __init__(self, url: str, timeout: float, encoder: Encoder, options: RedisOptions | None = None) -> None:
        options = options or RedisOptions()
        self._encoder = encoder
        self._prefix = options.key_prefix
        self._client = make_client(url, timeout, options)

    def publish(self, copies: Sequence[Copy], stamp: Stamp) -> Sequence[Refused]:
        try:
            batch, refused = self._encoder.encode(copies, stamp), list[Refused]()
            places: Sequence[int] = range(len(copies))
        except Undeliverable:
            batch, places, refused = self._encode_each(copies, stamp)
        commands = list(chunks(batch))
        try:
            answers = self._push(commands)
        except redis.RedisError as error:
            raise self._outage(error) from error
        for at, why in self._refused(commands, answers):
            refused.append(Refused(places[at], Refusal.QUEUE, why))
        return refused

    def _push(self, commands: Sequence[Command]) -> Sequence[object]:
        """One command is atomic by itself; several are made so, or the second could go where the first did not."""
        try:
            with self._client.pipeline(transaction=len(commands) > 1) as pipeline:
                for destination, payloads in commands:
                    pipeline.lpush(self._prefix + destination, *payloads)
                return pipeline.execute(raise_on_error=False)
        except redis.exceptions.NoPermissionError as error:
            # A missing right is found while the transaction is put together, and nothing of it is run.
            lists = dict.fromkeys(destination for destination, _ in commands)
            if len(lists) == 1:
                return [error] * len(commands)
        answers: dict[str, list[object]] = {
            one: list(self._push([command for command in commands if command[0] == one])) for one in lists
        }
        return [answers[destination].pop(0) for destination, _ in commands]

    def _encode_each(self, copies: Sequence[Copy], stamp: Stamp) -> tuple[list[Encoded], Sequence[int], list[Refused]]:
        """For a batch in which some may not go: which ones is not worth asking for the others."""
        batch: list[Encoded] = []
        places: list[int] = []
        refused: list[Refused] = []
        stopped: set[str] = set()
        for place, copy in enumerate(copies):
            key = None if copy.publication else copy.row.ordering_key
            if key is not None and key in stopped:
                refused.append(Refused(place, Refusal.BEHIND, "an earlier message of its ordering key was refused"))
                continue
            try:
                batch += self._encoder.encode([copy], stamp)
                places.append(place)
            except Undeliverable as error:
                refused.append(Refused(place, error.refusal, error.why))
                if key is not None:
                    stopped.add(key)
        return batch, places, refused

    def _refused(self, commands: Sequence[Command], answers: Sequence[object]) -> Iterator[tuple[int, str]]:
        start = 0
        for (destination, payloads), answer in zip(commands, answers, strict=True):
            if isinstance(answer, redis.RedisError):
                if not _of_one_list(answer):
                    raise self._outage(answer) from answer
                why = f"Redis refuses to push to {destination!a}: {_said(answer)}"
                yield from ((start + offset, why) for offset in range(len(payloads)))
            start += len(payloads)

    def ping(self) -> None:
        try:
            self._client.ping()
            self._refuse_cluster()
        except redis.RedisError as error:
            raise self._outage(error) from error

    def _refuse_cluster(self) -> None:
        try:
            found = self._client.info("cluster").get("cluster_enabled")
        except redis.exceptions.NoPermissionError:
            return
        if found:
            raise ConfigurationError("the broker is a Redis Cluster, which kombu's queues cannot live in")

    def _outage(self, error: redis.RedisError) -> BrokerOutage:
        # After a failover the old connection may still lead to the demoted server, which answers and refuses to write.
        self._client.connection_pool.disconnect()
        return BrokerOutage(f"{type(error).__name__}: {_said(error)}")

    def close(self) -> None:
        self._client.close()


def _said(error: redis.RedisError) -> str:
    """Without the command that redis-py quotes: it begins with the payload."""
    return _QUOTED.sub("", str(error))


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
