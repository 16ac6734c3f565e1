#!/usr/bin/env bash
# The walk of argo-cd.sh, which sources this: an installation as documented, an Application from its first sync to its
# deletion, hooks, drift, pruning, server-side apply, rollback, refusals, accounts, projects and ApplicationSets.
# shellcheck shell=bash disable=SC2154

# ---- The repository.
site() { git -C "$work/site" "$@"; }
put() { mkdir -p "$(dirname "$work/site/$1")" && cat >"$work/site/$1"; }
push() {
  site add -A
  site commit -qm "$1"
  site push -q origin main
  head=$(site rev-parse HEAD)
}
mkdir -p "$work/git"
git init -q --bare -b main "$work/git/site.git"
git init -q -b main "$work/site"
site remote add origin "$work/git/site.git"
deployment() {
  put web/deployment.yaml <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "nginx:$1", ports: [{containerPort: 80}]}]}
YAML
}
deployment 1.26
put web/service.yaml <<'YAML'
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, name: http}]}
YAML
put web/maps.yaml <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, annotations: {argocd.argoproj.io/sync-wave: "-1"}}
data: {color: blue}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kept, annotations: {argocd.argoproj.io/sync-options: Prune=false}}
YAML
put web/extra.yaml <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: extra}
YAML
# hook FILE NAME PHASE POLICY COMMAND
hook() {
  put "$1" <<YAML
apiVersion: batch/v1
kind: Job
metadata:
  name: $2
  annotations: {argocd.argoproj.io/hook: $3, argocd.argoproj.io/hook-delete-policy: $4}
spec:
  backoffLimit: 0
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: busybox, command: [sh, -c, "$5"]}]}}
YAML
}
hook web/before.yaml before PreSync BeforeHookCreation "sleep 2; echo migrated"
hook web/after.yaml after PostSync HookSucceeded "exit 0"
put types/widgets.yaml <<'YAML'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {kind: Widget, plural: widgets, singular: widget}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer, default: 3}, name: {type: string}}}
YAML
put types/widget.yaml <<'YAML'
apiVersion: example.com/v1
kind: Widget
metadata: {name: one, annotations: {argocd.argoproj.io/sync-options: SkipDryRunOnMissingResource=true}}
spec: {name: first}
YAML
# More than an annotation may hold.
put big/big.yaml <<YAML
apiVersion: v1
kind: ConfigMap
metadata: {name: big}
data: {text: "$(printf 'x%.0s' {1..300000})"}
YAML
hook broken/before.yaml before-broken PreSync BeforeHookCreation "echo no such table; exit 3"
put broken/map.yaml <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: never}
YAML
for team in red green; do
  put "teams/$team/map.yaml" <<YAML
apiVersion: v1
kind: ConfigMap
metadata: {name: team}
data: {name: $team}
YAML
done
put layers/kustomization.yaml <<'YAML'
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namePrefix: layered-
resources: [map.yaml]
configMapGenerator: [{name: made, literals: [a=b]}]
YAML
put layers/map.yaml <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: plain}
YAML
put chart/Chart.yaml <<'YAML'
apiVersion: v2
name: chart
version: 0.1.0
YAML
put chart/values.yaml <<'YAML'
replicas: 1
YAML
put chart/templates/map.yaml <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-map}
data:
  replicas: {{ .Values.replicas | quote }}
  version: {{ .Capabilities.KubeVersion.Version }}
  apps: {{ .Capabilities.APIVersions.Has "apps/v1/Deployment" | quote }}
YAML
push "first version"
first=$head
git_port=$(free_port)
start git python3 "$here/serve.py" "$work/git" "$git_port:open"
site_url=http://127.0.0.1:$git_port/argo-e2e/site.git
soon "the repository is served" git ls-remote "$site_url"

# ---- The installation, as documented; what runs are processes of this machine in its pods' place.
kubectl create namespace argocd >/dev/null
# What an init container of the real Redis makes.
kubectl -n argocd create secret generic argocd-redis --from-literal=auth= >/dev/null
ok "the installation is applied" kubectl apply -n argocd --server-side -f "$manifests/install.yaml"
ok "its CRDs are established" kubectl wait --for=condition=Established --timeout="${patience}s" crd \
  applications.argoproj.io applicationsets.argoproj.io appprojects.argoproj.io
