"""Trace context of the code that adds a message, as headers for the task. Nothing is imported: an application that
traces has loaded OpenTelemetry, one that has not needs none."""

import importlib
import sys
from collections.abc import Mapping

# Baggage stays behind: it is made for calls between services and may hold personal data.
_CARRIED = ("traceparent", "tracestate")
_NONE: Mapping[str, str] = {}


def trace_headers() -> Mapping[str, str]:
    """`traceparent` (and `tracestate`) of the current span; empty without OpenTelemetry or outside a span."""
    if "opentelemetry.trace" not in sys.modules:
        return _NONE
    propagate = importlib.import_module("opentelemetry.propagate")
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {name: carrier[name] for name in _CARRIED if name in carrier}
