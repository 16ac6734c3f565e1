#!/usr/bin/env bash
# Flux: source-controller, kustomize-controller and helm-controller, each with its own service account's rights, against
# sources on the loopback: a Git repository by `git http-backend`, an OCI registry and a static Helm repository. What is asserted
# is what Flux's users see: revisions, applied objects with their managers and inventory, health, dependencies, drift, pruning,
# impersonation, releases with their history, and events.
#
# HELM_CONTROLLER names a checkout of helm-controller's repository (v1.6.2); without it the releases are skipped, aloud.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3 git
here=$components/flux
build source-controller github.com/fluxcd/source-controller "$here"
build kustomize-controller github.com/fluxcd/kustomize-controller "$here"
build crane github.com/google/go-containerregistry/cmd/crane "$here"
[[ -z ${HELM_CONTROLLER:-} ]] || build helm-controller . "$HELM_CONTROLLER"
cluster --nodes sim:3
# shellcheck disable=SC2086
field() { kubectl get $1 -o "jsonpath=$2"; }
ready() { kubectl wait --for=condition=Ready --timeout="${patience}s" "$@"; }
condition() { field "$1" "{.status.conditions[?(@.type==\"${2:-Ready}\")].reason} {.status.conditions[?(@.type==\"${2:-Ready}\")].message}"; }
# events KIND/NAME REASON
events() {
  kubectl get events --field-selector "involvedObject.kind=${1%/*},involvedObject.name=${1#*/},reason=$2" -o 'jsonpath={range .items[*]}{.type} {.message}{"\n"}{end}'
}
gone() { ! kubectl get "$@" 2>"$work/reason" && grep -q NotFound "$work/reason"; }
is() { [[ $(field "$1" "$2") == "$3" ]]; }
asked=0
# What `flux reconcile` does: asks for it, and waits until it was done, however it ended.
reconcile() {
  asked=$((asked + 1))
  kubectl annotate --overwrite "$@" "reconcile.fluxcd.io/requestedAt=$asked"
  kubectl wait "$@" --for="jsonpath={.status.lastHandledReconcileAt}=$asked" --timeout="${patience}s"
}

# ---- The sources.
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com
mkdir -p "$work/www/git/private" "$work/www/charts" "$work/fleet" "$work/storage"
fleet() { git -C "$work/fleet" "$@"; }
put() { mkdir -p "$(dirname "$work/fleet/$1")" && cat >"$work/fleet/$1"; }
commit() {
  fleet add -A
  fleet commit -qm "$1"
  fleet push -q --tags origin main
  head=$(fleet rev-parse HEAD)
}
git init -q --bare -b main "$work/www/git/fleet.git"
git init -q -b main "$work/fleet"
fleet remote add origin "$work/www/git/fleet.git"
put infra/namespace.yaml <<'YAML'
apiVersion: v1
kind: Namespace
metadata: {name: shop}
YAML
put infra/tenants.yaml <<'YAML'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: tenants.example.com}
spec:
  group: example.com
  names: {kind: Tenant, plural: tenants, singular: tenant}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {owner: {type: string}, size: {type: integer, default: 3}}}
          status: {type: object, properties: {phase: {type: string}}}
YAML
put infra/tenant.yaml <<'YAML'
apiVersion: example.com/v1
kind: Tenant
metadata: {name: blue, namespace: shop}
spec: {owner: ann}
YAML
put apps/kustomization.yaml <<'YAML'
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [web.yaml, maps.yaml, extra.yaml]
configMapGenerator:
- name: settings
  literals: ["greeting=${greeting}", "region=${region:=nowhere}"]
YAML
put apps/web.yaml <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: nginx:1.27
        ports: [{containerPort: 80}]
        envFrom: [{configMapRef: {name: settings}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, name: http}]}
YAML
put apps/maps.yaml <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: merged, annotations: {kustomize.toolkit.fluxcd.io/ssa: Merge}}
data: {ours: "1"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: once, annotations: {kustomize.toolkit.fluxcd.io/ssa: IfNotPresent}}
data: {seed: "1"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: fixed}
immutable: true
data: {color: red}
YAML
put apps/extra.yaml <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: extra}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kept, annotations: {kustomize.toolkit.fluxcd.io/prune: disabled}}
YAML
put team/role.yaml <<'YAML'
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: blue}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
YAML
put remote/map.yaml <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: remote, namespace: blue}
YAML
commit first
fleet tag v1.0.0
fleet push -q --tags origin main
cp -r "$work/www/git/fleet.git" "$work/www/git/private/fleet.git"
www=127.0.0.1:$(free_port)
start www python3 "$here/serve.py" "${www#*:}" "$work/www" git:secret
registry=127.0.0.1:$(free_port)
start registry "$work/bin/crane" registry serve --address "$registry"
chart() { python3 "$here/package.py" "$work/shop" "$1" "$work/www/charts"; }

