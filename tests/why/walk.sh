#!/usr/bin/env bash
# Broken clusters, each explained by `kaji why`: the cause, the nearest miss and the exit code; and a caller without rights,
# to which nothing is said. Then what `kaji events`, `kaji top` and `kaji tree` show.
#
# KAJI and KUBECTL name the programs. The milliseconds of each answer are printed, not judged.
set -uo pipefail
cd "$(dirname "$0")/../.."
KAJI=${KAJI:-target/release/kaji}
KUBECTL=${KUBECTL:-kubectl}
KAJI=$(realpath "$KAJI")
form=up patience=60 passed=0 failed=0
source tests/node/lib.sh
source tests/controllers/lib.sh
prepare up
trap 'leave_controllers why' EXIT
begin up

# why NAME CODE ARGUMENTS… : the explanation of this must end with the code and contain each of the lines on standard input.
why() {
  local name=$1 code=$2 began ended got=0 line missing=()
  shift 2
  began=$(date +%s%N)
  "$KAJI" why "$@" >"$work/why" 2>&1 || got=$?
  ended=$(date +%s%N)
  while IFS= read -r line; do
    [[ -z $line ]] || grep -qF -- "$line" "$work/why" || missing+=("$line")
  done
  if [[ $got == "$code" && ${#missing[@]} == 0 ]]; then
    ok "$name ($(((ended - began) / 1000000)) ms)"
  else
    bad "$name: exit code $got for $code, missing: ${missing[*]-}"
    cat "$work/why"
  fi
}

section "pods that no node takes"
k create namespace shop
k config set-context --current --namespace shop
soon "three nodes are ready" is 3 ready_nodes
first=$(k get nodes -o 'jsonpath={.items[0].metadata.name}')
k taint node "$first" gpu=yes:NoSchedule
apply <<'Y'
apiVersion: v1
kind: Pod
metadata: {name: big}
spec:
  containers: [{name: c, image: app, resources: {requests: {cpu: 4k}}}]
Y
soon "the pod is unschedulable" shows Unschedulable k get pod big -o 'jsonpath={.status.conditions[0].reason}'
why "a pod that is too big" 11 pod/big <<Y
no node takes it (0 of 3)
known    the scheduler, 
: 0/3 nodes are available: 1 node(s) had untolerated taint
known    NodeResourcesFit: Insufficient cpu
inferred NodeResourcesFit: Insufficient cpu, on $first
TaintToleration: node(s) had untolerated taint(s), on $first ($first has gpu=yes:NoSchedule)
NodeResourcesFit alone rejects it
Y

section "deletions that do not end"
k create configmap guarded --from-literal=a=b
k patch configmap guarded -p '{"metadata":{"finalizers":["acme.example.com/guard"]}}'
k delete configmap guarded --wait=false
why "a finalizer without its controller" 16 configmap/guarded <<'Y'
its deletion waits for finalizers: acme.example.com/guard
field manager kubectl-patch set acme.example.com/guard
it may have been uninstalled
Y
k create namespace leaving
k -n leaving create configmap guarded
k -n leaving patch configmap guarded -p '{"metadata":{"finalizers":["acme.example.com/guard"]}}'
k delete namespace leaving --wait=false
soon "the namespace says what is left" shows True k get namespace leaving -o \
  'jsonpath={.status.conditions[?(@.type=="NamespaceFinalizersRemaining")].status}'
why "a namespace that is not empty" 16 namespace/leaving <<'Y'
objects in it with finalizers: ConfigMap leaving/guarded (acme.example.com/guard)
kaji why configmap/guarded -n leaving
Y

section "services, claims, quotas, budgets"
k run web-1 --image app --labels app=web,tier=front --port 80
soon "the pod is ready" shows True k get pod web-1 -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
k create service clusterip web --tcp 80:80
k patch service web -p '{"spec":{"selector":{"app":"web","tier":"fornt"}}}'
soon "the service has no endpoints" is 0 addresses web
why "a selector with a typing error" 17 service/web <<'Y'
no pod of the namespace shop matches it
pod web-1: tier is front, not fornt
Y
apply <<'Y'
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  storageClassName: fst
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: csi.acme.example.com
Y
why "a claim of a class that does not exist" 15 pvc/data <<'Y'
storage class fst does not exist
storage class fast
Y
k create quota few --hard=pods=2
k create deployment crowd --image app --replicas 2
soon "the quota refuses pods" shows True k get deployment crowd -o 'jsonpath={.status.conditions[?(@.type=="ReplicaFailure")].status}'
why "a workload whose pods a quota refuses" 18 deployment/crowd <<'Y'
exceeded quota: few
ResourceQuota few: pods: used 2 of 2
Y
k run refused --image app >/dev/null 2>&1 || true
why "a pod that a quota refuses" 18 pod/refused <<'Y'
exceeded quota: few
ResourceQuota few: pods: used 2 of 2
Y
k delete deployment crowd
k delete quota few
k create poddisruptionbudget web --selector app=web --min-available 1
soon "the budget is counted" shows 1 k get pdb web -o 'jsonpath={.status.currentHealthy}'
why "a budget without a pod to spare" 22 pdb/web <<'Y'
minAvailable 1 of 1 pods: 1 must be healthy, 1 are; 1 - 1 = 0 may be evicted
all its pods are healthy
Y

echo '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"web-1","namespace":"shop"}}' >"$work/eviction"
k create --raw /api/v1/namespaces/shop/pods/web-1/eviction -f "$work/eviction" >"$work/out" 2>&1
why "an eviction that a budget refuses" 22 pod/web-1 <<'Y'
it cannot be evicted: PodDisruptionBudget shop/web allows none
an eviction of it was refused
minAvailable 1 of 1 pods: 1 must be healthy, 1 are; 1 - 1 = 0 may be evicted
Y
k create service clusterip afar --tcp 80:80
k create namespace other
k run afar-1 --namespace other --image app --labels app=afar
why "a service beside its pods' namespace" 17 service/afar <<'Y'
pod afar-1 of the namespace other has these labels
Y
k create service clusterip numbers --tcp 80:8080
k patch service numbers -p '{"spec":{"selector":{"app":"web"}}}'
soon "the service has an endpoint" is 1 addresses numbers
why "a port that no container declares" 17 service/numbers <<'Y'
targetPort 8080 is none of the TCP ports that its pods declare: 80
Y

section "autoscalers, certificates, webhooks"
k create deployment scaled --image app
apply <<'Y'
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: scaled}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: scaled}
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
Y
soon "the autoscaler has no figures" shows False k get hpa scaled -o 'jsonpath={.status.conditions[?(@.type=="ScalingActive")].status}'
why "an autoscaler of pods that request nothing" 20 hpa/scaled <<'Y'
condition ScalingActive is False (FailedGetResourceMetric)
containers without a request of cpu: app of scaled-
Y
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$work/key" -subj /CN=bob -out "$work/request" 2>/dev/null
apply <<Y
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: bob}
spec:
  signerName: kubernetes.io/kube-apiserver-client
  request: $(base64 -w0 "$work/request")
  usages: [client auth]
