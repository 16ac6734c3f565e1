#!/usr/bin/env bash
# Pods on a real node and what keeps them apart: user namespaces, and ways to the node by volumes, logs and host paths.
#
#     KAJI=target/release/kaji KUBECTL=kubectl bash tests/node/isolation.sh
#
# Like walk.sh it makes a network and a mount namespace of its own and needs root, ip, busybox (static) and kubectl.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/lib.sh"
isolate isolation "$KUBECTL"
make_uplink
make_work
trap 'leave isolation' EXIT

make_image sh cat head echo sleep ls id touch rm mkdir mv ln true test stat mount unshare
"$KAJI" image --data-dir "$work/data" import "$work/busybox.tar" example.com/busybox:1 --cmd /bin/sh >/dev/null
start_server
soon "the node is ready" shows " Ready " k get nodes
soon "accounts exist" k get serviceaccount default
node=$(k get nodes -o 'jsonpath={.items[0].metadata.name}')
mkdir -p "$work/host/given"
echo secret >"$work/host/secret"

# A pod of a script, with members for its spec and its container.
pod() {
  local name=$1 script=$2 spec=${3-} container=${4-}
  k apply -f - >/dev/null <<Y
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$name"}, "spec": {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", $spec
 "containers": [{"name": "$name", "image": "example.com/busybox:1", $container "command": ["sh", "-c", "$script"]}]}}
Y
}

supported=$(field node "$node" '{.status.runtimeHandlers[0].features.userNamespaces}')
if [[ $supported != true ]]; then
  echo "SKIPPED user-namespaces: the kernel has no mapped mounts of memory file systems"
  pod mapped true '"hostUsers": false,'
  soon "a user namespace is refused in upstream's words" shows "runtime does not support user namespaces" k get events
else
  k create secret generic keys --from-literal=key=value >/dev/null
  volumes='"volumes": [{"name": "s", "secret": {"secretName": "keys"}}, {"name": "e", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}}, {"name": "h", "hostPath": {"path": "'$work/host/given'"}}],'
  mounts='"volumeMounts": [{"name": "s", "mountPath": "/s"}, {"name": "e", "mountPath": "/e"}, {"name": "e", "mountPath": "/sub", "subPath": "below"}, {"name": "m", "mountPath": "/m"}, {"name": "h", "mountPath": "/h"}],'
  script='for f in /s/key /e /sub /m /h /etc/hosts /etc/resolv.conf /dev/termination-log /var/run/secrets/kubernetes.io/serviceaccount/token; do echo $f=$(stat -L -c %u:%g $f); done; touch /e/a /sub/b /m/c /h/d && echo written; cat /proc/self/uid_map; echo message > /dev/termination-log; echo end; sleep 3600'
  pod first "$script" "\"hostUsers\": false, $volumes" "$mounts"
  pod second "cat /proc/self/uid_map; echo end; sleep 3600" '"hostUsers": false,'
  soon "a pod with a user namespace runs" shows end log first
  for path in /s/key /e /sub /m /h /etc/hosts /etc/resolv.conf /dev/termination-log /var/run/secrets/kubernetes.io/serviceaccount/token; do
    soon "its root has $path" shows "$path=0:0" log first
  done
  soon "it writes its volumes" shows written log first
  soon "what it writes is root's on disk" is 0:0 stat -c %u:%g "$work/host/given/d"
  soon "its processes are not root's" pgrep -u 65536 -f "sleep 3600"
  soon "a second pod has other ids" shows "         0     131072      65536" log second
  soon "a command is in the user namespace" shows "         0      65536      65536" k exec first -- cat /proc/self/uid_map
  soon "so is one with a terminal" shows "         0      65536      65536" k exec -it first -- cat /proc/self/uid_map
  pod unmasked "cat /proc/mounts; unshare -rpfm mount -t proc proc /proc && echo nested; echo end" \
    '"hostUsers": false,' '"securityContext": {"procMount": "Unmasked"},'
  soon "procMount Unmasked permits a /proc within" shows nested log unmasked
  soon "since nothing covers a part of it" eval "[[ -z \$(log unmasked | grep ' /proc/') ]]"
  k delete pod first unmasked --now >/dev/null
  pod third "cat /proc/self/uid_map; echo end" '"hostUsers": false,'
  soon "ids are used again" shows "         0      65536      65536" log third
