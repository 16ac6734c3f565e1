#!/usr/bin/env bash
# Measures a real node with the built-in container runtime, and beside it the same with containerd, by `xtask bench --only node`.
#
#     KAJI=target/release/kaji XTASK=target/release/xtask bash tests/node/bench.sh [ARGUMENTS OF xtask bench]
#
# The servers run in a network namespace of their own, in a mount namespace with a /run and a /var/log of its own, and in a cgroup
# that counts their processor time. It needs root, containerd with ctr, runc, ip and busybox (static).
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
XTASK=$(realpath "${XTASK:-target/release/xtask}")
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/lib.sh"

if [[ -z ${KAJI_BENCH_INSIDE-} ]]; then
  for tool in containerd ctr runc ip nsenter unshare busybox; do
    command -v "$tool" >/dev/null || { echo "SKIPPED bench: $tool is not there"; exit 0; }
  done
  ((EUID == 0)) || { echo "SKIPPED bench: it needs root"; exit 0; }
  cgroup=/sys/fs/cgroup/cpuacct
  [[ -d $cgroup ]] || cgroup=/sys/fs/cgroup
  cgroup=$cgroup/kaji-bench-$$
  mkdir "$cgroup"
  namespace=kaji-bench-$$
  ip netns add "$namespace"
  trap 'ip netns delete "$namespace"; find "$cgroup" -depth -type d -exec rmdir {} +' EXIT
  # The cgroup namespace is made in the cgroup, so that the node sees it as the root.
  KAJI=$KAJI XTASK=$XTASK KAJI_BENCH_INSIDE=$cgroup nsenter --net="/var/run/netns/$namespace" \
    bash -c 'echo $$ >"$KAJI_BENCH_INSIDE/cgroup.procs" && exec unshare --mount --cgroup bash "$@"' - "$0" "$@"
  exit
fi

mount --make-rprivate /
# The measuring program is outside of the cgroup, and reads it here.
outer=$(mktemp -d)
mount --bind "$(dirname "$KAJI_BENCH_INSIDE")" "$outer"
cgroup=$outer/$(basename "$KAJI_BENCH_INSIDE")
if [[ -d /sys/fs/cgroup/cpuacct ]]; then
  umount /sys/fs/cgroup/cpuacct
  mount -t cgroup -o cpuacct cgroup /sys/fs/cgroup/cpuacct
else
  mkdir "$cgroup/server"
  echo $$ >"$cgroup/server/cgroup.procs"
  umount /sys/fs/cgroup
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
mount -t tmpfs tmpfs /var/log
mount -t tmpfs tmpfs /run
ip link set lo up
make_uplink
make_work
export CONTAINERD_ADDRESS=$work/containerd.sock CONTAINERD_NAMESPACE=k8s.io

leave() {
  local code=$? pid
  trap - EXIT
  kill_containerd_shims
  for pid in $(pgrep -f "^$KAJI shim .*$work" || true); do kill -9 "$pid" 2>/dev/null || true; done
  grep -oE " $work/[^ ]+" /proc/mounts | sort -r | xargs -r umount -l || true
  rm -rf --one-file-system "$work" || true
  umount -l "$outer" && rmdir "$outer" || true
  exit "$code"
}
trap leave EXIT

configure_containerd
# An image for either runtime, which is containerd's sandboxes' too.
make_image sh echo sleep httpd
make_archive
"$KAJI" image --data-dir "$work/built-in" import "$work/busybox.tar" example.com/busybox:1 --cmd /bin/sh >/dev/null

# One command that starts containerd, and then the server in its place.
cat >"$work/beside" <<S
#!/bin/bash
containerd --config "$work/containerd.toml" >"$work/containerd.log" 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.1; done
ctr images import "$work/image.tar" >/dev/null
exec "$KAJI" up --nodes real --data-dir "$work/beside-data" --port 6443 --kubeconfig "$work/kubeconfig" \
  --container-runtime-endpoint "unix://$CONTAINERD_ADDRESS"
S
chmod +x "$work/beside"

# This script and the measuring program leave the cgroup; what the program starts is put into it.
cat >"$work/inside" <<S
#!/bin/bash
echo \$\$ >"${cgroup}$([[ -d $cgroup/server ]] && echo /server)/cgroup.procs"
exec "\$@"
S
chmod +x "$work/inside"
echo $$ >"$outer/cgroup.procs"
"$XTASK" bench --only node --kubeconfig "$work/kubeconfig" --node-cgroup "$cgroup" "$@" \
  --exec "$work/inside $KAJI up --nodes real --data-dir $work/built-in --port 6443 --kubeconfig $work/kubeconfig" \
  --beside-exec "$work/inside $work/beside"
