#!/usr/bin/env python3
"""What prometheus.sh asks: which metrics the rules and dashboards of kubernetes-mixin need of each component, which of them this
project lacks and why, and what Prometheus ($PROMETHEUS) says to expressions, rules and alerts.

    names.py query EXPRESSION         prints the values
    names.py some SERIES              succeeds if there are series of this name
    names.py present GROUP            succeeds if everything that a group needs, and does not lack, is there
    names.py lacking GROUP            prints what it lacks, and why
    names.py still-lacking            succeeds if nothing that is said to be lacking is there
    names.py asked FILE...            succeeds if rule files ask for no metric of these components that is not listed here
    names.py dashboard FILE           succeeds if every expression of a Grafana dashboard is answered
    names.py documented FILE          makes a rule file of the table of alerts in a page
    names.py healthy-rules            succeeds if all rules can be evaluated
    names.py quiet                    succeeds if no alert is pending or fires, those of components aside that are not scraped
"""
import json
import os
import re
import sys
import urllib.parse
import urllib.request

PROCESS = ["process_cpu_seconds_total", "process_resident_memory_bytes", "kubernetes_build_info"]
QUEUES = ["workqueue_adds_total", "workqueue_depth", "workqueue_queue_duration_seconds_bucket"]
CLIENT = ["rest_client_requests_total", "rest_client_request_duration_seconds_bucket"]
NEEDED = {
    "apiserver": PROCESS + [
        "apiserver_request_total",
        "apiserver_request_sli_duration_seconds_bucket",
        "apiserver_request_sli_duration_seconds_count",
        "apiserver_client_certificate_expiration_seconds_bucket",
        "apiserver_client_certificate_expiration_seconds_count",
        "apiserver_request_terminations_total",
        "aggregator_unavailable_apiservice",
        "aggregator_unavailable_apiservice_total",
        "apiserver_admission_step_admission_duration_seconds_bucket",
        "apiserver_admission_controller_admission_duration_seconds_bucket",
        "apiserver_request_duration_seconds_bucket",
        "apiserver_current_inflight_requests",
        "apiserver_storage_objects",
        "apiserver_flowcontrol_current_inqueue_requests",
        "go_goroutines",
    ] + QUEUES,
    "kube-controller-manager": PROCESS + QUEUES + CLIENT + [
        "workqueue_work_duration_seconds_bucket",
        "workqueue_retries_total",
        "leader_election_master_status",
        "go_goroutines",
    ],
    "kube-scheduler": PROCESS + CLIENT + [
        "scheduler_scheduling_attempt_duration_seconds_bucket",
        "scheduler_scheduling_attempt_duration_seconds_count",
        "scheduler_scheduling_algorithm_duration_seconds_bucket",
        "scheduler_scheduling_algorithm_duration_seconds_count",
        "scheduler_pod_scheduling_sli_duration_seconds_bucket",
        "scheduler_pod_scheduling_sli_duration_seconds_count",
        "scheduler_framework_extension_point_duration_seconds_bucket",
        "scheduler_plugin_evaluation_total",
        "scheduler_queue_incoming_pods_total",
        "scheduler_pending_pods",
        "leader_election_master_status",
        "scheduler_volume_scheduling_duration_seconds_bucket",
        "scheduler_volume_scheduling_duration_seconds_count",
        "go_goroutines",
    ],
    "kubelet": [
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "node_cpu_usage_seconds_total",
        "node_memory_working_set_bytes",
        "pod_cpu_usage_seconds_total",
        "container_cpu_cfs_periods_total",
        "container_cpu_cfs_throttled_periods_total",
        "container_memory_rss",
        "container_memory_cache",
        "container_memory_swap",
        "kubelet_node_name",
        "kubelet_running_pods",
        "kubelet_running_containers",
        "kubelet_evictions",
        "kubelet_pleg_relist_duration_seconds_bucket",
        "kubelet_pleg_relist_duration_seconds_count",
        "kubelet_pleg_relist_interval_seconds_bucket",
        "kubelet_pod_start_duration_seconds_bucket",
        "kubelet_pod_start_duration_seconds_count",
        "kubelet_pod_worker_duration_seconds_bucket",
        "kubelet_pod_worker_duration_seconds_count",
        "kubelet_runtime_operations_total",
        "kubelet_runtime_operations_errors_total",
        "kubelet_runtime_operations_duration_seconds_bucket",
        "kubelet_volume_stats_available_bytes",
        "kubelet_volume_stats_capacity_bytes",
        "kubelet_volume_stats_used_bytes",
        "kubelet_volume_stats_inodes",
        "kubelet_volume_stats_inodes_free",
        "kubelet_volume_stats_inodes_used",
        "kubelet_certificate_manager_client_ttl_seconds",
        "kubelet_certificate_manager_server_ttl_seconds",
        "kubelet_certificate_manager_client_expiration_renew_errors",
        "kubelet_server_expiration_renew_errors",
        "kubelet_cgroup_manager_duration_seconds_bucket",
        "kubelet_cgroup_manager_duration_seconds_count",
        "kubelet_node_config_error",
        "storage_operation_duration_seconds_bucket",
        "storage_operation_duration_seconds_count",
        "storage_operation_errors_total",
        "volume_manager_total_volumes",
    ],
}
SIMULATED = "simulated nodes run no containers and serve /metrics/resource alone"
LACKING = {
    ("*", "go_goroutines"): "there is no Go runtime",
    ("kube-scheduler", "scheduler_volume_scheduling_duration_seconds_bucket"): "upstream has removed it as well",
    ("kube-scheduler", "scheduler_volume_scheduling_duration_seconds_count"): "upstream has removed it as well",
}
RESOURCE = ["container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "node_cpu_usage_seconds_total",
            "node_memory_working_set_bytes", "pod_cpu_usage_seconds_total"]