Y
why "a request without an approval" 21 csr/bob <<'Y'
it is not approved
kubectl certificate approve bob
Y
k create service clusterip guard --tcp 443:443
apply <<'Y'
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: guard}
webhooks:
- name: guard.acme.example.com
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]
  timeoutSeconds: 1
  clientConfig: {service: {namespace: shop, name: guard}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
Y
soon "the webhook is in force" refused guard.acme.example.com k run probe --image app
k create deployment guard --image app
soon "the webhook refuses pods" shows True k get deployment guard -o 'jsonpath={.status.conditions[?(@.type=="ReplicaFailure")].status}'
why "a webhook that refuses its own backend" 24 deployment/guard <<'Y'
failed calling webhook "guard.acme.example.com"
it refuses the pods that would answer for it: a dead-lock
Y
k delete validatingwebhookconfiguration guard

section "rights"
k create role reader --verb get,list --resource pods
k create rolebinding reads --role reader --user bob
"$KUBECTL" --as bob delete pod big >"$work/refusal" 2>&1
why "a refusal by its text" 23 "$(cat "$work/refusal")" <<'Y'
RoleBinding shop/reads: its rule allows get, list, not delete
kubectl create role delete-pods -n shop --verb=delete --resource=pods
Y
why "an object that the caller may not read" 1 pod/big --as eve <<'Y'
pods "big" is forbidden: User "eve" cannot get resource "pods"
Y
why "nodes that the caller may not read are not named" 11 pod/big --as bob <<'Y'
unknown  nodes is forbidden: User "bob" cannot list resource "nodes"
Y
if grep -q "$first" "$work/why"; then bad "a node is named to a user without rights"; else ok "no node is named to them"; fi
k create rolebinding typo --clusterrole veiw --user ann
"$KUBECTL" --as ann get pods >"$work/refusal" 2>&1
why "a binding to a role with a typing error" 23 "$(cat "$work/refusal")" <<'Y'
ClusterRole veiw does not exist, but ClusterRole view does
Y

section "applies that are refused, and one that hangs"
k create rolebinding edits --clusterrole edit --user cid
settings() { printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {mode: %s, other: %s}\n' "$1" "$1"; }
settings fast | "$KUBECTL" --as cid apply --server-side --field-manager cid-tool -f - >"$work/out" 2>&1 || cat "$work/out"
settings slow | k apply --server-side --field-manager mine -f - >"$work/conflict" 2>&1
why "an apply that another field manager refuses" 26 configmap/settings <<'Y'
an apply was refused: another field manager holds .data.mode, .data.other (cid-tool)
field manager mine, at
.data.mode is held by field manager cid-tool, by Apply at
.data.mode was last changed by user cid
in revision
in the configuration (.data.mode: "fast", .data.other: "fast")
kubectl apply --server-side --force-conflicts: it overwrites .data.mode: "fast", .data.other: "fast", and takes them from cid-tool
Y
why "the same by its text" 26 "$(cat "$work/conflict")" <<'Y'
.data.other was last changed by user cid
Y
why "the same to a caller without rights: what the text says, and no more" 26 "$(cat "$work/conflict")" --as eve <<'Y'
.data.mode, .data.other is held by field manager cid-tool
Y
if grep -qE "user cid|fast|settings" "$work/why"; then bad "the object is told to a caller without rights"; else ok "nothing of the object is told to them"; fi
settings slow | k apply --server-side --field-manager mine --force-conflicts -f - >"$work/out" 2>&1
why "an apply that went through" 0 configmap/settings <<'Y'
nothing is wrong with it
Y
# A server that accepts connections and never answers.
python3 -c 'import socket, sys, time
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
kept = []
while True:
    kept.append(s.accept())' >"$work/silent" &
processes+=($!)
soon "a server that does not answer" test -s "$work/silent"
apply <<Y
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: silent}
webhooks:
- name: silent.acme.example.com
  sideEffects: None
  admissionReviewVersions: [v1]
  timeoutSeconds: 1
  clientConfig: {url: "https://127.0.0.1:$(cat "$work/silent")/"}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [configmaps]}]
