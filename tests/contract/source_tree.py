"""The source of the three rooms as syntax trees: who imports whom, how long things are. Nothing is imported to ask."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("consumers", "outbox", "relay")


@dataclass(frozen=True)
class Import:
    target: str
    """The module, as precisely as the statement tells: `from outbox import codec` is outbox.codec."""
    line: int
    in_function: bool
    for_types: bool = False
    """Below `if TYPE_CHECKING:`, so it is never executed."""

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module
    lines: int
    imports: tuple[Import, ...]

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def strings(self) -> Iterator[tuple[int, str]]:
        """Every text in the code, f-strings by their fixed parts; docstrings are not code."""
        prose = {id(node.value) for node in ast.walk(self.tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                yield node.lineno, node.value


@cache
def modules() -> dict[str, Module]:
    paths = {_name(path): path for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    return {name: _read(name, path, frozenset(paths)) for name, path in sorted(paths.items())}


def parse(name: str, text: str, known: frozenset[str]) -> Module:
    """A module from its text; `known` are the modules that exist."""
    tree = ast.parse(text)
    found = tuple(_imports(tree, name, known, in_function=False))
    return Module(name, Path(name.replace(".", "/") + ".py"), tree, len(text.splitlines()), found)


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Each cycle once, as a path that returns to its first module; the empty list when there is none."""
    found: list[list[str]] = []
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in finished:
            for target in sorted(edges.get(name, ())):
                visit(target, [*path, name])
            finished.add(name)

    for name in sorted(edges):
        visit(name, [])
    return found


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(name: str, path: Path, known: frozenset[str]) -> Module:
    module = parse(name, path.read_text(encoding="utf-8"), known)
    return Module(name, path.relative_to(ROOT), module.tree, module.lines, module.imports)


def _imports(
    node: ast.AST, importer: str, known: frozenset[str], *, in_function: bool, for_types: bool = False
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=orelse):
                typed, others = ast.Module(body, []), ast.Module(orelse, [])
                yield from _imports(typed, importer, known, in_function=in_function, for_types=True)
                yield from _imports(others, importer, known, in_function=in_function, for_types=for_types)
            case ast.Import():
                for alias in child.names:
                    yield Import(alias.name, child.lineno, in_function, for_types)
            case ast.ImportFrom(level=level, module=module):
                assert not level, f"{importer}:{child.lineno}: a relative import hides who is meant; write it out"
                for alias in child.names:
                    submodule = f"{module}.{alias.name}"
                    target = submodule if submodule in known else str(module)
                    yield Import(target, child.lineno, in_function, for_types)
            case _:
                inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from _imports(child, importer, known, in_function=inside, for_types=for_types)