same "none is said not to be structural" "" field crd '{.items[*].status.conditions[?(@.type=="NonStructuralSchema")].message}'
says "kubectl explain knows them" "SelfHeal" kubectl explain application.spec.syncPolicy.automated
for workload in deployment/argocd-{server,repo-server,applicationset-controller,notifications-controller,dex-server,redis} statefulset/argocd-application-controller; do
  ok "$workload rolls out" kubectl -n argocd rollout status "$workload" --timeout="${patience}s"
done
ok "the manifest applied again changes nothing" eval "kubectl diff --server-side -n argocd -f '$manifests/install.yaml'"
for account in application-controller server applicationset-controller; do kubeconfig_of argocd "argocd-$account" "$work/$account"; done
redis=$(free_port)
repo=$(free_port)
api=$(free_port)
start redis redis-server --save '' --appendonly no --bind 127.0.0.1 --port "$redis"
program repo-server ARGOCD_GPG_ENABLED=false "$COMPONENTS_BIN/argocd" --redis "127.0.0.1:$redis" --address 127.0.0.1 --port "$repo" --metrics-port "$(free_port)"
program application-controller KUBECONFIG="$work/application-controller" HOSTNAME=argocd-application-controller-0 \
  "$COMPONENTS_BIN/argocd" --redis "127.0.0.1:$redis" --repo-server "127.0.0.1:$repo" --metrics-port "$(free_port)" --namespace argocd
program server KUBECONFIG="$work/server" "$COMPONENTS_BIN/argocd" --redis "127.0.0.1:$redis" --repo-server "127.0.0.1:$repo" \
  --address 127.0.0.1 --port "$api" --metrics-port "$(free_port)" --insecure --namespace argocd
program applicationset-controller KUBECONFIG="$work/applicationset-controller" "$COMPONENTS_BIN/argocd" \
  --argocd-repo-server "127.0.0.1:$repo" --namespace argocd --metrics-addr "127.0.0.1:$(free_port)" --probe-addr "127.0.0.1:$(free_port)" \
  --webhook-addr "127.0.0.1:$(free_port)"
soon "the API server is there" listens "$api" /healthz
shows "it makes the first password" "=" field "secret -n argocd argocd-initial-admin-secret" '{.data.password}'
password=$(field "secret -n argocd argocd-initial-admin-secret" '{.data.password}' | base64 -d)
argocd() { "$COMPONENTS_BIN/argocd" --config "$work/argocd-config" "$@"; }
says "the CLI logs in" "logged in successfully" argocd login "127.0.0.1:$api" --plaintext --username admin --password "$password"
says "and the default project is there" "default" argocd proj list

# ---- Applications.
# application NAME FOLDER NAMESPACE [POLICY [FINALIZERS]]
plain='{syncOptions: [CreateNamespace=true]}'
application() {
  kubectl apply -f - >/dev/null <<YAML
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: $1, namespace: argocd, finalizers: ${5:-[]}}
spec:
  project: default
  source: {repoURL: "$site_url", path: $2, targetRevision: main}
  destination: {server: "https://kubernetes.default.svc", namespace: $3}
  syncPolicy: ${4:-$plain}
YAML
}
both='{.status.sync.status} {.status.health.status}'
app() { field "application -n argocd $1" "${2:-$both}"; }
refresh() { argocd app get "$1" --refresh >/dev/null || true; }
# One operation at a time.
sync() {
  argocd app wait "$1" --operation --timeout "$patience" >/dev/null 2>&1 || true
  argocd app sync "$@" --timeout "$patience"
}
phase() { app "$1" '{.status.operationState.phase} {.status.operationState.message}'; }
gone() { ! kubectl get "$@" 2>"$work/reason" && grep -q NotFound "$work/reason"; }
fails() { ! "$@"; }
everything="[resources-finalizer.argocd.argoproj.io]"

