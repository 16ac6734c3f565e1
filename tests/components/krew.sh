#!/usr/bin/env bash
# Plug-ins of kubectl that krew's users install most, as far as they need no image: each is called as its user would, against
# deployments, secrets, rights, logs and a custom resource on simulated nodes, and what it prints is asserted.
#
# `stern` and `score` are built from their modules. The others are taken from $COMPONENTS_BIN or $PATH, where `kubectl krew install
# NAME` leaves them as kubectl-NAME; what is in neither is skipped, aloud.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3
mkdir -p "$work/bin"
have=" "
# plugin NAME [PACKAGE@VERSION]
plugin() {
  local program=kubectl-${1//-/_} found
  if [[ -n ${2:-} ]] && published "$program" "$2"; then
    have+="$1 "
    return
  fi
  for found in "${COMPONENTS_BIN:-/nowhere}/$program" "$(command -v "$program" || true)"; do
    if [[ -x $found ]]; then
      ln -sf "$(realpath "$found")" "$work/bin/$program"
      have+="$1 "
      return
    fi
  done
  skipped "$1" "there is no $program${2:+, and its module cannot be had}"
}
plugin stern github.com/stern/stern@v1.34.0
plugin score github.com/zegl/kube-score/cmd/kube-score@v1.20.0
for name in ctx ns neat tree who-can access-matrix resource-capacity view-secret get-all images; do plugin "$name"; done
with() { [[ $have == *" $1 "* ]]; }
cluster --nodes sim:3
export PATH=$work/bin:$PATH HOME=$work/home
mkdir -p "$HOME"
context=$(kubectl config current-context)

kubectl create namespace shop >/dev/null
kubectl config set-context --current --namespace=shop >/dev/null
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, image: "nginx:1.27", resources: {requests: {cpu: 250m, memory: 64Mi}, limits: {cpu: 500m, memory: 128Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: talker, labels: {app: talker}}
spec: {containers: [{name: main, image: busybox, command: [sh, -c, "echo hello from the pod; echo and goodbye; sleep 3600"]}]}
---
apiVersion: v1
kind: Secret
metadata: {name: db}
stringData: {user: admin, password: "s3cr3t!"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [db], verbs: [get]}, {apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: User, name: jane, apiGroup: rbac.authorization.k8s.io}]
YAML
kubectl wait --for=condition=Established --timeout="${patience}s" crd/widgets.example.com >/dev/null
kubectl rollout status deployment web --timeout="${patience}s" >/dev/null
kubectl wait --for=condition=Ready --timeout="${patience}s" pod/talker >/dev/null
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: example.com/v1
kind: Widget
metadata: {name: one}
spec: {size: 3}
YAML
uid=$(kubectl get widget one -o 'jsonpath={.metadata.uid}')
kubectl apply -f - >/dev/null <<YAML
apiVersion: v1
kind: ConfigMap
metadata: {name: owned, ownerReferences: [{apiVersion: example.com/v1, kind: Widget, name: one, uid: $uid}]}
YAML
shop() { kubectl get pods -o name | wc -l; }

if with ctx; then
  kubectl config set-context second --cluster="$(kubectl config view --minify -o 'jsonpath={.contexts[0].context.cluster}')" \
    --user="$(kubectl config view --minify -o 'jsonpath={.contexts[0].context.user}')" >/dev/null
  same "ctx: lists the contexts" "$(printf '%s\nsecond' "$context")" kubectl ctx
  says "ctx: switches" 'Switched to context "second"' kubectl ctx second
  same "ctx: says which is current" second kubectl ctx -c
  says "ctx: switches back" "Switched to context \"$context\"" kubectl ctx -
  says "ctx: refuses an unknown one" "no context exists with the name" kubectl ctx nowhere
  ok "ctx: deletes one" kubectl ctx -d second
fi
if with ns; then
  says "ns: lists the namespaces" kube-system kubectl ns
  says "ns: switches" 'Active namespace is "kube-system"' kubectl ns kube-system
  same "ns: says which is active" kube-system kubectl ns -c
  says "ns: refuses an unknown one" "no namespace exists with name" kubectl ns nowhere
  says "ns: switches back" 'Active namespace is "shop"' kubectl ns -
fi
if with neat; then
  neat() { kubectl get "$@" -o yaml | kubectl neat; }
  says "neat: keeps what the user wrote" "image: nginx:1.27" neat deployment web
  same "neat: leaves out what the server wrote" 0 bash -c 'kubectl get deployment web -o yaml | kubectl neat | grep -cE "managedFields|resourceVersion|uid:|^status|creationTimestamp|generation:" || true'
  says "neat: calls kubectl itself" "kind: Pod" kubectl neat get -- pod talker -o yaml
  same "neat: leaves out where a pod runs" 0 bash -c 'kubectl get pod talker -o yaml | kubectl neat | grep -cE "nodeName|^status|priorityClassName" || true'
  kubectl create namespace copy >/dev/null
  ok "neat: what is left can be applied elsewhere" bash -c 'kubectl get deployment web -o yaml | kubectl neat | sed "s/namespace: shop/namespace: copy/" | kubectl -n copy apply -f -'
  ok "neat: and becomes ready" kubectl -n copy rollout status deployment web --timeout="${patience}s"
fi
if with tree; then
  says "tree: a deployment" "Deployment/web" kubectl tree deployment web
  says "tree: its replica set" "└─ReplicaSet/web-" kubectl tree deployment web
  same "tree: its pods" 2 bash -c 'kubectl tree deployment web | grep -c "Pod/web-.*True"'
  says "tree: what a custom resource owns" "└─ConfigMap/owned" kubectl tree widget one
fi
if with who-can; then
  says "who-can: a user by a binding" jane kubectl who-can get secrets/db
  says "who-can: which one" reader kubectl who-can get secrets/db
  says "who-can: nobody else in the namespace" "No subjects found" kubectl who-can delete widgets
  says "who-can: groups by cluster bindings" system:masters kubectl who-can create deployments
  says "who-can: paths" system:monitoring kubectl who-can get /metrics
  says "who-can: what is no resource" "the server doesn't have a resource type" kubectl who-can get unicorns
fi
if with access-matrix; then
  matrix() { kubectl access-matrix -o ascii-table "$@" | grep -E "^ *${row} " | tr -s ' ' | sed 's/ *$//;s/^ *//'; }
  row=pods same "access-matrix: one's own rights" "pods yes yes yes yes" matrix -n shop
  row=pods same "access-matrix: those of another user" "pods yes no no no" matrix -n shop --as jane
  row=widgets.example.com same "access-matrix: of a custom resource" "widgets.example.com no no no no" matrix -n shop --as jane
  says "access-matrix: who may do what" jane kubectl access-matrix for secrets db -n shop --verbs get,list
fi
if with resource-capacity; then
  says "resource-capacity: nodes" sim-1 kubectl resource-capacity
  says "resource-capacity: requests and limits of pods" "250m" kubectl resource-capacity --pods --namespace shop
  shows "resource-capacity: use, by the metrics API" "CPU UTIL" kubectl resource-capacity --util
  shows "resource-capacity: use of pods" web- kubectl resource-capacity --util --pods --namespace shop
  says "resource-capacity: as JSON" '"name": "*"' bash -c 'kubectl resource-capacity -o json | python3 -c "import json, sys; print(json.dumps(json.load(sys.stdin)))" | sed "s/\"clusterTotals\"/\"name\": \"*\", &/"'
  says "resource-capacity: with how many pods" "POD COUNT" kubectl resource-capacity --pod-count
fi
if with view-secret; then
  same "view-secret: a key" 's3cr3t!' kubectl view-secret db password -q
  says "view-secret: all of them" "user='admin'" kubectl view-secret db -a
  says "view-secret: what is not there" "not found" kubectl view-secret db nothing
  says "view-secret: with the rights of another" 's3cr3t!' kubectl view-secret db password --as jane
  says "view-secret: and without any" "forbidden" kubectl view-secret db password --as john
fi
if with get-all; then
  says "get-all: built-in objects" deployment.apps/web kubectl get-all -n shop
  says "get-all: custom ones" widget.example.com/one kubectl get-all -n shop
  says "get-all: by label" replicaset.apps/web- kubectl get-all -n shop -l app=web
  says "get-all: those of no namespace" customresourcedefinition.apiextensions.k8s.io/widgets.example.com kubectl get-all --only-scope=cluster
fi
if with images; then
  says "images: of a namespace" nginx:1.27 kubectl images -n shop
  says "images: as JSON" '"image": "nginx:1.27"' bash -c 'kubectl images -n shop -o json | sed "s/\"Image\":/\"image\":/;s/\"ContainerImage\":/\"image\":/"'
fi
if with stern; then
  stern() { kubectl stern --color never "$@"; }
  says "stern: logs of a pod by name" "talker main hello from the pod" stern --no-follow talker
  says "stern: by label" "talker main and goodbye" stern --no-follow -l app=talker
  says "stern: of a resource" "web-" stern --no-follow deployment/web --template '{{.PodName}}{{"\n"}}'
  says "stern: as JSON" '"podName":"talker"' stern --no-follow talker -o json
  same "stern: what matches" 1 bash -c 'kubectl stern --no-follow --color never talker --include goodbye 2>/dev/null | wc -l'
  start stern "$work/bin/kubectl-stern" --color never --kubeconfig "$KUBECONFIG" -n shop 'late'
  kubectl run late --image=busybox --restart=Never --command -- sh -c 'echo I am late; sleep 2' >/dev/null
  followed() { grep -qF "$1" "$work/stern.log"; }
  soon "stern: follows pods that come" followed "+ late › late"
  soon "stern: and their logs" followed "late late I am late"
  stop stern
fi
if with score; then
  kubectl get deployment web -o yaml >"$work/web.yaml"
  says "score: finds faults in what the server gives" "Container Security Context" kubectl score score "$work/web.yaml"
  same "score: but none with what is right" 0 bash -c 'kubectl score score -o ci "$1" | grep -cE "(CPU|Memory) (limit|request) is not set" || true' sh "$work/web.yaml"
fi
[[ $have != " " ]] || { echo "SKIPPED krew: no plug-in is there"; exit 0; }
finish
