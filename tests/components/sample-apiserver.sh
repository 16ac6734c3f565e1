#!/usr/bin/env bash
# Upstream's sample-apiserver (flunders and fischers, kept in an etcd of its own) behind Kaji's aggregation layer, as a
# service account with the rights that its manifests give it: discovery, OpenAPI, all verbs, delegated authentication and
# authorization, admission of its own, a namespace's end, and the server's.
# shellcheck source=tests/components/lib.sh
source "$(dirname "$0")/lib.sh"
need go curl openssl python3
build sample-apiserver k8s.io/sample-apiserver
build etcd go.etcd.io/etcd/server/v3
cluster --nodes none

group=wardle.example.com
name=v1alpha1.$group
port=$(free_port)
etcd=http://127.0.0.1:$(free_port)
start etcd "$work/bin/etcd" --data-dir "$work/etcd" --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
  --listen-peer-urls "http://127.0.0.1:$(free_port)" --log-level warn

certificate wardle api.wardle.svc localhost
kubectl create namespace wardle >/dev/null
kubectl create --filename - >/dev/null <<END
apiVersion: v1
kind: ServiceAccount
metadata: {name: apiserver, namespace: wardle}
---
# Endpoints may not be on the loopback; a name may lead there.
apiVersion: v1
kind: Service
metadata: {name: api, namespace: wardle}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: aggregated-apiserver-clusterrole}
rules:
- {apiGroups: [""], resources: [namespaces], verbs: [get, watch, list]}
- apiGroups: [admissionregistration.k8s.io]
  resources:
  - mutatingwebhookconfigurations
  - validatingwebhookconfigurations
  - mutatingadmissionpolicies
  - mutatingadmissionpolicybindings
  - validatingadmissionpolicies
  - validatingadmissionpolicybindings
  verbs: [get, watch, list]
- {apiGroups: [flowcontrol.apiserver.k8s.io], resources: [prioritylevelconfigurations, flowschemas], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sample-apiserver-clusterrolebinding}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: aggregated-apiserver-clusterrole}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: wardle}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "wardle:system:auth-delegator"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: wardle}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: wardle-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: wardle}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: $name}
spec:
  group: $group
  version: v1alpha1
  groupPriorityMinimum: 1000
  versionPriority: 15
  service: {name: api, namespace: wardle, port: $port}
  caBundle: $(base64 -w0 <"$work/wardle-ca.crt")
END

condition() { kubectl get apiservice "$name" -o "jsonpath={.status.conditions[0].status} {.status.conditions[0].reason}"; }
serve() {
  start sample-apiserver "$work/bin/sample-apiserver" --etcd-servers "$etcd" --bind-address 127.0.0.1 --secure-port "$port" \
    --kubeconfig "$work/account" --authentication-kubeconfig "$work/account" --authorization-kubeconfig "$work/account" \
    --tls-cert-file "$work/wardle.crt" --tls-private-key-file "$work/wardle.key"
}
kubeconfig_of wardle apiserver "$work/account"

echo "== before there is a server"
shows "the APIService is unavailable" "False FailedDiscoveryCheck" condition
says "its resources are unavailable" "ServiceUnavailable" kubectl get --raw "/apis/$group/v1alpha1/flunders"

echo "== the server comes"
serve
shows "the APIService becomes available" "True Passed" condition
((failed == 0)) || finish
shows "discovery lists its resources" "flunders" kubectl api-resources --api-group "$group" -o name
says "and the other one" "fischers" kubectl api-resources --api-group "$group" -o name
shows "OpenAPI v3 explains them" "GROUP:      $group" kubectl explain flunder
says "down to a field" "FIELD: reference" kubectl explain flunder.spec.reference
shows "OpenAPI v2 is merged" "io.k8s.sample-apiserver.pkg.apis.wardle.v1alpha1.Flunder" kubectl get --raw /openapi/v2
says "and is still Kaji's" "io.k8s.api.apps.v1.Deployment" kubectl get --raw /openapi/v2

