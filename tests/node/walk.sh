#!/usr/bin/env bash
# A real node, as its user sees it: pods that run, volumes, services, DNS, policies, a killed server, and nothing left behind.
#
#     KAJI=target/release/kaji KUBECTL=kubectl bash tests/node/walk.sh
#
# Everything happens in a network namespace of its own and a mount namespace with a /var/log of its own. It needs root, ip,
# busybox (static), curl and kubectl; without them it is skipped.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/node/pods.sh
source "$(dirname "$0")/pods.sh"
isolate node curl "$KUBECTL"
make_uplink
make_work
trap 'leave node' EXIT

make_image sh cat head echo sleep ls id env httpd nslookup nc test hostname true touch rm mkdir tar
"$KAJI" image --data-dir "$work/data" import "$work/busybox.tar" example.com/busybox:1 --cmd /bin/sh >/dev/null
soon "an image is listed" shows example.com/busybox "$KAJI" image --data-dir "$work/data" ls

mkdir -p "$work/data/kubelet/manifests"
start_server
soon "the node is ready" shows " Ready " k get nodes
node=$(k get nodes -o 'jsonpath={.items[0].metadata.name}')
soon "it names its runtime" shows "kaji://" field node "$node" '{.status.nodeInfo.containerRuntimeVersion}'
soon "accounts exist" k get serviceaccount default

make_pods 3
check_pods 10. 3
k patch service web -p '{"spec":{"type":"LoadBalancer"}}' >/dev/null
soon "a load balancer has the node's address" is 198.51.100.2 field service web '{.status.loadBalancer.ingress[0].ip}'
soon "its service answers there" shows web- bash -c "$request 198.51.100.2 80"
several() { [[ $(for _ in {1..20}; do answer; done | grep ^web- | sort -u | wc -l) == 3 ]]; }
soon "every pod answers" several
soon "the node's logs are listed" shows '<a href="pods/">pods/</a>' k get --raw "/api/v1/nodes/$node/proxy/logs/"

# Streams of kubectl, over each of its protocols.
for websockets in true false; do
  export KUBECTL_REMOTE_COMMAND_WEBSOCKETS=$websockets KUBECTL_PORT_FORWARD_WEBSOCKETS=$websockets
  soon "a command's input and output are streams (WebSockets: $websockets)" copied
  soon "its exit code is kubectl's" exits
  soon "a port is forwarded" forwarded
done
unset KUBECTL_REMOTE_COMMAND_WEBSOCKETS KUBECTL_PORT_FORWARD_WEBSOCKETS
check_names
check_copies
check_debug
check_readiness
check_update

soon "the API shows a container's log" shows green k logs one
soon "and its last line" is token k logs one --tail=1
soon "and that of the container that failed before" k logs crash --previous
soon "a log that is followed ends with its container" shows web- timeout 10 "$KUBECTL" logs --follow asker
k run ticker --image=example.com/busybox:1 --restart=Never --image-pull-policy=Never \
  -- sh -c "for i in 1 2 3 4 5 6; do echo tick \$i; sleep 0.5; done" >/dev/null
soon "a log is followed while it grows" shows "tick 6" timeout 15 "$KUBECTL" logs --follow ticker
soon "the kubelet is healthy" is ok page healthz
soon "it shows what pods use" shows '"name":"one","namespace":"default"' page stats/summary
soon "and what it is asked for by metrics-server" shows 'pod_memory_working_set_bytes{namespace="default",pod="one"}' page metrics/resource
soon "and by dashboards" shows 'container_memory_rss{container="main",id="/kubepods/' page metrics/cadvisor
soon "and its pods" shows '"name":"one"' page pods
soon "and its configuration" shows '"kubeletconfig"' page configz
soon "it answers no client without a token" is 401 \
  curl -sk -o /dev/null -w '%{http_code}' "https://198.51.100.2:10250/pods"

check_policy
soon "without it they are let in" denied web-

