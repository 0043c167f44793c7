"""conf/prometheus and conf/grafana: alerts and panels use metrics that a proxy's /metrics has, and the alerts fire as their
unit tests say."""

import json
import os
import re
import shutil
import subprocess
import urllib.request

import pytest

import servers

yaml = pytest.importorskip("yaml")

CONF = os.path.join(servers.ROOT, "conf")
RULES = os.path.join(CONF, "prometheus", "rules.yml")
SELECTOR = re.compile(r"\b(lockkeeper_\w+)(?:\{([^}]*)\})?")
OF_PROMETHEUS = {"job", "instance", "le"}


def read(*path):
    with open(os.path.join(CONF, *path), encoding="utf-8") as f:
        return f.read()


def alerts():
    return [rule for group in yaml.safe_load(read("prometheus", "rules.yml"))["groups"] for rule in group["rules"]]


def dashboard():
    return json.loads(read("grafana", "lockkeeper.json"))


def expressions():
    """Every expression, with where it stands."""
    found = [(rule["alert"], rule["expr"]) for rule in alerts()]
    for panel in dashboard()["panels"]:
        found += [(panel["title"], target["expr"]) for target in panel.get("targets", ())]
    board = dashboard()
    found += [(note["name"], note["expr"]) for note in board["annotations"]["list"]]
    return found + [(var["name"], var["definition"]) for var in board["templating"]["list"] if "definition" in var]


@pytest.fixture(scope="module")
def metrics(farm, certificates):
    """{name: {label: its values}} of a proxy with TLS."""
    port = servers.free_port()
    proxy = servers.Proxy(farm.backend("standalone"), "admin-port %d" % port, "witness 127.0.0.1:1", *certificates.server_lines(servers.free_port()))
    text = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=10).read().decode()
    proxy.stop()
    proxy.remove()
    found = {}
    for name, labels in re.findall(r"^(lockkeeper_\w+)(?:\{(.*)\})? ", text, re.M):
        values = found.setdefault(name, {})
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            values.setdefault(label, set()).add(value)
    return found


def test_every_metric_is_there(metrics):
    """By its name, its labels, and the label values that the proxy knows in advance."""
    asked = 0
    for where, expression in expressions():
        for name, matchers in SELECTOR.findall(expression):
            asked += 1
            assert name in metrics, (where, name)
            for label, how, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', matchers):
                if label in OF_PROMETHEUS:
                    continue
                assert label in metrics[name], (where, name, label)
                for one in value.split("|"):
                    assert one in metrics[name][label], (where, name, label, one)
        for label in {label.strip() for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(",")}:
            used = {name for name, _ in SELECTOR.findall(expression)}
            assert label in OF_PROMETHEUS or all(label in metrics[name] for name in used), (where, label)
    assert asked > 40


def test_alerts_say_what_is_the_matter():
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket", "info")
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
    tested = {case["alertname"] for test in yaml.safe_load(read("prometheus", "rules_test.yml"))["tests"]
              for case in test["alert_rule_test"] if case.get("exp_alerts")}
    assert tested == set(names), "each has a case in which it fires"


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool here (Debian: prometheus)")
def test_promtool(tmp_path):
    for command in (["check", "rules", RULES], ["test", "rules", os.path.join(CONF, "prometheus", "rules_test.yml")]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    # Grafana's own variables are not Prometheus's: they stand for something here.
    rules = [{"record": "panel:%d" % n, "expr": re.sub(r"\$__rate_interval", "5m", expression)}
             for n, (_, expression) in enumerate(expressions()) if not expression.startswith("label_values")]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", "--lint=none", str(tmp_path / "panels.yml")], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_fits_together():
    """Panels lie beside each other, and have numbers and titles of their own; what they ask is asked of the chosen proxies."""
    board = dashboard()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"] and (panel["type"] == "row" or panel["targets"])
        for target in panel.get("targets", ()):
            chosen = len(re.findall(r'job=~"\$job", instance=~"\$instance"', target["expr"]))
            assert chosen == len(SELECTOR.findall(target["expr"])) > 0, panel["title"]
    assert {var["name"] for var in board["templating"]["list"]} == {"datasource", "job", "instance"}
