#!/usr/bin/env bash
# Prometheus scrapes the API server, the controller manager, the scheduler and simulated nodes with a service account's token and
# the cluster's CA, as docs/operations.md says. What the rules and dashboards of kubernetes-mixin ask of these components is there,
# or lacking for the reason that prometheus/names.py has; expressions of the project's dashboard and documented alerts are answered;
# on a healthy cluster no alert is pending.
#
# KUBERNETES_MIXIN may name a folder with what the mixin's `make` writes (prometheus_rules.yaml, prometheus_alerts.yaml,
# dashboards_out): then these are loaded and evaluated as they are.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3 curl openssl
upstream=github.com/prometheus/prometheus/cmd
# Only the discovery of Kubernetes: the others are clients of twenty clouds.
export GOFLAGS="-buildvcs=false -tags=remove_all_sd,enable_kubernetes_sd ${GOFLAGS:-}"
published prometheus $upstream/prometheus@v0.316.0
published promtool $upstream/promtool@v0.316.0
names() { python3 "$components/prometheus/names.py" "$@"; }

# The components run by themselves, as in a cluster of several machines; `cluster` waits for what they make.
managing=$(free_port)
scheduling=$(free_port)
certificate observed 127.0.0.1 localhost
component() {
  # shellcheck disable=SC2016
  start "$1" bash -c 'until [[ -s $KUBECONFIG ]]; do sleep 0.1; done; exec "$@"' sh "$(kaji_program)" "$1" --kubeconfig "$work/kubeconfig" \
    --bind-address 127.0.0.1 --secure-port "$2" --tls-cert-file "$work/observed.crt" --tls-private-key-file "$work/observed.key"
}
export KUBECONFIG=$work/kubeconfig
component controller-manager "$managing"
component scheduler "$scheduling"
cluster --nodes sim:3 --controllers '-*'