k patch configmap settings -p '{"data":{"color":"blue"}}' >/dev/null
soon "a volume follows its configuration map" grep -rq blue "$work/data/kubelet/pods" --include=color
check_resize
resize_cpu() { k patch pod one --subresource resize -p '{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"'"$1"'"},"limits":{"cpu":"'"$1"'"}}}]}}'; }
# Its text, whatever its code.
refused() { "$@" 2>&1 || true; }
soon "a resize beyond the whole node is refused" shows "node didn't have enough allocatable resources: cpu, requested: 900000" refused resize_cpu 900
k apply -f - >/dev/null <<'Y'
apiVersion: v1
kind: Pod
metadata: {name: beside}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "example.com/busybox:1", command: [sleep, "3600"], resources: {requests: {cpu: 100m}}}]
Y
soon "a pod that requests a part of the node runs" is Running field pod beside '{.status.phase}'
resize_cpu "$(field node "$node" '{.status.allocatable.cpu}')" >/dev/null
soon "what the node does not have left is waited for" is Deferred field pod one '{.status.conditions[?(@.type=="PodResizePending")].reason}'
k delete pod beside --now >/dev/null
k apply -f - >/dev/null <<'Y'
apiVersion: v1
kind: Pod
metadata: {name: fills}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "example.com/busybox:1", command: [sh, -c, "while :; do echo text; done | head -c 4000000 > /v/f; sleep 3600"], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]
Y
soon "a pod that fills its volume is evicted" is "Failed Evicted" field pod fills '{.status.phase} {.status.reason}'
mkdir "$work/local"
echo before >"$work/local/old"
k apply -f - >/dev/null <<Y
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: by-hand
  local: {path: "$work/local"}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: ["$node"]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: by-hand, volumeName: disk, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: keeper}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4321}
  containers:
  - name: main
    image: example.com/busybox:1
    command: [sh, -c, "cat /data/old; echo after > /data/new; ls -ln /data; touch /part/made; sleep 3600"]
    volumeMounts: [{name: data, mountPath: /data}, {name: data, mountPath: /part, subPath: part}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
Y
soon "a pod reads the volume of its claim" shows before log keeper main
soon "its files are its group's" shows 4321 log keeper main
soon "a sub-path of it is a directory" test -e "$work/local/part/made"
soon "what it writes is on the volume" grep -q after "$work/local/new"
cat >"$work/data/kubelet/manifests/st.yaml" <<'Y'
apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "example.com/busybox:1", command: [sh, -c, "sleep 3600"]}]
Y
soon "a file becomes a pod" is Running field pod "static-$node" '{.status.phase}'
k delete pod "static-$node" --wait=false >/dev/null
soon "it is shown again when a client deletes it" is Running field pod "static-$node" '{.status.phase}'

before=$(identity)
shims=$(pgrep -fc "^$KAJI shim")
kill -9 "$server"
wait "$server" 2>/dev/null || true
soon "containers go on without the server" is "$shims" pgrep -fc "^$KAJI shim"
soon "and answer" shows web- answer
start_server
soon "the server comes back" shows " Ready " k get nodes
soon "it finds its containers" is 3 field deployment web '{.status.availableReplicas}'
soon "they are the same" is "$before" identity
soon "the volume is mounted still" grep -q "kubernetes.io~local-volume/disk" /proc/mounts

rm "$work/data/kubelet/manifests/st.yaml"
k delete deployment web >/dev/null
k delete pods --all --now >/dev/null
soon "pods go" shows "No resources found" k get pods
none_left() { ! pgrep -f "^$KAJI shim" && ! grep -q "$work" /proc/mounts && [[ -z $(ip -o link show type veth | grep -vE "uplink|far") ]]; }
soon "no process, mount or interface is left" none_left
soon "the volume outlives its pods" grep -q after "$work/local/new"
soon "no cgroup of a pod is left" no_cgroup_left
no_log_left() { [[ -z $(find /var/log/pods -mindepth 1) ]]; }
soon "no log is left" no_log_left
kill -TERM "$server"
soon "the server ends" eval "! kill -0 $server 2>/dev/null"
server=