# ---- Installation, with an account for each controller as in Flux's own distribution.
kubectl create namespace flux-system >/dev/null
kubectl config set-context --current --namespace=flux-system >/dev/null
# controller NAME FOLDER FLAG…
controller() {
  local name=$1 config=$2 install=$work/install/$1
  shift 2
  mkdir -p "$install"
  cp -r "$config/crd" "$config/rbac" "$install"
  chmod -R u+w "$install"
  cat >"$install/kustomization.yaml" <<YAML
namespace: flux-system
resources: [crd, rbac, account.yaml]
patches:
- target: {kind: ClusterRoleBinding}
  patch: '[{"op": "replace", "path": "/subjects/0", "value": {"kind": "ServiceAccount", "name": "$name", "namespace": "flux-system"}}]'
- target: {kind: RoleBinding}
  patch: '[{"op": "replace", "path": "/subjects/0", "value": {"kind": "ServiceAccount", "name": "$name", "namespace": "flux-system"}}]'
YAML
  cat >"$install/account.yaml" <<YAML
apiVersion: v1
kind: ServiceAccount
metadata: {name: $name}
YAML
  ok "$name is installed" kubectl apply --server-side -k "$install"
  ok "its CRDs are established" kubectl wait --for=condition=Established --timeout="${patience}s" crd --all
  kubeconfig_of flux-system "$name" "$work/$name.kubeconfig"
  health=127.0.0.1:$(free_port)
  KUBECONFIG=$work/$name.kubeconfig RUNTIME_NAMESPACE=flux-system TUF_ROOT=$work/tuf start "$name" "$work/bin/$name" \
    --watch-all-namespaces --log-encoding=json --metrics-addr=127.0.0.1:0 --health-addr="$health" --requeue-dependency=2s "$@"
  soon "it is ready" curl -fsS "http://$health/readyz"
}
config() { echo "$(cd "$here" && go list -m -f '{{.Dir}}' "github.com/fluxcd/$1")/config"; }
storage=127.0.0.1:$(free_port)
controller source-controller "$(config source-controller)" --storage-path="$work/storage" --storage-addr="$storage" --storage-adv-addr="$storage"
controller kustomize-controller "$(config kustomize-controller)" --feature-gates=CancelHealthCheckOnNewRevision=true
same "none of the CRDs is said not to be structural" "" field crd '{.items[*].status.conditions[?(@.type=="NonStructuralSchema")].message}'
says "kubectl explain knows them" "Prune enables garbage collection" kubectl explain kustomization.spec.prune
can() { kubectl --kubeconfig "$work/$1.kubeconfig" auth can-i "${@:2}"; }
says "source-controller may do no more than it needs" no can source-controller create deployments -n shop

# ---- GitRepository.
# repository NAME URL REF EXTRA
repository() {
  kubectl apply -f - <<YAML
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: $1}
spec: {interval: 1h, timeout: 20s, url: "$2", ref: $3, ${4:-}}
YAML
}
says "a source's rules are checked by CEL and by patterns" "spec.url in body should match" repository bad ftp://nowhere '{branch: main}'
ok "a GitRepository is created" repository fleet "http://$www/git/fleet.git" '{branch: main}'
ok "and becomes ready" ready gitrepository/fleet
same "at the branch's commit" "main@sha1:$head" field gitrepository/fleet '{.status.artifact.revision}'
says "a table has the printer columns" "stored artifact for revision 'main@sha1:$head'" kubectl get gitrepository
says "the event has the reason of a new artifact" "Normal stored artifact for commit 'first'" events GitRepository/fleet NewArtifact
artifact() { curl -fsS "$(field "$1" '{.status.artifact.url}')" | tar tz; }
says "the artifact can be fetched where its status says" "apps/web.yaml" artifact gitrepository/fleet
ok "a tag by its semantic version" repository tagged "http://$www/git/fleet.git" '{semver: ">=1.0.0"}'
ok "becomes ready" ready gitrepository/tagged
same "at the tag" "v1.0.0@sha1:$head" field gitrepository/tagged '{.status.artifact.revision}'
ok "a repository that wants a password" repository private "http://$www/git/private/fleet.git" '{branch: main}'
shows "fails without" "GitOperationFailed failed to checkout and determine revision" condition gitrepository/private FetchFailed
shows "with a warning" "Warning failed to checkout and determine revision" events GitRepository/private GitOperationFailed
kubectl create secret generic git --from-literal=username=git --from-literal=password=secret >/dev/null
ok "with a Secret" repository private "http://$www/git/private/fleet.git" '{branch: main}' 'secretRef: {name: git}'
ok "it becomes ready" ready gitrepository/private
same "and the failure is gone from its conditions" "" field gitrepository/private '{.status.conditions[?(@.type=="FetchFailed")].reason}'
same "a finalizer is on each" "finalizers.fluxcd.io" field gitrepository/private '{.metadata.finalizers[*]}'
ok "which the controller removes on deletion" kubectl delete gitrepository/private --timeout="${patience}s"

