"""The plans PostgreSQL really used, told by auto_explain on the very connection that ran the statements.

EXPLAIN in front of a statement would plan it anew with its parameters at hand. Here a statement runs as the relay
runs it, prepared by psycopg, and a generic plan is seen as the generic plan it is.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from relay.database import connect

Connection = psycopg.Connection[tuple[Any, ...]]

_SETTINGS = {
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
    "auto_explain.log_level": "notice",
    "max_parallel_workers_per_gather": "0",  # the rows of workers are counted apart
}


@dataclass(frozen=True)
class Node:
    """One step of a plan that was executed."""

    kind: str
    table: str | None
    index: str | None
    condition: str
    touched: float
    """Rows it took into its hands, whether it passed them on or not."""


@dataclass(frozen=True)
class Plan:
    """One executed statement."""

    nodes: tuple[Node, ...]
    blocks: int
    """Pages of tables and indexes it asked for."""

    def on(self, table: str) -> list[Node]:
        """The steps that read this table."""
        return [node for node in self.nodes if node.table == table and node.kind != "ModifyTable"]

    def touched(self, table: str) -> float:
        """How many rows of the table it read."""
        return sum(node.touched for node in self.on(table))

    def kinds(self, table: str) -> set[str]:
        return {node.kind for node in self.on(table)}

    def indexes(self) -> set[str]:
        return {node.index for node in self.nodes if node.index}


class Explained:
    """A connection whose every statement leaves its plan here."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.plans: list[Plan] = []
        connection.add_notice_handler(self._note)

    def _note(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        said = diagnostic.message_primary or ""
        if said.startswith("duration: ") and "plan:\n" in said:
            plan = json.loads(said.split("plan:\n", 1)[1])["Plan"]
            blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            self.plans.append(Plan(tuple(_nodes(plan)), blocks))

    def run(self, statement: bytes, parameters: dict[str, Any] | None = None) -> Plan:
        """Execute, and give the plan of exactly this statement."""
        self._finish_the_last_one()
        self.plans.clear()
        self.connection.execute(statement, parameters)
        self._finish_the_last_one()
        (plan,) = self.plans
        return plan

    def _finish_the_last_one(self) -> None:
        """Inside a transaction a statement ends, and tells its plan, only when the next one begins."""
        self.connection.execute("SHOW server_version")


def _nodes(plan: dict[str, Any]) -> Iterator[Node]:
    loops = plan["Actual Loops"]
    removed = sum(value for name, value in plan.items() if name.startswith("Rows Removed by "))
    conditions = (str(plan[name]) for name in ("Index Cond", "Recheck Cond", "TID Cond", "Filter") if name in plan)
    yield Node(
        plan["Node Type"],
        plan.get("Relation Name"),
        plan.get("Index Name"),
        " AND ".join(conditions),
        (plan["Actual Rows"] + removed) * loops,
    )
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


@contextmanager
def explained(url: str, *, generic: bool = False) -> Iterator[Explained]:
    """A relay's connection, in a transaction that is rolled back; every statement is prepared."""
    with connect(url, 60, "plans") as connection:
        connection.autocommit = False
        connection.prepare_threshold = 0
        connection.execute("LOAD 'auto_explain'")
        for name, value in _SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        mode = "force_generic_plan" if generic else "auto"
        connection.execute("SELECT set_config('plan_cache_mode', %s, false)", [mode])
        connection.commit()
        try:
            yield Explained(connection)
        finally:
            connection.rollback()