application web web shop "" "$everything"
shows "an Application is compared with the cluster" "OutOfSync Missing" app web
says "argocd app diff shows what is missing" "image: nginx:1.26" argocd app diff web
ok "it is synced" sync web
ok "and becomes healthy" argocd app wait web --sync --health --timeout "$patience"
same "its status says so" "Synced Healthy" app web
same "and the revision" "$head" app web '{.status.sync.revision}'
same "the Deployment's pods are available" "2" field "deployment -n shop web" '{.status.availableReplicas}'
says "what is applied is tracked" "web:apps/Deployment:shop/web" field "deployment -n shop web" '{.metadata.annotations.argocd\.argoproj\.io/tracking-id}'
result() { app web "{.status.operationState.syncResult.resources[?(@.name==\"$1\")].$2}"; }
same "a hook before it has run" "PreSync Succeeded" echo "$(result before hookType) $(result before hookPhase)"
says "and its Job is kept" "1" field "job -n shop before" '{.status.succeeded}'
created() { date -d "$(field "$1" '{.metadata.creationTimestamp}')" +%s; }
earlier() { (($(created "$2") - $(created "$1") >= 2)); }
ok "before everything else" earlier "job -n shop before" "deployment -n shop web"
same "one after it, too" "PostSync Succeeded" echo "$(result after hookType) $(result after hookPhase)"
soon "whose Job is removed" gone -n shop job after
says "the tree has what the server made of it" "ReplicaSet" argocd app get web -o tree=detailed
says "down to the pods" "Pod/web-" argocd app get web -o tree
says "logs come through it" "web" argocd app logs web --kind Deployment --name web --tail 5
says "a manifest can be read" "nginx:1.26" argocd app manifests web --source live
says "events were recorded" "Sync operation to" kubectl -n argocd get events --field-selector involvedObject.name=web
ok "an action restarts the Deployment" argocd app actions run web restart --kind Deployment --resource-name web
says "as kubectl does" "T" field "deployment -n shop web" '{.spec.template.metadata.annotations.kubectl\.kubernetes\.io/restartedAt}'
ok "it becomes healthy again" argocd app wait web --health --timeout "$patience"

kubectl -n shop scale deployment web --replicas 5 >/dev/null
shows "a drift is found" "OutOfSync" app web '{.status.sync.status}'
says "and shown" "replicas: 5" argocd app diff web
application web web shop '{automated: {selfHeal: true}, syncOptions: [CreateNamespace=true]}' "$everything"
shows "with selfHeal it is healed" "2" field "deployment -n shop web" '{.spec.replicas}'
shows "and synced" "Synced Healthy" app web
kubectl -n shop delete service web >/dev/null
shows "what was deleted comes back" "web" kubectl -n shop get service web
kubectl -n shop patch configmap settings --type=merge -p '{"data":{"color":"red"}}' >/dev/null
shows "what was changed, too" "blue" field "configmap -n shop settings" '{.data.color}'
shows "and all is synced" "Synced Healthy" app web

deployment 1.27
site rm -q web/extra.yaml
sed -i '/^---/,$d' "$work/site/web/maps.yaml"
push "second version"
refresh web
shows "a new revision is applied by itself" "nginx:1.27" field "deployment -n shop web" '{.spec.template.spec.containers[0].image}'
shows "what is no longer there waits for pruning" "true" app web '{.status.resources[?(@.name=="extra")].requiresPruning}'
same "so that it is out of sync" "OutOfSync" app web '{.status.sync.status}'
ok "and is still there" kubectl -n shop get configmap extra
ok "it is pruned" sync web --prune
ok "and gone" gone -n shop configmap extra
ok "but not what is never to be pruned" kubectl -n shop get configmap kept
says "which is said" "ignored (no prune)" app web '{.status.operationState.syncResult.resources[?(@.name=="kept")].message}'
kubectl -n shop delete configmap kept >/dev/null
shows "without it all is synced" "Synced Healthy" app web
second=$head

