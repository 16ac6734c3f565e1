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
#   check_policy                  a policy keeps pods away
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

check_pods() {
  local address=$1 replicas=$2 wanted
  soon "a pod is ready" is True field pod one '{.status.conditions[?(@.type=="Ready")].status}'
  for wanted in made green 1000 "address=$address" one token; do
    soon "its container says $wanted" shows "$wanted" log one main
  done
  soon "its init container is recorded as completed" is "first Completed" field pod one '{range .status.initContainerStatuses[*]}{.name} {.state.terminated.reason}{end}'
  soon "a container that fails is started again" is 3 field pod crash '{.status.containerStatuses[0].lastState.terminated.exitCode}'
  soon "and waits longer each time" is CrashLoopBackOff field pod crash '{.status.containerStatuses[0].state.waiting.reason}'
  soon "a program that is absent is a StartError" is "StartError 128" field pod absent '{.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode}'
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
}

identity() { k get pods -l app=web -o 'jsonpath={range .items[*]}{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{"\n"}{end}' | sort; }
