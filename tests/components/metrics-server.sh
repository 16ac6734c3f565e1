#!/usr/bin/env bash
# Upstream's metrics-server with the rights of its manifests: it scrapes the simulated nodes over HTTPS with their certificates
# checked, and serves metrics.k8s.io behind Kaji's aggregation layer, so that `kubectl top` prints figures.
# shellcheck source=tests/components/lib.sh
source "$(dirname "$0")/lib.sh"
need go openssl python3
build metrics-server sigs.k8s.io/metrics-server/cmd/metrics-server
cluster --nodes sim:3

name=v1beta1.metrics.k8s.io
port=$(free_port)
certificate metrics metrics-server.kube-system.svc localhost
kubectl create --filename - >/dev/null <<END
apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server, namespace: kube-system}
---
# Endpoints may not be on the loopback; a name may lead there.
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:metrics-server"}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:metrics-server"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:metrics-server"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "metrics-server:system:auth-delegator"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: metrics-server-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: $name}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  service: {name: metrics-server, namespace: kube-system, port: $port}
  caBundle: $(base64 -w0 <"$work/metrics-ca.crt")
---
apiVersion: v1
kind: Pod
metadata: {name: busy, namespace: default, labels: {app: busy}}
spec:
  containers:
  - {name: main, image: i, resources: {requests: {cpu: "1", memory: 1Gi}}}
  - {name: side, image: i, resources: {requests: {cpu: 100m, memory: 64Mi}}}
END
kubeconfig_of kube-system metrics-server "$work/account"
kubectl config view --raw -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}' | base64 -d >"$work/ca.crt"
start metrics-server "$work/bin/metrics-server" --bind-address 127.0.0.1 --secure-port "$port" \
  --kubeconfig "$work/account" --authentication-kubeconfig "$work/account" --authorization-kubeconfig "$work/account" \
  --tls-cert-file "$work/metrics.crt" --tls-private-key-file "$work/metrics.key" --metric-resolution 10s --kubelet-request-timeout 5s \
  --kubelet-certificate-authority "$work/ca.crt" --kubelet-use-node-status-port --kubelet-preferred-address-types InternalIP

echo "== figures"
condition() { kubectl get apiservice "$name" -o "jsonpath={.status.conditions[0].status} {.status.conditions[0].reason}"; }
shows "the APIService becomes available" "True Passed" condition
((failed == 0)) || finish
# A rate takes two looks.
shows "kubectl top nodes" "sim-1" kubectl top nodes
soon "all of them" bash -c "[[ \$('${KUBECTL:-kubectl}' top nodes --no-headers | grep -cE '^sim-[123] +[0-9]+m +[0-9]+% +[0-9]+Mi +[0-9]+%') == 3 ]]"
shows "kubectl top pods" "busy" kubectl top pods -A
says "kubectl top pod --containers" "side" kubectl top pod busy --containers
says "by label" "busy" kubectl top pods -l app=busy
# Simulated pods use between a quarter and three quarters of what they request.
plausible() {
  kubectl get --raw /apis/metrics.k8s.io/v1beta1/namespaces/default/pods/busy | python3 -c '
import json, sys
units = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "Ki": 1024, "Mi": 1024**2}
def number(text):
    unit = text.lstrip("0123456789")
    return float(text[:len(text) - len(unit)]) * units.get(unit, 1)
usage = {c["name"]: c["usage"] for c in json.load(sys.stdin)["containers"]}["main"]
cpu, memory = number(usage["cpu"]), number(usage["memory"]) / 1024**3
print(cpu, memory)
assert 0.24 < cpu < 0.76 and 0.24 < memory < 0.76'
}
soon "figures are what they should be" plausible

echo "== rights"
says "a user without rights sees nothing" 'cannot list resource "pods" in API group "metrics.k8s.io"' kubectl top pods --as alice
ok "a role for it" kubectl create clusterrole tops --verb get,list --resource pods.metrics.k8s.io,nodes.metrics.k8s.io
ok "and its binding" kubectl create clusterrolebinding alice --clusterrole tops --user alice
shows "opens it" "busy" kubectl top pods --as alice
# That nodes refuse users without a right is tested in crates/kaji/tests/it/kubelets.rs: here they keep their answers for minutes.
finish
