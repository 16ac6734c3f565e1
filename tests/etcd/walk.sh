#!/usr/bin/env bash
# The acceptance walk on three servers over three etcd members, while one server is restarted every ten seconds and one member every
# thirty; beside it, a client that writes and reads without pause.
#
#     KAJI=target/release/kaji KUBECTL=kubectl bash tests/etcd/walk.sh [WALKTHROUGH]
#
# WALKTHROUGH is the acceptance walk, by default the one beside the checkout. KAJI_NEXT names another build of the program, which servers
# are started with from their second start on: a rolling upgrade; then they go back to the first one. KAJI_WALKS says how often the
# walk is repeated. etcd, etcdctl and python3 are taken from the PATH. Everything listens on the loopback.
#
# A server is restarted as a rollout does it: it gets SIGTERM, fails /readyz for its delay, ends, and is started again over the same
# data directory. The next one follows when it is ready. Members get SIGTERM, and are started again after a second.
set -euo pipefail
# shellcheck source=../races.sh
source "$(dirname "$0")/../races.sh"
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KAJI_NEXT=$(realpath "${KAJI_NEXT:-$KAJI}")
KUBECTL=${KUBECTL:-kubectl}
here=$(cd "$(dirname "$0")" && pwd)
walkthrough=${1:-$here/../../../shared/accept/walkthrough.sh}
for tool in etcd etcdctl python3 "$KUBECTL"; do
  command -v "$tool" >/dev/null || { echo "SKIPPED etcd-walk: $tool is not there"; exit 0; }
done
[[ -f $walkthrough ]] || { echo "SKIPPED etcd-walk: there is no $walkthrough"; exit 0; }

work=$(mktemp -d)
export NO_PROXY='*' no_proxy='*' KUBECONFIG=$work/kubeconfig ETCDCTL_API=3
# Below the range from which clients get their ports.
base=$((20000 + $$ % 6000))
balanced=$base
declare -A pids=() starts=()
failed=0

say() { echo "$(date +%T) $*"; }
start() {
  local name=$1
  shift
  "$@" >>"$work/$name.log" 2>&1 &
  pids[$name]=$!
}
# end NAME: with notice; killed after 30 seconds.
end() {
  local pid=${pids[$1]-} i
  [[ -n $pid ]] || return 0
  kill -TERM "$pid" 2>/dev/null || true
  for ((i = 0; i < 300; i++)); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  if kill -9 "$pid" 2>/dev/null; then say "$1 did not end in time"; failed=1; fi
  wait "$pid" 2>/dev/null || true
  unset "pids[$1]"
}
leave() {
  local code=$? name
  trap - EXIT
  for name in "${!pids[@]}"; do kill -9 "${pids[$name]}" 2>/dev/null || true; done
  wait 2>/dev/null || true
  if ((code == 0 && failed == 0)); then rm -rf "$work"; else echo "the logs are in $work"; fi
  ((code != 0 || failed == 0)) || code=1
  exit "$code"
}
trap leave EXIT
trap 'exit 130' INT TERM

# within SECONDS TEXT COMMAND...
within() {
  local until=$((SECONDS + $1)) text=$2
  shift 2
  until "$@" >"$work/out" 2>&1; do
    if ((SECONDS >= until)); then
      say "FAIL $text"
      tail -n 5 "$work/out"
      exit 1
    fi
    sleep 0.1
  done
}

member_port() { echo $((base + 10 + 2 * $1)); }
server_port() { echo $((base + 1 + $1)); }
urls=$(for i in 0 1 2; do echo "http://127.0.0.1:$(member_port $i)"; done | paste -sd,)
initial=$(for i in 0 1 2; do echo "m$i=http://127.0.0.1:$(($(member_port $i) + 1))"; done | paste -sd,)

start_member() {
  local client peer
  client=http://127.0.0.1:$(member_port "$1")
  peer=http://127.0.0.1:$(($(member_port "$1") + 1))
  start "m$1" etcd --name "m$1" --data-dir "$work/m$1" --log-level warn \
    --listen-client-urls "$client" --advertise-client-urls "$client" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "$initial"
}
# Every other start is with the other build, if there is one. A build from before these flags closes its port at once, and so requests fail.
start_server() {
  local count=${starts[$1]:-0} program ends=()
  ((count % 2 == 0)) && program=$KAJI || program=$KAJI_NEXT
  starts[$1]=$((count + 1))
  if "$program" apiserver --help | grep -q -- --shutdown-delay-duration; then
    ends=(--shutdown-delay-duration 2s --goaway-chance 0.01)
  fi
  start "s$1" "$program" apiserver --controllers '*' --data-dir "$work/d$1" --port "$(server_port "$1")" \
    --kubeconfig "$work/s$1.kubeconfig" --etcd-servers "$urls" --advertise-address "10.9.0.$(($1 + 1))" "${ends[@]}"
}
server_is_ready() { grep -qw "$(server_port "$1")" "$work/ready"; }

