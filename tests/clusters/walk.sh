#!/usr/bin/env bash
# Clusters as things: several at once by name, in the background; list, status, logs, stop, start, fork and delete.
#
# KAJI and KUBECTL name the programs. It needs no root, and changes nothing outside of a directory of its own.
set -uo pipefail
cd "$(dirname "$0")/../.."
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
work=$(mktemp -d)
export KAJI_DATA_DIR=$work/data KUBECONFIG=$work/config
passed=0 failed=0
trap 'timeout 100 "$KAJI" delete --all --force >/dev/null 2>&1; rm -rf "$work"' EXIT

ok() { passed=$((passed + 1)); echo "  ok    $1"; }
bad() { failed=$((failed + 1)); echo "  FAIL  $1"; sed 's/^/        /' "$work/out"; }
# is NAME CODE TEXT COMMAND… : the command exits with the code, and its output has the text.
is() {
  local name=$1 code=$2 text=$3 got=0
  shift 3
  "$@" >"$work/out" 2>&1 || got=$?
  if [[ $got == "$code" ]] && grep -qF -- "$text" "$work/out"; then ok "$name"; else
    echo "exit code $got for $code, expected: $text" >>"$work/out"
    bad "$name"
  fi
}
field() { "$KAJI" list -o json | python3 -c 'import json,sys; print(next(c[sys.argv[2]] for c in json.load(sys.stdin) if c["name"] == sys.argv[1]))' "$1" "$2"; }
k() { "$KUBECTL" "$@"; }