LACKING.update({("kubelet", name): SIMULATED for name in NEEDED["kubelet"] if name not in RESOURCE})
# Alerts of components that the test does not scrape, and the one that always fires.
NOT_SCRAPED = re.compile(r"Watchdog|InfoInhibitor|^(KubeProxyDown|KubeStateMetrics.*|NodeExporter.*)$")
# What others than the scraped components serve.
OTHERS = re.compile(r"^(kube_|node_(cpu_seconds|memory_[A-Z])|up$|scrape_|windows_|kubeproxy_|ALERTS)")
# What counts only what goes wrong: there are no series before that, as upstream has none.
QUIET = {"apiserver_request_terminations_total", "aggregator_unavailable_apiservice_total", "aggregator_unavailable_apiservice"}
WORDS = set("""sum by on max min avg count rate irate increase histogram_quantile without group_left group_right ignoring topk bottomk
 label_replace label_join clamp_max clamp_min and or unless vector time absent bool quantile count_values sort sort_desc scalar deriv
 predict_linear changes resets avg_over_time max_over_time min_over_time sum_over_time count_over_time last_over_time present_over_time
 floor ceil round abs le offset""".split())


def ask(path, **parameters):
    url = f"{os.environ['PROMETHEUS']}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url) as response:
            return json.load(response)["data"]
    except urllib.error.HTTPError as error:
        sys.exit(f"{path} {parameters}: {error.read().decode()}")


def values(expression):
    return [sample["value"][1] for sample in ask("query", query=expression)["result"]]


def known(job):
    selector = f'{{job="{job}"}}' if job != "apiserver" else '{job=~"(kube-)?apiserver"}'
    return set(ask("label/__name__/values", **{"match[]": selector}))


def reason(group, name):
    return LACKING.get((group, name)) or LACKING.get(("*", name))


def absent(group):
    there = known(group)
    return [n for n in NEEDED[group] if n not in there and n not in QUIET and not reason(group, n)]


