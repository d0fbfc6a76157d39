"""The house rules of the code itself: who may import whom, what is pure, how large things may grow."""

import ast
import json
import re
import subprocess
import sys

import pytest

from tests.contract.source_tree import ROOMS, ROOT, Import, Module, cycles, modules, parse

MAY_IMPORT = {"outbox": {"outbox"}, "relay": {"relay", "outbox"}, "consumers": {"consumers", "outbox"}}
FOREIGN_FOLDERS = {"tests", "benchmarks", "migrations", "examples"}

# These decide and never touch the world: no clock, no randomness, no file, no socket, no environment.
PURE = frozenset(
    "outbox.added outbox.codec outbox.envelope outbox.errors outbox.fingerprint outbox.ids outbox.keys outbox.message"
    " outbox.request outbox.schedule outbox.signature outbox.state outbox.statements"
    " relay.broker_url relay.confirms relay.encode_amqp relay.protocol relay.routing"
    " relay.appetite relay.encode relay.events relay.health relay.lease relay.outcome relay.publication relay.tally"
    " relay.window"
    " consumers.delivery consumers.outcome consumers.statements".split()
)
PURE_LIBRARY = frozenset(
    "base64 collections collections.abc dataclasses datetime difflib enum fnmatch hashlib itertools json math re struct"
    " types typing uuid".split()
)
# The rest of the room touches the world: a connection, a span, a file, or SQLAlchemy's own objects.
EDGES = frozenset(
    "outbox outbox.async_writer outbox.metrics outbox.migrations outbox.schema outbox.testing outbox.trace"
    " outbox.transaction outbox.writer".split()
)
PURE_EXCEPTIONS = {
    "outbox.ids": {"os", "threading", "time"},  # an id is made of the clock and of randomness
    "relay.encode_amqp": {"amqp.exceptions", "amqp.serialization"},  # bytes in, bytes out
}
IMPURE_CALLS = frozenset("open print input exec eval __import__ now utcnow today uuid1 uuid4 getenv".split())

LONGEST_MODULE = 400
LONGEST_FUNCTION = 50
NAMES_THAT_SAY_NOTHING = {"common", "helper", "helpers", "misc", "tools", "util", "utils"}

SQL = re.compile(
    r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|TRUNCATE|CREATE|DROP|ALTER|GRANT|REVOKE|SET LOCAL|SHOW|LISTEN|NOTIFY|"
    r"LOCK|WITH \w+ AS)\s"
)
SQL_ROOMS = {"outbox.statements", "relay.queries.log", "consumers.statements"}
SQL_FOLDER = "relay.queries."  # one file a part
SQL_EXCEPTIONS = {
    "outbox.migrations": "pins search_path around the statements of the migration files",
    "relay.database": "one session setting, before the schema is known",
    "relay.demo.ledger": "the books of the demo's own shop",
    "relay.demo.stage": "asks who leads in the demo's own schema",
    "relay.migrate": "runs before there is a schema to have statements for",
}

TOP_LEVEL = frozenset(
    "pyproject.toml outbox relay consumers migrations tests deploy README.md"
    " docs benchmarks examples Makefile CHANGELOG.md CONTRIBUTING.md LICENSE .ci requirements.lock".split()
)
NOT_SHIPPED = frozenset(
    ".git .gitignore .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis __pycache__".split()
)