# ---- Kustomization.
# kustomization NAME PATH EXTRA [NAMESPACE]
kustomization() {
  kubectl apply -f - <<YAML
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: $1, namespace: ${4:-flux-system}}
spec:
  interval: 1h
  retryInterval: 2s
  timeout: 30s # Less is not taken.
  path: ./$2
  prune: true
  sourceRef: {kind: GitRepository, name: fleet, namespace: flux-system}
$(sed 's/^/  /' <<<"$3")
YAML
}
# sync NAME: what is at the head of the branch is applied, and found healthy.
sync() {
  reconcile gitrepository/fleet && kubectl wait "kustomization/$1" --for="jsonpath={.status.lastAppliedRevision}=main@sha1:$head" --timeout="${patience}s" && ready "kustomization/$1"
}
attempted() { reconcile gitrepository/fleet && kubectl wait "kustomization/$1" --for="jsonpath={.status.lastAttemptedRevision}=main@sha1:$head" --timeout="${patience}s"; }
kubectl create configmap cluster --from-literal=region=north >/dev/null
kubectl label configmap cluster reconcile.fluxcd.io/watch=Enabled >/dev/null
apps='wait: true
targetNamespace: shop
dependsOn: [{name: infra}]
commonMetadata: {labels: {team: blue}}
patches:
- target: {kind: Deployment, name: web}
  patch: "- {op: add, path: /spec/template/metadata/annotations, value: {patched: \"true\"}}"
postBuild:
  substitute: {greeting: hello}
  substituteFrom: [{kind: ConfigMap, name: cluster}]'
ok "apps, which depend on infra" kustomization apps apps "$apps"
shows "wait for it" "DependencyNotReady" condition kustomization/apps
shows "as an event says" "Normal Dependencies do not meet ready condition, retrying in 2s" events Kustomization/apps DependencyNotReady
ok "nothing of them is applied" gone namespace shop
infra='wait: true
healthCheckExprs:
- {apiVersion: example.com/v1, kind: Tenant, inProgress: "!has(status.phase)", failed: "status.phase == \"Failed\"", current: "status.phase == \"Ready\""}'
ok "infra has a namespace, a CRD and an object of it at once" kustomization infra infra "$infra"
shows "which are applied in stages" "ann 3" field "tenant blue -n shop" '{.spec.owner} {.spec.size}'
shows "infra waits for the health of the custom resource" "Unknown Progressing" field kustomization/infra \
  '{.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].reason}'
ok "apps still wait" gone deployment web -n shop
ok "the custom resource's status is written" kubectl patch tenant blue -n shop --subresource=status --type=merge -p '{"status":{"phase":"Ready"}}'
ok "infra is ready" ready kustomization/infra
ok "and then apps" ready kustomization/apps
same "with the revision" "ReconciliationSucceeded Applied revision: main@sha1:$head" condition kustomization/apps
same "healthy" "True" field kustomization/apps '{.status.conditions[?(@.type=="Healthy")].status}'
says "events name what was created" "Deployment/shop/web created" events Kustomization/apps Progressing
says "and the success" "Normal Health check passed" events Kustomization/apps Progressing
says "and the end" "Normal Reconciliation finished in" events Kustomization/apps ReconciliationSucceeded
same "an event has the revision as an annotation" "main@sha1:$head" field \
  "events --field-selector involvedObject.name=apps,reason=ReconciliationSucceeded" '{.items[0].metadata.annotations.kustomize\.toolkit\.fluxcd\.io/revision}'
same "the inventory has every object" "_tenants.example.com_apiextensions.k8s.io_CustomResourceDefinition _shop__Namespace shop_blue_example.com_Tenant" \
  field kustomization/infra '{.status.inventory.entries[*].id}'
inventory() { field kustomization/apps '{.status.inventory.entries[*].id}'; }
says "also of what was generated" "shop_settings-" inventory
says "and the deployment" "shop_web_apps_Deployment" inventory
managers() { kubectl get "$@" --show-managed-fields -o 'jsonpath={range .metadata.managedFields[*]}{.manager} {.operation} {.subresource}{"\n"}{end}'; }
says "objects are applied by the server under the controller's name" "kustomize-controller Apply" managers deployment web -n shop
same "with the owner in labels and the common label" "apps flux-system blue" field "deployment web -n shop" \
  '{.metadata.labels.kustomize\.toolkit\.fluxcd\.io/name} {.metadata.labels.kustomize\.toolkit\.fluxcd\.io/namespace} {.metadata.labels.team}'
same "and the patch" true field "deployment web -n shop" '{.spec.template.metadata.annotations.patched}'
generated() { field "deployment web -n shop" '{.spec.template.spec.containers[0].envFrom[0].configMapRef.name}'; }
same "variables are substituted" "hello north" field "configmap -n shop $(generated)" '{.data.greeting} {.data.region}'
same "two pods run" 2 field "deployment web -n shop" '{.status.readyReplicas}'