Y
soon "the webhook is asked" refused silent.acme.example.com k patch configmap settings -p '{"data":{"mode":"new"}}'
why "a write that hangs" 24 configmap/settings <<'Y'
a write of it hung until webhook silent.acme.example.com had timed out
validatingwebhookconfiguration/silent names it: https://127.0.0.1:
which each request waits for up to 1 s
kaji why validatingwebhookconfiguration/silent
Y
k delete validatingwebhookconfiguration silent

section "images, and a rollout"
k run pulls --image registry.example.com/web:404
soon "the image is not there" shows ImagePullBackOff k get pod pulls -o 'jsonpath={.status.containerStatuses[0].state.waiting.reason}'
why "an image that cannot be pulled" 12 pod/pulls <<'Y'
the image registry.example.com/web:404 cannot be pulled
known    container pulls waits: ImagePullBackOff
Y
k create deployment rolls --image web:1 --replicas 2
soon "the deployment is ready" shows 2 k get deployment rolls -o 'jsonpath={.status.readyReplicas}'
k set image deployment/rolls web=web:404
soon "its new pod waits" shows ImagePullBackOff k get pods -l app=rolls -o 'jsonpath={.items[*].status.containerStatuses[0].state.waiting.reason}'
why "a rollout that a bad image holds up" 12 deployment/rolls <<'Y'
the image web:404 cannot be pulled
Y

section "an extension server that is gone"
k create namespace held
apply <<'Y'
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.gone.example.com}
spec:
  group: gone.example.com
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 10
  insecureSkipTLSVerify: true
  service: {namespace: shop, name: gone}
Y
soon "it is not available" shows False k get apiservice v1.gone.example.com -o 'jsonpath={.status.conditions[?(@.type=="Available")].status}'
k delete namespace held --wait=false
soon "the namespace says so" shows True k get namespace held -o \
  'jsonpath={.status.conditions[?(@.type=="NamespaceDeletionDiscoveryFailure")].status}'
