#!/usr/bin/env bash
# What the walks of real nodes share: namespaces of their own, a server, counting checks, waiting, reading the cluster, an image,
# containerd, and the end of a walk.
#
# A walk sources this at its beginning, with $KAJI and $KUBECTL set:
#   isolate NAME TOOL...    runs the walk in a network namespace of its own, and a mount namespace with a /var/log of its own
#   make_uplink             an uplink that leads nowhere gives the node an address
#   make_work               makes $work, and points kubectl to the cluster in it
#   start_server            starts kaji as ${up[@]} says; its process is $server
#   leave NAME              for the trap EXIT: ends $server and concludes
#   soon TEXT COMMAND...    passes when the command succeeds within $patience seconds
#   shows WANTED COMMAND... whether what a command prints has a text in it
#   is WANTED COMMAND...    whether what a command prints is that
#   k, field KIND NAME PATH kubectl, and a field of an object
#   log POD [CONTAINER]     the log files of a container, of the pod's name if left out
#   make_image APPLET...    makes $work/busybox.tar with these applets
#   make_archive            makes $work/image.tar of it for ctr, an image that containerd's sandboxes can use too
#   configure_containerd    writes $work/containerd.toml, with everything in $work and the socket $CONTAINERD_ADDRESS
#   kill_containerd_shims   those of that containerd, and what they run
#   nothing_of_pods DIRECTORY     whether a node's directory and the network namespace have nothing of a pod; for namespaces of nodes,
#                                 $inside is the command that enters them
#   no_cgroup_left          whether no cgroup of a pod is left that was not there when make_work was called; prints those that are, and
#                           what is in them
#   no_rules ADDRESS...           whether no rule or set of the network namespace names one of these
#   conclude NAME CODE      kills the shims that are left, removes $work, prints the counts and ends the walk
# shellcheck shell=bash
passed=0
failed=0
failures=()
patience=${patience:-20}
server=
up=(--nodes real)

isolate() {
  local name=$1 tool namespace
  shift
  if [[ -z ${KAJI_WALK_INSIDE-} ]]; then
    for tool in ip nsenter unshare busybox "$@"; do
      command -v "$tool" >/dev/null || { echo "SKIPPED $name: $tool is not there"; exit 0; }
    done
    ((EUID == 0)) || { echo "SKIPPED $name: it needs root"; exit 0; }
    namespace=kaji-$name-$$
    ip netns add "$namespace"
    # shellcheck disable=SC2064
    trap "ip netns delete $namespace" EXIT
    # Not by `ip netns exec`: its new /sys has no cgroups.
    KAJI=$KAJI KUBECTL=$(command -v "$KUBECTL") KAJI_WALK_INSIDE=$namespace \
      nsenter --net="/var/run/netns/$namespace" unshare --mount bash "$0"
    exit
  fi
  mount --make-rprivate /
  mount -t tmpfs tmpfs /var/log
  ip link set lo up
}

make_uplink() {
  ip link add uplink type veth peer name far
  ip link set far up
  ip address add 198.51.100.2/24 dev uplink
  ip link set uplink up
  ip route add default via 198.51.100.1
}

pod_cgroups() { { find /sys/fs/cgroup -path '*kubepods*' -type d -name 'pod*' 2>/dev/null || true; } | sort; }

# Cgroups are the machine's: other nodes may have left some.
no_cgroup_left() {
  local left
  left=$(comm -13 "$work/cgroups" <(pod_cgroups))
  [[ -n $left ]] || return 0
  # shellcheck disable=SC2086
  find $left -name cgroup.procs -print -exec cat {} \;
  return 1
}

make_work() {
  work=$(mktemp -d)
  pod_cgroups >"$work/cgroups"
  export KUBECONFIG=$work/kubeconfig NO_PROXY='*' no_proxy='*'
}

start_server() {
  "$KAJI" up "${up[@]}" --data-dir "$work/data" --port 6443 --kubeconfig "$KUBECONFIG" >>"$work/kaji.log" 2>&1 &
  server=$!
}

