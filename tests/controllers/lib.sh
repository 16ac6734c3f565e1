#!/usr/bin/env bash
# What the walk of the controllers does repeatedly: clusters in each of its forms, manifests, and questions about objects.
#
# It is sourced after tests/node/lib.sh, which has shows, is, k and field.
# shellcheck shell=bash disable=SC2154
processes=()

ok() { passed=$((passed + 1)); echo "ok   $1"; }
bad() { failed=$((failed + 1)); echo "FAIL $1"; }
skip() { echo "SKIPPED $1"; }
section() { echo "-- $1 (after $SECONDS s)"; }

# By the clock: on a busy machine a question takes longer than the pause before the next one.
soon() {
  local text=$1 until=$((SECONDS + patience))
  shift
  while ! "$@" >"$work/out" 2>&1; do
    if ((SECONDS >= until)); then
      bad "$text"
      tail -n 5 "$work/out"
      return
    fi
    sleep 0.1
  done
  ok "$text"
}

# A folder, and a kubeconfig of our own: the walk changes its namespace.
prepare() {
  local given=${KUBECONFIG-}
  work=$(mktemp -d)
  export NO_PROXY='*' no_proxy='*'
  if [[ $1 == cluster ]]; then
    KUBECONFIG=${given:-$HOME/.kube/config} "$KUBECTL" config view --raw --flatten --minify >"$work/kubeconfig"
  fi
  export KUBECONFIG=$work/kubeconfig
}

# Periods short enough to wait for, by the names that all programs have.
fast=(--node-monitor-period=1s --node-monitor-grace-period=22s --horizontal-pod-autoscaler-sync-period=2s
  --horizontal-pod-autoscaler-initial-readiness-delay=0s --horizontal-pod-autoscaler-cpu-initialization-period=0s)

# What is off by default, for the programs that have it: all but upstream's of an older release.
gates=(--feature-gates GenericWorkload=true)
served=(--runtime-config scheduling.k8s.io/v1beta1=true)

begin() {
  case $1 in
    up)
      start up --nodes sim:3 --data-dir "$work/data" --port 0 --kubeconfig "$KUBECONFIG" "${fast[@]}" "${gates[@]}" "${served[@]}"
      ;;
    components | upstream)
      [[ $1 == components ]] || {
        gates=()
        served=()
      }
      start up --nodes sim:3 --controllers='-*' --data-dir "$work/data" --port 0 --kubeconfig "$KUBECONFIG" "${gates[@]}" "${served[@]}"
      soon "there is a kubeconfig" test -s "$KUBECONFIG"
      start_components "$1" "$work/data/pki"
      ;;
    upstream-server)
      gates=()
      begin_upstream_server
      ;;
    cluster) ;;
    *) echo "there is no form $1"; exit 2 ;;
  esac
  soon "the cluster answers" k get --raw /readyz
}

# start_components FORM PKI [FLAG...]: the controllers, with these flags too, and the scheduler; upstream's in its form.
start_components() {
  local form=$1 pki=$2 common manager=("$KAJI" controller-manager) scheduler=("$KAJI" scheduler)
  shift 2
  if [[ $form == upstream ]]; then
    manager=("$KUBE_CONTROLLER_MANAGER")
    scheduler=("$KUBE_SCHEDULER")
  fi
  # A copy, for the walk changes its namespace in the other.
  cp "$KUBECONFIG" "$work/component"
  common=(--kubeconfig "$work/component" --authentication-kubeconfig "$work/component"
    --authorization-kubeconfig "$work/component" --bind-address 127.0.0.1)
  start_program manager "${manager[@]}" "${common[@]}" "${gates[@]}" --secure-port "${manager_port:-20257}" "${fast[@]}" \
    --use-service-account-credentials --root-ca-file "$pki/ca.crt" --cluster-signing-cert-file "$pki/ca.crt" \
    --cluster-signing-key-file "$pki/ca.key" --service-account-private-key-file "$pki/sa.key" "$@"
  start_program scheduler "${scheduler[@]}" "${common[@]}" "${gates[@]}" --secure-port "${scheduler_port:-20259}"
  soon "the controllers are led" shows _ k -n kube-system get lease kube-controller-manager -o 'jsonpath={.spec.holderIdentity}'
  soon "the scheduler is led" shows _ k -n kube-system get lease kube-scheduler -o 'jsonpath={.spec.holderIdentity}'
}