def metrics_of(expression):
    """The metrics that an expression names."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', "", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", text)
    return {name for name in re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", text) if name not in WORDS and "_" in name}


def strings(node, *keys):
    """The strings below some keys, wherever they are."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in keys and isinstance(value, str):
                yield value
            else:
                yield from strings(value, *keys)
    elif isinstance(node, list):
        for item in node:
            yield from strings(item, *keys)


def rules(path):
    """Records and expressions of a rule file, without a library for YAML: Prometheus has loaded it already."""
    for group in ask("rules")["groups"]:
        if group["file"].endswith(os.path.basename(path)):
            yield from group["rules"]


def asked(files):
    listed = {name for names in NEEDED.values() for name in names}
    records = {rule["name"] for path in files for rule in rules(path) if rule["type"] == "recording"}
    others = set()
    for path in files:
        for rule in rules(path):
            others |= {n for n in metrics_of(rule["query"]) - listed - records if ":" not in n and not OTHERS.match(n)}
    return sorted(others)


def substituted(expression):
    for variable, value in [("$__rate_interval", "1m"), ("$__interval", "1m"), ("$__range", "5m")]:
        expression = expression.replace(variable, value)
    expression = re.sub(r'(=~?)\s*"\$\{?\w+(:\w+)?\}?"', '=~".*"', expression)
    return re.sub(r"\$\{?\w+(:\w+)?\}?", ".*", expression)


def dashboard(path):
    with open(path) as file:
        expressions = list(strings(json.load(file), "expr"))
    empty = []
    for expression in expressions:
        if not values(substituted(expression)):
            empty.append(expression)
    print(f"{len(expressions)} expressions, {len(empty)} without series at present")
    for expression in empty:
        print("  empty:", expression)
    return bool(expressions)


def documented(path):
    """The table of alerts: description, expression, `for …` words."""
    lengths = {"a minute": "1m", "five minutes": "5m"}
    print("groups:\n- name: documented\n  rules:")
    with open(path) as file:
        rows = re.findall(r"^\| ([^|`]+) \| `([^`]+)`([^|]*)\|$", file.read(), re.MULTILINE)
    rows = [row for row in rows if re.search(r"[<>=]=? ?\d", row[1])]
    if not rows:
        sys.exit(f"{path} has no table of alerts")
    for number, (text, expression, rest) in enumerate(rows):
        length = next((value for words, value in lengths.items() if words in rest), "0s")
        print(f"  - alert: {json.dumps('Documented%d' % number)}\n    expr: {json.dumps(expression)}\n    for: {length}")
        print(f"    annotations: {{summary: {json.dumps(text.strip())}}}")


def main():
    verb, rest = sys.argv[1], sys.argv[2:]
    if verb == "query":
        print(*values(rest[0]))
        return True
    if verb == "some":
        return bool(values(rest[0]))
    if verb == "present":
        missing = absent(rest[0])
        print(f"{rest[0]}: {missing}")
        return not missing
    if verb == "lacking":
        for name in NEEDED[rest[0]]:
            if reason(rest[0], name):
                print(f"lacking {rest[0]} {name}: {reason(rest[0], name)}")
        return True
    if verb == "still-lacking":
        there = [(group, name) for group, names in NEEDED.items() for name in names if reason(group, name) and name in known(group)]
        print(there)
        return not there
    if verb == "asked":
        others = asked(rest)
        print(others)
        return not others
    if verb == "dashboard":
        return dashboard(rest[0])
    if verb == "documented":
        documented(rest[0])
        return True
    if verb == "healthy-rules":
        bad = [rule["name"] + ": " + rule.get("lastError", "") for group in ask("rules")["groups"] for rule in group["rules"] if rule["health"] == "err"]
        print(*bad, sep="\n")
        return not bad
    if verb == "quiet":
        loud = [(a["labels"]["alertname"], a["state"], a["labels"]) for a in ask("alerts")["alerts"] if not NOT_SCRAPED.search(a["labels"]["alertname"])]
        print(*loud, sep="\n")
        return not loud
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