leave() {
  local code=$?
  trap - EXIT
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  wait 2>/dev/null || true
  ((code == 0 && failed == 0)) || tail -n 30 "$work/kaji.log" || true
  conclude "$1" "$code"
}

soon() {
  local text=$1 i
  shift
  for ((i = 0; i < 10 * patience; i++)); do
    if "$@" >"$work/out" 2>&1; then
      passed=$((passed + 1))
      echo "ok   $text"
      return
    fi
    sleep 0.1
  done
  failed=$((failed + 1))
  failures+=("$text: $(tail -n 3 "$work/out")")
  echo "FAIL $text"
  tail -n 5 "$work/out"
}

shows() {
  local wanted=$1
  shift
  "$@" 2>&1 | grep -qF -- "$wanted"
}

k() { "$KUBECTL" "$@"; }
field() { k get "$1" "$2" -o "jsonpath=$3"; }
is() { [[ $("${@:2}") == "$1" ]]; }
log() { cat /var/log/pods/default_"$1"_*/"${2:-$1}"/*.log; }

make_image() {
  local applet
  mkdir -p "$work"/root/{bin,etc,tmp,proc,sys,dev}
  cp "$(command -v busybox)" "$work/root/bin/busybox"
  for applet in "$@"; do ln "$work/root/bin/busybox" "$work/root/bin/$applet"; done
  printf 'root:x:0:0:root:/:/bin/sh\n' >"$work/root/etc/passwd"
  printf 'root:x:0:\n' >"$work/root/etc/group"
  tar -C "$work/root" -cf "$work/busybox.tar" .
}

make_archive() {
  local layer
  layer=$(sha256sum "$work/busybox.tar" | cut -d ' ' -f 1)
  printf '{"architecture":"%s","os":"linux","config":{"Cmd":["/bin/sleep","1000000"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(dpkg --print-architecture 2>/dev/null || echo amd64)" "$layer" >"$work/config.json"
  printf '[{"Config":"config.json","RepoTags":["example.com/busybox:1"],"Layers":["busybox.tar"]}]' >"$work/manifest.json"
  tar -C "$work" -cf "$work/image.tar" manifest.json config.json busybox.tar
}

# Without CAP_SYS_RESOURCE no process may get a lower score than containerd has.
configure_containerd() {
  cat >"$work/containerd.toml" <<T
version = 2
root = "$work/containerd/root"
state = "$work/containerd/state"
[grpc]
address = "$CONTAINERD_ADDRESS"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "example.com/busybox:1"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$work/cni/bin"
conf_dir = "$work/cni/net.d"
T
}

kill_containerd_shims() {
  local pid
  for pid in $(pgrep -f "containerd-shim.*$CONTAINERD_ADDRESS" || true); do
    pkill -9 -P "$pid" || true
    kill -9 "$pid" 2>/dev/null || true
  done
}

inside=()

nothing_of_pods() {
  ! find "$1" -mindepth 1 \( -path '*/kubelet/pods/*' -o -path '*/containers/sandboxes/*' -o -path '*/containers/containers/*' \
    -o -path '*/images/leases/*' -o -path '*/images/tmp/*' -o -path '*/network/*.json' \) | grep . &&
    ! "${inside[@]}" ip -o link | grep -E ' k[ji][0-9a-f]{12}'
}

no_rules() {
  command -v nft >/dev/null || return 0
  ! "${inside[@]}" nft list ruleset | grep -wF -f <(printf '%s\n' "$@")
}

conclude() {
  local name=$1 code=$2 pid text
  # Of a walk that failed half-way.
  for pid in $(pgrep -f "^$KAJI shim .*$work" || true); do kill -9 "$pid" 2>/dev/null || true; done
  rm -rf --one-file-system "$work" 2>/dev/null || true
  # Again, after the logs: of a long output only the end may be kept.
  for text in "${failures[@]}"; do echo "FAIL $text"; done
  echo "$name: $passed passed, $failed failed"
  ((code != 0 || failed == 0)) || code=1
  exit "$code"
}
