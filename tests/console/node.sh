#!/usr/bin/env bash
# The console's terminal and logs on a real node: a shell that is typed into, its size, its exit, lines that come while they are watched,
# and a page that is loaded while addresses of the machine come and go, as they do when pods start.
#
# In a network namespace of its own. It needs root, ip, busybox (static), kubectl, node and chromium; without them it is skipped.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/../node/lib.sh"
isolate console-node node chromium "$KUBECTL"
make_uplink
make_work
trap 'leave console-node' EXIT

make_image sh cat echo sleep stty true
"$KAJI" image --data-dir "$work/data" import "$work/busybox.tar" example.com/busybox:1 --cmd /bin/sh >/dev/null
start_server
patience=60
soon "the node is ready" shows " Ready " k get nodes
soon "accounts exist" k get serviceaccount default
k run shell --image=example.com/busybox:1 --image-pull-policy=Never -- sh -c 'i=0; while true; do echo line $i; i=$((i + 1)); sleep 1; done' >/dev/null
soon "the pod runs" is Running field pod shell '{.status.phase}'
if node "$(dirname "$0")/node.mjs"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
# Containers outlive their server, and other walks look for what is left.
uid=$(field pod shell '{.metadata.uid}')
k delete pod shell --now >/dev/null
soon "nothing of the pod is left" eval "[[ -z \$(find /sys/fs/cgroup -path '*kubepods*' -name '*$uid*') ]]"
