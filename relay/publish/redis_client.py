"""A client for every way in which Celery's users name a Redis or Valkey server.

redis:// and rediss:// with redis-py's own options, valkey:// as another name, redis+socket:// for a Unix socket, and
sentinel://a:26379;sentinel://b:26379/0 with the name of the master among the transport options. All of them wait for a
finite time and never repeat a command by themselves: the relay must know that a batch may have arrived twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from outbox.errors import ConfigurationError

_SENTINEL_PORT = 26379
_HEALTH_CHECK_SECONDS = 25.0
_MALFORMED = (
    "OUTBOX_BROKER_URL is malformed; the form is redis://user:password@host:6379/0, special characters percent-encoded"
)


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """What an application may say besides the URL."""

    key_prefix: str = ""
    """kombu's global_keyprefix: it stands before every list."""
    master_name: str | None = None
    sentinel: Mapping[str, Any] = field(default_factory=dict)
    """Options of the connections to the sentinels themselves."""
    ssl: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], ssl: bool | Mapping[str, Any]) -> "RedisOptions":
        """From broker_transport_options and broker_use_ssl."""
        return cls(
            key_prefix=str(options.get("global_keyprefix") or ""),
            master_name=options.get("master_name"),
            sentinel=options.get("sentinel_kwargs") or {},
            ssl=dict(ssl) if isinstance(ssl, Mapping) else ({} if ssl else None),
        )


def make_client(url: str, timeout: float, options: RedisOptions) -> "redis.Redis":
    """Connects to nothing yet; raises ConfigurationError without repeating a part of the URL."""
    limits: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "health_check_interval": _HEALTH_CHECK_SECONDS,
        "retry": Retry(NoBackoff(), 0),
    }
    try:
        if url.startswith("sentinel://"):
            return _master(url, limits | {"socket_keepalive": True}, options)
        return _server(url, limits, options)
    except ValueError as error:
        if isinstance(error, ConfigurationError):
            raise
        # redis-py quotes the part it could not read, which may be the password.
        raise ConfigurationError(_MALFORMED) from None


def _server(url: str, limits: dict[str, Any], options: RedisOptions) -> "redis.Redis":
    if url.startswith("redis+socket://"):
        del limits["socket_connect_timeout"]
        path, _, query = url.removeprefix("redis+socket://").partition("?")
        query = query.replace("virtual_host=", "db=")  # kombu's word for the number of the database
        return redis.Redis.from_url(f"unix://{path}" + (f"?{query}" if query else ""), **limits)
    # kombu accepts valkey:// as another name of redis://; redis-py does not.
    plain = url.replace("valkeys://", "rediss://", 1).replace("valkey://", "redis://", 1)
    if options.ssl is not None:
        plain = plain.replace("redis://", "rediss://", 1)
        limits |= options.ssl
    return redis.Redis.from_url(plain, socket_keepalive=True, **limits)


def _master(url: str, limits: dict[str, Any], options: RedisOptions) -> "redis.Redis":
    if not options.master_name:
        raise ConfigurationError(
            "a broker URL of sentinel needs the master's name: master_name in broker_transport_options of the"
            " application (--app)"
        )
    parts = [urlsplit(each if "://" in each else f"sentinel://{each}") for each in url.split(";") if each]
    numbers = [each.path.strip("/") for each in parts if each.path.strip("/")]
    # As kombu: user and password of the first address are those of the Redis servers.
    access: dict[str, Any] = {"db": int(numbers[0]) if numbers else 0}
    if parts[0].password:
        access["password"] = unquote(parts[0].password)
    if parts[0].username:
        access["username"] = unquote(parts[0].username)
    if options.ssl is not None:
        access |= {"ssl": True, **options.ssl}
    to_sentinels = {name: limits[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")}
    sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
        [(each.hostname or "127.0.0.1", each.port or _SENTINEL_PORT) for each in parts],
        sentinel_kwargs={**to_sentinels, **options.sentinel},
        **limits,
        **access,
    )
    client: redis.Redis = sentinel.master_for(options.master_name)
    return client
