"""Lengths of time as people write and read them: `90s`, `30m`, `1h30m`, `2d`."""

import re
from datetime import timedelta

from outbox.errors import ConfigurationError

_PARTS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)
_LONGEST = timedelta(days=3650)


def parse_duration(text: str, what: str) -> timedelta:
    """`30m`; a bare number is seconds. `what` names it in the refusal."""
    found = _PARTS.fullmatch(text.strip()) if len(text) < 30 else None
    if found is None or not any(found.groups()):
        raise ConfigurationError(f"{what} {text[:30]!a} is not a length of time; write for example 90s, 30m, 2h or 1d")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    seconds += 60 * (minutes + 60 * (hours + 24 * days))
    if not 0 < seconds <= _LONGEST.total_seconds():
        raise ConfigurationError(f"{what} {text[:30]!a} must be longer than nothing and at most {_LONGEST.days}d")
    return timedelta(seconds=seconds)


def shown_duration(seconds: float | None) -> str:
    """`0.4s`, `1m15s`, `2h01m`, `3d04h`; what is not known is said to be."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{max(seconds, 0):.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d{hours % 24:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"
