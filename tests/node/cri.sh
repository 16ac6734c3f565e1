#!/usr/bin/env bash
# A real node over containerd, as its user sees it: pods in Kaji's own pod network, streams, restarts of Kaji and of containerd,
# and nothing left behind; then the same with a network of CNI's own plug-ins, where these are installed.
#
#     KAJI=target/release/kaji KUBECTL=kubectl bash tests/node/cri.sh
#
# Everything happens in a network namespace of its own and a mount namespace with a /run and a /var/log of its own. It needs root,
# containerd with ctr, runc, ip, busybox (static) and kubectl; without them it is skipped.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
# shellcheck disable=SC2034
patience=60
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/lib.sh"
isolate cri containerd ctr runc "$KUBECTL"
mount -t tmpfs tmpfs /run
make_uplink
make_work
export CONTAINERD_ADDRESS=$work/containerd.sock CONTAINERD_NAMESPACE=k8s.io
up+=(--container-runtime-endpoint "unix://$CONTAINERD_ADDRESS")
containerd=

start_containerd() {
  containerd --config "$work/containerd.toml" >>"$work/containerd.log" 2>&1 &
  containerd=$!
}

end() { kill "$1" 2>/dev/null && wait "$1" 2>/dev/null || true; }

leave() {
  local code=$?
  trap - EXIT
  [[ -z $server ]] || end "$server"
  if ((code != 0 || failed > 0)); then
    tail -n 30 "$work/kaji.log" || true
    tail -n 15 "$work/containerd.log" || true
  fi
  # Of a walk that failed half-way.
  kill_containerd_shims
  [[ -z $containerd ]] || end "$containerd"
  grep -oE " $work/[^ ]+" /proc/mounts | sort -r | xargs -r umount -l || true
  conclude cri "$code"
}
trap leave EXIT

configure_containerd
start_containerd
soon "containerd answers" ctr version

# An image of busybox, which is the sandboxes' too: its own command waits.
make_image sh cat head echo sleep ls id env httpd nslookup nc test hostname true touch rm mkdir
make_archive
ctr images import "$work/image.tar" >/dev/null

start_server
soon "the node is ready" shows " Ready " k get nodes
node=$(k get nodes -o 'jsonpath={.items[0].metadata.name}')
soon "it names its runtime" shows "containerd://" field node "$node" '{.status.nodeInfo.containerRuntimeVersion}'
soon "and the runtime's images" shows example.com/busybox field node "$node" '{.status.images}'
soon "accounts exist" k get serviceaccount default

k apply -f - >/dev/null <<'Y'
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: green}
---
apiVersion: v1
kind: Pod
metadata: {name: one, labels: {app: one}}
spec:
  initContainers:
  - {name: first, image: "example.com/busybox:1", command: [sh, -c, "echo made > /scratch/f"], volumeMounts: [{name: scratch, mountPath: /scratch}]}
  containers:
  - name: main
    image: example.com/busybox:1
    command: [sh, -c, "cat /scratch/f /settings/color; echo; id -u; echo address=$ADDRESS; hostname; test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo token; sleep 3600"]
    env: [{name: ADDRESS, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
    securityContext: {runAsUser: 1000, runAsNonRoot: true, readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 100m, memory: 32Mi}}
    readinessProbe: {exec: {command: [cat, /scratch/f]}, periodSeconds: 1}
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: settings, mountPath: /settings}]
  terminationGracePeriodSeconds: 1
  volumes: [{name: scratch, emptyDir: {medium: Memory}}, {name: settings, configMap: {name: settings}}]
---
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec:
  containers: [{name: main, image: "example.com/busybox:1", command: [sh, -c, "exit 3"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: absent}
spec:
  containers: [{name: main, image: "example.com/busybox:1", command: [/no/such/program]}]
  restartPolicy: Never
---
apiVersion: v1
kind: Pod
metadata: {name: sick}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "example.com/busybox:1", command: [sh, -c, "sleep 3600"], livenessProbe: {exec: {command: ["test", "-e", "/none"]}, periodSeconds: 1, failureThreshold: 1}}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: missing}
handler: missing
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "example.com/busybox:1", command: [sh, -c, "hostname > /tmp/index.html; httpd -f -p 80 -h /tmp"], readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
Y
soon "a pod is ready" is True field pod one '{.status.conditions[?(@.type=="Ready")].status}'
for wanted in made green 1000 "address=10.224." one token; do soon "its container says $wanted" shows "$wanted" log one main; done
soon "its init container is recorded as completed" is "first Completed" field pod one '{range .status.initContainerStatuses[*]}{.name} {.state.terminated.reason}{end}'
soon "its container's id names the runtime" shows containerd:// field pod one '{.status.containerStatuses[0].containerID}'
soon "a container that fails is started again" is 3 field pod crash '{.status.containerStatuses[0].lastState.terminated.exitCode}'
soon "and waits longer each time" is CrashLoopBackOff field pod crash '{.status.containerStatuses[0].state.waiting.reason}'
soon "a program that is absent is a StartError" is "StartError 128" field pod absent '{.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode}'
restarted() { (($(field pod sick '{.status.containerStatuses[0].restartCount}') > 0)); }
soon "a container that is not alive is started again" restarted
soon "a deployment is available" is 2 field deployment web '{.status.availableReplicas}'
service=$(field service web '{.spec.clusterIP}')
request="printf 'GET / HTTP/1.0\\r\\n\\r\\n' | busybox nc -w 3"
answer() { bash -c "$request $service 80"; }
soon "its service answers on the node" shows web- answer