application web web shop "" "$everything"
says "the history has the first revision" "$first" app web '{.status.history[*].revision}'
ok "the first one is brought back" argocd app rollback web "$(app web '{.status.history[0].id}')" --timeout "$patience"
same "with its image" "nginx:1.26" field "deployment -n shop web" '{.spec.template.spec.containers[0].image}'
ok "and its objects" kubectl -n shop get configmap extra
kubectl -n shop delete configmap kept >/dev/null
same "while the repository says otherwise" "OutOfSync" app web '{.status.sync.status}'
ok "the second one again" sync web --prune
same "has its revision" "$second" app web '{.status.sync.revision}'
ok "and is healthy" argocd app wait web --health --timeout "$patience"

# ---- Server-side apply.
application big big shop
says "what an annotation cannot hold is refused" "metadata.annotations: Too long" sync big
says "and marked" "Failed" phase big
application big big shop '{syncOptions: [ServerSideApply=true]}'
ok "by the server it is applied" sync big
managers() { field "$1" '{range .metadata.managedFields[*]}{.manager}:{.operation} {end}'; }
same "by one manager" "argocd-controller:Apply " managers "configmap -n shop big"
same "without the annotation" "" field "configmap -n shop big" '{.metadata.annotations.kubectl\.kubernetes\.io/last-applied-configuration}'
kubectl -n shop patch configmap big --field-manager other --type=merge -p '{"data":{"other":"1"}}' >/dev/null
refresh big
same "another one's field makes no drift" "Synced Healthy" app big
application web web shop '{syncOptions: [ServerSideApply=true, CreateNamespace=true]}' "$everything"
ok "an Application changes over to it" sync web
says "and its objects' fields with it" "argocd-controller:Apply" managers "deployment -n shop web"
kubectl -n shop scale deployment web --replicas 3 >/dev/null
shows "a drift is found there, too" "OutOfSync" app web '{.status.sync.status}'
ok "and taken back from its manager" sync web
same "by force" "2" field "deployment -n shop web" '{.spec.replicas}'
kubectl -n argocd annotate application web argocd.argoproj.io/compare-options=ServerSideDiff=true >/dev/null
refresh web
same "the server's own comparison finds none" "Synced" app web '{.status.sync.status}'
kubectl -n shop set image deployment/web web=nginx:wrong >/dev/null
shows "until there is one" "OutOfSync" app web '{.status.sync.status}'
sync web >/dev/null 2>&1 || true
shows "and none afterwards" "Synced Healthy" app web

# ---- What is refused.
application broken broken shop
ok "a hook that fails ends a sync" fails sync broken
says "which is said" "Failed" phase broken
ok "what comes after it is not applied" gone -n shop configmap never
sed -i 's/{app: web}/{app: changed}/g' "$work/site/web/deployment.yaml"
push "another selector"
refresh web
says "what the server refuses is said" "field is immutable" sync web
sync web --replace --force >/dev/null 2>&1 || true
shows "and goes by replacement" "changed" field "deployment -n shop web" '{.spec.selector.matchLabels.app}'
ok "a project is made" argocd proj create narrow --dest "https://kubernetes.default.svc,else" --src "$site_url"
ok "a project without the destination" kubectl -n argocd patch application broken --type=merge -p '{"spec":{"project":"narrow"}}'
refresh broken || true
shows "is a condition" "InvalidSpecError" app broken '{.status.conditions[*].type}'
kubectl -n argocd patch configmap argocd-cm --type=merge -p '{"data":{"application.sync.impersonation.enabled":"true"}}' >/dev/null
kubectl -n shop create serviceaccount reader >/dev/null
kubectl -n argocd patch appproject default --type=merge \
  -p '{"spec":{"destinationServiceAccounts":[{"server":"https://kubernetes.default.svc","namespace":"shop","defaultServiceAccount":"reader"}]}}' >/dev/null
kubectl -n shop delete configmap settings >/dev/null
impersonated() { { sync web 2>&1 || true; } | grep -F "system:serviceaccount:shop:reader"; }
soon "an account without rights is refused" impersonated
kubectl -n shop create rolebinding reader --clusterrole=edit --serviceaccount=shop:reader >/dev/null
ok "with rights it is not" sync web
kubectl -n argocd patch configmap argocd-cm --type=merge -p '{"data":{"application.sync.impersonation.enabled":"false"}}' >/dev/null

