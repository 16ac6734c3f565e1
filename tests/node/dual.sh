#!/usr/bin/env bash
# A real node with an address of each family: pods, services, node ports, names and health over IPv4 and IPv6, DNS with resolvers of an
# administrator, images by a mirror, and nothing left behind.
#
#     KAJI=target/release/kaji KUBECTL=kubectl bash tests/node/dual.sh
#
# Everything happens in a network namespace of its own and a mount namespace with a /var/log of its own. It needs root, ip, ss, curl,
# python3, busybox (static) and kubectl; without them it is skipped.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/lib.sh"
isolate dual curl ss python3 "$KUBECTL"
sysctl -q -w net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.accept_dad=0 2>/dev/null || true
make_uplink
v4=198.51.100.2 v6=2001:db8:100::2
ip address add "$v6/64" dev uplink nodad
ip route add default via 2001:db8:100::1 dev uplink
make_work
# resolver ADDRESS LAST: every name has the address 192.0.2.LAST.
resolver() {
  ip address add "$1/32" dev lo
  python3 -c '
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((sys.argv[1], 53))
while True:
    query, client = udp.recvfrom(4096)
    question = query[12:12 + query[12:].index(0) + 5]
    record = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + bytes([192, 0, 2, int(sys.argv[2])])
    udp.sendto(query[:2] + b"\x85\x80\0\1\0\1\0\0\0\0" + question + record, client)
' "$1" "$2" &
  resolvers+=("$!")
}
resolvers=()
trap 'kill "${resolvers[@]}" 2>/dev/null || true; leave dual' EXIT
resolver 198.51.100.53 7
resolver 198.51.100.54 8

make_image sh cat echo sleep httpd nslookup nc hostname ip
"$KAJI" image --data-dir "$work/data" import "$work/busybox.tar" example.com/busybox:1 --cmd /bin/sh >/dev/null
# A registry without TLS that is made of files.
serve_registry() {
  local layer config repository=$work/registry/v2/team/tool
  mkdir -p "$repository"/{manifests,blobs}
  layer=$(sha256sum "$work/busybox.tar" | cut -d ' ' -f 1)
  cp "$work/busybox.tar" "$repository/blobs/sha256:$layer"
  printf '{"architecture":"%s","os":"linux","config":{"Cmd":["/bin/sleep","3600"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(dpkg --print-architecture 2>/dev/null || echo amd64)" "$layer" >"$work/config.json"
  config=$(sha256sum "$work/config.json" | cut -d ' ' -f 1)
  cp "$work/config.json" "$repository/blobs/sha256:$config"
  printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":{"mediaType":"%s.config.v1+json","digest":"sha256:%s","size":%d},"layers":[{"mediaType":"%s.layer.v1.tar","digest":"sha256:%s","size":%d}]}' \
    application/vnd.oci.image application/vnd.oci.image "$config" "$(stat -c %s "$work/config.json")" \
    application/vnd.oci.image "$layer" "$(stat -c %s "$work/busybox.tar")" >"$repository/manifests/v1"
  busybox httpd -f -p 198.51.100.53:5000 -h "$work/registry" &
  resolvers+=("$!")
}
serve_registry
echo 'mirors: {}' >"$work/registries.yaml"
refused() { ! timeout 20 "$KAJI" up --nodes real --registries "$work/registries.yaml" --data-dir "$work/other" --port 0 --no-kubeconfig 2>"$work/refusal" && grep -qF "$work/registries.yaml" "$work/refusal"; }
soon "a server does not start with registries that it cannot read, and names the file" refused
echo 'mirrors: {}' >"$work/registries.yaml"
cat >"$work/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
resolvConf: $work/resolv.conf
Y
echo "nameserver 192.0.2.53" >"$work/resolv.conf"
up=(--nodes real --service-cidr 10.96.0.0/12,fd00:10:96::/112 --cluster-cidr 10.244.0.0/16,fd00:10:244::/56 --node-ip "$v4,$v6"
  --cluster-domain walk.internal --kubelet-config "$work/kubelet.yaml" --registries "$work/registries.yaml")
start_server
soon "the node is ready" shows " Ready " k get nodes
node=$(k get nodes -o 'jsonpath={.items[0].metadata.name}')
soon "it has an address of each family" is "$v4 $v6" field node "$node" '{.status.addresses[?(@.type=="InternalIP")].address}'
soon "and a range of each" shows fd00:10:244 field node "$node" '{.spec.podCIDRs}'
soon "accounts exist" k get serviceaccount default