# Drift.
ok "with nothing to do a reconciliation changes nothing" reconcile kustomization/apps
before=$(field "deployment web -n shop" '{.metadata.resourceVersion}')
fields=$(kubectl get deployment web -n shop -o 'jsonpath={.metadata.managedFields[?(@.manager=="kustomize-controller")].time}' --show-managed-fields)
reconcile kustomization/apps >/dev/null
same "not even the deployment's version" "$before" field "deployment web -n shop" '{.metadata.resourceVersion}'
same "nor its manager's time" "$fields" kubectl get deployment web -n shop -o 'jsonpath={.metadata.managedFields[?(@.manager=="kustomize-controller")].time}' --show-managed-fields
ok "the deployment is scaled by hand" kubectl scale deployment web -n shop --replicas=5
ok "its Service edited" kubectl patch service web -n shop --type=merge -p '{"spec":{"selector":{"app":"other"}}}'
ok "with kubectl's apply, a label" kubectl apply --server-side --force-conflicts -f - <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {team: red, by: hand}}
YAML
ok "and by another program, one more" kubectl label deployment web -n shop --field-manager=other others=stay
ok "a ConfigMap is deleted" kubectl delete configmap extra -n shop
ok "what is merged and what is made once are edited" kubectl patch configmap merged once -n shop --type=merge -p '{"data":{"theirs":"2","seed":"2"}}'
ok "the drift is corrected" reconcile kustomization/apps
same "in the deployment" "2 blue" field "deployment web -n shop" '{.spec.replicas} {.metadata.labels.team}'
same "where kubectl's field is removed and the other program's is not" " stay" field "deployment web -n shop" '{.metadata.labels.by} {.metadata.labels.others}'
same "no manager kubectl is left" "" kubectl get deployment web -n shop -o 'jsonpath={.metadata.managedFields[?(@.manager=="kubectl")].manager}' --show-managed-fields
same "in the Service" '{"app":"web"}' field "service web -n shop" '{.spec.selector}'
ok "the ConfigMap is back" kubectl get configmap extra -n shop
same "what is merged has both" '{"ours":"1","seed":"2","theirs":"2"}' field "configmap merged -n shop" '{.data}'
same "what is made once is left" '{"seed":"2","theirs":"2"}' field "configmap once -n shop" '{.data}'
shows "an event says what was configured" "Deployment/shop/web configured" events Kustomization/apps Progressing
shows "and what was created" "ConfigMap/shop/extra created" events Kustomization/apps Progressing

# A change of a ConfigMap that is watched, without a commit.
ok "the variable's ConfigMap is changed" kubectl patch configmap cluster --type=merge -p '{"data":{"region":"south"}}'
renamed() { [[ $(field "configmap -n shop $(generated)" '{.data.region}') == south ]]; }
soon "and the objects follow" renamed
ok "apps are ready" ready kustomization/apps

# A new commit, pruning.
fleet rm -q apps/extra.yaml
sed -i 's/, extra.yaml//' "$work/fleet/apps/kustomization.yaml"
sed -i 's/replicas: 2/replicas: 3/' "$work/fleet/apps/web.yaml"
commit second
ok "a second commit is applied" sync apps
same "the deployment has its replicas" "3 3" field "deployment web -n shop" '{.spec.replicas} {.status.readyReplicas}'
ok "what is no longer there is deleted" gone configmap extra -n shop
ok "but what says that it stays" kubectl get configmap kept -n shop
shows "an event says so" "ConfigMap/shop/extra deleted" events Kustomization/apps Progressing
without() { [[ $(inventory) != *"$1"* ]]; }
ok "and the inventory no longer has it" without shop_extra__ConfigMap

# Health.
sed -i 's/nginx:1.27/nginx:404/' "$work/fleet/apps/web.yaml"
commit third
ok "a commit with an image that is not there is tried" attempted apps
shows "its health check fails" "HealthCheckFailed health check failed after" condition kustomization/apps
says "for the deployment" "Deployment/shop/web status: 'InProgress'" condition kustomization/apps
shows "with a warning" "Warning health check failed after" events Kustomization/apps HealthCheckFailed
is_not() { [[ $(field "$1" "$2") != "$3" ]]; }
ok "the last applied revision is the one before" is_not kustomization/apps '{.status.lastAppliedRevision}' "main@sha1:$head"
same "pods of the version before still run" 3 field "deployment web -n shop" '{.status.readyReplicas}'

