#!/usr/bin/env bash
# Three real nodes, each an agent in a network namespace of its own: pods, services and DNS over nodes on one segment and by
# VXLAN, a killed agent with containers that go on, an agent that is stopped, a node that is dead, and nothing left behind.
#
#     KAJI=target/release/kaji KUBECTL=kubectl bash tests/node/nodes.sh
#
# The server and the nodes a and b share a segment, the node c is behind a router. It needs root, ip, busybox (static) and
# kubectl; without them it is skipped.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}

if [[ -z ${KAJI_NODES_INSIDE-} ]]; then
  for tool in ip nsenter unshare busybox "$KUBECTL"; do
    command -v "$tool" >/dev/null || { echo "SKIPPED nodes: $tool is not there"; exit 0; }
  done
  ((EUID == 0)) || { echo "SKIPPED nodes: it needs root"; exit 0; }
  prefix=kaji-nodes-$$
  trap 'for each in router server a b c; do ip netns delete "$prefix-$each"; done' EXIT
  for each in router server a b c; do ip netns add "$prefix-$each"; done
  # Not by `ip netns exec`: its new /sys has no cgroups.
  KAJI=$KAJI KUBECTL=$(command -v "$KUBECTL") KAJI_NODES_INSIDE=$prefix unshare --mount bash "$0"
  exit
fi

mount --make-rprivate /
mount -t tmpfs tmpfs /var/log
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/lib.sh"
make_work
declare -A process

namespace() { echo "--net=/var/run/netns/$KAJI_NODES_INSIDE-$1"; }
# inside NAME COMMAND...: runs a command in a network namespace.
inside() { nsenter "$(namespace "$1")" "${@:2}"; }

# segment NAME PREFIX: a bridge of the router.
segment() {
  inside router ip link add "$1" type bridge
  inside router ip address add "$2.254/24" dev "$1"
  inside router ip link set "$1" up
}

# attach NAME SEGMENT PREFIX NUMBER: an uplink of a machine.
attach() {
  inside router ip link add "to-$1" type veth peer name uplink netns "$KAJI_NODES_INSIDE-$1"
  inside router ip link set "to-$1" master "$2" up
  inside "$1" ip link set lo up
  inside "$1" ip address add "$3.$4/24" dev uplink
  inside "$1" ip link set uplink up
  inside "$1" ip route add default via "$3.254"
}

inside router ip link set lo up
inside router sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
segment near 198.51.100
segment far 203.0.113
attach server near 198.51.100 1
attach a near 198.51.100 2
attach b near 198.51.100 3
attach c far 203.0.113 2

start_server() {
  # Not by a function, which would have a process of its own.
  nsenter "$(namespace server)" "$KAJI" up --nodes none --bind-address 0.0.0.0 --data-dir "$work/server" --port 6443 \
    --node-monitor-period 1s --node-monitor-grace-period 20s --kubeconfig "$KUBECONFIG" >>"$work/server.log" 2>&1 &
  process[server]=$!
}

start_agent() {
  nsenter "$(namespace "$1")" env KAJI_TOKEN="$token" "$KAJI" agent --join 198.51.100.1:6443 --discovery-token-ca-cert-hash "$hash" \
    --node-name "$1" --data-dir "$work/$1" >>"$work/$1.log" 2>&1 &
  process[$1]=$!
}

leave() {
  local code=$? each
  trap - EXIT
  for each in "${!process[@]}"; do kill "${process[$each]}" 2>/dev/null || true; done
  wait 2>/dev/null || true
  ((code == 0 && failed == 0)) || for each in server a b c; do
    echo "== $each"
    tail -n 15 "$work/$each.log" || true
  done
  conclude nodes "$code"
}
trap leave EXIT

k() { inside server "$KUBECTL" "$@"; }
make_image sh cat echo sleep httpd nslookup nc hostname
for each in a b c; do
  "$KAJI" image --data-dir "$work/$each" import "$work/busybox.tar" example.com/busybox:1 --cmd /bin/sh >/dev/null
done

