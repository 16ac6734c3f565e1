#!/usr/bin/env bash
# What the walks of a node with the embedded runtime and of one over a CRI socket have in common: pods of several kinds, and what
# has to become of them. Sourced after lib.sh, once the node is ready.
#
#   make_pods REPLICAS            a pod with everything, failing ones, and a deployment `web` with its service
#   check_pods ADDRESS REPLICAS   their state; pods' addresses begin with ADDRESS
#   command_pod NAME COMMAND ...  a pod that runs a command, with further arguments of `kubectl run`
#   check_names                   a pod finds the service by its name, and reaches it
#   answer                        what the service answers on the node
#   copied, exits, forwarded      streams of kubectl: for `soon`
#   check_resize                  a container gets more memory while it runs
#   check_copies, check_debug     kubectl cp both ways; kubectl debug of a node and of a pod
#   check_readiness, check_update endpoints follow a probe; a rolling update under requests, of which none fails
#   check_policy                  a policy keeps pods away, a new one from its first packet on
#   identity                      the containers of `web` and their restarts
#   $request ADDRESS PORT         an HTTP request, for `bash -c`; $service is the service's address
# shellcheck shell=bash disable=SC2154

make_pods() {
  k apply -f - >/dev/null <<Y
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
    command: [sh, -c, "cat /scratch/f /settings/color; echo; id -u; echo address=\$ADDRESS; hostname; test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo token; sleep 3600"]
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
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: $1
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
}

restarted() { (($(field pod sick '{.status.containerStatuses[0].restartCount}') > 0)); }

# Other runtimes notice it earlier: cri-runtimes.sh.
absent_is_shown() { is "StartError 128" field pod absent '{.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode}'; }

check_pods() {
  local address=$1 replicas=$2 wanted
  soon "a pod is ready" is True field pod one '{.status.conditions[?(@.type=="Ready")].status}'
  for wanted in made green 1000 "address=$address" one token; do
    soon "its container says $wanted" shows "$wanted" log one main
  done
  soon "its init container is recorded as completed" is "first Completed" field pod one '{range .status.initContainerStatuses[*]}{.name} {.state.terminated.reason}{end}'
  soon "a container that fails is started again" is 3 field pod crash '{.status.containerStatuses[0].lastState.terminated.exitCode}'
  soon "and waits longer each time" is CrashLoopBackOff field pod crash '{.status.containerStatuses[0].state.waiting.reason}'
  soon "a program that is absent is an error of the start" absent_is_shown
  soon "a container that is not alive is started again" restarted
  soon "a deployment is available" is "$replicas" field deployment web '{.status.availableReplicas}'
  service=$(field service web '{.spec.clusterIP}')
  soon "its service answers on the node" shows web- answer
}

# By nc: Debian's static busybox cannot resolve names for wget, and ends with a segmentation fault.
request="printf 'GET / HTTP/1.0\\r\\n\\r\\n' | busybox nc -w 3"
answer() { bash -c "$request $service 80"; }

command_pod() {
  k run "$1" --image=example.com/busybox:1 --restart=Never --image-pull-policy=Never "${@:3}" -- sh -c "$2" >/dev/null
}

check_names() {
  command_pod asker "nslookup web.default.svc.cluster.local; $request $service 80"
  soon "a pod finds the service by its name" shows "$service" log asker asker
  soon "a pod reaches the service" shows web- log asker asker
  soon "a pod that ends is recorded as completed" is Succeeded field pod asker '{.status.phase}'
}

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

check_copies() {
  head -c 300000 "$KAJI" >"$work/sent"
  soon "kubectl cp copies to a pod" k cp "$work/sent" one:/scratch/sent -c main
  soon "and from it" k cp one:/scratch/sent "$work/received" -c main
  soon "without a change" cmp "$work/sent" "$work/received"
}

# Debugging pods of nodes have names of their own.
debugger() { k get pods -o name | grep -m 1 "node-debugger-$node" | cut -d / -f 2; }

check_debug() {
  soon "kubectl debug makes a pod in the node's namespaces" k debug "node/$node" -q --image=example.com/busybox:1 --attach=false \
    -- sh -c 'test -d /host/proc/1 && ls /proc/*/exe > /dev/null 2>&1; echo on $(hostname); sleep 3600'
  soon "which sees the node" shows "on $(hostname)" k logs "$(debugger)"
  k delete pod "$(debugger)" --now >/dev/null
  soon "and adds a container to a pod" k debug one -q --image=example.com/busybox:1 --target=main -c doctor --attach=false \
    -- sh -c 'cat /proc/1/status; sleep 3600'
  soon "which sees the other's processes" shows "Uid:$(printf '\t')1000" k logs one -c doctor
  soon "and is in the pod's status" is doctor field pod one '{.status.ephemeralContainerStatuses[?(@.state.running)].name}'
}

