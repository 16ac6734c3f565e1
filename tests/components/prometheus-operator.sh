#!/usr/bin/env bash
# The Prometheus operator: its CRDs, the operator with its own service account's rights, what it makes of a Prometheus and an
# Alertmanager, and its admission webhook.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3
upstream=github.com/prometheus-operator/prometheus-operator
here=$components/prometheus-operator
build prometheus-operator $upstream/cmd/operator "$here"
build admission-webhook $upstream/cmd/admission-webhook "$here"
cluster --nodes sim:3
manifests=$(cd "$here" && go list -m -f '{{.Dir}}' $upstream)/example
field() { kubectl get $1 -o "jsonpath=$2"; }
none() { [[ -z $(kubectl get "$@" -o name) ]]; }
claims() { kubectl get pvc -o name | grep -c prometheus-main-db; }
condition() { field "$1" "{.status.conditions[?(@.type==\"$2\")].status}"; }

for crd in "$manifests"/prometheus-operator-crd/*.yaml; do
  ok "$(basename "$crd") is applied by the server" kubectl apply --server-side -f "$crd"
done
ok "all of them are established" kubectl wait --for=condition=Established --timeout="${patience}s" crd --all
same "none is said not to be structural" "" field crd '{.items[*].status.conditions[?(@.type=="NonStructuralSchema")].message}'
says "a client's own apply finds them too large, as ever" "Too long: may not be more than 262144 bytes" \
  kubectl apply -f "$manifests/prometheus-operator-crd/monitoring.coreos.com_prometheuses.yaml"
says "kubectl explain knows them" "replicas defines the number of replicas of each shard" kubectl explain prometheus.spec.replicas

for part in service-account cluster-role cluster-role-binding service; do
  ok "the operator's $part" kubectl apply -f "$manifests/rbac/prometheus-operator/prometheus-operator-$part.yaml"
done
# Without its Service of kubelets: simulated nodes have addresses of the loopback, which no Endpoints may have.
kubeconfig_of default prometheus-operator "$work/account"
KUBECONFIG=$work/account start operator "$work/bin/prometheus-operator" --web.listen-address="127.0.0.1:$(free_port)" \
  --watch-referenced-objects-in-all-namespaces=true --disable-unmanaged-prometheus-configuration=true \
  --feature-gates=StatusForConfigurationResources=true

for part in service-account cluster-role cluster-role-binding; do
  ok "Prometheus's $part" kubectl apply -f "$manifests/rbac/prometheus/prometheus-$part.yaml"
done
guide=$manifests/user-guides
for part in getting-started/example-app-deployment getting-started/example-app-service getting-started/example-app-service-monitor \
  getting-started/example-app-pod-monitor alerting/alertmanager-example alerting/alertmanager-example-service alerting/prometheus-example-rules; do
  ok "the guide's $part" kubectl apply -f "$guide/$part.yaml"
done
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {name: main, namespace: default}
spec:
  replicas: 2
  shards: 2
  serviceAccountName: prometheus
  serviceMonitorSelector: {matchLabels: {team: frontend}}
  podMonitorSelector: {matchLabels: {team: frontend}}
  ruleSelector: {}
  alerting: {alertmanagers: [{namespace: default, name: alertmanager-example, port: web}]}
  storage:
    volumeClaimTemplate: {spec: {resources: {requests: {storage: 1Gi}}}}
YAML
ok "the Prometheus is available" kubectl wait --for=condition=Available --timeout="${patience}s" prometheus/main
ok "and reconciled" kubectl wait --for=condition=Reconciled --timeout="${patience}s" prometheus/main
same "its shards are StatefulSets" "prometheus-main prometheus-main-shard-1" field "statefulset -l prometheus=main" '{.items[*].metadata.name}'
shows "with all pods ready" "4 4 4" field prometheus/main '{.status.replicas} {.status.updatedReplicas} {.status.availableReplicas}'
same "its governing Service is headless" "None 9090" field service/prometheus-operated '{.spec.clusterIP} {.spec.ports[0].port}'
configuration() { kubectl get secret "$1" -o "jsonpath={.data.$2}" | base64 -d | gzip -dc; }
shows "the ServiceMonitor is in the configuration" "job_name: serviceMonitor/default/example-app/0" configuration prometheus-main 'prometheus\.yaml\.gz'
shows "and the PodMonitor" "job_name: podMonitor/default/example-app/0" configuration prometheus-main 'prometheus\.yaml\.gz'
shows "the rules are in a ConfigMap" "alert: ExampleAlert" field configmap/prometheus-main-rulefiles-0 '{.data}'
same "each pod has a claim" 4 claims
shows "the ServiceMonitor's status binds it" "True" field servicemonitor/example-app '{.status.bindings[0].conditions[?(@.type=="Accepted")].status}'
says "a table has the printer columns" "RECONCILED" kubectl get prometheus

ok "it is scaled through the scale subresource" kubectl scale prometheus/main --replicas 1
shows "which counts shards" "prometheus-main" field "statefulset -l prometheus=main" '{.items[*].metadata.name}'

ok "a new version is rolled out" kubectl patch prometheus/main --type=merge -p '{"spec":{"version":"v3.1.0"}}'
shows "to every pod" "prometheus:v3.1.0 quay.io/prometheus/prometheus:v3.1.0" field "pod -l prometheus=main" '{.items[*].spec.containers[?(@.name=="prometheus")].image}'

ok "the Alertmanager is available" kubectl wait --for=condition=Available --timeout="${patience}s" alertmanager/example
same "by ready pods" "3" field statefulset/alertmanager-example '{.status.readyReplicas}'
ok "a paused Prometheus" kubectl patch prometheus/main --type=merge -p '{"spec":{"paused":true}}'
shows "says so" "true" field prometheus/main '{.status.paused}'
ok "and is resumed" kubectl patch prometheus/main --type=merge -p '{"spec":{"paused":false}}'

(cd "$work" && go run "$(go env GOROOT)/src/crypto/tls/generate_cert.go" --host 127.0.0.1 --ca >/dev/null 2>&1)
port=$(free_port)
start webhook "$work/bin/admission-webhook" --web.enable-tls=true --web.listen-address="127.0.0.1:$port" \
  --web.cert-file="$work/cert.pem" --web.key-file="$work/key.pem"
hook() {
  cat <<YAML
apiVersion: admissionregistration.k8s.io/v1
kind: $1
metadata: {name: $2.monitoring.coreos.com}
webhooks:
- name: $2.monitoring.coreos.com
  clientConfig: {url: "https://127.0.0.1:$port/admission-$3", caBundle: "$(base64 -w0 <"$work/cert.pem")"}
  rules: [{apiGroups: [monitoring.coreos.com], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [$4]}]
  admissionReviewVersions: [v1, v1beta1]
  sideEffects: None
---
YAML
}
{
  hook ValidatingWebhookConfiguration rules prometheusrules/validate prometheusrules
  hook MutatingWebhookConfiguration mutation prometheusrules/mutate prometheusrules
  hook ValidatingWebhookConfiguration configs alertmanagerconfigs/validate alertmanagerconfigs
} | kubectl apply -f - >/dev/null
rule() {
  kubectl apply -f - <<YAML
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: checked, namespace: default}
spec: {groups: [{name: g, rules: [{alert: Down, expr: "$1", labels: {severity: $2}}]}]}
YAML
}
shows "the webhook refuses a rule that does not parse" "could not parse expression" rule 'up ==' 1
ok "it takes a good one" rule 'up == 0' '"1"'
same "that it marks" "true" field prometheusrule/checked '{.metadata.annotations.prometheus-operator-validated}'
says "an AlertmanagerConfig without its receiver is refused" "receiver \"nowhere\" not found" kubectl apply -f - <<'YAML'
apiVersion: monitoring.coreos.com/v1alpha1
kind: AlertmanagerConfig
metadata: {name: bad, namespace: default}
spec: {route: {receiver: nowhere}, receivers: [{name: somewhere}]}
YAML
ok "deletion goes through ownership" kubectl delete prometheus/main --cascade=foreground --timeout="${patience}s"
soon "nothing of it stays" none statefulset -l prometheus=main
# It looks for a StatefulSet that it has just made before its informer can know, and updates what others have just
# updated, and takes its finalizer away a second time.
quiet operator "level=(warn|error)" "statefulset couldn.t be found|the object has been modified|failed to remove .*finalizer"
finish
