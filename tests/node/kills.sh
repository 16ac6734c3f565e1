#!/usr/bin/env bash
# Random kills on a real node: of Kaji, of shims, of containers, and of all of the node at once, while pods come and go. Containers
# keep running and are found again, none runs twice, restart counts are right, and nothing is left at the end.
#
#     KAJI=target/release/kaji KUBECTL=kubectl KAJI_KILLS=100 KAJI_SEED=1 bash tests/node/kills.sh
#
# Like walk.sh it makes a network and a mount namespace of its own and needs root, ip, busybox (static) and kubectl.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
rounds=${KAJI_KILLS:-100}
seed=${KAJI_SEED:-$RANDOM}
export KAJI_SEED=$seed
# shellcheck disable=SC2034
patience=10
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/lib.sh"
isolate kills "$KUBECTL"
make_uplink
make_work
mkdir "$work/host"
trap 'leave "kills (seed $seed)"' EXIT

make_image sh cat echo sleep
"$KAJI" image --data-dir "$work/data" import "$work/busybox.tar" example.com/busybox:1 --cmd /bin/sh >/dev/null
start_server
soon "the node is ready" shows " Ready " k get nodes
soon "accounts exist" k get serviceaccount default

RANDOM=$seed
echo "seed $seed, $rounds rounds"
declare -A restarts
pods=()
number=0

# A pod that notes each start of its container.
create() {
  number=$((number + 1))
  local name=pod-$number
  k create -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: $name}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: $name
    image: example.com/busybox:1
    command: [sh, -c, "echo start >>/h/$name; while :; do sleep 1; done"]
    volumeMounts: [{name: h, mountPath: /h}]
  volumes: [{name: h, hostPath: {path: "$work/host"}}]
Y
  pods+=("$name")
  restarts[$name]=0
}

# remove INDEX: deletes a pod without waiting for its end.
remove() {
  k delete pod "${pods[$1]}" --wait=false >/dev/null
  unset "restarts[${pods[$1]}]"
  unset "pods[$1]"
  pods=("${pods[@]}")
}

container_of() { field pod "$1" '{.status.containerStatuses[0].containerID}' | sed 's|.*//||'; }
init_of() { sed -n 's/.*"pid":\([0-9]*\).*/\1/p' "$(find "$work/data" -path "*/$1/run.json" | head -n 1)"; }
shims_of() { pgrep -f "^$KAJI shim (start|adopt) .*/$1" || true; }

# Of every pod: whether it is ready, restarts, starts, and processes that run its command, as it should be and as it is.
wanted() {
  local name
  for name in "${pods[@]}"; do echo "$name true ${restarts[$name]} $((restarts[$name] + 1)) 1"; done | sort
}
seen() {
  local name ready count
  k get pods -o 'go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}}{{range .status.containerStatuses}} {{.ready}} {{.restartCount}}{{end}}{{"\n"}}{{end}}{{end}}' |
    while read -r name ready count; do
      [[ -z $name ]] || echo "$name $ready $count $(grep -c start "$work/host/$name" 2>/dev/null || true) $(pgrep -fc "^sh -c echo start >>/h/$name;" || true)"
    done | sort
}
settled() { diff <(wanted) <(seen); }

kill_node() {
  kill -9 "$server" || true
  wait "$server" 2>/dev/null || true
  local id pid
  for id in $(find "$work/data" -name run.json -printf '%h\n' | sed 's|.*/||'); do
    for pid in $(shims_of "$id") $(init_of "$id"); do kill -9 "$pid" 2>/dev/null || true; done
  done
  # What a machine that starts again does not have either: mounts, interfaces, rules.
  local mounted link
  for mounted in $(grep -F " $work/data" /proc/mounts | cut -d' ' -f2 | tac); do umount -l "$mounted"; done
  for link in $(ip -o link show | sed -n 's/^[0-9]*: \([^:@]*\)[:@].*/\1/p'); do
    [[ $link == lo || $link == uplink || $link == far ]] || ip link delete "$link" 2>/dev/null || true
  done
  local name
  for name in "${pods[@]}"; do restarts[$name]=$((restarts[$name] + 1)); done
  start_server
}

for _ in 1 2 3 4; do create; done
soon "pods run" settled
for ((round = 1; round <= rounds; round++)); do
  # The others come and go at the same time.
  ((RANDOM % 3 > 0)) || { remove $((RANDOM % ${#pods[@]})); create; }
  name=${pods[$((RANDOM % ${#pods[@]}))]}
  id=$(container_of "$name" || true)
  what=$((RANDOM % 20))
  if ((what < 6)); then
    text="Kaji"
    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    start_server
  elif ((what < 12)) && [[ -n $id ]]; then
    text="the shim of $name"
    for pid in $(shims_of "$id"); do kill -9 "$pid" || true; done
  elif ((what < 18)) && [[ -n $id ]] && ((restarts[$name] == 0)) && grep -q start "$work/host/$name" 2>/dev/null; then
    text="the container of $name"
    kill -9 "$(init_of "$id")"
    restarts[$name]=1
  elif ((what == 19)); then
    text="the node"
    soon "pods run before the node is killed" settled
    kill_node
  else
    text="nothing"
  fi
  soon "round $round: killed $text" settled
  ((failed == 0)) || { diff <(wanted) <(seen) || true; exit 1; }
  # A container that was started again would wait before it is once more.
  for index in "${!pods[@]}"; do
    if ((restarts[${pods[$index]}] > 0)); then
      remove "$index"
      create
      break
    fi
  done
done
k delete pods --all --now >/dev/null
soon "pods go" shows "No resources found" k get pods
soon "no process is left" eval "! pgrep -f '^$KAJI shim .*$work|^sh -c echo start >>/h/pod-'"
soon "no mount is left" eval "! grep -q '$work/data' /proc/mounts"
soon "no interface is left" eval "[[ -z \$(ip -o link show type veth | grep -vE 'uplink|far') ]]"
soon "no cgroup of a pod is left" no_cgroup_left
soon "no directory of a pod, sandbox or container is left" eval "[[ -z \$(find $work/data -mindepth 1 \\( -path '*/kubelet/pods/*' -o -path '*/containers/sandboxes/*' -o -path '*/containers/containers/*' -o -path '*/leases/*' \\)) ]]"
soon "no log is left" eval "[[ -z \$(find /var/log/pods /var/log/containers -mindepth 1) ]]"
if command -v nft >/dev/null; then
  soon "no rule names a pod" eval "[[ -z \$(nft list ruleset | grep 'pod-') ]]"
fi
kill -TERM "$server"
soon "the server ends" eval "! kill -0 $server 2>/dev/null"
server=
