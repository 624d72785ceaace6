#!/usr/bin/env python3
"""Fails where a query of the dashboard or of an alert asks for what the server does not tell.

  check_queries.py [ROOT]       check deploy/prometheus, deploy/grafana and the rules for Kubernetes
  check_queries.py --write      write the rules for Kubernetes anew, from alerts.yml
  check_queries.py --self-test  plant a wrong name of each kind, and see each reported; where promtool is installed, also switch each alert
                                off, and see its test fail

Checked: names of metrics and labels, against the catalogue in server/observability; reasons and methods, against proto/gdn/v1; labels
in legends and annotations, against what the query leaves; headings that alerts point to; that each alert has a test in which it
fires; and, where promtool is installed, that every query can be parsed, and the alerts' tests.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "docs")]
sys.path.append("/usr/lib/python3/dist-packages")  # Debian's python3-yaml, for a Python that has none
import check_links  # noqa: E402
import yaml  # noqa: E402

PROMETHEUS, RULES, RULE_TESTS = "deploy/prometheus/prometheus.yml", "deploy/prometheus/alerts.yml", "deploy/prometheus/alerts_test.yml"
DASHBOARD = "deploy/grafana/gdn.json"
FOR_KUBERNETES = "deploy/kubernetes/components/monitoring/prometheus_rule.yaml"

# Metrics of other programs, with their labels. check_routing.py looks for those of HAProxy in its /metrics.
FOREIGN_METRICS = {
    "up": [],
    "haproxy_backend_active_servers": ["proxy"],
    "haproxy_server_status": ["proxy", "server", "state"],
    "haproxy_server_http_responses_total": ["proxy", "server", "code"],
    "haproxy_server_retry_warnings_total": ["proxy", "server"],
    "haproxy_server_current_sessions": ["proxy", "server"],
}
OF_EVERY_TARGET = {"job", "instance"}
CODES = {"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
         "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE",
         "DATA_LOSS", "UNAUTHENTICATED"}

METRIC_ENTRY = re.compile(r'MetricInfo k\w+ =\s+(\w+)\(\s*"(\w+)",\s*"[^"]*",\s*\{([^}]*)\}')
SELECTOR = re.compile(r"\b([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
FUNCTIONS = {"sum", "min", "max", "count", "avg", "rate", "increase", "changes", "histogram_quantile", "absent", "time", "vector", "or",
             "and", "unless", "by", "without", "on", "ignoring", "label_values", "offset", "bool"}


def catalogue(root):
    """The labels of each metric that the server has."""
    text = (root / "server/observability/metric_catalog.h").read_text(encoding="utf-8")
    entries = {name: (kind.lower(), re.findall(r'"(\w+)"', labels)) for kind, name, labels in METRIC_ENTRY.findall(text)}
    if len(entries) != len(re.findall(r"MetricInfo k\w+ =", text)):
        raise SystemExit("metric_catalog.h is not written the way this script reads it")
    labels = {name: set(labels) for name, labels in FOREIGN_METRICS.items()}
    for name, (kind, own) in entries.items():
        if kind == "histogram":
            labels |= {f"{name}_bucket": {*own, "le"}, f"{name}_sum": set(own), f"{name}_count": set(own)}
        else:
            labels[name] = set(own)
    return {name: own | OF_EVERY_TARGET for name, own in labels.items()}


def label_values(root):
    """The possible values of some labels."""
    errors = (root / "proto/gdn/v1/errors.proto").read_text(encoding="utf-8")
    service = (root / "proto/gdn/v1/service.proto").read_text(encoding="utf-8")
    return {"code": CODES, "method": set(re.findall(r"\brpc (\w+)\(", service)),
            "reason": set(re.findall(r"\bERROR_REASON_([A-Z_]+) = \d+;", errors)),
            "kind": {"decode", "draft", "prefill"}, "outcome": {"copy_used", "not_durable", "lost"}}


def check_matchers(metric, matchers, known, values):
    for label, operator, value in MATCHER.findall(matchers):
        if label not in known[metric]:
            yield f"{metric} has no label {label}"
        elif metric.startswith("gdn_") and label in values and "$" not in value:
            for one in value.split("|") if operator in ("=~", "!~") else [value]:
                if one not in values[label]:
                    yield f"{label} of {metric} is never {one}"


def check_query(query, known, values):
    """(what is wrong, the labels that its results have)."""
    errors, labels, groups = [], set(), []
    bare = GROUPING.sub(lambda m: m.group(1), query)
    bare = re.sub(r"\[[^\]]*\]", "", bare)  # ranges
    metrics = []
    for name, matchers in SELECTOR.findall(bare):
        if name in FUNCTIONS or re.fullmatch(r"[\d.e]+|instance", name):
            continue
        if name not in known:
            errors.append(f"no metric is named {name}")
            continue
        metrics.append(name)
        labels |= known[name]
        errors += check_matchers(name, matchers, known, values)
    for word, inner in GROUPING.findall(query):
        named = {label.strip() for label in inner.split(",") if label.strip()}
        errors += [f"{word} ({label}): no metric of the query has that label" for label in sorted(named - labels)]
        if word == "by":
            groups.append(named)
    if not metrics:
        errors.append("asks for nothing")
    return errors, set.union(*groups) if groups else labels


def panels_of(dashboard):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def queries(root):
    """(where, query, labels that are named beside it)."""
    dashboard = json.loads((root / DASHBOARD).read_text(encoding="utf-8"))
    for panel in panels_of(dashboard):
        for target in panel.get("targets", []):
            named = re.findall(r"\{\{\s*(\w+)\s*\}\}", target.get("legendFormat", ""))
            yield f"{DASHBOARD}: {panel['title']}", target["expr"], named
    for note in dashboard["annotations"]["list"]:
        yield f"{DASHBOARD}: {note['name']}", note["expr"], re.findall(r"\{\{\s*(\w+)\s*\}\}", note["titleFormat"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"{DASHBOARD}: {variable['name']}", variable["query"]["query"], []
    for rule in rules(root):
        named = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
        yield f"{RULES}: {rule['alert']}", rule["expr"], named


def rules(root):
    groups = yaml.safe_load((root / RULES).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def check_layout(root):
    dashboard = json.loads((root / DASHBOARD).read_text(encoding="utf-8"))
    panels = list(panels_of(dashboard))
    ids = [panel["id"] for panel in panels]
    if len(set(ids)) != len(ids):
        yield f"{DASHBOARD}: two panels have one id"
    taken = {}
    for panel in panels:
        place = panel["gridPos"]
        for cell in ((x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])):
            if cell in taken or cell[0] >= 24:
                yield f"{DASHBOARD}: {panel['title']} lies on {taken.get(cell, 'the edge')}"
                break
            taken[cell] = panel["title"]
        if panel["type"] != "row" and not panel.get("targets"):
            yield f"{DASHBOARD}: {panel['title']} has no query"


def check_alerts(root):
    tested = (root / RULE_TESTS).read_text(encoding="utf-8")
    for rule in rules(root):
        name = rule["alert"]
        if f'alertname="{name}"' not in tested:
            yield f"{RULE_TESTS}: {name} fires in no test"
        if rule["labels"].get("severity") not in ("page", "ticket"):
            yield f"{RULES}: {name} has no severity"
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        path = root / page
        headings = {check_links.slug(line.lstrip("#")) for line in path.read_text(encoding="utf-8").splitlines()
                    if line.startswith("#")} if path.exists() else set()
        if not path.exists() or anchor and anchor not in headings:
            yield f"{RULES}: {name}: the runbook {rule['annotations']['runbook']} leads nowhere"


def for_kubernetes(root):
    """The rules as an object of Prometheus' operator."""
    groups = (root / RULES).read_text(encoding="utf-8").split("---\n", 1)[1]
    spec = "".join(f"  {line}\n" if line else "\n" for line in groups.splitlines())
    return ("# Made from deploy/prometheus/alerts.yml by tests/deploy/check_queries.py --write: do not edit.\n---\n"
            "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: gdn\n"
            "  labels: {app.kubernetes.io/name: gdn-service}\nspec:\n" + spec)


