"""One connection to RabbitMQ with one channel in confirm mode, used by one thread at a time.

    open ──publish──▶ open          every message of the batch was answered
      └── any error, timeout or doubt ──▶ discarded; nothing said on it counts any more

Failures it is made for:
- A frozen broker: reads and writes end after `timeout`; late answers die with the connection.
- A broker that answers, but not for us (memory or disk alarm): it stops reading and says so; we wait `timeout`.
- Returned messages come back whole. Were they not read while others are written, both sides could wait for each other
  until the timeout, so little is under way at once, and what can be read is read between two writes.
- py-amqp repeats a read that is interrupted within a frame, for ever, unless the socket has a timeout of its own; and
  its confirming publish takes any answer for the one it waits for. Here neither of the two is used.
"""

import select
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import amqp
from kombu import Connection
from kombu.transport.pyamqp import Channel

from relay.confirms import Confirms
from relay.encode_amqp import AmqpMessage, content_frames, publish_frame

HEARTBEAT_SECONDS = 30.0
_PIECE_BYTES = 65_536
_MOST_PIECES = 16


class Session:
    """Everything here may raise `amqp.AMQPError`, `OSError` or `Disagreement`; the session is then of no use."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        self._timeout = timeout
        self._line: amqp.Connection = connection.transport.establish_connection()
        try:
            self._line.sock.settimeout(timeout)
            self.channel: Channel = self._line.channel()
            self._channel_id = int(self.channel.channel_id)
            self.channel.confirm_select()
        except BaseException:
            self.discard()
            raise
        self.channel.events["basic_ack"].add(self._on_ack)
        self.channel.events["basic_nack"].add(self._on_nack)
        self.channel.events["basic_return"].add(self._on_return)
        self._line.on_blocked = self._on_blocked
        self._line.on_unblocked = self._on_unblocked
        self.blocked = False
        self._published = 0
        self._confirms = Confirms(())
        self._moved = 0.0
        self._targets: dict[str, bytes] = {}

    @property
    def frame_max(self) -> int:
        return int(self._line.frame_max)

    def content(self, message: AmqpMessage) -> bytes:
        """The frames of one message; raises Undeliverable."""
        return self._target(message.queue) + content_frames(message, self._channel_id, self.frame_max)

    def publish(self, contents: Sequence[bytes], confirms: Confirms, *, careful: bool) -> None:
        """Returns when every message is answered. Carefully: the first alone, then little at a time."""
        self._confirms = confirms
        confirms.first_tag = self._published + 1
        self._moved = time.monotonic()
        under_way: deque[int] = deque()
        for count in _pieces(contents, alone=careful):
            self._read_until_few(under_way, 0 if careful else _MOST_PIECES - 1)
            start = confirms.sent
            # Before the writing: what was half written may arrive, and its number is used up.
            confirms.send(count)
            self._published += count
            self._line.transport.write(b"".join(contents[start : start + count]))
            under_way.append(start + count)
            while self._readable():
                self._read()
        self._read_until_few(under_way, 0)

    def _read_until_few(self, under_way: "deque[int]", most: int) -> None:
        while True:
            while under_way and under_way[0] <= self._confirms.oldest:
                under_way.popleft()
            if len(under_way) <= most and not self.blocked:
                return
            self._read()

    def _read(self) -> None:
        """One frame. Heartbeats are frames too, so that only answers count as a sign of progress."""
        waiting = self._confirms.waiting
        self._line.blocking_read()
        now = time.monotonic()
        if self._confirms.waiting < waiting:
            self._moved = now
        elif now - self._moved > self._timeout:
            raise TimeoutError

    def _readable(self) -> bool:
        line: Any = self._line.sock
        pending = getattr(line, "pending", None)  # TLS: decrypted, but not seen by select
        return bool(pending and pending()) or bool(select.select([line], [], [], 0)[0])

    def beat(self) -> None:
        """Between two batches: say that we live, and notice that the broker does not."""
        while self._readable():
            self._line.blocking_read()
        self._line.heartbeat_tick()

    def check(self) -> None:
        """A round trip: raises unless the broker answers."""
        self.channel.flow(True)

    def discard(self) -> None:
        """Without a farewell, which could wait."""
        self._line.collect()

    def close(self) -> None:
        self._line.close()

    def _target(self, queue: str) -> bytes:
        frame = self._targets.get(queue)
        if frame is None:
            frame = self._targets[queue] = publish_frame(queue, self._channel_id)
        return frame

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._confirms.ack(tag, multiple)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._confirms.nack(tag, multiple)

    def _on_return(self, _error: Exception, _exchange: str, _queue: str, message: amqp.Message) -> None:
        self._confirms.came_back(str(message.properties.get("correlation_id")))

    def _on_blocked(self, _reason: str) -> None:
        self.blocked = True

    def _on_unblocked(self) -> None:
        self.blocked = False
        self._moved = time.monotonic()


def _pieces(contents: Sequence[bytes], *, alone: bool) -> "list[int]":
    """How many messages go in one write each; the first one by itself as a probe, if asked for."""
    counts: list[int] = []
    count, size = 0, 0
    for content in contents:
        if count and (size + len(content) > _PIECE_BYTES or (alone and not counts)):
            counts.append(count)
            count, size = 0, 0
        count += 1
        size += len(content)
    if count:
        counts.append(count)
    return counts
