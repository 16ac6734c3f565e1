#!/usr/bin/env bash
# A real node over another runtime, as its user sees it: pods in Kaji's own pod network, streams, restarts of Kaji and of the runtime,
# and nothing left behind; then the same with a network of CNI's own plug-ins, where these are installed.
#
#     KAJI=target/release/kaji KUBECTL=kubectl [KAJI_CRI=crio] bash tests/node/cri.sh
#
# Everything happens in a network namespace of its own and a mount namespace with a /run and a /var/log of its own. It needs root,
# the runtime's programs (containerd, ctr and runc, or what cri-runtimes.sh names), ip, busybox (static) and kubectl; without them it is skipped.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
# shellcheck disable=SC2034
patience=60
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/node/pods.sh
source "$(dirname "$0")/pods.sh"
# shellcheck source=tests/node/cri-runtimes.sh
source "$(dirname "$0")/cri-runtimes.sh"
isolate cri "${programs[@]}" "$KUBECTL"
mount -t tmpfs tmpfs /run
make_uplink
make_work
configure_runtime
up+=(--container-runtime-endpoint "unix://$endpoint")

end() { kill "$1" 2>/dev/null && wait "$1" 2>/dev/null || true; }

leave() {
  local code=$?
  trap - EXIT
  [[ -z $server ]] || end "$server"
  if ((code != 0 || failed > 0)); then
    tail -n 30 "$work/kaji.log" || true
    tail -n 15 "$work/runtime.log" || true
  fi
  # Of a walk that failed half-way.
  kill_monitors
  [[ -z $runtime ]] || end "$runtime"
  grep -oE " $work/[^ ]+" /proc/mounts | sort -r | xargs -r umount -l || true
  conclude cri "$code"
}
trap leave EXIT

start_runtime
soon "the runtime answers" runtime_answers

# An image of busybox, which is the sandboxes' too: its own command waits.
make_image sh cat head echo sleep ls id env httpd nslookup nc test hostname true touch rm mkdir
make_archive
import_image

start_server
soon "the node is ready" shows " Ready " k get nodes
node=$(k get nodes -o 'jsonpath={.items[0].metadata.name}')
soon "it names its runtime" shows "$scheme://" field node "$node" '{.status.nodeInfo.containerRuntimeVersion}'
soon "and the runtime's images" shows example.com/busybox field node "$node" '{.status.images}'
soon "accounts exist" k get serviceaccount default

make_pods 2
k apply -f - >/dev/null <<'Y'
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: missing}
handler: missing
Y
check_pods 10.224. 2
soon "its container's id names the runtime" shows "$scheme://" field pod one '{.status.containerStatuses[0].containerID}'
check_names
command_pod classy true --overrides='{"spec":{"runtimeClassName":"missing"}}'
soon "a handler that the runtime lacks is an event" shows "$unknown_handler" k get events
k delete pod classy --now >/dev/null
k run host --image=example.com/busybox:1 --restart=Never --image-pull-policy=Never \
  --overrides='{"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"host","image":"example.com/busybox:1","command":["sh","-c","echo hello > /tmp/index.html; httpd -f -p 80 -h /tmp"],"ports":[{"containerPort":80,"hostPort":8088}]}]}}' >/dev/null
soon "a host port leads to its pod" shows hello bash -c "$request 198.51.100.2 8088"

soon "a command's input and output are streams" copied
soon "its exit code is kubectl's" exits
soon "a port is forwarded" forwarded
soon "the API shows a container's log" shows green k logs one
soon "and that of the container that failed before" k logs crash --previous
soon "the kubelet shows what pods use" shows '"name":"one","namespace":"default"' page stats/summary
soon "and what it is asked for by metrics-server" shows 'pod_memory_working_set_bytes{namespace="default",pod="one"}' page metrics/resource
check_resize
check_policy

before=$(identity)
kill -9 "$server"
wait "$server" 2>/dev/null || true
soon "containers answer without the server" shows web- answer
start_server
soon "the server comes back" shows " Ready " k get nodes
soon "it finds its containers" is 2 field deployment web '{.status.availableReplicas}'
soon "they are the same" is "$before" identity
soon "a command runs in one" exits
kill -9 "$runtime"
wait "$runtime" 2>/dev/null || true
soon "containers answer without the runtime" shows web- answer
start_runtime
soon "the runtime comes back" runtime_answers
soon "a command runs again" exits
k scale deployment web --replicas=3 >/dev/null
soon "a pod starts again" is 3 field deployment web '{.status.availableReplicas}'
same() { [[ -z $(comm -23 <(echo "$before") <(identity)) ]]; }
soon "the others are the same" same

k delete deployment web >/dev/null
k delete pods --all --now --timeout=90s >/dev/null || true
soon "pods go" shows "No resources found" k get pods
nothing() { [[ -z $("$@") ]]; }
soon "no container is left" nothing containers_left
pod_links() { ip -o link show type veth | grep -vE "uplink|far" || true; }
soon "no interface is left" nothing pod_links
namespaces() { ls /run/netns 2>/dev/null || true; }
soon "no network namespace is left" nothing namespaces
kept() { find "$work/data/cri/sandboxes" "$work/data/network/addresses" -type f; }
soon "nothing is kept of sandboxes" nothing kept
soon "no cgroup of a pod is left" no_cgroup_left

# What a node that is taken away has left is removed, the plug-in last.
k run left --image=example.com/busybox:1 --image-pull-policy=Never -- sh -c "sleep 3600" >/dev/null
soon "a pod runs" is Running field pod left '{.status.phase}'
end "$server"
server=
soon "the node is reset" "$KAJI" node reset --data-dir "$work/data"
soon "its pods are gone" nothing containers_left
plugins() { find "$work/cni" ! -type d; }
soon "and its plug-in" nothing plugins

if [[ -x /usr/lib/cni/bridge ]]; then
  cp /usr/lib/cni/{bridge,host-local,loopback,portmap} "$work/cni/bin/"
  cat >"$work/cni/net.d/50-other.conflist" <<'J'
{"cniVersion": "0.4.0", "name": "other", "plugins": [
  {"type": "bridge", "bridge": "other0", "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.99.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
J
  start_server
  soon "a node uses the network that is configured" shows " Ready " k get nodes
  soon "its pod comes back" is Running field pod left '{.status.phase}'
  command_pod guest "sleep 3600"
  soon "a pod is in that network" shows 10.99.0. field pod guest '{.status.podIP}'
  k delete pods --all --now --timeout=90s >/dev/null || true
  soon "pods go from it" nothing containers_left
fi
kill -TERM "$server" 2>/dev/null || true