def promtool(*arguments):
    """Returns promtool's complaints, or None."""
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip()


def check_with_promtool(root):
    for arguments in (("check", "config", root / PROMETHEUS), ("check", "rules", root / RULES), ("test", "rules", root / RULE_TESTS)):
        wrong = promtool(*arguments)
        if wrong:
            yield f"promtool {arguments[0]} {arguments[1]}: {wrong}"
    plain = []
    for where, query, _ in queries(root):
        if where.startswith(DASHBOARD) and not query.startswith("label_values"):
            plain.append({"record": f"query:{len(plain)}", "expr": query.replace("$__rate_interval", "5m"), "labels": {"where": where}})
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "queries.yml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": plain}]}), encoding="utf-8")
        wrong = promtool("check", "rules", path)
        if wrong:
            yield f"{DASHBOARD}: {wrong}"


def check(root, with_promtool=True):
    known, values = catalogue(root), label_values(root)
    errors = []
    for where, query, named in queries(root):
        wrong, left = check_query(query, known, values)
        errors += [f"{where}: {error}" for error in wrong]
        errors += [f"{where}: the result has no label {label}" for label in named if label not in left]
    errors += check_layout(root)
    errors += check_alerts(root)
    path = root / FOR_KUBERNETES
    if not path.exists() or path.read_text(encoding="utf-8") != for_kubernetes(root):
        errors.append(f"{FOR_KUBERNETES} is not made from {RULES}: tests/deploy/check_queries.py --write")
    if with_promtool and shutil.which("promtool"):
        errors += check_with_promtool(root)
    return errors