why "a namespace that an extension server holds" 16 namespace/held <<'Y'
NamespaceDeletionDiscoveryFailure is True
APIService v1.gone.example.com is not available: its objects cannot be deleted
kaji why apiservice/v1.gone.example.com
Y
k delete apiservice v1.gone.example.com
soon "without it the namespace goes" refused NotFound k get namespace held

# says NAME CODE ARGUMENTS… : what a command prints must contain each of the lines on standard input, in their order, and none of
# those that begin with !.
says() {
  local name=$1 code=$2 got=0
  shift 2
  cat >"$work/wanted"
  "$KAJI" "$@" >"$work/said" 2>&1 || got=$?
  if [[ $got == "$code" ]] && python3 - "$work/wanted" "$work/said" <<'P'; then ok "$name"; else
import sys
wanted, said = (open(path).read() for path in sys.argv[1:])
place = 0
for line in wanted.splitlines():
    if line.startswith("!"):
        assert line[1:] not in said, line
    else:
        place = said.index(line, place) + len(line)
P
    bad "$name: exit code $got for $code"
    cat "$work/said"
  fi
}

section "events"
k create deployment talk --image app --replicas 2
soon "its pods are ready" shows 2 k get deployment talk -o 'jsonpath={.status.readyReplicas}'
says "events of what a deployment owns, in order" 0 events deployment/talk <<'Y'
LAST SEEN
ScalingReplicaSet
deployment/talk
deployment-controller
SuccessfulCreate
replicaset/talk-
Scheduled
pod/talk-
!pod/web-1
!NAMESPACE
Y
says "events of a type" 0 events -A --types warning <<'Y'
NAMESPACE
Warning
!Normal
Y
"$KAJI" events deployment/talk -o json >"$work/events"
if python3 - "$work/events" <<'P'; then ok "events as JSON"; else bad "events as JSON"; fi
import json, sys
events = json.load(open(sys.argv[1]))
times = [event["time"] for event in events]
assert times == sorted(times), times
assert {"Deployment", "ReplicaSet", "Pod"} <= {event["regarding"]["kind"] for event in events}
assert all(event["reportingController"] and event["note"] and event["count"] >= 1 for event in events)
P
"$KAJI" events deployment/talk --follow >"$work/followed" 2>&1 &
processes+=($!)
soon "what there is comes first" grep -q ScalingReplicaSet "$work/followed"
k scale deployment talk --replicas 3
soon "a pod that is made meanwhile is followed" is 3 grep -c Scheduled "$work/followed"
kill "${processes[-1]}"
says "events of an object that was never there" 0 events pod/never <<'Y'
There are no events of pod/never
Y
says "events that the caller may not read" 1 events --as eve <<'Y'
events is forbidden: User "eve" cannot list resource "events"
Y

section "top and tree"
soon "there are figures of pods" "$KAJI" top pods
says "nodes" 0 top nodes <<'Y'
NAME
CPU(cores)   CPU(%)   MEMORY(bytes)   MEMORY(%)
%
Y
says "pods of all namespaces, by memory" 0 top pods -A --sort-by memory <<'Y'
NAMESPACE   NAME
shop
Y
soon "figures of a pod" "$KAJI" top pods web-1 --containers
says "containers of a pod" 0 top pod web-1 --containers <<'Y'
POD     NAME    CPU(cores)   MEMORY(bytes)
web-1   web-1
Y
says "figures that the caller may not read" 1 top pods --as eve <<'Y'
pods.metrics.k8s.io is forbidden: User "eve" cannot list resource "pods" in API group "metrics.k8s.io"
Y
"$KAJI" tree deployment/talk -o json >"$work/tree"
if python3 - "$work/tree" <<'P'; then ok "a tree as JSON"; else bad "a tree as JSON"; fi
import json, sys
tree = json.load(open(sys.argv[1]))
sets = tree["object"]["dependents"]
pods = sets[0]["dependents"]
assert tree["owners"] == [] and tree["unknown"] == []
assert [s["kind"] for s in sets] == ["ReplicaSet"] and [p["kind"] for p in pods] == ["Pod"] * 3
assert {"kind": "ServiceAccount", "apiVersion": "v1", "name": "default", "optional": False, "state": "present"} in pods[0]["references"]
P