echo "== verbs"
flunder() { printf '{"apiVersion":"%s/v1alpha1","kind":"Flunder","metadata":{"name":"%s"%s},"spec":{"reference":"%s"}}' "$group" "$1" "${3:-}" "${2:-}"; }
create() { flunder "$@" | kubectl create --filename -; }
ok "create" create one
says "twice is once" "AlreadyExists" create one
ok "get" kubectl get flunder one
says "as a table" "CREATED AT" kubectl get flunders
says "list everywhere" "one" kubectl get flunders -A -o name
start watch kubectl get flunders --watch --output-watch-events
shows "a watch begins" "ADDED" cat "$work/watch.log"
ok "patch" kubectl patch flunder one --type merge --patch '{"spec":{"reference":"other"}}'
says "the patch counts" "other" kubectl get flunder one -o 'jsonpath={.spec.reference}'
ok "a JSON patch" kubectl patch flunder one --type json --patch '[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]'
says "selectors" "one" kubectl get flunders -l a=b -o name
apply() { flunder two other | kubectl apply --server-side --filename -; }
ok "server-side apply" apply
says "managed fields" "kubectl" kubectl get flunder two --show-managed-fields -o 'jsonpath={.metadata.managedFields[*].manager}'
shows "the watch tells of the change" "MODIFIED" cat "$work/watch.log"
ok "delete" kubectl delete flunder two
shows "the watch tells of the end" "DELETED" cat "$work/watch.log"
says "gone is gone" "NotFound" kubectl get flunder two
says "its validation shows" "is invalid" create three "" ',"labels":{"a":"!"}'
fischer() { kubectl create --filename - <<<"{\"apiVersion\":\"$group/v1alpha1\",\"kind\":\"Fischer\",\"metadata\":{\"name\":\"f\"},\"disallowedFlunders\":[\"banned\"]}"; }
ok "a fischer, which has no namespace" fischer
says "its admission shows" "this name may not be used" create banned

echo "== rights"
says "Kaji asks first" 'User "alice" cannot list resource "flunders"' kubectl get flunders --as alice
kubectl create clusterrole flunders --verb get,list --resource "flunders.$group" >/dev/null
kubectl create clusterrolebinding alice --clusterrole flunders --user alice >/dev/null
shows "a role opens both" "one" kubectl get flunders --as alice -o name
url=https://localhost:$port/apis/$group/v1alpha1/flunders
direct() { curl --silent --show-error --max-time 10 --cacert "$work/wardle-ca.crt" "$@" "$url"; }
credentials=("--cert" "$work/admin.crt" "--key" "$work/admin.key")
kubectl config view --raw -o 'jsonpath={.users[0].user.client-certificate-data}' | base64 -d >"$work/admin.crt"
kubectl config view --raw -o 'jsonpath={.users[0].user.client-key-data}' | base64 -d >"$work/admin.key"
says "asked directly, it knows the cluster's certificates" '"kind": "FlunderList"' direct "${credentials[@]}"
says "and its tokens" 'system:serviceaccount:default:default\" cannot list' direct --header "Authorization: Bearer $(kubectl create token default)"
says "a client without credentials is anonymous" 'system:anonymous' direct
says "with any header" 'system:anonymous' direct --header 'X-Remote-User: alice'
says "and whatever a client's certificate says of others" '"kind": "FlunderList"' direct "${credentials[@]}" --header 'X-Remote-User: nobody'

echo "== a namespace's end"
kubectl create namespace short >/dev/null
ok "create there" kubectl create --namespace short --filename <(flunder gone)
ok "delete the namespace" kubectl delete namespace short --timeout "${patience}s"
says "its flunders are gone" "NotFound" kubectl get flunder gone --namespace short

echo "== the server goes"
stop sample-apiserver
shows "the APIService is unavailable again" "False FailedDiscoveryCheck" condition
says "and says why" "failing or missing response from https://api.wardle.svc:$port/apis/$group/v1alpha1" \
  kubectl get apiservice "$name" -o 'jsonpath={.status.conditions[0].message}'
ended() { ! kill -0 "${pids[watch]}" 2>/dev/null; }
soon "the watch ends" ended
says "its resources are unavailable again" "the server is currently unable to handle the request" kubectl get flunders
ok "everything else goes on" kubectl get configmaps -A
ok "so does discovery" kubectl get --raw /apis
serve
shows "it comes back" "True Passed" condition
shows "with what it had" "one" kubectl get flunders -o name
ok "and leaves" kubectl delete apiservice "$name"
says "for good" "the server could not find the requested resource" kubectl get --raw "/apis/$group/v1alpha1"
finish
