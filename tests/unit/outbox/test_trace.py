import subprocess
import sys
from collections.abc import Callable, MutableMapping
from types import ModuleType
from uuid import UUID

import opentelemetry.trace
import pytest
from opentelemetry import baggage, context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

from outbox.envelope import Rules, seal
from outbox.message import Message
from outbox.trace import trace_headers
from tests.support.processes import ROOT

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stands in for OpenTelemetry: a propagator that puts these headers into the carrier."""

    def headers(**found: str) -> None:
        def inject(carrier: MutableMapping[str, str], context: object = None, setter: object = None) -> None:
            carrier.update(found)

        package, trace, propagate = (ModuleType(f"opentelemetry{end}") for end in ("", ".trace", ".propagate"))
        propagate.inject = inject  # type: ignore[attr-defined]
        for module in (package, trace, propagate):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    return headers


def test_without_opentelemetry_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    assert trace_headers() == {}
    assert not [name for name in sys.modules if name.startswith("opentelemetry")]


def test_an_application_that_does_not_trace_never_loads_it() -> None:
    """It is installed here, and stays unloaded."""
    script = (
        "import sys, outbox, outbox.trace; outbox.trace.trace_headers();"
        " sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


def test_the_trace_is_carried_and_baggage_is_not(pretend: Callable[..., None]) -> None:
    pretend(traceparent=PARENT, tracestate="a=1", baggage="card=4111")
    assert trace_headers() == {"traceparent": PARENT, "tracestate": "a=1"}


def test_outside_a_span_there_is_nothing(pretend: Callable[..., None]) -> None:
    pretend(baggage="card=4111")
    assert trace_headers() == {}


def test_it_becomes_a_header_of_the_message_and_the_callers_own_wins() -> None:
    trace = {"traceparent": PARENT, "tracestate": "a=1"}
    plain = seal(Message("a"), UUID(int=1), Rules(), trace)
    assert plain.headers == f'{{"traceparent":"{PARENT}","tracestate":"a=1"}}'
    own = seal(Message("a", headers={"traceparent": "mine", "tenant": "x"}), UUID(int=1), Rules(), trace)
    assert own.headers == '{"traceparent":"mine","tracestate":"a=1","tenant":"x"}'
    # It says who asked for the work, not what the work is: a repeat of the request is a repeat.
    assert plain.body_hash == seal(Message("a"), UUID(int=2), Rules(), {}).body_hash


def test_with_the_real_package() -> None:
    assert trace_headers() == {}
    span = SpanContext(
        trace_id=0x0AF7651916CD43DD8448EB211C80319C,
        span_id=0xB7AD6B7169203331,
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
        trace_state=TraceState([("vendor", "x")]),
    )
    inside = baggage.set_baggage("card", "4111", set_span_in_context(NonRecordingSpan(span)))
    token = context.attach(inside)
    try:
        assert opentelemetry.trace.get_current_span().get_span_context() == span
        assert trace_headers() == {"traceparent": PARENT, "tracestate": "vendor=x"}
    finally:
        context.detach(token)
    assert trace_headers() == {}