# What the server refuses, and what cannot be built.
sed -i 's/nginx:404/nginx:1.28/; s/containerPort: 80/containerPort: 80000/' "$work/fleet/apps/web.yaml"
commit fourth
ok "a commit that the server refuses is tried" attempted apps
shows "its dry run fails" "ReconciliationFailed Deployment/shop/web dry-run failed (Invalid)" condition kustomization/apps
says "with the server's words" "spec.template.spec.containers[0].ports[0].containerPort: Invalid value: 80000: must be between 1 and 65535, inclusive" condition kustomization/apps
sed -i 's/containerPort: 80000/containerPort: 80/' "$work/fleet/apps/web.yaml"
sed -i 's/maps.yaml/maps.yaml, tenant.yaml/' "$work/fleet/apps/kustomization.yaml"
# Fields of built-in kinds that no schema has never reach the server: the controller reads these kinds into its own types first.
put apps/tenant.yaml <<'YAML'
apiVersion: example.com/v1
kind: Tenant
metadata: {name: red}
spec: {owner: bea, colour: red}
YAML
commit fifth
ok "one with a field that no schema has" attempted apps
shows "fails too" "failed to create typed patch object (shop/red; example.com/v1, Kind=Tenant): .spec.colour: field not declared in schema" condition kustomization/apps
fleet rm -q -f apps/tenant.yaml
sed -i 's/, tenant.yaml//' "$work/fleet/apps/kustomization.yaml"
sed -i 's/color: red/color: green/' "$work/fleet/apps/maps.yaml"
commit sixth
ok "one that changes what is immutable" attempted apps
shows "fails" "ConfigMap/shop/fixed dry-run failed (Invalid)" condition kustomization/apps
says "for that reason" "field is immutable when \`immutable\` is set" condition kustomization/apps
uid=$(field "configmap fixed -n shop" '{.metadata.uid}')
kubectl patch kustomization apps --type=merge -p '{"spec":{"force":true}}' >/dev/null
ok "unless it is forced" sync apps
same "and then" green field "configmap fixed -n shop" '{.data.color}'
ok "it is another object" is_not "configmap fixed -n shop" '{.metadata.uid}' "$uid"
same "the deployment has the new image" nginx:1.28 field "deployment web -n shop" '{.spec.template.spec.containers[0].image}'
sed -i 's/maps.yaml/missing.yaml/' "$work/fleet/apps/kustomization.yaml"
commit seventh
ok "a commit that cannot be built is tried" attempted apps
shows "and fails" "BuildFailed kustomize build failed" condition kustomization/apps
ok "nothing was deleted for it" kubectl get configmap fixed -n shop
sed -i 's/missing.yaml/maps.yaml/' "$work/fleet/apps/kustomization.yaml"
commit eighth
ok "mended, it is applied" sync apps

ok "one of a path that is not there" kustomization nowhere nowhere ""
shows "fails" "ArtifactFailed kustomization path not found" condition kustomization/nowhere
shows "with a warning" "Warning kustomization path not found" events Kustomization/nowhere ArtifactFailed
ok "and can be deleted" kubectl delete kustomization nowhere --timeout="${patience}s"

# Suspension.
ok "apps are suspended" kubectl patch kustomization apps --type=merge -p '{"spec":{"suspend":true}}'
says "as a table shows" "True" kubectl get kustomization apps -o wide
kubectl scale deployment web -n shop --replicas=1 >/dev/null
kubectl annotate --overwrite kustomization/apps reconcile.fluxcd.io/requestedAt=suspended >/dev/null
# Another one's reconciliation, asked for afterwards, is through.
ok "while others are reconciled" reconcile kustomization/infra
same "drift stays" 1 field "deployment web -n shop" '{.spec.replicas}'
ok "they are resumed" kubectl patch kustomization apps --type=merge -p '{"spec":{"suspend":false}}'
soon "and the drift goes" is "deployment web -n shop" '{.spec.replicas}' 3
ok "apps are ready again" ready kustomization/apps

# Impersonation.
kubectl create namespace blue >/dev/null
kubectl create serviceaccount deployer -n blue >/dev/null
ok "a tenant's Kustomization with its own account" kustomization team team 'serviceAccountName: deployer' blue
shows "is refused what the account may not do" \
  "roles.rbac.authorization.k8s.io \"reader\" is forbidden: User \"system:serviceaccount:blue:deployer\" cannot patch resource \"roles\" in API group \"rbac.authorization.k8s.io\" in the namespace \"blue\"" \
  condition "kustomization/team -n blue"
kubectl create role deployer -n blue --verb=get,list,watch,create,update,patch,delete --resource=configmaps,roles.rbac.authorization.k8s.io >/dev/null
kubectl create rolebinding deployer -n blue --role=deployer --serviceaccount=blue:deployer >/dev/null
ok "with the right to roles it is tried again" reconcile kustomization/team -n blue
shows "and refused what would be more than the account has" "is attempting to grant RBAC permissions not currently held" condition "kustomization/team -n blue"
kubectl create rolebinding view -n blue --clusterrole=view --serviceaccount=blue:deployer >/dev/null
ok "with that right" ready kustomization/team -n blue
ok "it is applied" kubectl get role reader -n blue
# By a kubeconfig, as for another cluster.
kubeconfig_of blue deployer "$work/remote"
kubectl create secret generic remote -n blue --from-file=value="$work/remote" >/dev/null
ok "a Kustomization for a cluster of a kubeconfig" kustomization remote remote 'kubeConfig: {secretRef: {name: remote}}' blue
ok "is ready" ready kustomization/remote -n blue
ok "and there" kubectl get configmap remote -n blue