endpoint_ready() { k get endpointslice -l kubernetes.io/service-name=flips -o 'jsonpath={.items[0].endpoints[0].conditions.ready}'; }

check_readiness() {
  k apply -f - >/dev/null <<'Y'
apiVersion: v1
kind: Pod
metadata: {name: flips, labels: {app: flips}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "example.com/busybox:1", command: [sh, -c, "touch /tmp/ready; sleep 3600"], readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1, failureThreshold: 1}}]
---
apiVersion: v1
kind: Service
metadata: {name: flips}
spec: {selector: {app: flips}, ports: [{port: 80}]}
Y
  soon "a pod that is ready is an endpoint" is true endpoint_ready
  k exec flips -- rm /tmp/ready
  soon "a probe that fails takes it out" is false endpoint_ready
  k exec flips -- touch /tmp/ready
  soon "and one that recovers brings it back" is true endpoint_ready
  soon "without a restart" is 0 field pod flips '{.status.containerStatuses[0].restartCount}'
  k delete pod flips --now --wait=false >/dev/null
}

# requests ADDRESS: asks until $work/stop exists, and counts the answers and the failures.
requests() {
  local answered=0 lost=0
  while [[ ! -e $work/stop ]]; do
    if shows rolling- bash -c "$request $1 80"; then answered=$((answered + 1)); else lost=$((lost + 1)); fi
  done
  echo "$answered answered, $lost lost" >"$work/requests"
}

check_update() {
  local client
  k apply -f - >/dev/null <<'Y'
apiVersion: apps/v1
kind: Deployment
metadata: {name: rolling}
spec:
  replicas: 3
  selector: {matchLabels: {app: rolling}}
  template:
    metadata: {labels: {app: rolling}}
    spec:
      terminationGracePeriodSeconds: 3
      containers:
      - name: main
        image: example.com/busybox:1
        command: [sh, -c, "hostname > /tmp/index.html; httpd -f -p 80 -h /tmp"]
        readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 1}}}
---
apiVersion: v1
kind: Service
metadata: {name: rolling}
spec: {selector: {app: rolling}, ports: [{port: 80}]}
Y
  soon "a deployment is rolled out" is 3 field deployment rolling '{.status.availableReplicas}'
  rm -f "$work/stop"
  requests "$(field service rolling '{.spec.clusterIP}')" &
  client=$!
  k set env deployment/rolling VERSION=2 >/dev/null
  soon "a rolling update ends" k rollout status deployment/rolling --timeout=40s
  soon "with no pod of before" is "3 3" field deployment rolling '{.status.replicas} {.status.updatedReplicas}'
  touch "$work/stop"
  wait "$client"
  soon "no request was lost meanwhile" grep -q "^[0-9][0-9]* answered, 0 lost" "$work/requests"
  soon "and there were some" grep -q "^[1-9][0-9]" "$work/requests"
  k delete deployment rolling --wait=false >/dev/null
  k delete service rolling flips >/dev/null
}

page() { k get --raw "/api/v1/nodes/$node/proxy/$1"; }

check_resize() {
  k patch pod one --subresource resize -p '{"spec":{"containers":[{"name":"main","resources":{"limits":{"memory":"48Mi"}}}]}}' >/dev/null
  soon "a container gets more memory while it runs" is "48Mi 0" field pod one '{.status.containerStatuses[0].resources.limits.memory} {.status.containerStatuses[0].restartCount}'
}

denied() {
  k delete pod denied --now --ignore-not-found >/dev/null
  command_pod denied "$request $service 80 || echo refused"
  for _ in {1..50}; do [[ $(field pod denied '{.status.phase}') == Succeeded ]] && break; sleep 0.1; done
  shows "$1" log denied denied
}

check_policy() {
  k apply -f - >/dev/null <<'Y'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
Y
  soon "a policy keeps pods away" denied refused
  k delete networkpolicy closed >/dev/null
  # Pods that send a packet as soon as they run: their addresses may not be in the API by then.
  k apply -f - >/dev/null <<'Y'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: silent}
spec: {podSelector: {matchLabels: {silent: "yes"}}, policyTypes: [Egress]}
Y
  local number
  for number in 1 2 3; do
    command_pod "silent-$number" "$request $service 80 && echo reached; echo ended" --labels=silent=yes
    soon "a new pod ends" shows ended log "silent-$number" "silent-$number"
    soon "and its policy held from its first packet on" silent "$number"
  done
  k delete networkpolicy silent >/dev/null
}
silent() { ! shows web- log "silent-$1" "silent-$1"; }

identity() { k get pods -l app=web -o 'jsonpath={range .items[*]}{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{"\n"}{end}' | sort; }