for i in 0 1 2; do start_member $i; done
for i in 0 1 2; do
  # Servers of a cluster have one authority.
  if ((i > 0)); then mkdir "$work/d$i" && cp -r "$work/d0/pki" "$work/d$i/pki"; fi
  start_server $i
  within 60 "server $i writes its kubeconfig" test -s "$work/s$i.kubeconfig"
done
: >"$work/ready"
start balancer python3 "$here/balancer.py" "$balanced" "$work/ready" "$(server_port 0)" "$(server_port 1)" "$(server_port 2)"
for i in 0 1 2; do within 60 "server $i is ready" server_is_ready $i; done
sed "s#https://[^ ]*#https://127.0.0.1:$balanced#" "$work/s0.kubeconfig" >"$KUBECONFIG"

k() { "$KUBECTL" "$@"; }
# kubectl keeps what it discovered per address and port, which other runs have used.
export HOME=$work
token=$("$KAJI" token create --kubeconfig "$work/s0.kubeconfig" --print-join-command)
for i in 1 2; do
  # shellcheck disable=SC2086
  start "n$i" "$KAJI" ${token#*kaji } --simulated --node-name "node-$i" --data-dir "$work/n$i"
done
nodes_are_ready() { (($(k get nodes --no-headers | grep -cw Ready) == 2)); }
within 90 "two nodes are ready" nodes_are_ready
k create namespace load >/dev/null

for name in certificate-authority client-certificate client-key; do
  grep -m1 "$name-data:" "$KUBECONFIG" | awk '{print $2}' | base64 -d >"$work/$name"
done
start load python3 "$here/load.py" "https://127.0.0.1:$balanced" "$work/certificate-authority" "$work/client-certificate" \
  "$work/client-key" "$work/outcome"

# What happens to the processes while the walk goes on, in this shell, which is their parent.
servers_restarted=0 members_restarted=0

walk() {
  local begun=$SECONDS server_at=$((SECONDS + 5)) member_at=$((SECONDS + 15)) walk i
  bash "$walkthrough" >"$work/walk.out" 2>&1 &
  walk=$!
  while kill -0 "$walk" 2>/dev/null; do
    if ((SECONDS >= server_at)); then
      i=$((servers_restarted % 3))
      say "server $i is restarted"
      server_at=$((SECONDS + 10))
      end "s$i"
      start_server $i
      within 60 "server $i is ready again" server_is_ready $i
      servers_restarted=$((servers_restarted + 1))
    fi
    if ((SECONDS >= member_at)); then
      i=$((members_restarted % 3))
      say "member $i is restarted"
      member_at=$((SECONDS + 30))
      end "m$i"
      sleep 1
      start_member $i
      members_restarted=$((members_restarted + 1))
    fi
    sleep 0.2
  done
  local code=0
  wait "$walk" || code=$?
  grep -A12 '^FAIL' "$work/walk.out" || true
  say "the walk: $(tail -n 1 "$work/walk.out"), in $((SECONDS - begun)) s"
  return $code
}
# Walks until nothing fails; again when only the race did, which a loaded machine loses often.
whole_walk() {
  local attempt
  for attempt in 1 2 3 4 5; do
    ((attempt == 1)) || say "the walk is repeated"
    walk && return
    pod_went_between_requests "$work/walk.out" || return 1
  done
  return 1
}
for ((n = 0; n < ${KAJI_WALKS:-1}; n++)); do whole_walk || failed=1; done

kill -TERM "${pids[load]}"
wait "${pids[load]}" || failed=1
unset "pids[load]"
cat "$work/outcome"
say "$servers_restarted restarts of servers, $members_restarted of members"
for i in 1 2; do end "n$i"; done
for i in 0 1 2; do end "s$i"; done
((failed == 0)) && echo "etcd-walk: passed" || echo "etcd-walk: FAILED"