is "no clusters at first" 0 "No clusters in" "$KAJI" list
is "a cluster starts in the background" 0 "(context kaji-a)" "$KAJI" up --name a --detach --nodes none
is "another one starts beside it" 0 "2 simulated" "$KAJI" up --name b --nodes sim:2 --detach
is "both are listed" 0 "kaji-b" "$KAJI" list
is "by name" 0 "b" "$KAJI" list -o name
is "one is reached by its context" 0 "kube-system" k --context kaji-a get namespaces
is "so is the other, the last one by default" 0 "configmap/of-b created" k create configmap of-b --from-literal=a=b
is "neither has the other's objects" 1 "NotFound" k --context kaji-a get configmap of-b
is "the status of one" 0 "ok, 2 of 2 nodes ready" bash -c "for i in \$(seq 300); do '$KAJI' status b | grep -q 'ok, 2 of 2' && break; sleep 0.1; done; '$KAJI' status b"
is "a cluster that runs is not started twice" 1 "the cluster a runs already" "$KAJI" up --name a --detach
is "nor by start" 1 "the cluster a runs already" "$KAJI" start a
pid=$(field a pid)
is "the server leads a session" 0 "$pid" ps -o sid= -p "$pid"
is "its log" 0 "kaji stop a stops the cluster" "$KAJI" logs a
is "the last line of its log" 0 "kaji stop a stops the cluster" "$KAJI" logs a --tail 1
is "an object" 0 "created" k --context kaji-a create configmap kept --from-literal=a=b
server=$(field a server)
"$KAJI" events --all-namespaces --follow --context kaji-a >"$work/events" 2>&1 &
follower=$!
told() { for _ in $(seq 300); do grep -q "$1" "$work/events" && break; sleep 0.1; done; cat "$work/events"; }
tell() { printf '{"apiVersion":"v1","kind":"Event","metadata":{"name":"%s","namespace":"default"},"involvedObject":{"kind":"Pod","name":"x","namespace":"default"},"reason":"%s","type":"Normal","message":"m","reportingComponent":"walk","lastTimestamp":"2026-01-01T00:00:00Z"}' "$1" "$1" | k --context kaji-a create -f -; }
tell first >"$work/out" 2>&1
is "events are followed" 0 "first" told first
is "a cluster is stopped" 0 "Stopped cluster a" "$KAJI" stop a
is "its status says so" 3 "Stopped" "$KAJI" status a
is "stopping it again is no error" 0 "does not run" "$KAJI" stop a
is "it is started again" 0 "$server" "$KAJI" start a
is "its objects are there" 0 "kept" k --context kaji-a get configmap kept
tell second >"$work/out" 2>&1
is "and events are followed on" 0 "second" told second
is "none twice" 0 "1" grep -c first "$work/events"
kill "$follower"
is "it is forked by name" 0 "Forked $KAJI_DATA_DIR/clusters/a" "$KAJI" fork a --no-start --data-dir "$work/fork"
is "a fork with a name starts in the background" 0 "(context kaji-f)" "$KAJI" fork a --name f --detach
is "it is listed" 0 "kaji-f" "$KAJI" list
is "it begins as its source is" 0 "kept" k --context kaji-f get configmap kept
is "it goes on by itself" 0 "created" k --context kaji-f create configmap of-f --from-literal=a=b
is "and its source without it" 1 "NotFound" k --context kaji-a get configmap of-f
is "a name that is taken" 1 "there is a cluster f already" "$KAJI" fork a --name f
is "a source that is not there" 1 "there is no cluster nothing" "$KAJI" fork nothing --name n
is "the fork is stopped" 0 "Stopped cluster f" "$KAJI" stop f
is "and started again" 0 "(context kaji-f)" "$KAJI" start f
is "with its objects" 0 "of-f" k --context kaji-f get configmap of-f
is "a snapshot by name, of a cluster that runs" 0 "is complete" "$KAJI" snapshot save "$work/f.snapshot" --cluster f
cp "$work/out" "$work/saved"
is "nothing of its progress is in a file" 1 "0" grep -c $'\r' "$work/saved"
is "or by context" 0 "is complete" "$KAJI" snapshot save "$work/a.snapshot" --context kaji-a
is "they are of different clusters" 1 "differ" cmp "$work/f.snapshot" "$work/a.snapshot"
is "the fork is stopped for another one" 0 "Stopped cluster f" "$KAJI" stop f
is "a snapshot by name, of one that does not run" 0 "is complete" "$KAJI" snapshot save "$work/f2.snapshot" --cluster f
is "a snapshot of a cluster that is not there" 1 "there is no cluster nothing" "$KAJI" snapshot save "$work/n.snapshot" --cluster nothing
is "a snapshot is not restored over objects" 1 "kaji delete f removes it" "$KAJI" snapshot restore "$work/f.snapshot" --cluster f
is "it is restored into a new cluster" 0 "kaji start r starts it" "$KAJI" snapshot restore "$work/f.snapshot" --cluster r
is "which is listed" 3 "Stopped" "$KAJI" status r
is "and starts" 0 "(context kaji-r)" "$KAJI" up --name r --nodes none --detach
is "with the objects" 0 "of-f" k --context kaji-r get configmap of-f
is "both are deleted" 0 "Deleted cluster r" "$KAJI" delete f r
is "a fork of a snapshot has a name, too" 0 "kaji start s starts it" "$KAJI" fork "$work/f2.snapshot" --name s --no-start
is "and is deleted before it has started" 0 "Deleted cluster s" "$KAJI" delete s
kill -9 "$(field b pid)"
is "a server that was killed is stopped" 3 "Stopped" bash -c "for i in \$(seq 100); do '$KAJI' status b >/dev/null; [[ \$? == 3 ]] && break; sleep 0.1; done; '$KAJI' status b"
is "and starts again" 0 "ready after" "$KAJI" start b
is "with its objects" 0 "of-b" k --context kaji-b get configmap of-b
port=${server##*:}
is "a port that is taken" 1 "the server ended before it was ready" "$KAJI" up --name c --detach --nodes none --port "$port"
is "what has failed to start is deleted" 0 "Deleted cluster c" "$KAJI" delete c
is "a name that is none" 2 "lower case letters" "$KAJI" up --name A_B --detach
is "a cluster that is not there" 1 "there is no cluster nothing" "$KAJI" stop nothing
is "a cluster is deleted while it runs" 0 "Deleted cluster b" "$KAJI" delete b
is "its context is gone" 1 "kaji-b" k --context kaji-b get namespaces
is "and its files" 0 "gone" bash -c "[[ -e $KAJI_DATA_DIR/clusters/b ]] || echo gone"
is "the other goes on" 0 "kept" k --context kaji-a get configmap kept
is "the cluster without a name" 0 "(context kaji)" "$KAJI" up --detach --nodes none --port 0
is "is the first in the list" 0 "default" bash -c "'$KAJI' list | sed -n 2p"
is "and needs no name" 0 "Stopped cluster default" "$KAJI" stop
is "all are deleted" 0 "Deleted cluster a" "$KAJI" delete --all
is "none is left" 0 "No clusters in" "$KAJI" list
is "the machine is looked at" 0 "API server's port" "$KAJI" doctor
is "and its cgroups" 0 "cgroups" "$KAJI" doctor
is "without colours in a file" 1 "" grep -c $'\x1b' <("$KAJI" doctor)
is "top says what it lacks" 1 "kaji: " "$KAJI" top --kubeconfig "$work/none"
is "nor a context" 0 "contexts: []" cat "$KUBECONFIG"
echo "clusters: $passed passed, $failed failed"
((failed == 0))
