#!/usr/bin/env bash
# The history of objects, as a user of kubectl sees it: which user changed what, differences, states at a time, restoring; rights, Secrets,
# a restart, purges, and a server that keeps none.
#
# KAJI and KUBECTL name the programs. It needs no root, and changes nothing outside of a directory of its own.
set -uo pipefail
cd "$(dirname "$0")/../.."
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
work=$(mktemp -d)
export KAJI_DATA_DIR=$work/data KUBECONFIG=$work/config NO_PROXY='*' no_proxy='*'
passed=0 failed=0
trap 'timeout 100 "$KAJI" delete --all --force >/dev/null 2>&1; rm -rf "$work"' EXIT

ok() { passed=$((passed + 1)); echo "  ok    $1"; }
bad() { failed=$((failed + 1)); echo "  FAIL  $1"; sed 's/^/        /' "$work/out"; }
# is NAME CODE TEXT COMMAND… : the command exits with the code, and its output has the text.
is() {
  local name=$1 code=$2 text=$3 got=0
  shift 3
  "$@" >"$work/out" 2>&1 </dev/null || got=$?
  if [[ $got == "$code" ]] && grep -qE -- "$text" "$work/out"; then ok "$name"; else
    echo "exit code $got for $code, expected: $text" >>"$work/out"
    bad "$name"
  fi
}
# has NAME TEXT : the last output has the text, too. lacks NAME TEXT : it has not.
has() { if grep -qE -- "$2" "$work/out"; then ok "$1"; else bad "$1"; fi; }
lacks() { if grep -qE -- "$2" "$work/out"; then bad "$1"; else ok "$1"; fi; }
k() { "$KUBECTL" "$@"; }
revision() { "$KAJI" history "$1" -o json | python3 -c 'import json,sys; print(json.load(sys.stdin)[int(sys.argv[1])]["revision"])' "$2"; }
# soon NAME TEXT COMMAND… : within a minute the output has the text.
soon() {
  local name=$1 text=$2 until=$((SECONDS + 60))
  shift 2
  while ! { "$@" >"$work/out" 2>&1 && grep -qE -- "$text" "$work/out"; }; do
    if ((SECONDS >= until)); then bad "$name"; return; fi
    sleep 0.2
  done
  ok "$name"
}

is "a cluster starts" 0 "2 simulated" "$KAJI" up --name h --nodes sim:2 --detach
is "an object" 0 "created" k create configmap m --from-literal=color=red --from-literal=size=1
is "a change by another user" 0 "patched" k patch configmap m -p '{"data":{"color":"blue"}}' --as bob --as-group system:masters
is "a change by hand" 0 "patched" k patch configmap m -p '{"data":{"size":"2"}}' --field-manager hand
is "its history" 0 "Created +kubernetes-admin +kubectl-create +create" "$KAJI" history configmap/m
has "has the other user" "Modified +bob +kubectl-patch +patch +\.data\.color"
has "and the field manager" "Modified +kubernetes-admin +hand +patch +\.data\.size"
is "the same as JSON" 0 '"auditID": "[0-9a-f-]{36}"' "$KAJI" history cm m -o json
is "as kubectl shows it" 0 "Modified +bob +kubectl-patch" k get revisions.history.kaji.dev \
  --field-selector object.resource=configmaps,object.name=m
is "the last difference" 0 '^\+ \.data\.size: "2"' "$KAJI" diff configmap/m
lacks "and no other" color
is "the difference of two moments" 0 '^- \.data\.color: "red"' "$KAJI" diff cm/m --from "$(revision cm/m 0)" --to "$(revision cm/m 1)"
is "which request each field is from" 0 'bob +kubectl-patch +\.data\.color: "blue"' "$KAJI" blame cm/m
is "blame as JSON" 0 '"fieldManager": "hand"' "$KAJI" blame cm/m -o json
first=$(revision cm/m 0)
is "the object as it was" 0 'color: red' "$KAJI" get cm/m --at "$first"
is "before it was there" 1 "it was not there at .*: it was created at" "$KAJI" get cm/m --at 1h
is "a moment that is none" 1 "no time" "$KAJI" get cm/m --at yesterday

is "restoring shows what would change" 0 '^\+ \.data\.color: "red"' "$KAJI" restore cm/m --at "$first" --dry-run
is "and writes nothing unasked" 1 "nothing was written" "$KAJI" restore cm/m --at "$first"
is "nor has it" 0 "blue" k get cm m -o 'jsonpath={.data.color}'
is "with a yes it does" 0 "restored as of revision $first" bash -c "echo y | '$KAJI' restore cm/m --at $first"
is "the object is as it was" 0 "^red 1$" k get cm m -o 'jsonpath={.data.color} {.data.size}'
is "a second time there is nothing to do" 0 "nothing to restore" "$KAJI" restore cm/m --at "$first" --yes
is "an object that is there needs a moment" 1 "it was not deleted" "$KAJI" restore cm/m
is "it is deleted" 0 "deleted" k delete cm m
is "the deletion is in its history" 0 "Deleted +kubernetes-admin +kubectl" "$KAJI" history cm/m
is "it is not there now" 1 "kubernetes-admin deleted it" "$KAJI" get cm/m --at 0s
is "what was deleted is restored" 0 "restored as of" "$KAJI" restore cm/m --yes
is "and is there again" 0 "^red 1$" k get cm m -o 'jsonpath={.data.color} {.data.size}'

