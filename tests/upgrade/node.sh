#!/usr/bin/env bash
# Two builds take turns on one real node: containers that one has started go on under the other, which reaches, restarts and removes them.
#
#     KAJI=target/release/kaji KAJI_PREVIOUS=/path/to/an/older/kaji bash tests/upgrade/node.sh
#
# In namespaces of its own, as tests/node/walk.sh. It needs root, ip, busybox (static) and kubectl; without them, or without
# KAJI_PREVIOUS, it is skipped.
set -euo pipefail
[[ -n ${KAJI_PREVIOUS-} ]] || { echo "SKIPPED upgrade-node: KAJI_PREVIOUS names no older build"; exit 0; }
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KAJI_PREVIOUS=$(realpath "$KAJI_PREVIOUS")
export KAJI_PREVIOUS
KUBECTL=${KUBECTL:-kubectl}
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/../node/lib.sh"
isolate upgrade-node "$KUBECTL"
NEXT=$KAJI
make_uplink
make_work
trap 'leave upgrade-node' EXIT
patience=60

make_image sh cat echo sleep httpd hostname nc test touch kill true
"$KAJI_PREVIOUS" image --data-dir "$work/data" import "$work/busybox.tar" example.com/busybox:1 --cmd /bin/sh >/dev/null

# make NAME: pods with containers that a shim treats differently.
make() {
  k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: $1-plain, labels: {by: $1}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: example.com/busybox:1
    command: [sh, -c, "i=0; while true; do echo tick \$i; i=\$((i + 1)); sleep 1; done"]
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    volumeMounts: [{name: kept, mountPath: /kept}]
  volumes: [{name: kept, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: $1-shared, labels: {by: $1}}
spec:
  shareProcessNamespace: true
  terminationGracePeriodSeconds: 1
  initContainers: [{name: sidecar, image: "example.com/busybox:1", restartPolicy: Always, command: [sleep, "3600"]}]
  containers: [{name: main, image: "example.com/busybox:1", command: [sleep, "3600"], stdin: true, resources: {limits: {memory: 64Mi}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: $1-host, labels: {by: $1}}
spec:
  hostPID: true
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "example.com/busybox:1", command: [sh, -c, "sleep 3600"], tty: true, stdin: true}]
---
apiVersion: v1
kind: Pod
metadata: {name: $1-users, labels: {by: $1}}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "example.com/busybox:1", command: [sleep, "3600"]}]
Y
}
kinds=(plain shared host users)
all_run() { [[ $(k get pods -l "by=$1" -o 'jsonpath={range .items[*]}{.status.phase}/{.status.containerStatuses[0].ready} {end}') == "Running/true Running/true Running/true Running/true " ]]; }
identity() { k get pods -o 'jsonpath={range .items[*]}{.metadata.name} {range .status.initContainerStatuses[*]}{.containerID} {.restartCount}{end} {range .status.containerStatuses[*]}{.containerID} {.restartCount}{end}{"\n"}{end}' | sort; }
runs() { k exec "$1" -c main -- sh -c 'cat /proc/self/cgroup >/dev/null; echo inside'; }
line_count() { k logs "$1" | grep -c tick; }
more_lines() { (($(line_count "$1") > $2)); }
restarted() { [[ $(field pod "$1" '{.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].state.running.startedAt}') =~ ^1\ .+ ]]; }
gone() { ! k get pod "$1"; }

# turn NAME PROGRAM SIGNAL BEFORE OWN: the build takes over the containers that were made as BEFORE (none if it is empty), makes those of
# OWN, and ends by the signal.
turn() {
  local name=$1 before=$4 kind known lines
  KAJI=$2
  known=${identity-}
  start_server
  soon "$name: the node is ready" shows " Ready " k get nodes
  soon "$name: accounts exist" k get serviceaccount default
  if [[ -n $before ]]; then
    soon "$name: all containers are ready" all_run "$before"
    soon "$name: they are the same, and were not restarted" is "$known" identity
    for kind in "${kinds[@]}"; do soon "$name: a command runs in the pod $kind" shows inside runs "$before-$kind"; done
    soon "$name: a volume has what was written before" k exec "$before-plain" -- test -e "/kept/$before"
    lines=$(line_count "$before-plain")
    soon "$name: the log goes on" more_lines "$before-plain" "$lines"
    # The reaper is the first process of the namespace that is shared.
    k exec "$before-shared" -c main -- sh -c 'for p in /proc/[0-9]*; do case $(cat $p/cmdline | head -c 9) in sleep*) kill -9 ${p#/proc/};; esac; done' >/dev/null 2>&1 || true
    soon "$name: a container that ends is restarted" restarted "$before-shared"
    k delete pod -l "by=$before" --now --wait=false >/dev/null
    for kind in "${kinds[@]}"; do soon "$name: the pod $kind is removed" gone "$before-$kind"; done
    soon "$name: with its cgroup" no_cgroup_left
    soon "$name: with its mounts" eval "! grep -q '$work/data.*containers' /proc/mounts"
  fi
  make "$5"
  soon "$name: pods of its own run" all_run "$5"
  k exec "$5-plain" -- touch "/kept/$5"
  identity=$(identity)
  kill "-$3" "$server"
  wait "$server" 2>/dev/null || true
  server=
}

turn "previous build" "$KAJI_PREVIOUS" KILL "" first
turn "this build" "$NEXT" TERM first second
turn "previous build again" "$KAJI_PREVIOUS" TERM second third
turn "this build again" "$NEXT" KILL third fourth
KAJI=$NEXT
start_server
soon "the node is ready" shows " Ready " k get nodes
k delete pods --all --now >/dev/null
soon "no cgroup is left" no_cgroup_left