start() { start_program kaji "$KAJI" "$@"; }

start_program() {
  local name=$1
  shift
  "$@" >>"$work/$name.log" 2>&1 &
  processes+=($!)
}

leave_controllers() {
  local code=$? i
  trap - EXIT
  if [[ -s $KUBECONFIG && $form == cluster ]]; then
    k delete namespace walk walk-quota walk-gone --ignore-not-found --wait=false >/dev/null || true
    k delete pv walk-data --ignore-not-found --wait=false >/dev/null || true
    k delete priorityclass walk-high --ignore-not-found >/dev/null || true
  fi
  # Components before their server: they give their leases back.
  for ((i = ${#processes[@]} - 1; i >= 0; i--)); do
    kill "${processes[i]}" 2>/dev/null || true
    wait "${processes[i]}" 2>/dev/null || true
  done
  if ((code != 0 || failed > 0)); then
    for log in "$work"/*.log; do
      echo "== $log"
      tail -n 15 "$log" | cut -c 1-300
    done
  fi
  echo "took $SECONDS s"
  conclude "$1" "$code"
}

# at_least N COMMAND: what a command prints is a number that is not less.
at_least() { (($("${@:2}") >= $1)); }
# refused TEXT COMMAND: it fails, and says so.
refused() {
  local said
  ! said=$("${@:2}" 2>&1) && grep -qF -- "$1" <<<"$said"
}
lacks() { ! shows "$@"; }
is_gone() { ! k get "$1" "$2" >/dev/null 2>&1; }
# A node that has just become ready is tainted until a controller has seen it, and takes no pods meanwhile.
ready_nodes() { k get nodes -o 'jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {.spec.taints}{"\n"}{end}' | grep -cx 'True *' || true; }
count_pods() { k get pods -l "$1" --no-headers 2>/dev/null | grep -c . || true; }
count_of_nodes() { k get pods -l "$1" --field-selector status.phase=Running -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}' | sort -u | grep -c . || true; }
by_creation() { k get pods -l "$1" --sort-by .metadata.creationTimestamp -o 'jsonpath={.items[*].metadata.name}'; }
addresses() { k get endpointslices -l "kubernetes.io/service-name=$1" -o 'jsonpath={range .items[*].endpoints[*]}{.addresses[0]}{"\n"}{end}' | grep -c . || true; }
images() { k get pods -l "$1" -o 'jsonpath={.items[*].spec.containers[0].image}' | tr ' ' '\n' | sort -u; }
replicas_of_sets() { k get replicasets -l "$1" -o 'jsonpath={.items[*].spec.replicas}' | tr ' ' '\n' | sort | xargs; }
condition() { field "$1" "$2" "{.status.conditions[?(@.type==\"$3\")].status}"; }
reason() { field "$1" "$2" "{.status.conditions[?(@.type==\"$3\")].reason}"; }
node_of() { k get pods -l "$1" -o 'jsonpath={.items[0].spec.nodeName}'; }
not_on() { [[ -z $(k get pods -l "$2" --field-selector "spec.nodeName=$1" -o name) ]]; }
is_replaced() { [[ -n $(field pod "$1" '{.metadata.uid}') && $(field pod "$1" '{.metadata.uid}') != "$2" ]]; }
count_on() { k get pods -l "$2" --field-selector "spec.nodeName=$1" --no-headers 2>/dev/null | grep -c . || true; }
daemon_set_is_everywhere() {
  local status
  status=$(field daemonset agent '{.status.desiredNumberScheduled} {.status.numberReady}')
  [[ ${status% *} -ge 3 && ${status% *} == "${status#* }" ]]
}
running_elsewhere() {
  local nodes
  nodes=$(k get pods -l "$2" -o 'jsonpath={range .items[?(@.status.phase=="Running")]}{.spec.nodeName}{" "}{.metadata.deletionTimestamp}{"\n"}{end}')
  [[ $(grep -c -v "^$1 " <<<"$nodes") -ge 3 ]]
}

apply() { k apply -f - >/dev/null; }

# Requests of the cluster with an external cloud.
outside() { KUBECONFIG=$work/outside.kubeconfig k "$@"; }

# apply_uninitialized NAME: a node as a kubelet of an external cloud registers it.
apply_uninitialized() {
  apply <<J
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "$1"}, "spec": {"taints": [
 {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}]}}
J
}

# apply_deployment NAME REPLICAS POD-SPEC [ANNOTATIONS]
apply_deployment() {
  local spec=${3#\{}
  [[ $spec == \} ]] || spec=,$spec
  apply <<J
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "$1"}, "spec": {"replicas": $2,
 "selector": {"matchLabels": {"app": "$1"}}, "template": {"metadata": {"labels": {"app": "$1"}, "annotations": {${4-}}}, "spec": {
  "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "example.com/none:1",
   "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}}}]$spec}}}
J
}

# apply_pod NAME SPEC
apply_pod() {
  apply <<J
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$1"}, "spec": {"terminationGracePeriodSeconds": 1, ${2#\{}}
J
}

# apply_gang NAME PODS
apply_gang() {
  apply <<J
{"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "$1"}, "spec": {"schedulingPolicy": {"gang": {"minCount": $2}}}}
J
}

# apply_gang_pod NAME GANG
apply_gang_pod() {
  apply <<J
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$1", "labels": {"gang": "$2"}}, "spec": {"terminationGracePeriodSeconds": 1,
 "schedulingGroup": {"podGroupName": "$2"}, "containers": [{"name": "main", "image": "example.com/none",
  "resources": {"limits": {"walk.example.com/seat": "1"}}}]}}
J
}

apply_stateful_set() {
  apply <<'Y'
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 3
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: "example.com/none:1"}]}
Y
}

apply_daemon_set() {
  apply <<'Y'
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {terminationGracePeriodSeconds: 1, tolerations: [{operator: Exists}], containers: [{name: main, image: "example.com/none:1"}]}
Y
}

# apply_job NAME COMPLETIONS SCRIPT BACKOFF-LIMIT [SECONDS-AFTER-IT-FINISHED]
apply_job() {
  apply <<Y
apiVersion: batch/v1
kind: Job
metadata: {name: $1}
spec:
  completions: $2
  parallelism: 2
  backoffLimit: $4
  ${5:+ttlSecondsAfterFinished: $5}
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: "example.com/none:1", command: [sh, -c, "$3"]}]}
Y
}

apply_volume() {
  apply <<'Y'
apiVersion: v1
kind: PersistentVolume
metadata: {name: walk-data}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], storageClassName: walk, hostPath: {path: /tmp/walk}, persistentVolumeReclaimPolicy: Retain}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: walk-data}
spec: {accessModes: [ReadWriteOnce], storageClassName: walk, resources: {requests: {storage: 1Gi}}}
Y
}

apply_claim() {
  apply <<'Y'
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: made}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  containers: [{name: main, image: "example.com/none:1", volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: made}}]
Y
}

apply_autoscaler() {
  apply <<'Y'
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: busy}
spec:
  minReplicas: 1
  maxReplicas: 4
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: busy}
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
  behavior:
    scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 10, periodSeconds: 1}]}
    scaleDown: {stabilizationWindowSeconds: 0, policies: [{type: Percent, value: 100, periodSeconds: 1}]}
Y
}