is "a secret" 0 "created" k create secret generic s --from-literal=password=hunter2
is "is kept without its value" 0 "redacted:" "$KAJI" history secret/s -o json
lacks "in any form" "hunter2|aHVudGVyMg"
is "and is not restored" 0 "deleted" k delete secret s
is "since it is not known" 1 "is not kept, only a hash" "$KAJI" restore secret/s --yes
if grep -raqE "hunter2|aHVudGVyMg" "$work/data/clusters/h/history"; then bad "it is in the archive's files"; else ok "nor is it in the archive's files"; fi

is "a workload" 0 "created" k create deployment web --image app --replicas 2
soon "runs" "2/2" k get deployment web
is "its tree" 0 "^\* Deployment/web \(2/2 ready\)" "$KAJI" tree deployment/web
has "has its pods" "Pod/web-.*\(Running\)"
pod=$(k get pods -l app=web -o 'jsonpath={.items[0].metadata.name}')
is "the pod's binding is the scheduler's" 0 "Modified +system:kube-scheduler +kube-scheduler +create binding" "$KAJI" history "pod/$pod"
has "its status is the kubelet's" "Modified +system:node:[^ ]+ +kubelet +[a-z]+ status"
renew() { k patch lease renewed --field-manager renewer -p "{\"spec\":{\"renewTime\":\"2026-01-01T00:00:0$1.000000Z\",\"holderIdentity\":\"$2\"}}"; }
k create -f - >/dev/null <<'Y'
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: renewed}
spec: {leaseDurationSeconds: 10}
Y
for second in 1 2 3 4 5; do renew "$second" one >/dev/null; done
is "a lease that changes hands" 0 "lease.coordination.k8s.io/renewed patched" renew 6 two
is "is in the history" 0 'Modified .* \.spec\.holderIdentity' "$KAJI" history lease/renewed
if (($(grep -c "Modified" "$work/out") == 2)); then ok "and its renewals are not"; else bad "and its renewals are, too"; fi

is "what changed in the namespace" 0 "Created +configmaps/m +kubernetes-admin +create" "$KAJI" history
has "has fields that changed" "Modified +configmaps/m +bob +patch +\.data\.color"
has "and what is gone" "Deleted +secrets/s "
lacks "and nothing from elsewhere" "namespaces/|services/kube-dns|nodes/"
is "what changed everywhere" 0 "kube-system .*Created" "$KAJI" history -A --since 5m
is "as JSON" 0 '"resource": "configmaps"' "$KAJI" history -o json
is "as kubectl shows it" 0 "Created +kubernetes-admin +kubectl-create" k get revisions.history.kaji.dev
is "nothing is said aloud" 0 "Nothing changed since" "$KAJI" history -n kube-public --since 2030-01-01T00:00:00Z
"$KAJI" history --follow >"$work/followed" 2>&1 &
follower=$!
soon "what is followed begins with what was" "Created configmaps/m by kubernetes-admin" cat "$work/followed"
k create configmap later >/dev/null
soon "and goes on" "Created configmaps/later by kubernetes-admin \(create\)" cat "$work/followed"
kill "$follower"

k create namespace shop >/dev/null
k create rolebinding eve --clusterrole view --user eve >/dev/null
is "a user that may see the object sees its history" 0 "Created" "$KAJI" history cm/m --as eve
is "not that of a secret" 1 'cannot get resource "secrets"' "$KAJI" history secret/s --as eve
sed 's,"s",NAME,' "$work/out" >"$work/there"
is "whether there was one or not" 1 'cannot get resource "secrets"' "$KAJI" history secret/never --as eve
if cmp -s "$work/there" <(sed 's,"never",NAME,' "$work/out"); then ok "the answer is the same"; else bad "the answers differ"; fi
is "what changed in the namespace, of what it may see" 0 "configmaps/m" "$KAJI" history --as eve
lacks "without secrets" "secrets/"
is "not everywhere" 1 "forbidden|cannot" "$KAJI" history -A --as eve
is "nor that of another namespace" 1 "forbidden|cannot" "$KAJI" history cm/m -n shop --as eve

"$KAJI" history cm/m >"$work/before"
is "the server ends" 0 "Stopped cluster h" "$KAJI" stop h
is "and starts again" 0 "ready after" "$KAJI" start h
is "its history is there" 0 "Deleted" "$KAJI" history cm/m
if cmp -s "$work/before" "$work/out"; then ok "the same as before"; else bad "another than before"; fi

purge='{"apiVersion":"history.kaji.dev/v1alpha1","kind":"Purge","spec":{"resource":"configmaps","namespace":"default","name":"m"}}'
is "a purge needs a right" 1 "forbidden" bash -c "echo '$purge' | '$KUBECTL' create --raw /apis/history.kaji.dev/v1alpha1/purges -f - --as eve"
is "the administrator has it" 0 '"revisions":6' bash -c "echo '$purge' | '$KUBECTL' create --raw /apis/history.kaji.dev/v1alpha1/purges -f -"
is "the purge is in the history" 0 "Purged +kubernetes-admin" "$KAJI" history cm/m
lacks "and nothing else is" "Created|Modified|Deleted"

is "it ends" 0 "Stopped" "$KAJI" stop h
is "a scrub removes the archive" 0 "The history of objects was removed" "$KAJI" store scrub --data-dir "$work/data/clusters/h"
is "a server without a history" 0 "ready after" "$KAJI" up --name n --nodes none --detach --history=false
is "says so" 1 "the server keeps no history" "$KAJI" history cm/kube-root-ca.crt
is "and has no archive" 0 "none" bash -c "[[ -e $work/data/clusters/n/history ]] || echo none"
is "flags without an effect are refused" 1 "needs --history" "$KAJI" up --name o --nodes none --detach --history=false --history-max-age 1h
echo "history: $passed passed, $failed failed"
((failed == 0))
