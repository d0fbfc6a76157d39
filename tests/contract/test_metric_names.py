"""The metrics are a contract: the page, the catalogue, the registries and the alerts name the same things."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from relay.gauges import DatabaseGauges
from relay.metrics import catalog
from relay.metrics.observer import RelayMetrics
from relay.writer_metrics import writer_metrics
from tests.contract.source_tree import ROOT
from tests.support.promtool import Promtool

ALL = (*catalog.RELAY, *catalog.DATABASE, *catalog.WRITER)
FOLDER = ROOT / "deploy" / "prometheus"
ALLOWED_LABELS = set(
    "outbox queue task state category error_class event finding target role table action reason source blocked_by"
    " version python driver broker".split()
)
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([\w, ]+) \| (.+) \|$", re.MULTILINE)


def test_the_page_says_what_the_catalogue_says() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    documented = {name: (kind, labels, meaning) for name, kind, labels, meaning in ROW.findall(page)}
    assert documented == {each.name: (each.kind, ", ".join(each.labels), each.meaning) for each in ALL}


def test_the_registries_hold_the_catalogue_and_nothing_else() -> None:
    registry = CollectorRegistry()
    RelayMetrics(registry)
    DatabaseGauges(registry)
    writer_metrics(registry)
    found = {family.name + ("_total" if family.type == "counter" else ""): family.type for family in registry.collect()}
    assert found == {each.name: each.kind for each in ALL}


@pytest.mark.parametrize("family", ALL, ids=lambda each: each.name)
def test_names_and_labels_follow_the_conventions(family: catalog.Family) -> None:
    assert set(family.labels) <= ALLOWED_LABELS
    assert family.labels[0] == "outbox"
    assert family.name.endswith("_total") == (family.kind == "counter")
    assert bool(family.buckets) == (family.kind == "histogram")
    assert family.meaning.endswith(".")


def test_the_rules_ask_only_for_metrics_that_exist() -> None:
    expressions = "\n".join(
        line for line in (FOLDER / "rules.yml").read_text().splitlines() if "summary:" not in line and "#" not in line
    )
    asked = set(re.findall(r"\b((?:outbox|inbox)_[a-z_]*[a-z])(?=[{\[) ])", expressions))
    known = {each.name for each in ALL}
    known |= {
        each.name + suffix for each in ALL if each.kind == "histogram" for suffix in ("_bucket", "_count", "_sum")
    }
    assert asked - known == set()
    assert len(asked) > 15


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")],
    ids=" ".join,
)
def test_promtool_accepts_what_is_deployed(promtool: Promtool, arguments: tuple[str, ...]) -> None:
    code, said = promtool.run(*arguments, cwd=FOLDER)
    assert code == 0, said
    assert "SUCCESS" in said


def test_promtool_would_say_so_if_a_rule_were_wrong(promtool: Promtool, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text((FOLDER / "rules.yml").read_text().replace("max by (", "max bye (", 1))
    assert promtool.run("check", "rules", "rules.yml", cwd=tmp_path)[0] != 0