# (file, what is in it, what is planted in its place, what the report has to say)
PLANTED = [
    (DASHBOARD, "gdn_queued_steps{", "gdn_queued_step{", "no metric is named gdn_queued_step"),
    (DASHBOARD, "sum by (tier) (gdn_tier_sessions", "sum by (place) (gdn_tier_sessions",
     "by (place): no metric of the query has that label"),
    (DASHBOARD, 'code=\\"OK\\", ', 'status=\\"OK\\", ', "gdn_rpc_duration_seconds_bucket has no label status"),
    (DASHBOARD, '"{{quota}}"', '"{{limit}}"', "the result has no label limit"),
    (DASHBOARD, "gdn_batch_rows_sum", "gdn_batch_rows_total", "no metric is named gdn_batch_rows_total"),
    (RULES, "gdn_tier_problems > 0", "gdn_tier_problem > 0", "no metric is named gdn_tier_problem"),
    (RULES, 'method="Decode", code', 'method="Decoded", code', "method of gdn_rpc_duration_seconds_bucket is never Decoded"),
    (RULES, "QUEUE_FULL|", "QUEUE_IS_FULL|", "reason of gdn_errors_total is never QUEUE_IS_FULL"),
    (RULES, "Device {{ $labels.device }} of {{ $labels.instance }} has failed", "Device {{ $labels.card }} has failed",
     "the result has no label card"),
    (RULES, "#a-disk-that-fills", "#a-disk-that-is-full", "leads nowhere"),
    (RULES, "alert: GdnMovesFail", "alert: GdnMovesFailed", "GdnMovesFailed fires in no test"),
    (RULES, "for: 30s", "for: 31s", f"{FOR_KUBERNETES} is not made from"),
]


def copy_of(root, folder):
    """Copies the files that the check reads to a folder of their own."""
    for path in ("deploy", "docs", "proto", "server/observability"):
        shutil.copytree(root / path, folder / path)
    return folder


def self_test(root):
    missed = 0
    for path, old, new, report in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            copy = copy_of(root, pathlib.Path(folder))
            text = (copy / path).read_text(encoding="utf-8")
            if old not in text:
                raise SystemExit(f"{path} no longer has {old!r}: plant another fault")
            (copy / path).write_text(text.replace(old, new, 1), encoding="utf-8")
            if not any(report in error for error in check(copy, with_promtool=False)):
                print(f"not reported: {path}: {new}")
                missed += 1
    count = len(PLANTED)
    if shutil.which("promtool"):
        with tempfile.TemporaryDirectory() as folder:
            copy = copy_of(root, pathlib.Path(folder))
            groups = yaml.safe_load((copy / RULES).read_text(encoding="utf-8"))
            for rule in (rule for group in groups["groups"] for rule in group["rules"]):
                expression, rule["expr"] = rule["expr"], "vector(0) > 1"
                (copy / RULES).write_text(yaml.safe_dump(groups), encoding="utf-8")
                if promtool("test", "rules", copy / RULE_TESTS) is None:
                    print(f"no test fails without {rule['alert']}")
                    missed += 1
                rule["expr"] = expression
                count += 1
    print(f"self-test: {count - missed} of {count} planted faults reported")
    return 1 if missed else 0


def main(arguments):
    root = TESTS.parent
    if arguments == ["--self-test"]:
        return self_test(root)
    if arguments == ["--write"]:
        (root / FOR_KUBERNETES).write_text(for_kubernetes(root), encoding="utf-8")
        return 0
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        print(__doc__.strip())
        return 2
    root = pathlib.Path(arguments[0]) if arguments else root
    errors = check(root)
    for error in errors:
        print(error)
    print(f"{len(list(queries(root)))} queries, {len(errors)} errors; promtool: {'asked' if shutil.which('promtool') else 'not installed'}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
