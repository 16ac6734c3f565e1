#!/usr/bin/env bash
# `kaji up` without root: real pods in a user namespace, with a range of ids and with a single one. Logs, exec, a forwarded port, a
# service by its name, a killed server with containers that go on, a reset, and nothing left behind.
#
#     KAJI=target/release/kaji KUBECTL=kubectl bash tests/node/rootless.sh
#
# A user is made up in a mount namespace of its own, where /etc/passwd, /etc/subuid and /etc/subgid name it, and everything happens in
# a network namespace of its own. It needs root for these, ip, setpriv, busybox (static) and kubectl, and a kernel that allows user
# namespaces; without them it is skipped.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
# shellcheck disable=SC2034
patience=30
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/lib.sh"
isolate rootless setpriv "$KUBECTL"
make_work
trap 'leave rootless' EXIT
chmod 711 "$work"
make_image sh cat echo sleep httpd nslookup nc id true
chmod -R a+rX "$work/root" "$work/busybox.tar"

# What other users cannot see cannot be run by them.
user=64123
home=$work/home
mkdir -p "$home" "$work/run"
chown $user:$user "$home" "$work/run"
chmod 700 "$home" "$work/run"
as_user() {
  cd "$home" && exec setpriv --reuid $user --regid $user --clear-groups --inh-caps=-all \
    env HOME="$home" XDG_RUNTIME_DIR="$work/run" "$@"
}
if ! (as_user unshare --user --map-root-user true) 2>"$work/out"; then
  echo "SKIPPED rootless: $(head -n 1 "$work/out")"
  exit 0
fi
(as_user test -x "$KAJI") || { echo "SKIPPED rootless: other users cannot reach $KAJI"; exit 0; }

# named FILE LINE: the file has the line in this mount namespace.
named() {
  [[ -e $1 ]] || return 0
  { cat "$1"; echo "$2"; } >"$work/$(basename "$1")"
  chmod 644 "$work/$(basename "$1")"
  mount --bind "$work/$(basename "$1")" "$1"
}
named /etc/passwd "walker:x:$user:$user::$home:/bin/sh"
named /etc/group "walker:x:$user:"
KUBECONFIG=$home/kubeconfig
start_server() {
  (as_user "$KAJI" up "${up[@]}" --data-dir "$home/data" --port 6443 --kubeconfig "$KUBECONFIG") >>"$work/kaji.log" 2>&1 &
  server=$!
}
# Whether the newest start says so.
says() { tail -n 6 "$work/kaji.log" | grep -qF -- "$1"; }
field_of_nodes() { k get nodes -o "jsonpath=$1"; }
ready() { is True field_of_nodes '{.items[0].status.conditions[?(@.type=="Ready")].status}'; }
# pod NAME COMMAND [FIELDS]
pod() {
  k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: $1}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers: [{name: $1, image: "example.com/busybox:1", command: [sh, -c, "$2"]${3-}}]
Y
}
phase() { field pod "$1" '{.status.phase}'; }
identity() { field pod web '{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}'; }
# Of the user: processes that the server has left.
of_user() { pgrep -u $user -f "$1"; }

# Everything that does not depend on how many ids there are.
walk() {
  (as_user "$KAJI" image --data-dir "$home/data" import "$work/busybox.tar" example.com/busybox:1 --cmd /bin/sh) >"$work/out" 2>&1 \
    || { cat "$work/out"; exit 1; }
  start_server
  soon "$1: the node is ready" ready
  soon "$1: and says that it is without root" says "without root"
  soon "$1: accounts exist" k get serviceaccount default
  pod web "echo served > /tmp/index.html; echo started; httpd -f -p 80 -h /tmp" \
    ', resources: {limits: {cpu: 500m, memory: 64Mi}}, readinessProbe: {httpGet: {path: /index.html, port: 80}, periodSeconds: 1}'
  soon "$1: a pod with limits runs" is Running phase web
  soon "$1: its probe reaches it" is True field pod web '{.status.conditions[?(@.type=="Ready")].status}'
  soon "$1: its log is there" shows started k logs web
  soon "$1: a command runs in it" shows "uid=0" k exec web -- id
  k expose pod web --port 8000 --target-port 80 >/dev/null
  local api
  api=$(field service kubernetes '{.spec.clusterIP}')
  # The service's rules may come after the pod.
  pod asker "until nslookup web.default.svc.cluster.local; do sleep 0.2; done; until printf 'GET /index.html HTTP/1.0\\\\r\\\\n\\\\r\\\\n' | nc -w 3 web 8000; do sleep 0.2; done; until nc -w 3 $api 443 < /dev/null; do sleep 0.2; done; echo reached"
  soon "$1: another pod finds its service by name" shows "web.default.svc.cluster.local" k logs asker
  soon "$1: and reaches it" shows served k logs asker
  soon "$1: and the API server" shows reached k logs asker
  soon "$1: which reaches pods" is served k get --raw "/api/v1/namespaces/default/pods/web:80/proxy/index.html"
  k port-forward pod/web 18080:80 >"$work/forward" 2>&1 &
  local forward=$!
  soon "$1: a port is forwarded" shows served curl -s --noproxy '*' http://127.0.0.1:18080/index.html
  kill "$forward"
  wait "$forward" 2>/dev/null || true
  soon "$1: usage is known" shows '"name":"web","namespace":"default"' k get --raw "/api/v1/nodes/$(field_of_nodes '{.items[0].metadata.name}')/proxy/stats/summary"

  k apply -f - >/dev/null <<'Y'
apiVersion: v1
kind: Pod
metadata: {name: together}
spec:
  restartPolicy: Never
  shareProcessNamespace: true
  containers: [{name: together, image: "example.com/busybox:1", command: [sh, -c, "sleep 86399 & echo left"]}]
Y
  soon "$1: containers can share their processes" is Succeeded phase together
  soon "$1: and leave none" eval "! of_user '^sleep 86399'"
  k apply -f - >/dev/null <<'Y'
apiVersion: v1
kind: Pod
metadata: {name: machine}
spec:
  restartPolicy: Never
  hostNetwork: true
  hostPID: true
  hostIPC: true
  containers: [{name: machine, image: "example.com/busybox:1", command: [sh, -c, "nc -w 2 127.0.0.1 10256 </dev/null && echo answered"]}]
Y
  soon "$1: the node's namespaces can be used" shows answered k logs machine

  local before
  before=$(identity)
  kill -9 "$server"
  wait "$server" 2>/dev/null || true
  soon "$1: containers outlive a killed server" of_user "shim .*$home"
  start_server
  soon "$1: the server comes back" shows ok k get --raw /readyz
  soon "$1: and forwards commands to them" shows "uid=0" k exec web -- id
  soon "$1: they are the same" is "$before" identity
}