k apply -f - >/dev/null <<'Y'
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
      containers: [{name: main, image: "example.com/busybox:1", command: [sh, -c, "hostname > /tmp/index.html; httpd -f -p 80 -h /tmp"]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: host}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{name: host, image: "example.com/busybox:1", command: [sleep, "3600"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: own}
spec:
  dnsPolicy: Default
  terminationGracePeriodSeconds: 1
  containers: [{name: own, image: "example.com/busybox:1", command: [sh, -c, "cat /etc/resolv.conf; sleep 3600"]}]
Y
soon "pods run" is 2 field deployment web '{.status.availableReplicas}'
ips() { field pod "$1" "{.status.$2[*].ip}"; }
soon "a pod of the node's network has both addresses" is "$v4 $v6" ips host podIPs
soon "its host, too" is "$v4 $v6" ips host hostIPs
soon "a pod has one of each family" shows fd00:10:244 ips own podIPs
soon "and knows both of its node" is "$v4 $v6" ips own hostIPs
service4=$(field service web '{.spec.clusterIPs[0]}')
service6=$(field service web '{.spec.clusterIPs[1]}')
request="printf 'GET / HTTP/1.0\\r\\n\\r\\n' | busybox nc -w 3"
for address in "$service4 80" "$service6 80" "$v4 30080" "$v6 30080"; do
  soon "the service answers at $address" shows web- bash -c "$request $address"
done
k run asker --image=example.com/busybox:1 --restart=Never --image-pull-policy=Never -- sh -c \
  "nslookup web.default.svc.walk.internal; for at in '$service4 80' '$service6 80' '$v6 30080'; do $request \$at || echo no answer at \$at; done; echo done" >/dev/null
soon "a pod asks" shows done log asker
soon "it finds the service's IPv4 address" shows "$service4" log asker
soon "and the IPv6 one" shows "$service6" log asker
reached() { [[ $(log asker | grep -c web-) == 3 ]]; }
soon "it reaches all of them" reached
for address in "$v4" "[$v6]"; do
  soon "the proxy's health is served at $address" is 200 curl -s -o /dev/null -w '%{http_code}' "http://$address:10256/healthz"
  soon "DNS listens there" shows "$address:10053" ss -lnut
done
soon "metrics of the proxy are served on the loopback" shows kubeproxy_ curl -s http://127.0.0.1:10249/metrics
soon "and nowhere else" is 000 curl -s -o /dev/null -w '%{http_code}' "http://$v4:10249/metrics"

soon "a pod with the node's resolvers has those of the file" shows "nameserver 192.0.2.53" log own
echo "nameserver 198.51.100.53" >"$work/resolv.conf"
# later NAME HOST: a pod that asks for a name.
later() {
  k delete pod "$1" --now --ignore-not-found >/dev/null
  k run "$1" --image=example.com/busybox:1 --restart=Never --image-pull-policy=Never -- sh -c "nslookup -type=a $2" >/dev/null
}
later forwarded www.corp.example
soon "one that changed is asked from then on" shows 192.0.2.7 log forwarded
k -n kube-system create configmap kube-dns --from-literal=stubDomains='{"corp.example": ["198.51.100.54"]}' >/dev/null
stubbed() {
  later stubbed www.corp.example
  for _ in {1..80}; do [[ $(field pod stubbed '{.status.phase}') =~ Succeeded|Failed ]] && break; sleep 0.1; done
  shows 192.0.2.8 log stubbed
}
soon "a stub domain has resolvers of its own" stubbed

echo 'mirors: {}' >"$work/registries.yaml"
k run mirrored --image=registry.example/team/tool:v1 --image-pull-policy=Always >/dev/null
message() { field pod mirrored '{.status.containerStatuses[0].state.waiting.message}'; }
soon "a file of registries that cannot be read fails the pull, which names it" shows "$work/registries.yaml" message
echo 'mirrors: {registry.example: {endpoint: ["http://198.51.100.53:5000"]}}' >"$work/registries.yaml"
k delete pod mirrored --now >/dev/null
k run mirrored --image=registry.example/team/tool:v1 --image-pull-policy=Always >/dev/null
soon "the next pull has the mirror that the file names by then" is Running field pod mirrored '{.status.phase}'

k delete pods --all --now >/dev/null
k delete deployment web >/dev/null
soon "pods go" shows "No resources found" k get pods
none_left() { ! pgrep -f "^$KAJI shim .*$work" && ! grep -q "$work" /proc/mounts && [[ -z $(ip -o link | grep -E ' k[ji][0-9a-f]{12}') ]]; }
soon "no process, mount or interface is left" none_left
kill -TERM "$server"
soon "the server ends" eval "! kill -0 $server 2>/dev/null"
server=
reset() { "$KAJI" node reset --data-dir "$work/data"; }
soon "the node is reset" shows "Nothing of the node" reset
nothing() { [[ -z $(ip -o link | grep kaji; ip -o address | grep -vE ' (lo|uplink|far) '; ip -6 route | grep fd00:10:244) ]]; }
soon "no address or route is left" nothing
