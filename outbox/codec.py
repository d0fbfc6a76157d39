"""Payloads as JSON text: strict, ASCII only, and hashed so that a forged or damaged copy is recognised.

PostgreSQL keeps the very text (`json`, not `jsonb`) and the relay copies it into the Celery body without parsing
it, so everything that a worker could not decode to the same value must be refused here.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence

from outbox.errors import InvalidMessage

TYPE_HINTS = {
    "datetime": "pass value.isoformat() and parse it in the handler",
    "date": "pass value.isoformat() and parse it in the handler",
    "Decimal": "pass str(value) and rebuild it in the handler",
    "UUID": "pass str(value)",
    "bytes": "pass base64 text, or a reference to where the bytes are kept",
    "set": "pass sorted(value)",
    "frozenset": "pass sorted(value)",
}
MAX_DEPTH = 100
# Python itself refuses to read or write longer integers as text (sys.get_int_max_str_digits, 4300 digits).
MAX_INTEGER_BITS = 14_283


def encode(value: object, path: str) -> str:
    """JSON text of `value`; raises InvalidMessage naming the path of what is not JSON."""
    _check(value, path, depth=0)
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, allow_nan=False, separators=(",", ":"))


def body_hash(task: str, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """SHA-256 of the canonical body: the same from the caller's values and from what a worker decoded."""
    canonical = json.dumps([task, list(args), dict(kwargs)], ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).digest()


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
        case Mapping() if depth == 0:
            _check_mapping(value, path, depth)
        case _:
            kind = type(value).__name__
            hint = TYPE_HINTS.get(kind, "convert it to str, int, float, bool, None, list or dict")
            raise InvalidMessage(f"{path}: {kind} is not JSON; {hint}")


def _check_number(value: int | float, path: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidMessage(f"{path}: {value} is not JSON; pass None or a string")
    elif value.bit_length() > MAX_INTEGER_BITS:
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
            raise InvalidMessage(f"{path}: the key {_shown(key)} is not a string; JSON would change it, convert it")
        _check_text(key, path)
        _check(item, f"{path}.{key if key.isidentifier() and len(key) <= 60 else _shown(key)}", depth + 1)


def _shown(key: object) -> str:
    """A key fit for a log line: no control codes, no whole payloads."""
    text = ascii(key)
    return text if len(text) <= 60 else text[:57] + "..."