# Ends the server and takes away what it left.
finish() {
  k delete pod asker --wait >/dev/null
  soon "$1: a deleted pod is gone" eval "! k get pod asker"
  kill -TERM "$server"
  wait "$server" 2>/dev/null || true
  server=
  soon "$1: a reset removes the pods" shows "Nothing of the node" as_user_in_shell "$KAJI" node reset --data-dir "$home/data"
  soon "$1: no process is left" eval "! of_user ."
  soon "$1: no container, pod or mount is left" nothing_left
  soon "$1: commands find namespaces while those of others end" at_once_and_again
  soon "$1: no process is left by them" eval "! of_user ."
}
# A sequence of commands beside others: each enters the namespaces that another one has just left, or makes new ones.
at_once_and_again() {
  local i code=0 others
  for ((i = 0; i < 20; i++)); do as_user_in_shell "$KAJI" image --data-dir "$home/data" ls; done &
  others=$!
  for ((i = 0; i < 20 && code == 0; i++)); do as_user_in_shell "$KAJI" node reset --data-dir "$home/data" || code=1; done
  wait "$others" && return $code
}
as_user_in_shell() { (as_user "$@"); }
nothing_left() {
  [[ ! -e $home/data/containers && ! -e $home/data/kubelet/pods ]] && ! grep -q "$home" /proc/mounts \
    && [[ -z $(ip -o link | grep -v " lo:") ]]
}

if command -v newuidmap >/dev/null && [[ -e /etc/subuid && -e /etc/subgid ]]; then
  named /etc/subuid "walker:200000:65536"
  named /etc/subgid "walker:200000:65536"
  walk range
  pod other "id" ', securityContext: {runAsUser: 1000, runAsGroup: 1000}'
  soon "range: a container has another user" shows "uid=1000 gid=1000" k logs other
  finish range
  umount /etc/subuid /etc/subgid
  rm -rf --one-file-system "$home/data"
else
  echo "SKIPPED rootless-range: newuidmap, /etc/subuid or /etc/subgid is not there"
fi
walk single
soon "single: the start says that there is one id" says "no other user than root"
pod other "id" ', securityContext: {runAsUser: 1000}'
soon "single: another user is refused with the reason" shows "/etc/subuid" k get events
finish single

# A cluster with a name, in the background: the user that starts it can stop it and remove all of it.
(as_user "$KAJI" image --data-dir "$home/base" --cluster walked import "$work/busybox.tar" example.com/busybox:1 --cmd /bin/sh) >"$work/out" 2>&1 \
  || { cat "$work/out"; exit 1; }
in_background() { as_user_in_shell "$KAJI" "$1" "${@:2}" --data-dir "$home/base" 2>&1; }
soon "named: it starts in the background" shows "(context kaji-walked)" in_background up --name walked --detach "${up[@]}" --port 6443 --kubeconfig "$KUBECONFIG"
soon "named: it is ready, with its node" shows "1 of 1 nodes ready" in_background status walked
pod stays "sleep 86398"
soon "named: a pod runs" is Running phase stays
soon "named: it is deleted with its containers" shows "Deleted cluster walked" in_background delete walked
soon "named: no process is left" eval "! of_user ."
soon "named: nor a file" eval '[[ ! -e $home/base/clusters/walked ]]'
