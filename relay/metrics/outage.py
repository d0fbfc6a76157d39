"""The few kinds of outage that a label may name; the text of an error is for the log."""

import re

ERROR_CLASSES = ("broker_unreachable", "broker_timeout", "broker_nack", "auth", "unknown")

# The publishers put the class of the error before its text. Of the text only whole words count: a host may be called
# anything.
_BY_CLASS = (
    ("broker_timeout", ("timeout",)),
    ("auth", ("authentication", "accessrefused", "permission")),
    ("broker_nack", ("nack", "readonly", "resourceerror", "busyloading", "outofmemory")),
    ("broker_unreachable", ("connection", "oserror", "gaierror", "recoverable")),
)
_BY_WORD = (
    ("broker_timeout", {"timeout"}),
    ("auth", {"noauth", "wrongpass", "noperm", "access_refused"}),
    ("broker_nack", {"readonly", "oom", "misconf", "loading", "nack", "noreplicas"}),
)


def error_class(error: str) -> str:
    """Of `ConnectionError: Error 111 connecting to …`: broker_unreachable."""
    name, _, text = error.lower().partition(":")
    words = set(re.findall(r"[a-z_]+", text))
    by_class = (kind for kind, parts in _BY_CLASS if any(part in name for part in parts))
    by_word = (kind for kind, known in _BY_WORD if known & words)
    return next(by_word, None) or next(by_class, "unknown")
