"""Payloads as JSON text: strict, ASCII only, and hashed so that a forged or damaged copy is recognised.

PostgreSQL keeps the very text (`json`, not `jsonb`) and the relay copies it into the Celery body without parsing
it, so everything that a worker could not decode to the same value must be refused here.

Every message passes through, so the usual case is quick: a walk that looks only at containers, then the C encoder,
then three searches in the text. Whatever looks odd is walked again, slowly, to name the path of what is wrong.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outbox.errors import InvalidMessage

Encoders = Mapping[type, Callable[[Any], object]]

TYPE_HINTS = {
    "datetime": "pass value.isoformat() and parse it in the handler",
    "date": "pass value.isoformat() and parse it in the handler",
    "time": "pass value.isoformat() and parse it in the handler",
    "timedelta": "pass value.total_seconds()",
    "Decimal": "pass str(value) and rebuild it in the handler",
    "UUID": "pass str(value)",
    "bytes": "pass base64 text, or a reference to where the bytes are kept",
    "bytearray": "pass base64 text, or a reference to where the bytes are kept",
    "set": "pass sorted(value)",
    "frozenset": "pass sorted(value)",
}
MAX_DEPTH = 100
# Python itself refuses to read or write longer integers as text (sys.get_int_max_str_digits, 4300 digits).
_TOO_LONG = 10**4300

_SCALARS = frozenset((str, int, float, bool, type(None)))
_TO_TEXT = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False).encode
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


def encode(value: object, path: str) -> str:
    """JSON text of `value`; raises InvalidMessage naming the path of what is not JSON."""
    return encoded(value, path)[1]


def encoded(value: object, path: str) -> tuple[Any, str]:
    """The value as a worker will read it, and its JSON text."""
    if isinstance(value, Mapping) and type(value) is not dict:
        value = dict(value)
    try:
        text = _TO_TEXT(value) if _plain(value, 0) else None
    except (TypeError, ValueError, RecursionError):
        text = None
    if text is not None and "\\u0000" not in text and "\\ud" not in text and '"__type__"' not in text:
        return value, text
    _check(value, path, 0)
    try:
        text = _TO_TEXT(value)
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise InvalidMessage(f"{path}: cannot be written as JSON and read back; use plain values") from None
    # Subclasses may say one thing to the encoder and another to us: from here on only the text counts.
    _check(value, path, 0)
    return value, text


def convert(value: object, encoders: Encoders, within: tuple[int, ...] = ()) -> object:
    """With the registered encoders applied; what they return is checked like everything else."""
    if len(within) > MAX_DEPTH or id(value) in within:  # a value that contains itself is nested without end
        raise InvalidMessage(f"payload: nested deeper than {MAX_DEPTH} levels; flatten it or pass a reference")
    if within:  # the arguments themselves stay a list and a dictionary
        for kind in type(value).__mro__:
            if kind in encoders:
                return encoders[kind](value)
    if isinstance(value, list | tuple):
        return [convert(item, encoders, (*within, id(value))) for item in value]
    if isinstance(value, Mapping):
        return {key: convert(item, encoders, (*within, id(value))) for key, item in value.items()}
    return value


def body_hash(task: str, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """SHA-256 of the canonical body: the same from the caller's values and from what a worker decoded."""
    return hashlib.sha256(_CANONICAL([task, list(args), dict(kwargs)]).encode("ascii")).digest()


def canonical(value: object) -> str:
    """JSON text that is the same for equal values: keys sorted, a float without fraction written as the integer."""
    return _CANONICAL(_normal(value))


def _normal(value: object) -> object:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list() | tuple():
            return [_normal(item) for item in value]
        case dict():
            return {key: _normal(item) for key, item in value.items()}
    return value


def _plain(value: object, depth: int) -> bool:
    """Whether the containers hold nothing that the C encoder would change silently; it checks the rest itself."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if depth >= MAX_DEPTH:
        return False
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or not (type(item) in _SCALARS or _plain(item, depth + 1)):
                return False
        return True
    if kind is list or kind is tuple:
        return all(type(item) in _SCALARS or _plain(item, depth + 1) for item in value)  # type: ignore[attr-defined]
    return False


def _check(value: object, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidMessage(f"{path}: nested deeper than {MAX_DEPTH} levels; flatten it or pass a reference")
    match value:
        case None | bool():
            return
        case int() | float():
            _check_number(value, path)
        case str():
            _check_text(value, path)
        case list() | tuple():
            for index, item in enumerate(value):
                _check(item, f"{path}[{index}]", depth + 1)
        case dict():
            _check_mapping(value, path, depth)
        case _:
            kind = type(value).__name__
            hint = TYPE_HINTS.get(kind, "convert it to str, int, float, bool, None, list or dict")
            raise InvalidMessage(
                f"{path}: {kind} is not JSON; {hint}, or register an encoder: Outbox(encoders={{{kind}: ...}})"
            )


def _check_number(value: int | float, path: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidMessage(f"{path}: {value} is not JSON; pass None or a string")
    elif abs(value) >= _TOO_LONG:
        raise InvalidMessage(f"{path}: an integer of over 4300 digits cannot be read back; pass it as text")


def _check_text(value: str, path: str) -> None:
    if "\x00" in value:
        raise InvalidMessage(f"{path}: contains the character \\u0000, which PostgreSQL cannot store; remove it")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidMessage(f"{path}: contains a lone surrogate; it is not valid text, decode it again") from None


def _check_mapping(value: Mapping[object, object], path: str, depth: int) -> None:
    if "__type__" in value:
        # kombu's JSON decoder would turn such a dictionary into another object inside the worker.
        raise InvalidMessage(f'{path}: the key "__type__" is reserved by Celery\'s JSON decoder; rename it')
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidMessage(f"{path}: the key {shown(key)} is not a string; JSON would change it, convert it")
        _check_text(key, path)
        _check(item, f"{path}.{key if key.isidentifier() and len(key) <= 60 else shown(key)}", depth + 1)


def shown(value: object) -> str:
    """At most 60 characters of a name, escaped: error messages must not carry whole payloads or control codes."""
    try:
        text = ascii(value)
    except Exception:  # an integer of too many digits, or somebody's __repr__
        text = f"of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