command_pod() {
  k run "$1" --image=example.com/busybox:1 --restart=Never --image-pull-policy=Never "${@:3}" -- sh -c "$2" >/dev/null
}
command_pod asker "nslookup web.default.svc.cluster.local; $request $service 80"
soon "a pod finds the service by its name" shows "$service" log asker asker
soon "a pod reaches the service" shows web- log asker asker
soon "a pod that ends is recorded as completed" is Succeeded field pod asker '{.status.phase}'
command_pod classy true --overrides='{"spec":{"runtimeClassName":"missing"}}'
soon "a handler that the runtime lacks is an event" shows 'no runtime for "missing" is configured' k get events
k delete pod classy --now >/dev/null
k run host --image=example.com/busybox:1 --restart=Never --image-pull-policy=Never \
  --overrides='{"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"host","image":"example.com/busybox:1","command":["sh","-c","echo hello > /tmp/index.html; httpd -f -p 80 -h /tmp"],"ports":[{"containerPort":80,"hostPort":8088}]}]}}' >/dev/null
soon "a host port leads to its pod" shows hello bash -c "$request 198.51.100.2 8088"

input_hash=$(head -c 3000000 "$KAJI" | cksum)
copied() { [[ $(head -c 3000000 "$KAJI" | k exec -i one -c main -- cat | cksum) == "$input_hash" ]]; }
exits() { local code=0; k exec one -c main -- sh -c 'exit 7' || code=$?; [[ $code == 7 ]]; }
forwarded() {
  local forwarder i
  k port-forward deployment/web 18080:80 >"$work/forward" 2>&1 &
  forwarder=$!
  for ((i = 0; i < 50; i++)); do ! grep -q Forwarding "$work/forward" || break; sleep 0.1; done
  i=0
  shows web- bash -c "$request 127.0.0.1 18080" || i=1
  kill "$forwarder" && wait "$forwarder" || true
  return "$i"
}
soon "a command's input and output are streams" copied
soon "its exit code is kubectl's" exits
soon "a port is forwarded" forwarded
soon "the API shows a container's log" shows green k logs one
soon "and that of the container that failed before" k logs crash --previous
page() { k get --raw "/api/v1/nodes/$node/proxy/$1"; }
soon "the kubelet shows what pods use" shows '"name":"one","namespace":"default"' page stats/summary
soon "and what it is asked for by metrics-server" shows 'pod_memory_working_set_bytes{namespace="default",pod="one"}' page metrics/resource
k patch pod one --subresource resize -p '{"spec":{"containers":[{"name":"main","resources":{"limits":{"memory":"48Mi"}}}]}}' >/dev/null
soon "a container gets more memory while it runs" is "48Mi 0" field pod one '{.status.containerStatuses[0].resources.limits.memory} {.status.containerStatuses[0].restartCount}'

k apply -f - >/dev/null <<'Y'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
Y
denied() {
  k delete pod denied --now --ignore-not-found >/dev/null
  command_pod denied "$request $service 80 || echo refused"
  for _ in {1..50}; do [[ $(field pod denied '{.status.phase}') == Succeeded ]] && break; sleep 0.1; done
  shows "$1" log denied denied
}
soon "a policy keeps pods away" denied refused
k delete networkpolicy closed >/dev/null

identity() { k get pods -l app=web -o 'jsonpath={range .items[*]}{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{"\n"}{end}' | sort; }
before=$(identity)
kill -9 "$server"
wait "$server" 2>/dev/null || true
soon "containers answer without the server" shows web- answer
start_server
soon "the server comes back" shows " Ready " k get nodes
soon "it finds its containers" is 2 field deployment web '{.status.availableReplicas}'
soon "they are the same" is "$before" identity
soon "a command runs in one" exits
kill -9 "$containerd"
wait "$containerd" 2>/dev/null || true
soon "containers answer without containerd" shows web- answer
start_containerd
soon "containerd comes back" ctr version
soon "a command runs again" exits
k scale deployment web --replicas=3 >/dev/null
soon "a pod starts again" is 3 field deployment web '{.status.availableReplicas}'
same() { ! comm -23 <(echo "$before") <(identity) | grep -q .; }
soon "the others are the same" same

# Other nodes of this machine have cgroups beside.
uids=$(k get events -o 'jsonpath={range .items[*]}{.involvedObject.uid}{"\n"}{end}' | grep -E '^[0-9a-f-]{36}$' | sort -u)
k delete deployment web >/dev/null
k delete pods --all --now --timeout=90s >/dev/null || true
soon "pods go" shows "No resources found" k get pods
nothing() { [[ -z $("$@") ]]; }
soon "no container is left" nothing ctr containers ls -q
pod_links() { ip -o link show type veth | grep -vE "uplink|far" || true; }
soon "no interface is left" nothing pod_links
namespaces() { ls /run/netns 2>/dev/null || true; }
soon "no network namespace is left" nothing namespaces
kept() { find "$work/data/cri/sandboxes" "$work/data/network/addresses" -type f; }
soon "nothing is kept of sandboxes" nothing kept
cgroups_left() { find /sys/fs/cgroup -path '*kubepods*' -type d -name 'pod*' 2>/dev/null | grep -F "$uids" || true; }
soon "no cgroup of a pod is left" nothing cgroups_left

# What a node that is taken away has left is removed, the plug-in last.
k run left --image=example.com/busybox:1 --image-pull-policy=Never -- sh -c "sleep 3600" >/dev/null
soon "a pod runs" is Running field pod left '{.status.phase}'
end "$server"
server=
soon "the node is reset" "$KAJI" node reset --data-dir "$work/data"
soon "its pods are gone" nothing ctr containers ls -q
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
  soon "pods go from it" nothing ctr containers ls -q
fi
kill -TERM "$server" 2>/dev/null || true