start_server
soon "the server is ready" shows ok k get --raw /readyz
join=$(inside server "$KAJI" token --kubeconfig "$KUBECONFIG" create --print-join-command)
token=$(sed -n 's/.*--token \([^ ]*\).*/\1/p' <<<"$join")
hash=$(sed -n 's/.*--discovery-token-ca-cert-hash \([^ ]*\).*/\1/p' <<<"$join")
for each in a b c; do start_agent "$each"; done
ready() { is True field node "$1" '{.status.conditions[?(@.type=="Ready")].status}'; }
for each in a b c; do soon "node $each is ready" ready "$each"; done
for each in a b c; do soon "node $each has a serving certificate" test -s "$work/$each/pki/kubelet-server-current.pem"; done
soon "a node has the address that reaches the server" shows 198.51.100.2 field node a '{.status.addresses}'
soon "it runs containers" shows "kaji://" field node a '{.status.nodeInfo.containerRuntimeVersion}'
dns_nodes() { k -n kube-system get endpointslice kube-dns -o 'jsonpath={.endpoints[*].nodeName}'; }
soon "cluster DNS has an endpoint a node" is "a b c" dns_nodes
soon "accounts exist" k get serviceaccount default

# pod NAME NODE COMMAND [LABEL]: a pod of a node.
pod() {
  k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: ${4:-none}}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: $2}
  containers: [{name: $1, image: "example.com/busybox:1", command: [sh, -c, "$3"]}]
Y
}
for each in a b c; do
  pod "web-$each" "$each" "hostname > /tmp/index.html; httpd -f -p 80 -h /tmp" web
done
k apply -f - >/dev/null <<'Y'
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
Y
for each in a b c; do soon "a pod runs on node $each" is Running field pod "web-$each" '{.status.phase}'; done
service=$(field service web '{.spec.clusterIP}')
request="printf 'GET / HTTP/1.0\\\\r\\\\n\\\\r\\\\n' | nc -w 3"
for from in a b c; do
  others= wanted=0
  for to in a b c; do
    others+="$request $(field pod "web-$to" '{.status.podIP}') 80; "
  done
  pod "direct-$from" "$from" "$others"
  pod "service-$from" "$from" "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do $request $service 80; done"
  pod "dns-$from" "$from" "nslookup web.default.svc.cluster.local"
done
for from in a b c; do
  for to in a b c; do soon "a pod of node $from reaches a pod of node $to" shows "web-$to" log "direct-$from"; done
  for to in a b c; do soon "by the service as well" shows "web-$to" log "service-$from"; done
  soon "node $from answers names" shows "$service" log "dns-$from"
done
for on in a b c; do
  soon "the API server reads logs of node $on" shows "$service" k logs "dns-$on"
  soon "and runs commands there" shows "web-$on" k exec "web-$on" -- hostname
done
soon "the pods of one segment are routed" shows "via 198.51.100.3 dev uplink" inside a ip route
soon "those behind the router have a tunnel" shows "dev kaji0.vx" inside a ip route
api=$(field service kubernetes '{.spec.clusterIP}')
pod api a "nc -w 3 $api 443 < /dev/null && echo reached"
soon "a pod reaches the API server by its service" shows reached log api

k apply -f - >/dev/null <<'Y'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
Y
denied() {
  k delete pod denied --now --ignore-not-found >/dev/null
  pod denied a "$request $(field pod web-b '{.status.podIP}') 80 || echo refused"
  for _ in {1..50}; do [[ $(field pod denied '{.status.phase}') == Succeeded ]] && break; sleep 0.1; done
  shows "$1" log denied
}
soon "a policy keeps pods of other nodes away" denied refused
k delete networkpolicy closed >/dev/null
soon "without it they are let in" denied web-b

identity() { field pod web-b '{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}'; }
before=$(identity)
kill -9 "${process[b]}"
wait "${process[b]}" 2>/dev/null || true
answers() { inside b bash -c "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | busybox nc -w 3 $(field pod web-b '{.status.podIP}') 80" | grep -q web-b; }
soon "containers go on without their agent" answers
token='' start_agent b
pod again b "echo ran"
soon "the agent comes back without a token" shows ran log again
soon "its containers are the same" is "$before" identity
kill -TERM "${process[c]}"
soon "an agent ends" eval "! kill -0 ${process[c]} 2>/dev/null"
soon "its node serves names no more" is "a b" dns_nodes
token='' start_agent c
soon "and again when it is back" is "a b c" dns_nodes
kill -TERM "${process[server]}"
wait "${process[server]}" 2>/dev/null || true
start_server
soon "the server comes back" shows ok k get --raw /readyz
pod later a "echo ran"
soon "the nodes go on with a server that was started again" shows ran log later

