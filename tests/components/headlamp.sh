#!/usr/bin/env bash
# Headlamp's server as its page uses it: the clusters of a kubeconfig, requests that it passes on with the rights of the token that
# they bear, writes, tables, logs, and watches over its WebSocket multiplexer.
#
# headlamp-server is taken from $COMPONENTS_BIN or $PATH.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need python3 curl
headlamp=${COMPONENTS_BIN:-/nowhere}/headlamp-server
[[ -x $headlamp ]] || headlamp=$(command -v headlamp-server) || { skipped headlamp "there is no headlamp-server"; exit 0; }
cluster --nodes sim:3
export HOME=$work/home XDG_CONFIG_HOME=$work/home/config
mkdir -p "$HOME" "$work/plugins" "$work/static"
echo '<html></html>' >"$work/static/index.html"
kubectl create namespace shop >/dev/null
kubectl -n shop create deployment web --image=nginx --replicas=2 >/dev/null
kubectl -n shop run talker --image=busybox --command -- sh -c 'echo hello from the pod; sleep 3600' >/dev/null
kubectl -n shop rollout status deployment web --timeout="${patience}s" >/dev/null
kubectl -n shop wait --for=condition=Ready --timeout="${patience}s" pod/talker >/dev/null
kubectl -n shop create serviceaccount viewer >/dev/null
kubectl -n shop create rolebinding viewer --clusterrole=view --serviceaccount=shop:viewer >/dev/null
viewer=$(kubectl -n shop create token viewer)
# Headlamp leaves credentials to its users' tokens; the cluster alone is in its kubeconfig, beside one with an administrator.
port=$(free_port)
start headlamp "$headlamp" --kubeconfig "$KUBECONFIG" --listen-addr 127.0.0.1 --port "$port" --plugins-dir "$work/plugins" --user-plugins-dir "$work/plugins" --html-static-dir "$work/static"
base=http://127.0.0.1:$port
name=$(kubectl config current-context)
of=$base/clusters/$name
get() { curl -sS "$@"; }
shows "its configuration has the cluster" "\"name\":\"$name\"" get "$base/config"
says "the cluster's version" '"major": "1"' get "$of/version"
says "the groups" apiregistration.k8s.io get "$of/apis"
says "pods" '"name":"talker"' bash -c 'curl -sS "$1" | tr -d " "' sh "$of/api/v1/namespaces/shop/pods"
says "a table" '"kind":"Table"' bash -c 'curl -sS -H "Accept: application/json;as=Table;v=v1;g=meta.k8s.io" "$1" | tr -d " "' sh "$of/api/v1/namespaces/shop/pods"
says "logs" "hello from the pod" get "$of/api/v1/namespaces/shop/pods/talker/log"
says "the schema" "io.k8s.api.core.v1.Pod" bash -c 'curl -sS "$1" | head -c 20000000' sh "$of/openapi/v3/api/v1"
says "what the user may do" '"allowed":true' bash -c 'curl -sS -XPOST -H "Content-Type: application/json" -d "{\"apiVersion\":\"authorization.k8s.io/v1\",\"kind\":\"SelfSubjectAccessReview\",\"spec\":{\"resourceAttributes\":{\"verb\":\"list\",\"resource\":\"pods\"}}}" "$1" | tr -d " "' sh "$of/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
says "usage of nodes" '"kind":"NodeMetricsList"' bash -c 'curl -sS "$1" | tr -d " "' sh "$of/apis/metrics.k8s.io/v1beta1/nodes"
says "events of an object" Scheduled get "$of/api/v1/namespaces/shop/events?fieldSelector=involvedObject.name=talker"
says "an object is made" '"name":"made"' bash -c 'curl -sS -XPOST -H "Content-Type: application/json" -d "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"made\"},\"data\":{\"a\":\"b\"}}" "$1" | tr -d " "' sh "$of/api/v1/namespaces/shop/configmaps"
says "patched" '"c":"d"' bash -c 'curl -sS -XPATCH -H "Content-Type: application/merge-patch+json" -d "{\"data\":{\"c\":\"d\"}}" "$1" | tr -d " "' sh "$of/api/v1/namespaces/shop/configmaps/made"
ok "scaled" bash -c 'curl -fsS -XPATCH -H "Content-Type: application/merge-patch+json" -d "{\"spec\":{\"replicas\":1}}" "$1"' sh "$of/apis/apps/v1/namespaces/shop/deployments/web/scale"
says "and deleted" '"status":"Success"' bash -c 'curl -sS -XDELETE "$1" | tr -d " "' sh "$of/api/v1/namespaces/shop/configmaps/made"
says "an unknown cluster is none" "not found" get -i "$base/clusters/nowhere/version"

watched() { python3 "$components/headlamp/multiplexed.py" 127.0.0.1 "$port" "$name" "$1" "$2" "$3" "$patience" "${@:4}"; }
if [[ $(get "$base/config") == *'"isWebsocketMultiplexerEnabled":false'* ]]; then
  skipped multiplexer "it is switched off"
else
  header="Cookie: headlamp-auth-$name.0=$viewer"
  says "the multiplexer watches, as the user of a token" '\"type\":\"ADDED\"' watched /api/v1/namespaces/shop/pods watch=true '\"type\":\"ADDED\"' "$header"
  says "and says what is refused" error watched /api/v1/secrets watch=true '"error' "$header"
fi
finish