kubectl create namespace monitoring >/dev/null
kubectl -n monitoring create serviceaccount prometheus >/dev/null
kubectl create clusterrole prometheus --verb=get --non-resource-url=/metrics,/metrics/slis >/dev/null
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus-discovery}
rules:
- {apiGroups: [""], resources: [nodes, services, endpoints, pods], verbs: [get, list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [nodes/proxy, nodes/metrics], verbs: [get]}
YAML
for role in prometheus prometheus-discovery; do
  kubectl create clusterrolebinding "$role" --clusterrole="$role" --serviceaccount=monitoring:prometheus >/dev/null
done
kubectl -n monitoring create token prometheus --duration=1h >"$work/token"
kubectl config view --raw --minify --flatten -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}' | base64 -d >"$work/ca.crt"
kubeconfig_of monitoring prometheus "$work/account"
server=$(kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}')
server=${server#https://}

mkdir -p "$work/rules"
names documented "$repository/docs/operations.md" >"$work/rules/documented.yaml"
apiserver=apiserver
if [[ -n ${KUBERNETES_MIXIN:-} ]]; then
  cp "$KUBERNETES_MIXIN"/prometheus_{rules,alerts}.yaml "$work/rules/"
  ! grep -q 'job="kube-apiserver"' "$work/rules/prometheus_rules.yaml" || apiserver=kube-apiserver
else
  skipped mixin "KUBERNETES_MIXIN names no folder with the rules and dashboards of kubernetes-mixin"
fi
# job NAME ADDRESS CA: a component at a fixed address.
job() {
  cat <<YAML
- job_name: $1
  scheme: https
  authorization: {credentials_file: $work/token}
  tls_config: {ca_file: $3}
  static_configs: [{targets: ["$2"]}]
YAML
}
cat >"$work/prometheus.yml" <<YAML
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [$work/rules/*.yaml]
scrape_configs:
- job_name: $apiserver
  scheme: https
  authorization: {credentials_file: $work/token}
  tls_config: {ca_file: $work/ca.crt}
  kubernetes_sd_configs: [{role: endpointslice, kubeconfig_file: $work/account, namespaces: {names: [default]}}]
  relabel_configs:
  - {source_labels: [__meta_kubernetes_service_name, __meta_kubernetes_endpointslice_port_name], regex: kubernetes;https, action: keep}
  # It advertises the machine's address, as upstream's does when it listens on the loopback alone.
  - {target_label: __address__, replacement: "$server"}
- job_name: kubelet
  scheme: https
  authorization: {credentials_file: $work/token}
  tls_config: {ca_file: $work/ca.crt}
  kubernetes_sd_configs: [{role: node, kubeconfig_file: $work/account}]
  relabel_configs:
  - {target_label: __address__, replacement: "$server"}
  - {source_labels: [__meta_kubernetes_node_name], target_label: __metrics_path__, replacement: /api/v1/nodes/\$1/proxy/metrics/resource}
  - {source_labels: [__meta_kubernetes_node_name], target_label: node}
  - {target_label: metrics_path, replacement: /metrics/resource}
$(job kube-controller-manager "127.0.0.1:$managing" "$work/observed-ca.crt")
$(job kube-scheduler "127.0.0.1:$scheduling" "$work/observed-ca.crt")
YAML
ok "promtool takes the configuration and the rules" "$work/bin/promtool" check config "$work/prometheus.yml"
for target in "https://$server/metrics:$work/ca.crt" "https://127.0.0.1:$managing/metrics:$work/observed-ca.crt" "https://127.0.0.1:$scheduling/metrics:$work/observed-ca.crt"; do
  page() { curl -fsS --cacert "${target##*:}" -H "Authorization: Bearer $(<"$work/token")" "${target%:*}" >"$work/page"; }
  soon "a page is served: ${target%:*}" page
  ok "promtool can read it" bash -c '"$1" check metrics --lint=none --extended <"$2"' sh "$work/bin/promtool" "$work/page"
done

port=$(free_port)
start prometheus "$work/bin/prometheus" --config.file "$work/prometheus.yml" --storage.tsdb.path "$work/tsdb" --web.listen-address "127.0.0.1:$port"
export PROMETHEUS=http://127.0.0.1:$port
query() { names query "$1"; }
soon "Prometheus is ready" curl -fsS "$PROMETHEUS/-/ready"
for entry in $apiserver=1 kubelet=3 kube-controller-manager=1 kube-scheduler=1; do
  shows "targets of ${entry%=*} are up" "${entry#*=}" query "sum(up{job=\"${entry%=*}\"})"
done

# A short load of everything that is measured.
kubectl create namespace load >/dev/null
kubectl -n load create deployment web --image=nginx --replicas=6 >/dev/null
kubectl -n load rollout status deployment web --timeout="${patience}s" >/dev/null
kubectl -n load expose deployment web --port=80 >/dev/null
kubectl -n load create job once --image=busybox -- sh -c 'exit 0' >/dev/null
kubectl -n load run never --image=nginx --overrides='{"spec":{"nodeSelector":{"no":"where"}}}' >/dev/null
kubectl -n load get pods --watch-only --request-timeout=2s >/dev/null 2>&1 || true
kubectl -n load scale deployment web --replicas=2 >/dev/null
kubectl -n load delete pod never --now >/dev/null

for group in apiserver kube-controller-manager kube-scheduler kubelet; do
  soon "what upstream's rules and dashboards ask of $group is there" names present $group
  names lacking $group
done
soon "what is said to be lacking is" names still-lacking
for entry in 'resource|=1' namespace=5 cluster=30; do
  soon "objectives of latency have their bucket: scope ${entry%=*}, ${entry#*=} s" \
    names some "apiserver_request_sli_duration_seconds_bucket{verb=~\"LIST|GET\",scope=~\"${entry%=*}\",le=~\"${entry#*=}(\\\\.0)?\"}"
done
ok "expressions of the project's dashboard are answered" names dashboard "$repository/packaging/grafana/kaji.json"
if [[ -n ${KUBERNETES_MIXIN:-} ]]; then
  ok "rules of the mixin ask for nothing else" names asked "$work/rules/prometheus_rules.yaml" "$work/rules/prometheus_alerts.yaml"
  for board in apiserver controller-manager scheduler; do
    board=$KUBERNETES_MIXIN/dashboards_out/$board.json
    [[ ! -f $board ]] || ok "expressions of the mixin's $(basename "$board") are answered" names dashboard "$board"
  done
  for rule in cluster_quantile:apiserver_request_sli_duration_seconds:histogram_quantile cluster_quantile:scheduler_scheduling_attempt_duration_seconds:histogram_quantile; do
    soon "the rule $rule records" names some "$rule"
  done
fi
ok "no rule fails" names healthy-rules
ok "no alert is pending or fires, but those of what is not scraped" names quiet
soon "attempts with a token that is none are refused" bash -c '[[ $(curl -s -o /dev/null -w "%{http_code}" --cacert "$1" -H "Authorization: Bearer none" "https://$2/metrics") == 401 ]]' sh "$work/ca.crt" "$server"
quiet prometheus 'level=(ERROR|WARN)' 'msg="(Found duplicate|Auto memory|Not using)'
finish
