"""The settings file and what wins over what: one clear line for every mistake, never a value."""

from pathlib import Path
from typing import Any

import pytest

from outbox.errors import ConfigurationError
from relay.configuration import Configuration
from relay.settings import RelaySettings, http_address

DATABASE = "postgresql://app:hunter2@db:5432/shop"
BROKER = "redis://:hunter2@broker:6379/0"
BOTH = f'database_url = "{DATABASE}"\nbroker_url = "{BROKER}"\n'
TWO = BOTH + '[outboxes.shop]\nschema = "shop"\n[outboxes.billing]\nschema = "billing"\nbatch_size = 7\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "outbox.toml"
    path.touch(mode=0o600)
    return path


def configured(file: Path, text: str | bytes, environ: dict[str, str] | None = None, **more: Any) -> Configuration:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Configuration(environ or {}, path=str(file), **more)


def refusal(file: Path, text: str | bytes, environ: dict[str, str] | None = None, **more: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        configured(file, text, environ, **more).all_settings()
    said = str(refused.value)
    assert "hunter2" not in said
    assert said.isprintable()
    return said.replace(str(file), "FILE")


def test_flag_over_environment_over_file_over_default(file: Path) -> None:
    text = BOTH + "batch_size = 1\nlease_ttl = 2\npoll_seconds = 0.5\n"
    environ = {"OUTBOX_BATCH_SIZE": "20", "OUTBOX_LEASE_TTL": "4"}
    found = configured(file, text, environ, flags={"batch_size": 300, "http": None}).values("default")
    shown = {name: (found[name].value, found[name].origin) for name in ("batch_size", "lease_ttl", "poll_seconds")}
    assert shown == {
        "batch_size": (300, "command line"),
        "lease_ttl": (4.0, "environment OUTBOX_LEASE_TTL"),
        "poll_seconds": (0.5, f"file {file}"),
    }
    assert (found["broker_timeout"].value, found["broker_timeout"].origin) == (5.0, "default")


def test_the_file_is_named_by_a_variable_and_the_option_wins(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(BOTH + 'name = "other"\n')
    other.chmod(0o600)
    file.write_text(BOTH + 'name = "file"\n')
    environ = {"OUTBOX_CONFIG": str(other)}
    assert Configuration(environ).settings("default").name == "other"
    assert Configuration(environ, path=str(file)).settings("default").name == "file"
    assert Configuration({"OUTBOX_CONFIG": ""}).outboxes == ("default",)


def test_every_outbox_has_the_defaults_and_its_own(file: Path) -> None:
    found = configured(file, TWO).all_settings()
    assert {name: (each.schema, each.batch_size) for name, each in found.items()} == {
        "shop": ("shop", 1000),
        "billing": ("billing", 7),
    }
    assert found["shop"].holder != found["billing"].holder


@pytest.mark.parametrize("text", [b"\xef\xbb\xbf" + BOTH.encode(), BOTH.replace("\n", "\r\n").encode()])
def test_an_editor_of_another_system_does_no_harm(file: Path, text: bytes) -> None:
    assert configured(file, text).settings("default").broker_url == BROKER


def test_no_password_is_shown(file: Path) -> None:
    shown = configured(file, BOTH).shown("default")
    assert (shown["database_url"].value, shown["broker_url"].value) == (
        "postgresql://db:5432/shop",
        "redis://broker:6379/0",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batchsize = 1", 'unknown key "batchsize" in FILE, did you mean "batch_size"?'),
        ("OUTBOX_LEASE_TTL = 1", 'unknown key "OUTBOX_LEASE_TTL" in FILE, did you mean "lease_ttl"?'),
        ('[outboxes.a]\nshema = "x"', 'unknown key "shema" of [outboxes.a] in FILE, did you mean "schema"?'),
        ('[outboxes.a]\nhttp = ":1"', 'key "http" of [outboxes.a] in FILE belongs above the tables'),
        ("outboxes = 5", "outboxes in FILE must be tables"),
        ("[outboxes]\na = 5", "outboxes in FILE must be tables"),
        ('[outboxes."a b"]', "outbox name 'a b' in FILE must be letters"),
        ("database_url = hunter2", "the settings file FILE is not valid TOML (line 1, column 16)"),
        ('name = "a"\nname = "b"', "the settings file FILE is not valid TOML (end of document)"),
        (b'name = "\xff"', "the settings file FILE is not UTF-8 (byte 8)"),
        (b"x" * 1_000_001, "the settings file FILE is larger than 1 MB"),
        ("lease_ttl = true", "lease_ttl (OUTBOX_LEASE_TTL) must be a number, not bool"),
        ("lease_ttl = [1]", "lease_ttl (OUTBOX_LEASE_TTL) must be a number, not list"),
        (BOTH + "lease_ttl = nan", "lease_ttl (OUTBOX_LEASE_TTL) is nan; it must be between 0.5 and 60"),
        ("batch_size = inf", "batch_size (OUTBOX_BATCH_SIZE) is inf, which is not a number"),
        ("database_url = 5", "database_url (OUTBOX_DATABASE_URL) must be text, not int"),
        ('i_know = "perhaps"', "i_know (OUTBOX_I_KNOW) must be true or false"),
        (TWO + 'schema = "shop"', "the settings file FILE is not valid TOML"),
        (TWO.replace('"billing"', '"shop"'), "outboxes shop and billing are the same: one database, one schema"),
        (TWO.replace("= 7", "= 0"), "outbox billing: batch_size (OUTBOX_BATCH_SIZE) is 0; it must be between 1 and"),
        (f'broker_url = "{BROKER}"\n[outboxes.a]\n', "outbox a: database_url is not set, nor OUTBOX_DATABASE_URL"),
    ],
)
def test_a_mistake_is_one_line(file: Path, text: str | bytes, said: str) -> None:
    assert refusal(file, text).startswith(said)


def test_b24_what_is_no_readable_file(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path, f"the settings file {tmp_path} is a directory; name the file in it"),
        (tmp_path / "none", f"the settings file '{tmp_path}/none' cannot be read: No such file or directory"),
        (Path("a\0b"), "the settings file 'a\\x00b' cannot be read: not a file name"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            Configuration({}, path=str(path))
        assert str(refused.value) == said


def test_b24_an_empty_file_and_one_that_everybody_may_read(file: Path) -> None:
    assert configured(file, "# nothing\n").warnings == (f"the settings file {file} sets nothing",)
    assert configured(file, BOTH).warnings == ()
    file.chmod(0o644)
    assert configured(file, 'name = "a"').warnings == ()
    assert configured(file, BOTH).warnings == (
        f"the settings file {file} holds a password and everybody may read it; chmod 640 it",
    )


def test_a_variable_does_not_make_one_outbox_of_two(file: Path) -> None:
    said = refusal(file, TWO, {"OUTBOX_SCHEMA": "x"})
    assert said.startswith("OUTBOX_SCHEMA would override schema of [outboxes.shop] for every outbox")
    assert refusal(file, TWO, flags={"schema": "x"}).startswith("the command line would override schema")
    one = configured(file, TWO, {"OUTBOX_SCHEMA": "x"}, outbox="shop")
    assert [one.outboxes, one.settings("shop").schema] == [("shop",), "x"]


def test_an_outbox_must_exist(file: Path) -> None:
    assert refusal(file, TWO, outbox="mail") == "there is no outbox 'mail'; there are shop, billing"
    assert refusal(file, BOTH, outbox="mail") == "there is no outbox 'mail'; no settings file names any"


def test_lists_and_switches_are_written_as_in_toml(file: Path) -> None:
    found = configured(file, BOTH + 'tasks = ["a.*", "b"]\ni_know = true\n').settings("default")
    assert (found.tasks, found.i_know) == ("a.*,b", True)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        (":9464", ("", 9464)),
        ("[::1]:80", ("::1", 80)),
        ("h:65535", ("h", 65535)),
    ],
)
def test_an_http_address(text: str, address: tuple[str, int] | None) -> None:
    assert http_address(text) == address


@pytest.mark.parametrize(
    "text", ["9464", "h:", "h:70000", "h:-1", "h:1x", "::1:80", "http://h:1", "u@h:1", "a b:1", "h:²"]
)
def test_b23_what_is_no_http_address(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^http \(OUTBOX_HTTP\) .* is not an address; write host:port"):
        RelaySettings(database_url=DATABASE, broker_url=BROKER, http=text)


def test_what_is_seldom_meant_is_noticed() -> None:
    def notices(**changes: Any) -> list[str]:
        return [each[:14] for each in RelaySettings(database_url=DATABASE, broker_url=BROKER, **changes).notices()]

    assert notices() == []
    assert notices(retention_days=1) == ["retention_days"]
    assert notices(broker_timeout=20) == ["broker_timeout"]