fi

# A volume with a directory that is exchanged for a link while a container is started with a sub-path of it.
pod exchange 'mkdir -p /v/a; while true; do rm -rf /v/a; ln -s / /v/a; rm -f /v/a; mkdir /v/a; done' \
  "\"volumes\": [{\"name\": \"v\", \"hostPath\": {\"path\": \"$work/host/given\"}}]," '"volumeMounts": [{"name": "v", "mountPath": "/v"}],'
soon "a pod exchanges a directory and a link" is Running field pod exchange '{.status.phase}'
for i in 1 2 3 4 5 6; do
  pod "victim-$i" "ls /sub; test -e /sub$work/host/secret && echo ESCAPED; test -e /sub/proc && echo ESCAPED; echo end" \
    "\"volumes\": [{\"name\": \"v\", \"hostPath\": {\"path\": \"$work/host/given\"}}]," \
    '"volumeMounts": [{"name": "v", "mountPath": "/sub", "subPath": "a"}],'
done
decided() { [[ -n $(field pod "$1" '{.status.containerStatuses[0].state.terminated.reason}{.status.containerStatuses[0].state.waiting.reason}' | grep -v ContainerCreating) ]]; }
for i in 1 2 3 4 5 6; do
  soon "a container with its sub-path runs or is refused ($i)" decided "victim-$i"
  if log "victim-$i" 2>/dev/null | grep -q ESCAPED; then failed=$((failed + 1)); echo "FAIL victim-$i saw the node's root"; fi
done
k delete pod exchange --now >/dev/null

# What a host path is has to be what its type says.
ln -s "$work/host/secret" "$work/host/link"
for kind in Directory Socket CharDevice BlockDevice; do
  name=type-${kind,,}
  pod "$name" true "\"volumes\": [{\"name\": \"v\", \"hostPath\": {\"path\": \"$work/host/secret\", \"type\": \"$kind\"}}]," \
    '"volumeMounts": [{"name": "v", "mountPath": "/v"}],'
  soon "a file is no $kind" shows "hostPath type check failed" k get events --field-selector "involvedObject.name=$name"
done

# A pod that may write the directory of logs puts a link in place of its own.
pod logs 'for i in 1 2 3 4 5 6 7 8 9; do for d in /logs/default_logs_*/logs; do rm -f $d/0.log; ln -s SECRET $d/0.log; done; echo tick; sleep 1; done' \
  '"volumes": [{"name": "v", "hostPath": {"path": "/var/log/pods"}}],' '"volumeMounts": [{"name": "v", "mountPath": "/logs"}],'
linked() { [[ -L $(echo /var/log/pods/default_logs_*/logs/0.log) ]]; }
soon "a log became a link" linked
rm -f /var/log/pods/default_logs_*/logs/0.log
ln -sf "$work/host/secret" "$(echo /var/log/pods/default_logs_*/logs)/0.log"
if k logs logs 2>&1 | grep -q secret; then failed=$((failed + 1)); echo "FAIL the kubelet follows a link in place of a log"; else passed=$((passed + 1)); echo "ok   the kubelet does not follow it"; fi
soon "the file that it led to is as it was" is secret cat "$work/host/secret"

# The termination message is a file of the container's own.
pod message 'rm -f /dev/termination-log; ln -sf /etc/shadow /dev/termination-log; echo end; exit 1'
soon "a link in place of a termination message is not followed" is "" field pod message '{.status.containerStatuses[0].state.terminated.message}'

k delete pods --all --now >/dev/null
soon "pods go" shows "No resources found" k get pods
none_left() { ! pgrep -f "^$KAJI shim" && ! grep -q "$work" /proc/mounts; }
soon "no process or mount is left" none_left
kill -TERM "$server"
soon "the server ends" eval "! kill -0 $server 2>/dev/null"
server=