# An OCI artifact.
mkdir -p "$work/artifact/packed"
cat >"$work/artifact/packed/map.yaml" <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: packed, namespace: blue}
data: {version: one}
YAML
push() { tar -C "$work/artifact" -czf "$work/layer.tar.gz" . && "$work/bin/crane" append --new_layer "$work/layer.tar.gz" --new_tag "$registry/manifests:$1"; }
soon "an artifact is pushed to the registry" push 1.0.0
ok "an OCIRepository" kubectl apply -f - <<YAML
apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: {name: manifests}
spec: {interval: 1h, url: "oci://$registry/manifests", insecure: true, ref: {semver: "1.x"}}
YAML
ok "is ready" ready ocirepository/manifests
digest() { "$work/bin/crane" digest "$registry/manifests:$1"; }
same "at the tag's digest" "1.0.0@$(digest 1.0.0)" field ocirepository/manifests '{.status.artifact.revision}'
ok "a Kustomization of it" kubectl apply -f - <<'YAML'
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: packed}
spec: {interval: 1h, path: ./packed, prune: true, sourceRef: {kind: OCIRepository, name: manifests}}
YAML
ok "is applied" ready kustomization/packed
same "with its content" one field "configmap packed -n blue" '{.data.version}'
sed -i 's/one/two/' "$work/artifact/packed/map.yaml"
ok "a newer version is pushed" push 1.1.0
ok "and found" reconcile ocirepository/manifests
soon "and applied" is "configmap packed -n blue" '{.data.version}' two
shows "at its revision" "1.1.0@$(digest 1.1.0)" field kustomization/packed '{.status.lastAppliedRevision}'

# Deletion.
ok "a Kustomization that leaves its objects" kubectl patch kustomization packed --type=merge -p '{"spec":{"deletionPolicy":"Orphan"}}'
ok "is deleted" kubectl delete kustomization packed --timeout="${patience}s"
ok "and they stay" kubectl get configmap packed -n blue
ok "the tenant's is deleted" kubectl delete kustomization team -n blue --timeout="${patience}s"
ok "and its role, by its account" gone role reader -n blue
ok "apps are deleted, and their termination awaited" kubectl patch kustomization apps --type=merge -p '{"spec":{"deletionPolicy":"WaitForTermination"}}'
ok "the finalizer ends" kubectl delete kustomization apps --timeout="${patience}s"
ok "their deployment is gone" gone deployment web -n shop
none() { [[ -z $(kubectl get "$@" -o name) ]]; }
soon "and their pods" none pods -n shop
ok "what said that it stays is there" kubectl get configmap kept -n shop
ok "infra is deleted" kubectl delete kustomization infra --timeout="${patience}s"
soon "and the CRD" gone crd tenants.example.com
soon "and the namespace, with what was in it" gone namespace shop

# ---- HelmRelease.
if [[ -z ${HELM_CONTROLLER:-} ]]; then
  skipped "releases" "HELM_CONTROLLER names no checkout of helm-controller"
else
  mkdir -p "$work/shop/templates" "$work/shop/crds"
  cat >"$work/shop/crds/coupons.yaml" <<'YAML'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: coupons.example.com}
spec:
  group: example.com
  names: {kind: Coupon, plural: coupons, singular: coupon}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
YAML
  cat >"$work/shop/values.yaml" <<'YAML'