# What SQLAlchemy loads itself (typing_extensions, greenlet, the runtime of its compiled parts) is its own affair.
LOADED_BY_IMPORT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import sqlalchemy.orm
before = set(sys.modules)
import outbox
print(json.dumps([name for name in sys.modules if name not in before]))
"""

every_module = pytest.mark.parametrize("module", modules().values(), ids=modules().keys())


def forbidden_imports(module: Module) -> list[str]:
    allowed = MAY_IMPORT[module.name.partition(".")[0]]
    wrong = (set(ROOMS) | FOREIGN_FOLDERS) - allowed
    return [f"{module.path}:{found.line} imports {found.target}" for found in module.imports if found.top in wrong]


def impurities(module: Module) -> list[str]:
    allowed = PURE | PURE_LIBRARY | PURE_EXCEPTIONS.get(module.name, set())
    imports = [f"{found.line} imports {found.target}" for found in module.imports if found.target not in allowed]
    calls = [
        f"{node.lineno} calls {called}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and (called := _called(node)) in IMPURE_CALLS
    ]
    return imports + calls


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def edges(*, in_functions: bool) -> dict[str, set[str]]:
    def counts(found: Import) -> bool:
        return found.target in modules() and (in_functions or not found.in_function)

    return {name: {found.target for found in module.imports if counts(found)} for name, module in modules().items()}


def sql_in(module: Module) -> list[str]:
    return [f"{module.path}:{line} {text.strip()[:60]}" for line, text in module.strings() if SQL.match(text)]


@every_module
def test_rooms_import_only_outbox_and_themselves(module: Module) -> None:
    assert not forbidden_imports(module)


@pytest.mark.parametrize("name", sorted(PURE))
def test_a_pure_module_imports_pure_modules_and_does_no_io(name: str) -> None:
    assert not impurities(modules()[name])


def test_every_module_of_the_writer_is_pure_or_an_edge() -> None:
    """A new module has to say which it is."""
    found = {name for name in modules() if name.partition(".")[0] == "outbox"}
    assert found - EDGES == {name for name in PURE if name.startswith("outbox.")}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert not cycles(edges(in_functions=False))


def test_late_imports_inside_functions_hide_no_circle() -> None:
    assert not cycles(edges(in_functions=True))


def test_importing_outbox_loads_only_sqlalchemy_and_what_that_needs() -> None:
    run = subprocess.run(
        [sys.executable, "-I", "-c", LOADED_BY_IMPORT, str(ROOT)], capture_output=True, text=True, check=True
    )
    names = json.loads(run.stdout)
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"sqlalchemy"} == {"outbox"}
    # AsyncOutbox comes along, asyncio does not: whoever holds an AsyncSession has loaded it.
    assert not [name for name in names if name.startswith(("sqlalchemy.ext.asyncio", "sqlalchemy.dialects.postgresql"))]


@every_module
def test_no_part_of_outbox_needs_more_than_sqlalchemy(module: Module) -> None:
    """Also those parts that `import outbox` does not load: whoever writes messages installs no broker for it."""
    if module.name.partition(".")[0] == "outbox":
        needed = {found.top for found in module.imports if not found.for_types}
        assert needed <= sys.stdlib_module_names | {"outbox", "sqlalchemy"}


@every_module
def test_modules_and_functions_stay_small(module: Module) -> None:
    assert module.lines <= LONGEST_MODULE
    lengths = {function.name: (function.end_lineno or 0) - function.lineno + 1 for function in module.functions()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


@every_module
def test_a_name_says_what_is_inside(module: Module) -> None:
    assert not NAMES_THAT_SAY_NOTHING & set(module.name.split("."))


@every_module
def test_sql_stands_in_the_one_file_of_its_room(module: Module) -> None:
    if module.name not in SQL_ROOMS | SQL_EXCEPTIONS.keys() and not module.name.startswith(SQL_FOLDER):
        assert not sql_in(module)


@pytest.mark.parametrize("name", sorted(SQL_ROOMS))
def test_the_file_for_sql_is_recognised_as_such(name: str) -> None:
    assert sql_in(modules()[name])


def test_the_top_level_holds_only_what_the_design_names() -> None:
    found = {path.name for path in ROOT.iterdir()} - NOT_SHIPPED
    assert found - TOP_LEVEL == set()
    assert {*ROOMS, "migrations", "tests", "deploy", "pyproject.toml", "README.md"} <= found


# The checker itself must be able to see each fault.


def sample(name: str, text: str) -> Module:
    return parse(name, text, frozenset(modules()))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("relay.x", "import consumers"),
        ("relay.x", "def f():\n    from consumers.task import consumer"),
        ("consumers.x", "from relay import window"),
        ("outbox.x", "import relay.settings"),
        ("outbox.x", "if True:\n    import consumers.inbox"),
        ("relay.x", "from tests.support import ledger"),
    ],
)
def test_a_forbidden_import_is_seen(name: str, text: str) -> None:
    assert forbidden_imports(sample(name, text))


@pytest.mark.parametrize(
    "text",
    ["import socket", "import relay.read", "from relay.read import Log", "open('x')", "datetime.now()", "import time"],
)
def test_an_impurity_is_seen(text: str) -> None:
    assert impurities(sample("relay.encode", text))


def test_an_import_for_types_only_is_told_apart() -> None:
    text = "if TYPE_CHECKING:\n    import psycopg\nelse:\n    import redis\nimport celery"
    found = {each.target: each.for_types for each in sample("outbox.x", text).imports}
    assert found == {"psycopg": True, "redis": False, "celery": False}
    assert forbidden_imports(sample("outbox.x", "if TYPE_CHECKING:\n    import relay.window"))


def test_a_circle_is_seen() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c", "b"]]


@pytest.mark.parametrize(
    "text",
    [
        'q = "SELECT 1"',
        'q = f"UPDATE {t} SET a = 1"',
        'c.execute("""\\\nDELETE FROM x""")',
        'q = "WITH a AS (SELECT 1) SELECT"',
    ],
)
def test_sql_is_seen(text: str) -> None:
    assert sql_in(sample("relay.x", text))


def test_prose_is_not_taken_for_sql() -> None:
    assert not sql_in(sample("relay.x", '"""SELECT is a word."""\nraise ValueError("select one; CREATEd twice")'))