# ---- Kinds that come with their objects, and other sources.
application types types shop '{automated: {}}'
# A CRD's change alone makes it compare nothing again.
established() { refresh types; has "Synced Healthy" app types; }
soon "a CRD and its object come together" established
same "with defaults that make no drift" "3" field "widget -n shop one" '{.spec.size}'
if [[ -x $COMPONENTS_BIN/kustomize ]]; then
  application layers layers shop '{automated: {}}'
  shows "a kustomization" "Synced Healthy" app layers
  says "with its names" "layered-made-" kubectl -n shop get configmap -o name
fi
if [[ -x $COMPONENTS_BIN/helm ]]; then
  application chart chart shop '{automated: {}}'
  shows "a chart" "Synced Healthy" app chart
  same "with the server's version" "v$(kubectl version -o json | sed -n '/serverVersion/,$s/.*"\(major\|minor\)": "\(.*\)".*/\2/p' | paste -sd.)" field "configmap -n shop chart-map" '{.data.version}'
  same "and its kinds" "true" field "configmap -n shop chart-map" '{.data.apps}'
fi
kubectl apply -f - >/dev/null <<YAML
apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: {name: teams, namespace: argocd}
spec:
  goTemplate: true
  generators: [{git: {repoURL: "$site_url", revision: main, directories: [{path: "teams/*"}]}}]
  template:
    metadata: {name: "team-{{.path.basename}}"}
    spec:
      project: default
      source: {repoURL: "$site_url", path: "{{.path.path}}", targetRevision: main}
      destination: {server: "https://kubernetes.default.svc", namespace: "team-{{.path.basename}}"}
      syncPolicy: {automated: {prune: true}, syncOptions: [CreateNamespace=true]}
YAML
for team in red green; do
  shows "an ApplicationSet makes team $team's" "Synced Healthy" app "team-$team"
  same "with its object" "$team" field "configmap -n team-$team team" '{.data.name}'
done
same "and says so" "True" field "applicationset -n argocd teams" '{.status.conditions[?(@.type=="ResourcesUpToDate")].status}'
ok "it is deleted" kubectl -n argocd delete applicationset teams --timeout="${patience}s"
soon "with its Applications" gone -n argocd application team-red

# ---- Deletion.
ok "an Application without the finalizer goes" kubectl -n argocd delete application big --timeout="${patience}s"
ok "and its objects stay" kubectl -n shop get configmap big
ok "one with the finalizer goes, too" kubectl -n argocd delete application web --timeout="${patience}s"
for object in deployment/web service/web configmap/settings job/before; do ok "and its $object with it" gone -n shop "$object"; done
ok "the CLI deletes with everything" argocd app delete types --cascade --yes --wait
ok "its object" eval "! kubectl -n shop get widget one"
ok "but never a CRD" kubectl get crd widgets.example.com
kubectl delete crd widgets.example.com >/dev/null

for part in application-controller server applicationset-controller repo-server; do
  quiet "$part" '"level":"(fatal|panic)"|panic:|[Ff]ailed to (list|watch)|no kind .* is registered|unable to decode' 'widgets|example.com'
done
[[ -z ${ARGO_CD_LOGS:-} ]] || cp "$work"/*.log "$ARGO_CD_LOGS"
for part in applicationset-controller server application-controller repo-server redis git; do stop "$part"; done
rm -f "$work"/{applicationset-controller,server,application-controller,repo-server,redis,git}.log
# What no controller is left to finish.
for name in $(kubectl -n argocd get application -o name); do kubectl -n argocd patch "$name" --type=merge -p '{"metadata":{"finalizers":[]}}' >/dev/null; done
ok "the installation is removed" kubectl delete -n argocd --timeout="${patience}s" -f "$manifests/install.yaml"
ok "and its namespace" kubectl delete namespace argocd shop --timeout="${patience}s"
