#!/usr/bin/env bash
# `kaji up --nodes real:2`: two real nodes on this machine that the server makes, a pod of one that reaches a pod of the other, a
# killed server with nodes that come back, and nothing left behind.
#
#     KAJI=target/release/kaji KUBECTL=kubectl bash tests/node/fleet.sh
#
# Everything happens in a network namespace of its own and a mount namespace with a /var/log of its own. It needs root, ip,
# busybox (static) and kubectl; without them it is skipped.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
# shellcheck disable=SC2034
patience=30
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/lib.sh"
isolate fleet "$KUBECTL"
make_work
up=(--nodes real:2)
trap 'leave fleet' EXIT

make_image sh cat echo sleep httpd nslookup nc hostname
for node in 1 2; do
  "$KAJI" image --data-dir "$work/data/nodes/node-$node" import "$work/busybox.tar" example.com/busybox:1 --cmd /bin/sh >/dev/null
done

start_server
ready() { is True field node "$1" '{.status.conditions[?(@.type=="Ready")].status}'; }
for node in node-1 node-2; do soon "$node is ready" ready "$node"; done
soon "accounts exist" k get serviceaccount default
# pod NAME NODE COMMAND
pod() {
  k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: $2}
  containers: [{name: $1, image: "example.com/busybox:1", command: [sh, -c, "$3"]}]
Y
}
pod web node-1 "hostname > /tmp/index.html; httpd -f -p 80 -h /tmp"
soon "a pod runs" is Running field pod web '{.status.phase}'
api=$(field service kubernetes '{.spec.clusterIP}')
pod asker node-2 "printf 'GET / HTTP/1.0\\\\r\\\\n\\\\r\\\\n' | nc -w 3 $(field pod web '{.status.podIP}') 80; nslookup kubernetes.default.svc.cluster.local; nc -w 3 $api 443 < /dev/null && echo reached"
soon "one of the other node reaches it" shows web log asker
soon "and finds names" shows "$api" log asker
soon "and the API server" shows reached log asker
soon "which reaches pods" is web k get --raw "/api/v1/namespaces/default/pods/web:80/proxy/index.html"
identity() { field pod web '{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}'; }
before=$(identity)
kill -9 "$server"
wait "$server" 2>/dev/null || true
agents_ended() { ! pgrep -f "^$KAJI agent .*$work"; }
soon "agents end with a server that was killed" agents_ended
soon "containers do not" pgrep -f "^$KAJI shim .*$work"
start_server
soon "the server comes back" shows ok k get --raw /readyz
pod again node-1 "echo ran"
soon "its nodes as well" shows ran log again
soon "with the same containers" is "$before" identity
kill -TERM "$server"
soon "the server ends" eval "! kill -0 $server 2>/dev/null"
server=
none_left() { ! pgrep -f "^$KAJI (shim|agent) .*$work" && ! grep -q "$work" /proc/mounts && [[ -z $(ip -o link | grep -v " lo:") ]]; }
soon "no process, mount or interface is left" none_left
soon "no sandbox, layer of a container or record is left" nothing_of_pods "$work/data/nodes"
no_tables() { ! command -v nft >/dev/null || ! nft list tables | grep kaji; }
soon "no rule is left" no_tables
soon "no address is left" eval "! ip -o address | grep -v ' lo '"
soon "images are kept" shows example.com/busybox "$KAJI" image --data-dir "$work/data/nodes/node-1" ls