replicas: 1
tag: "1.27"
greeting: hello
test: exit 0
YAML
  cat >"$work/shop/templates/all.yaml" <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}, labels: {helm.sh/chart: "{{ .Chart.Name }}-{{ .Chart.Version }}"}}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app: {{ .Release.Name }}}}
    spec: {containers: [{name: main, image: "nginx:{{ .Values.tag }}"}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {greeting: {{ .Values.greeting | quote }}, revision: "{{ .Release.Revision }}", server: {{ .Capabilities.KubeVersion.Version | quote }}}
---
apiVersion: example.com/v1
kind: Coupon
metadata: {name: {{ .Release.Name }}}
spec: {percent: 5}
---
apiVersion: v1
kind: Pod
metadata:
  name: {{ .Release.Name }}-test
  annotations: {helm.sh/hook: test, helm.sh/hook-delete-policy: before-hook-creation}
spec:
  restartPolicy: Never
  containers: [{name: test, image: busybox, command: [sh, -c, {{ .Values.test | quote }}]}]
YAML
  chart 1.0.0
  controller helm-controller "$HELM_CONTROLLER/config"
  ok "a HelmRepository" kubectl apply -f - <<YAML
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: {name: charts}
spec: {interval: 1h, url: "http://$www/charts"}
YAML
  ok "is ready" ready helmrepository/charts
  index() { curl -fsS "http://$www/charts/index.yaml" | sha256sum | cut -d' ' -f1; }
  says "with a revision" "sha256:" field helmrepository/charts '{.status.artifact.revision}'
  # release NAME EXTRA
  release() {
    kubectl apply -f - <<YAML
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: $1}
spec:
  interval: 1h
  timeout: ${patience}s
  releaseName: $1
  chart: {spec: {chart: shop, version: ">=1.0.0", sourceRef: {kind: HelmRepository, name: charts}}}
$(sed 's/^/  /' <<<"$2")
YAML
  }
  kubectl create configmap values --from-literal=values.yaml='greeting: from the ConfigMap' >/dev/null
  kubectl label configmap values reconcile.fluxcd.io/watch=Enabled >/dev/null
  main='targetNamespace: releases
install: {createNamespace: true}
upgrade: {remediation: {retries: 1, remediateLastFailure: true}}
driftDetection: {mode: enabled}
test: {enable: true}
valuesFrom: [{kind: ConfigMap, name: values}]
values: {replicas: 2}
postRenderers:
- kustomize:
    patches:
    - target: {kind: Deployment}
      patch: "- {op: add, path: /metadata/annotations, value: {rendered: after}}"'
  ok "a HelmRelease" release main "$main"
  ok "is ready" ready helmrelease/main
  same "its tests have passed, too" "InstallSucceeded TestSucceeded" field helmrelease/main \
    '{.status.conditions[?(@.type=="Released")].reason} {.status.conditions[?(@.type=="TestSuccess")].reason}'
  says "as Ready says" "Helm test succeeded for release releases/main.v1 with chart shop@1.0.0: 1 test hook completed successfully" condition helmrelease/main
  says "an event says what was installed" "Normal Helm install succeeded for release releases/main.v1 with chart shop@1.0.0" events HelmRelease/main InstallSucceeded
  says "and what was tested" "Normal Helm test succeeded" events HelmRelease/main TestSucceeded
  same "its chart was made into an artifact" 1.0.0 field helmchart/flux-system-main '{.status.artifact.revision}'
  same "the release is in a Secret" "helm.sh/release.v1 deployed 1" field secret/sh.helm.release.v1.main.v1 '{.type} {.metadata.labels.status} {.metadata.labels.version}'
  same "values come from the release and the ConfigMap" "2 from the ConfigMap" field "deployment/main configmap/main -n releases" '{.items[0].spec.replicas} {.items[1].data.greeting}'
  same "the pods are ready" 2 field "deployment main -n releases" '{.status.readyReplicas}'
  same "the post-renderer was at work" after field "deployment main -n releases" '{.metadata.annotations.rendered}'
  same "the template has seen the server's version" "$(kubectl get --raw /version | python3 -c 'import json,sys; print(json.load(sys.stdin)["gitVersion"])')" \
    field "configmap main -n releases" '{.data.server}'
  says "objects are applied by the server under the controller's name" "helm-controller Apply" managers deployment main -n releases
  same "the chart's CRD is there, and its object" 5 field "coupon main -n releases" '{.spec.percent}'
  says "the inventory has the objects" "releases_main_apps_Deployment" field helmrelease/main '{.status.inventory.entries[*].id}'
  says "a table shows the state" "Helm test succeeded" kubectl get helmrelease main

  # Upgrades.
  history() { field helmrelease/main '{range .status.history[*]}{.version}:{.chartVersion}:{.status} {end}'; }
  ok "the values' ConfigMap is changed" kubectl patch configmap values --type=merge -p '{"data":{"values.yaml":"greeting: changed"}}'
  shows "which upgrades the release" "2:1.0.0:deployed 1:1.0.0:superseded" history
  same "with its value" "changed 2" field "configmap main -n releases" '{.data.greeting} {.data.revision}'
  ok "it is ready" ready helmrelease/main
  sed -i 's/percent: 5/percent: 10/' "$work/shop/templates/all.yaml"
  chart 1.1.0
  ok "a new version of the chart is found" reconcile helmrepository/charts
  shows "and released" "3:1.1.0:deployed 2:1.0.0:superseded" history
  soon "with its objects" is "coupon main -n releases" '{.spec.percent}' 10
  ok "it is ready again" ready helmrelease/main
  shows "an event says so" "Normal Helm upgrade succeeded for release releases/main.v3 with chart shop@1.1.0" events HelmRelease/main UpgradeSucceeded

  # Failure and rollback.
  ok "a tag that is not there" kubectl patch helmrelease main --type=merge -p '{"spec":{"timeout":"12s","values":{"tag":"404"}}}'
  shows "is rolled back" "RollbackSucceeded Helm rollback to previous release releases/main.v3 with chart shop@1.1.0 succeeded" condition helmrelease/main Remediated
  shows "an event says that it failed" "Warning Helm upgrade failed for release releases/main with chart shop@1.1.0" events HelmRelease/main UpgradeFailed
  shows "and that it was rolled back" "Helm rollback to previous release" events HelmRelease/main RollbackSucceeded
  shows "after its retries it stalls" "RetriesExceeded" condition helmrelease/main Stalled
  same "the deployment has the image of before" nginx:1.27 field "deployment main -n releases" '{.spec.template.spec.containers[0].image}'
  says "the history has the failure" ":1.1.0:failed" history
  ok "mended" kubectl patch helmrelease main --type=merge -p "{\"spec\":{\"timeout\":\"${patience}s\",\"values\":{\"tag\":\"1.28\"}}}"
  soon "it is upgraded" is "deployment main -n releases" '{.spec.template.spec.containers[0].image}' nginx:1.28
  ok "and ready" ready helmrelease/main
  same "and stalls no more" "" field helmrelease/main '{.status.conditions[?(@.type=="Stalled")].reason}'

  # A test that fails.
  ok "a test that fails" kubectl patch helmrelease main --type=merge -p '{"spec":{"values":{"test":"exit 3"},"upgrade":{"remediation":{"retries":0,"remediateLastFailure":false}}}}'
  shows "makes the release fail" "TestFailed Helm test failed for release" condition helmrelease/main TestSuccess
  shows "with a warning" "Warning Helm test failed" events HelmRelease/main TestFailed
  ok "mended" kubectl patch helmrelease main --type=merge -p '{"spec":{"values":{"test":"exit 0"}}}'
  ok "it is ready" ready helmrelease/main

  # Drift.
  before=$(history)
  ok "with nothing to do a reconciliation changes nothing" reconcile helmrelease/main
  same "no event tells of drift" "" events HelmRelease/main DriftDetected
  kubectl scale deployment main -n releases --replicas=4 >/dev/null
  kubectl delete configmap main -n releases >/dev/null
  ok "with drift, one" reconcile helmrelease/main
  soon "corrects it" is "deployment main -n releases" '{.spec.replicas}' 2
  soon "and makes what was deleted" kubectl get configmap main -n releases
  shows "an event says what was found" "Deployment/releases/main changed" events HelmRelease/main DriftDetected
  shows "and what was done" "Normal Cluster state of release releases/main" events HelmRelease/main DriftCorrected
  same "without another release" "$before" history
  kubectl patch helmrelease main --type=merge -p '{"spec":{"driftDetection":{"mode":"warn"}}}' >/dev/null
  ok "in the mode warn" ready helmrelease/main
  kubectl scale deployment main -n releases --replicas=3 >/dev/null
  ok "drift is left" reconcile helmrelease/main
  same "as it is" 3 field "deployment main -n releases" '{.spec.replicas}'

  # Dependencies and impersonation.
  ok "a release that depends on one that is not there" release later 'targetNamespace: blue
dependsOn: [{name: sooner}]
values: {replicas: 1}'
  shows "waits" "DependencyNotReady" condition helmrelease/later
  ok "one with an account without rights" release sooner 'targetNamespace: blue
serviceAccountName: plain
values: {replicas: 1}
install: {remediation: {retries: -1}}'
  shows "is refused" "is forbidden: User \"system:serviceaccount:flux-system:plain\" cannot" condition helmrelease/sooner
  kubectl create clusterrolebinding plain --clusterrole=cluster-admin --serviceaccount=flux-system:plain >/dev/null
  kubectl create serviceaccount plain >/dev/null
  ok "with the rights" reconcile helmrelease/sooner
  ok "it is installed" ready helmrelease/sooner
  ok "and then the other" ready helmrelease/later

  # Deletion.
  for name in later sooner main; do ok "$name is deleted" kubectl delete helmrelease "$name" --timeout="${patience}s"; done
  ok "with its deployment" gone deployment main -n releases
  ok "its Secrets" none secret -l owner=helm
  ok "and its HelmChart" none helmchart
  shows "an event says so" "Helm uninstall succeeded for release releases/main" events HelmRelease/main UninstallSucceeded
  ok "the chart's CRD stays" kubectl get crd coupons.example.com
  # What failed on purpose; and after a rollback that is to be tried again it compares times of nanoseconds with the server's seconds,
  # and conditions of its own two patches with what its cache has of them.
  quiet helm-controller '"level":"error"' 'exceeded maximum retries|is forbidden|sync in-cache after patching|was modified by a different process'
fi
# What failed on purpose; and health checks that a new commit has ended.
quiet source-controller '"level":"error"' 'failed to checkout and determine revision'
quiet kustomize-controller '"level":"error"' 'dry-run failed|health check failed|kustomize build failed|kustomization path not found|reading response body.*context canceled'

finish
