#!/usr/bin/env bash
# Two builds take turns on one data directory: what one has acknowledged the other shows, with its uid and resourceVersion, also after
# a kill; what it changes then is what the first one shows again. Encrypted values, custom resources, a watch that goes on, history.
#
#     KAJI=target/release/kaji KAJI_PREVIOUS=/path/to/an/older/kaji bash tests/upgrade/walk.sh
#
# KUBECTL names kubectl. Without KAJI_PREVIOUS the walk is skipped. It needs no root, and changes nothing outside of a directory of its own.
set -uo pipefail
cd "$(dirname "$0")/../.."
NEXT=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
[[ -n ${KAJI_PREVIOUS-} ]] || { echo "SKIPPED upgrade: KAJI_PREVIOUS names no older build"; exit 0; }
PREVIOUS=$(realpath "$KAJI_PREVIOUS")
work=$(mktemp -d)
export KUBECONFIG=$work/kubeconfig NO_PROXY='*' no_proxy='*' HOME=$work
passed=0 failed=0 server=
leave() {
  [[ -z $server ]] || kill -9 "$server" 2>/dev/null
  wait 2>/dev/null
  rm -rf "$work"
}
trap leave EXIT

ok() { passed=$((passed + 1)); echo "ok    $1"; }
bad() { failed=$((failed + 1)); echo "FAIL  $1"; tail -n 5 "$work/out"; }
# soon NAME COMMAND… : it succeeds within a minute.
soon() {
  local name=$1 until=$((SECONDS + 60))
  shift
  until "$@" >"$work/out" 2>&1; do
    ((SECONDS < until)) || { bad "$name"; return; }
    sleep 0.1
  done
  ok "$name"
}
k() { "$KUBECTL" "$@"; }
ready() { k get --raw /readyz; }
is() { [[ $("${@:2}") == "$1" ]]; }

cat >"$work/encryption.yaml" <<Y
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox: {keys: [{name: k, secret: $(head -c 32 /dev/urandom | base64)}]}
  - identity: {}
Y

# begin NAME PROGRAM: the build serves the data.
begin() {
  rm -f "$KUBECONFIG"
  "$2" up --data-dir "$work/data" --port 0 --kubeconfig "$KUBECONFIG" --nodes sim:2 \
    --encryption-provider-config "$work/encryption.yaml" >>"$work/log" 2>&1 &
  server=$!
  soon "$1 starts" ready
}
stop() {
  kill "-$1" "$server"
  wait "$server" 2>/dev/null
  server=
}
# What does not depend on the moment: objects that no control loop writes, whole; of others, that they are the same ones.
settled() {
  { k get configmaps,secrets,widgets -o json --show-managed-fields; k get customresourcedefinitions,priorityclasses -o json --show-managed-fields; } |
    python3 -c '
import json, sys
decoder, text, items = json.JSONDecoder(), sys.stdin.read(), []
while text.strip():
    value, end = decoder.raw_decode(text.strip())
    items, text = items + value["items"], text.strip()[end:]
for item in sorted(items, key=lambda i: (i["kind"], i["metadata"]["name"])):
    item.pop("status", None)
    for entry in item["metadata"].get("managedFields", []):
        entry.pop("time", None)
    print(json.dumps(item, sort_keys=True))'
  k get deployments,replicasets,services,namespaces,serviceaccounts,nodes -A \
    -o 'jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid}{"\n"}{end}'
}
# turn NAME PROGRAM SIGNAL: the build sees what was there, changes it, and ends by the signal.
number=0
turn() {
  local name=$1
  begin "$name" "$2"
  if ((number > 0)); then
    settled >"$work/after" 2>"$work/out"
    if diff "$work/before" "$work/after" >"$work/out"; then ok "$name shows what was there"; else bad "$name shows what was there"; fi
    soon "$name goes on with a watch" k get --raw "/api/v1/namespaces/default/configmaps?watch=1&resourceVersion=$(<"$work/revision")&timeoutSeconds=1"
    soon "$name updates at the version that was acknowledged" k replace -f "$work/held.json"
  fi
  number=$((number + 1))
  soon "$name has the account" k get serviceaccount default
  soon "$name creates" k create configmap "by-$number" --from-literal=turn=$number
  soon "$name creates what is encrypted" k create secret generic "by-$number" --from-literal=turn=$number
  soon "$name applies" k apply --server-side --field-manager walk -f - <<<"{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"shared\", \"namespace\": \"default\"}, \"data\": {\"turn\": \"$number\", \"own-$number\": \"x\"}}"
  if ((number == 1)); then
    k apply -f - >/dev/null <<'Y'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {plural: widgets, singular: widget, kind: Widget}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
Y
    soon "its custom resource is served" k get widgets
    k create deployment web --image=nginx --replicas=3 >/dev/null
  else
    soon "$name scales" k scale deployment web --replicas=$((number + 2))
  fi
  soon "$name creates a custom object" k apply -f - <<<"{\"apiVersion\": \"example.com/v1\", \"kind\": \"Widget\", \"metadata\": {\"name\": \"by-$number\", \"namespace\": \"default\"}, \"spec\": {\"free\": [1, 2.5, null, {\"a\": \"$number\"}]}}"
  soon "$name rolls out" k rollout status deployment/web --timeout=50s
  soon "$name deletes" k delete configmap "by-$number" --wait
  k create configmap held --from-literal=turn=$number --dry-run=client -o json | k apply -f - >/dev/null
  k get configmap held -o json | python3 -c 'import json,sys; o=json.load(sys.stdin); o["data"]["held"]="'$number'"; json.dump(o, sys.stdout)' >"$work/held.json"
  k get configmaps -o 'jsonpath={.metadata.resourceVersion}' >"$work/revision"
  settled >"$work/before"
  stop "$3"
}

turn "the previous build" "$PREVIOUS" TERM
turn "this build" "$NEXT" TERM
turn "the previous build again" "$PREVIOUS" KILL
turn "this build again" "$NEXT" KILL
turn "the previous build at last" "$PREVIOUS" TERM
echo "upgrade: $passed passed, $failed failed"
((failed == 0))
