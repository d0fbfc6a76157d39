"""An envelope: a message with its id, its payload as JSON text and its hash, ready to be written. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple, cast
from uuid import UUID

from outbox import codec
from outbox.codec import shown
from outbox.errors import ConfigurationError, InvalidMessage
from outbox.message import Message, check_headers, check_payload

DEFAULT_MAX_PAYLOAD = 256 * 1024


@dataclass(frozen=True, slots=True)
class Rules:
    """What this outbox accepts, beyond what every message must fulfil."""

    encoders: codec.Encoders = field(default_factory=dict)
    max_payload: int = DEFAULT_MAX_PAYLOAD
    tasks: Collection[str] | None = None
    queues: Collection[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_payload, bool) or not isinstance(self.max_payload, int) or self.max_payload < 1:
            raise ConfigurationError(f"max_payload {shown(self.max_payload)} is not a number of bytes above 0")
        for name in ("tasks", "queues"):
            names = getattr(self, name)
            if names is not None and not _are_names(names):
                raise ConfigurationError(f'{name} must be a list of names, not one text: {name}=["billing.*"]')
        if not isinstance(self.encoders, Mapping) or not all(
            isinstance(kind, type) and callable(encoder) for kind, encoder in self.encoders.items()
        ):
            raise ConfigurationError("encoders must be a dictionary of type: function, like {Decimal: str}")


class Envelope(NamedTuple):
    """The columns of a message that are not simply copied."""

    id: UUID
    message: Message
    args: str
    kwargs: str
    headers: str
    body_hash: bytes


def seal(message: Message, message_id: UUID, rules: Rules, trace: Mapping[str, str]) -> Envelope:
    """Everything that can be wrong with a payload is found here, before a connection is touched; also what was changed
    after the message was made."""
    if rules.tasks is not None or rules.queues is not None:
        _check_allowed(message, rules)
    args, kwargs = message.args, message.kwargs
    if rules.encoders:
        args = cast("Sequence[object]", codec.convert(list(args), rules.encoders))
        kwargs = cast("Mapping[str, object]", codec.convert(dict(kwargs), rules.encoders))
    check_payload(args, kwargs)
    args, args_text = codec.encoded(args, "args") if args else ([], "[]")
    kwargs, kwargs_text = codec.encoded(kwargs, "kwargs") if kwargs else ({}, "{}")
    headers = message.headers
    if headers:
        check_headers(headers)
    if trace:
        headers = {**trace, **headers}
    headers_text = codec.encode(headers, "headers") if headers else "{}"
    size = len(args_text) + len(kwargs_text) + len(headers_text)
    if size > rules.max_payload:
        said, limit = _kibibytes(size, rules.max_payload), _kibibytes(rules.max_payload)
        raise InvalidMessage(
            f"payload is {said} KiB, limit {limit} KiB (Outbox(max_payload=...)); pass a reference to where the data is"
            " kept"
        )
    return Envelope(
        message_id, message, args_text, kwargs_text, headers_text, codec.body_hash(message.task, args, kwargs)
    )


def _check_allowed(message: Message, rules: Rules) -> None:
    if rules.tasks is not None and not _matches(message.task, rules.tasks):
        raise InvalidMessage(
            f"task {shown(message.task)} is not among the tasks of this outbox; correct the name or add it to"
            " Outbox(tasks=...)"
        )
    if rules.queues is not None and message.queue is not None and not _matches(message.queue, rules.queues):
        raise InvalidMessage(
            f"queue {shown(message.queue)} is not among the queues of this outbox; correct the name or add it to"
            " Outbox(queues=...)"
        )


def _are_names(names: object) -> bool:
    return isinstance(names, list | tuple | set | frozenset) and all(isinstance(name, str) for name in names)


def _matches(name: str, patterns: Collection[str]) -> bool:
    return name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _kibibytes(size: int, limit: int = 0) -> str:
    """Rounded, unless that would make the payload and its limit look the same."""
    said = f"{size / 1024:.0f}" if size >= 10 * 1024 else f"{size / 1024:.3g}"
    return f"{size / 1024:.3f}" if limit and said == _kibibytes(limit) else said
