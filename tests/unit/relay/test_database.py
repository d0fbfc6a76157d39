import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.errors import ConfigurationError, Unreachable
from relay.database import connect, first_line, libpq_url, shown_url
from tests.unit.outbox.payloads import repeatable

PASSWORD = "hunter2"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is taken but does not listen: connecting to it is refused at once."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_the_usual_schemes_become_libpqs(scheme: str) -> None:
    assert libpq_url(f"{scheme}://u:p%40@[::1]:5432/db?sslmode=require") == (
        "postgresql://u:p%40@[::1]:5432/db?sslmode=require"
    )


@pytest.mark.parametrize(
    "url",
    [
        "",
        "db",
        "postgresql",
        "postgresql:/u:hunter2@h/db",
        "postgresql+asyncpg://u:hunter2@h/db",
        "mysql://u:hunter2@h/db",
        "host=h password=hunter2",
        "u:hunter2@h/db",
        " postgresql://u:hunter2@h/db",
    ],
)
def test_another_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"does not start with postgresql://|names another driver") as refused:
        libpq_url(url)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:hunter2@db:5432/shop", "postgresql://db:5432/shop"),
        ("postgresql://u:hunter2@db/shop", "postgresql://db/shop"),
        ("postgresql://hunter2@db/shop", "postgresql://db/shop"),
        ("postgresql:///shop?host=/run&password=hunter2", "postgresql:///shop"),
        ("postgresql://db/shop?password=hunter2#hunter2", "postgresql://db/shop"),
        ("redis://:hunter2@broker:6379/0", "redis://broker:6379/0"),
        ("redis://:hunter2%2F@broker", "redis://broker"),
        ("postgresql://u:hunter2@db:port/shop", "(malformed URL)"),
        ("postgresql://u:hunter2@db:99999/shop", "(malformed URL)"),
        ("postgresql://u:hunter2/slash@db/shop", "(malformed URL)"),
        ("postgresql://u:hunter2?mark@db/shop", "(malformed URL)"),
        ("postgresql://u:hunter2#hash@db/shop", "(malformed URL)"),
        ("postgresql://u:hunter2@[::1/shop", "(malformed URL)"),
        ("", "(malformed URL)"),
    ],
)
def test_a_screen_shows_where_and_never_who(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert PASSWORD not in shown


def test_an_ipv6_host_is_shown() -> None:
    assert "::1" in shown_url("postgresql://u:hunter2@[::1]:5432/shop")


@repeatable
@given(st.text(min_size=1), st.text(min_size=4))
def test_no_encoded_user_or_password_is_ever_shown(user: str, password: str) -> None:
    name, secret = (quote(text, safe="", errors="surrogatepass") for text in (user, password))
    assert shown_url(f"postgresql://{name}:{secret}@db:5432/shop") == "postgresql://db:5432/shop"


def test_a_server_that_does_not_answer_is_named_without_its_password(closed_port: int) -> None:
    with pytest.raises(Unreachable) as refused:
        connect(f"postgresql://app:{PASSWORD}@127.0.0.1:{closed_port}/shop", ttl=1.0, label="test")
    message = str(refused.value)
    assert message.startswith(f"cannot connect to PostgreSQL at postgresql://127.0.0.1:{closed_port}/shop: ")
    assert PASSWORD not in message
    assert "\n" not in message
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n  padded  \nrest"), "padded"),
        (ValueError(""), "ValueError"),
        (ValueError(" \n "), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_first_line_of_an_error_says_something(error: BaseException, line: str) -> None:
    assert first_line(error).strip() == line