# A node that is dead: neither its agent nor its containers run, and nothing reaches it.
k apply -f - >/dev/null <<'Y'
apiVersion: apps/v1
kind: Deployment
metadata: {name: mover}
spec:
  selector: {matchLabels: {app: mover}}
  template:
    metadata: {labels: {app: mover}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [c]}]}}]}}
      containers: [{name: main, image: "example.com/busybox:1", command: [sh, -c, "hostname > /tmp/index.html; httpd -f -p 80 -h /tmp"]}]
---
apiVersion: v1
kind: Service
metadata: {name: mover}
spec: {selector: {app: mover}, ports: [{port: 80}]}
Y
places() { k get pods -l app=mover --field-selector status.phase=Running -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}'; }
soon "a pod runs on node c" is c places
kill -9 "${process[c]}"
wait "${process[c]}" 2>/dev/null || true
inside c ip link set uplink down
for pid in $(pgrep -f "^$KAJI shim .*$work/c/"); do kill -9 "$pid"; done
patience=45
moved() { places | grep -qE '^[ab]$'; }
soon "a pod of a dead node gets a substitute on another one" moved
patience=20
moved_answers() { inside a bash -c "printf 'GET / HTTP/1.0\r\n\r\n' | busybox nc -w 3 $(field service mover '{.spec.clusterIP}') 80" | grep -q mover-; }
soon "its service leads there" moved_answers
soon "the node is unreachable" is Unknown field node c '{.status.conditions[?(@.type=="Ready")].status}'
inside c ip link set uplink up
inside c ip route add default via 203.0.113.254
token='' start_agent c
soon "the node comes back" ready c
one_place() { [[ $(k get pods -l app=mover -o name | wc -l) == 1 ]]; }
soon "and lets its pod of before go" one_place
k delete deployment mover --wait=false >/dev/null
k delete service mover >/dev/null

kill -TERM "${process[c]}"
wait "${process[c]}" 2>/dev/null || true
reset_c() { inside c "$KAJI" node reset --data-dir "$work/c"; }
in_use() { ! inside a "$KAJI" node reset --data-dir "$work/a" 2>"$work/refusal" && grep -q "used by another process" "$work/refusal"; }
soon "a node that runs is not reset" in_use
soon "one that was stopped is" shows "Nothing of the node" reset_c
nothing_of() {
  ! pgrep -f "^$KAJI shim .*$work/$1/" && ! grep -q "$work/$1/" /proc/mounts && ! inside "$1" ip -o link | grep -E 'kaji0| k[ji][0-9a-f]{12}' &&
    ! inside "$1" ip -o address | grep -vE ' (lo|uplink) ' && ! inside "$1" ip route | grep "10\.2[0-9]*\." &&
    { ! command -v nft >/dev/null || ! inside "$1" nft list tables | grep kaji; } && [[ ! -e $work/$1/containers && ! -e $work/$1/kubelet ]]
}
soon "it left nothing" nothing_of c
unset 'process[c]'
k delete node c >/dev/null
# The pod garbage collector takes them only when the node was missing for 40 s.
k delete pods --field-selector spec.nodeName=c --force --grace-period 0 >/dev/null 2>&1
mapfile -t addresses < <(k get pods -o 'jsonpath={range .items[*]}{.status.podIP}{"\n"}{end}' | grep .)
k delete service web >/dev/null
k delete pods --all --now >/dev/null
soon "pods go" shows "No resources found" k get pods
none_left() { ! pgrep -f "^$KAJI shim .*$work" && ! grep -q "$work" /proc/mounts; }
soon "no process or mount is left" none_left
soon "no cgroup of a pod is left" no_cgroup_left
for each in a b; do
  # shellcheck disable=SC2034
  inside=(inside "$each")
  soon "no layer, record, interface or address of a pod is left on $each" nothing_of_pods "$work/$each"
  soon "and no rule" no_rules "${addresses[@]}"
done
inside=()
for each in a b server; do
  kill -TERM "${process[$each]}"
  soon "$each ends" eval "! kill -0 ${process[$each]} 2>/dev/null"
  unset "process[$each]"
done
reset_node() { inside "$1" "$KAJI" node reset --data-dir "$work/$1"; }
for each in a b; do
  soon "node $each is reset" shows "Nothing of the node" reset_node "$each"
  soon "and leaves nothing" nothing_of "$each"
done
