#!/usr/bin/env bash
# Crossplane: its chart, `crossplane core` and `crossplane rbac` with their own accounts' rights, a package of a function from
# a registry, the function behind mutual TLS; composite resources of both scopes, from their definitions to their deletion;
# usages, which its webhook guards; managed resource definitions, operations, claims; and those of Crossplane's own
# end-to-end tests that need no image to run.
#
# Its programs listen at every address and at fixed ports, and call functions by the names of their Services. So all but the
# building takes place in a network of its own, which has a loopback alone, with an /etc/hosts of its own.
# CROSSPLANE_E2E is a pattern of other end-to-end tests than those in crossplane/e2e.txt; with `none` there are none.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3 openssl curl ip unshare
here=$components/crossplane
module=github.com/crossplane/crossplane/v2
upstream=$(cd "$here" && go list -m -f '{{.Dir}}' $module)

if [[ -z ${CROSSPLANE_INSIDE:-} ]]; then
  own=(--net --mount)
  ((EUID == 0)) || own+=(--map-root-user)
  if ! unshare "${own[@]}" true 2>/dev/null; then
    skipped crossplane "no network of its own can be had"
    exit 0
  fi
  build crossplane $module/cmd/crossplane "$here"
  build stand-ins . "$here"
  published helm helm.sh/helm/v3/cmd/helm@v3.22.0
  if [[ ${CROSSPLANE_E2E:-} != none ]]; then
    began=$SECONDS
    if [[ -n ${COMPONENTS_BIN:-} && -x $COMPONENTS_BIN/crossplane-e2e ]]; then
      ln -s "$(realpath "$COMPONENTS_BIN/crossplane-e2e")" "$work/bin/crossplane-e2e"
    else
      (cd "$here" && go test -c -o "$work/bin/crossplane-e2e" $module/test/e2e)
    fi
    echo "built crossplane-e2e in $((SECONDS - began)) s"
  fi
  KAJI=$(kaji_program) CROSSPLANE_INSIDE=1 COMPONENTS_BIN=$work/bin unshare "${own[@]}" bash "$0" &
  pids[inside]=$!
  code=0
  wait "${pids[inside]}" || code=$?
  unset "pids[inside]"
  exit "$code"
fi

PATH=$COMPONENTS_BIN:$PATH
ip link set lo up
manifests=$upstream/test/e2e/manifests
# The registries that the tests' packages are said to come from, and the Services of functions.
mapfile -t registries < <(grep -rhoE 'package: [a-z.]+/' "$manifests" | sed 's/package: //; s/\///' | sort -u)
{
  echo "127.0.0.1 localhost registry.example ${registries[*]}"
  for function in application $(grep -rh -A3 '^kind: Function$' "$manifests" | sed -n 's/^  name: //p' | sort -u); do
    echo "127.0.0.1 $function.crossplane-system"
  done
} >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts
: >"$work/resolv.conf"
mount --bind "$work/resolv.conf" /etc/resolv.conf
# Where a pod finds its namespace, in which leaders are elected.
mount -t tmpfs none /run
mkdir -p /run/secrets/kubernetes.io/serviceaccount
echo -n crossplane-system >/run/secrets/kubernetes.io/serviceaccount/namespace

cluster --nodes sim:3
# shellcheck disable=SC2086
field() { kubectl get $1 -o "jsonpath=$2"; }
gone() { ! kubectl get "$@" 2>"$work/gone" && grep -q NotFound "$work/gone"; }
differs() {
  local other=$1
  shift
  [[ $("$@") != "$other" ]]
}
none() { [[ -z $(kubectl get "$@" -o name) ]]; }
condition() { field "$1" "{.status.conditions[?(@.type==\"$2\")].status} {.status.conditions[?(@.type==\"$2\")].reason}"; }
waited() { kubectl wait --for="condition=$1" --timeout="${patience}s" "${@:2}"; }
# Of a service's process: the variables with values that the chart's Deployment gives it, and its arguments.
variables() { field "deployment -n crossplane-system $1" "{range .spec.template.spec.$2[0].env[?(@.value)]}{.name}={.value}{\"\\n\"}{end}"; }
arguments() { field "deployment -n crossplane-system $1" "{range .spec.template.spec.$2[0].args[*]}{@}{\"\\n\"}{end}"; }

ok "its chart is installed" helm install crossplane "$upstream/cluster/charts/crossplane" --namespace crossplane-system --create-namespace \
  --set "args={--debug,--enable-operations}" --set "rbacManager.args={--debug}"
ok "its deployments are available" kubectl -n crossplane-system wait --for=condition=Available --timeout="${patience}s" deployment --all
# The webhook listens here, at a port which no function needs.
webhook_port=9444
ok "its webhook's Service leads to this machine" kubectl -n crossplane-system patch service crossplane-webhooks \
  -p '{"spec":{"type":"ExternalName","externalName":"localhost"}}'
kubeconfig_of crossplane-system crossplane "$work/core.kubeconfig"
kubeconfig_of crossplane-system rbac-manager "$work/rbac.kubeconfig"
# run NAME KUBECONFIG DEPLOYMENT CONTAINERS [VARIABLE=VALUE…]: what the container would do; in the foreground if it is an initial one.
run() {
  local name=$1 account=$2 deployment=$3 containers=$4 had args
  shift 4
  mapfile -t had < <(variables "$deployment" "$containers")
  mapfile -t args < <(arguments "$deployment" "$containers")
  # shellcheck disable=SC2206
  local more=(${flags[$name]:-})
  local command=(env "${had[@]}" KUBECONFIG="$work/$account.kubeconfig" POD_NAMESPACE=crossplane-system POD_SERVICE_ACCOUNT=crossplane
    "$@" "$work/bin/crossplane" "${args[@]}" "${more[@]}")
  if [[ $containers == initContainers ]]; then "${command[@]}"; else start "$name" "${command[@]}"; fi
}
declare -A flags=()
mkdir -p "$work/bin" "$work/cache"
ln -sf "$COMPONENTS_BIN"/* "$work/bin/"
core() {
  run core core crossplane containers WEBHOOK_PORT=$webhook_port METRICS_PORT=8082 TLS_SERVER_CERTS_DIR="$work/server" \
    TLS_CLIENT_CERTS_DIR="$work/client" XPKG_CACHE_DIR="$work/cache" XFN_CACHE_DIR="$work/cache" CA_BUNDLE_PATH="$work/registry-ca.crt"
}

ok "it initializes the cluster" run init core crossplane initContainers WEBHOOK_SERVICE_PORT=$webhook_port WEBHOOK_SERVICE_NAMESPACE=crossplane-system \
  CRDS_PATH="$upstream/cluster/crds" WEBHOOK_CONFIGS_PATH="$upstream/cluster/webhookconfigurations"
same "all of its CRDs are there" "$(find "$upstream/cluster/crds" -name '*.yaml' | wc -l)" eval "kubectl get crd -o name | grep -c crossplane.io"
ok "all of them are established" waited Established crd --all
same "none is said not to be structural" "" field crd '{.items[*].status.conditions[?(@.type=="NonStructuralSchema")].message}'
says "kubectl explain knows them" "Must be unique within its Pipeline" kubectl explain composition.spec.pipeline --api-version=apiextensions.crossplane.io/v1
says "a short name leads to them" "No resources found" kubectl get comp
says "so does a category" "compositeresourcedefinition" kubectl api-resources --categories=crossplane -o name
for secret in crossplane-root-ca crossplane-tls-server crossplane-tls-client; do
  says "it makes the certificate $secret" "LS0t" field "secret -n crossplane-system $secret" '{.data.tls\.crt}'
done
says "and writes its webhook's configuration" "LS0t" field validatingwebhookconfiguration/crossplane-no-usages '{.webhooks[0].clientConfig.caBundle}'
ok "a second time changes nothing" run init core crossplane initContainers WEBHOOK_SERVICE_PORT=$webhook_port WEBHOOK_SERVICE_NAMESPACE=crossplane-system \
  CRDS_PATH="$upstream/cluster/crds" WEBHOOK_CONFIGS_PATH="$upstream/cluster/webhookconfigurations"
ok "so does the manager of rights" run rbac-init rbac crossplane-rbac-manager initContainers
for side in server client; do
  mkdir -p "$work/$side"
  for file in tls.crt tls.key ca.crt; do
    field "secret -n crossplane-system crossplane-tls-$side" "{.data.${file/./\\.}}" | base64 -d >"$work/$side/$file"
  done
done

# The registry's packages. Those of Crossplane's tests have names and tags of their own.
printf '%s\n' 'apiVersion: meta.pkg.crossplane.io/v1' 'kind: Function' 'metadata: {name: function}' 'spec: {capabilities: [composition, operation]}' >"$work/function.yaml"
sed 's/name: function/&, annotations: {version: later}/' "$work/function.yaml" >"$work/later.yaml"
packages=("tests/application:v1.0.0=$work/function.yaml" "tests/application:v1.1.0=$work/later.yaml")
for package in $(grep -rhoE 'package: [^ ]+function-dummy:v[0-9.]+' "$manifests" | sed 's/package: [^/]*\///' | sort -u); do
  packages+=("$package=$work/function.yaml")
done
certificate registry registry.example "${registries[@]}"
# So much happens to a composite resource here within seconds that its circuit breaker would open.
flags[core]=--circuit-breaker-burst=10000
start stand-ins "$work/bin/stand-ins" --certificate "$work/registry.crt" --key "$work/registry.key" "${packages[@]}"
core
run rbac rbac crossplane-rbac-manager containers
soon "the core is ready" curl -sf http://127.0.0.1:8081/readyz
for lease in core rbac; do
  shows "a leader holds the Lease of $lease" "_" field "lease -n crossplane-system crossplane-leader-election-$lease" '{.spec.holderIdentity}'
done
((failed == 0)) || finish

kubectl apply -f - >/dev/null <<'YAML'
apiVersion: pkg.crossplane.io/v1
kind: Function
metadata: {name: application}
spec: {package: "registry.example/tests/application:v1.0.0"}
YAML
ok "a function's package is installed" waited Installed function/application
ok "and healthy" waited Healthy function/application
((failed == 0)) || finish
revision=$(field function/application '{.status.currentRevision}')
same "with a revision of what the registry has" "Active 1 registry.example/tests/application:v1.0.0" field "functionrevision/$revision" \
  '{.spec.desiredState} {.spec.revision} {.spec.image}'
same "its Service has no address of its own" "None dns:///application.crossplane-system:9443" eval \
  "field 'service -n crossplane-system application' '{.spec.clusterIP} '; field functionrevision/$revision '{.status.endpoint}'"
same "its Deployment is owned by the revision" "FunctionRevision $revision" field "deployment -n crossplane-system $revision" \
  '{.metadata.ownerReferences[0].kind} {.metadata.ownerReferences[0].name}'
says "a table has the printer columns" "registry.example/tests/application:v1.0.0" kubectl get function application

# definition SCOPE KIND PLURAL: a composite resource that the function makes an application of.
definition() {
  kubectl apply -f - <<YAML
apiVersion: apiextensions.crossplane.io/v2
kind: CompositeResourceDefinition
metadata: {name: $3.example.org}
spec:
  scope: $1
  group: example.org
  names: {kind: $2, plural: $3}
  versions:
  - name: v1
    served: true
    referenceable: true
    additionalPrinterColumns: [{name: AVAILABLE, type: integer, jsonPath: .status.available}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [text]
            properties:
              text: {type: string, minLength: 2}
              image: {type: string}
              namespace: {type: string}
              fail: {type: string}
              replicas: {type: integer, default: 2, maximum: 9}
          status:
            type: object
            properties:
              available: {type: integer}
              shared: {type: string}
              schema: {type: string}
YAML
}
# composition NAME KIND [STEP]: with a step before the function's.
composition() {
  kubectl apply -f - <<YAML
apiVersion: apiextensions.crossplane.io/v1
kind: Composition
metadata: {name: $1, labels: {of: $1}}
spec:
  compositeTypeRef: {apiVersion: example.org/v1, kind: $2}
  mode: Pipeline
  pipeline:
  - {step: application, functionRef: {name: application}}
  ${3:-}
YAML
}
extra='- {step: more, functionRef: {name: application}, input: {apiVersion: tests.example.org/v1, kind: Response, response: {desired: {resources:
    {more: {ready: READY_TRUE, resource: {apiVersion: v1, kind: ConfigMap, metadata: {name: more, namespace: default}, data: {from: revision}}}}}}}}'
composite() {
  kubectl apply -f - <<YAML
apiVersion: example.org/v1
kind: $1
metadata: {name: $2${3:+, namespace: $3}}
spec: $4
YAML
}
ok "a namespaced composite resource is defined" definition Namespaced App apps
ok "one of the cluster" definition Cluster Site sites
ok "both are established" waited Established compositeresourcedefinition --all
ok "their CRDs too" waited Established crd/apps.example.org crd/sites.example.org
same "which have the definitions' scopes" "Namespaced Cluster" field "crd apps.example.org sites.example.org" '{.items[*].spec.scope}'
same "and belong to them" "CompositeResourceDefinition apps.example.org true" field crd/apps.example.org \
  '{.metadata.ownerReferences[0].kind} {.metadata.ownerReferences[0].name} {.metadata.ownerReferences[0].controller}'
says "kubectl explain knows what Crossplane adds" "crossplane" kubectl explain app.spec
says "and the category of composite resources" "apps.example.org" kubectl api-resources --categories=composite -o name
says "a change of a definition's scope is refused" "immutable" kubectl patch compositeresourcedefinition apps.example.org --type=merge -p '{"spec":{"scope":"Cluster"}}'
says "so is one of its group" "immutable" kubectl patch compositeresourcedefinition apps.example.org --type=merge -p '{"spec":{"group":"example.com"}}'
says "rights to them are aggregated" "apps.example.org" eval "kubectl get clusterrole -o name | grep crossplane:composite:apps"
shows "to Crossplane's own role" "sites" field clusterrole/crossplane '{.rules[*].resources}'
same "an account with the role for viewers may look" "yes" eval "kubectl create clusterrolebinding looks --clusterrole=crossplane-view --user=eva >/dev/null; \
  kubectl auth can-i list apps.example.org --as=eva"
same "and not write" "no" eval "kubectl auth can-i create apps.example.org --as=eva || true"

says "a Composition without a pipeline is refused" "an array of pipeline steps is required in Pipeline mode" kubectl apply -f "$manifests/apiextensions/composition/validation/composition-invalid-missing-pipeline.yaml"
ok "one for applications is taken" composition apps App
ok "one for sites too" composition sites Site
shows "each has a revision" "1" field "compositionrevision -l crossplane.io/composition-name=apps" '{.items[*].spec.revision}'

says "a composite resource is validated by its definition" "should be at least 2 chars long" composite App bad default '{text: x}'
says "so is its number" "should be less than or equal to 9" composite App bad default '{text: hello, replicas: 10}'
ok "a composite resource is created" composite App one default '{text: hello, image: "nginx:1"}'
ok "it becomes synchronized" waited Synced app/one
ok "and ready" waited Ready app/one
same "the default of its definition is in it" "2" field app/one '{.spec.replicas}'
same "a ConfigMap is composed" "hello" field configmap/one '{.data.text}'
same "a Deployment is composed, whose pods run" "2 2 nginx:1" field deployment/one '{.spec.replicas} {.status.availableReplicas} {.spec.template.spec.containers[0].image}'
same "the composite resource owns it" "App one true" field deployment/one '{.metadata.ownerReferences[0].kind} {.metadata.ownerReferences[0].name} {.metadata.ownerReferences[0].controller}'
same "and it has its labels and annotations" "one workload" field deployment/one '{.metadata.labels.crossplane\.io/composite} {.metadata.annotations.crossplane\.io/composition-resource-name}'
same "by a manager of its own" "apiextensions.crossplane.io/composed" eval "kubectl get deployment one --show-managed-fields -o jsonpath='{.metadata.managedFields[?(@.operation==\"Apply\")].manager}' | cut -d/ -f1,2"
same "both are referred to" "ConfigMap Deployment" eval "field app/one '{range .spec.crossplane.resourceRefs[*]}{.kind}{\"\\n\"}{end}' | sort | xargs"
same "the function's status is there" "2" field app/one '{.status.available}'
says "with the description of a schema that it asked for" "Deployment enables declarative updates" field app/one '{.status.schema}'
same "and its condition" "True ByTheTest" condition app/one Composed
says "a table has Crossplane's columns and the definition's" "AVAILABLE" kubectl get apps one
shows "the function's results are events" "composed 2" kubectl get events --field-selector involvedObject.kind=App,involvedObject.name=one
kubectl create configmap shared --from-literal=text=first >/dev/null
shows "what the function asked for is given to it" "first" field app/one '{.status.shared}'
kubectl create configmap shared --from-literal=text=second --dry-run=client -o yaml | kubectl apply -f - >/dev/null 2>&1
shows "again when it changes" "second" field app/one '{.status.shared}'

ok "its spec is changed" kubectl patch app one --type=merge -p '{"spec":{"text":"changed","replicas":3}}'
shows "the ConfigMap follows" "changed 3" field configmap/one '{.data.text} {.data.replicas}'
shows "the Deployment follows" "3 3" field deployment/one '{.spec.replicas} {.status.availableReplicas}'
shows "so does the status" "3" field app/one '{.status.available}'
ok "it is ready again" waited Ready app/one
kubectl patch configmap one -p '{"data":{"text":"drifted"}}' >/dev/null
shows "drift is healed at once" "changed" field configmap/one '{.data.text}'
kubectl scale deployment one --replicas=1 >/dev/null
shows "so is a changed scale" "3" field deployment/one '{.spec.replicas}'
kubectl patch configmap one -p '{"data":{"mine":"stays"}}' >/dev/null
uid=$(field deployment/one '{.metadata.uid}')
kubectl delete deployment one >/dev/null
soon "a composed resource that was deleted comes back" differs "$uid" field deployment/one '{.metadata.uid}'
same "what others own of a composed resource stays" "stays" field configmap/one '{.data.mine}'
ok "it is ready again after that" waited Ready app/one
ok "it is paused" kubectl annotate app one crossplane.io/paused=true
shows "as its condition says" "False ReconcilePaused" condition app/one Synced
kubectl patch configmap one -p '{"data":{"text":"drifted"}}' >/dev/null
same "nothing is healed meanwhile" "drifted" eval "sleep 2; kubectl get configmap one -o 'jsonpath={.data.text}'"
kubectl annotate app one crossplane.io/paused- >/dev/null
shows "but afterwards" "changed" field configmap/one '{.data.text}'
kubectl patch app one --type=merge -p '{"spec":{"fail":"on purpose"}}' >/dev/null
shows "a function that fails is told of" "asked to fail: on purpose" field app/one '{.status.conditions[?(@.type=="Synced")].message}'
same "by the condition" "False ReconcileError" condition app/one Synced
same "what was composed stays" "changed" field configmap/one '{.data.text}'
kubectl patch app one --type=json -p '[{"op":"remove","path":"/spec/fail"},{"op":"remove","path":"/spec/image"}]' >/dev/null
soon "what the function does not ask for any more is deleted" gone deployment one
ok "and it is synchronized again" waited Synced app/one

ok "a composite resource with a revision of its own choice" composite App fixed default \
  "{text: fixed, crossplane: {compositionUpdatePolicy: Manual, compositionRef: {name: apps}}}"
ok "is ready" waited Ready app/fixed
ok "the Composition gets one more step" composition apps App "$extra"
shows "and so a second revision" "2" field "compositionrevision -l crossplane.io/composition-name=apps" '{.items[*].spec.revision}'
shows "what that composes is there" "revision" field configmap/more '{.data.from}'
same "by the one that follows" "App one" field configmap/more '{.metadata.ownerReferences[0].kind} {.metadata.ownerReferences[0].name}'
first=$(field "compositionrevision -l crossplane.io/composition-name=apps" '{.items[?(@.spec.revision==1)].metadata.name}')
same "the other one keeps its revision" "$first" field app/fixed '{.spec.crossplane.compositionRevisionRef.name}'
ok "a new version of the function's package" kubectl patch function application --type=merge -p '{"spec":{"package":"registry.example/tests/application:v1.1.0"}}'
shows "becomes the image of its Deployment" "v1.1.0" field "deployment -n crossplane-system" '{.items[*].spec.template.spec.containers[0].image}'
ok "it is healthy" waited Healthy function/application
later=$(field function/application '{.status.currentRevision}')
kubectl patch app one --type=merge -p '{"spec":{"text":"later"}}' >/dev/null
shows "composing goes on" "later" field configmap/one '{.data.text}'
says "a package that is not there" "created" kubectl apply -f - <<'YAML'
apiVersion: pkg.crossplane.io/v1
kind: Function
metadata: {name: missing}
spec: {package: "registry.example/tests/missing:v1.0.0"}
YAML
shows "is told of" "False UnpackingPackage" condition function/missing Installed
ok "and deleted" kubectl delete function missing --timeout="${patience}s"

ok "a composite resource of the cluster" composite Site all "" '{text: wide, namespace: default, image: "nginx:2"}'
ok "becomes ready" waited Ready site/all
same "it composes in a namespace" "wide nginx:2" eval "field configmap/all '{.data.text} '; field deployment/all '{.spec.template.spec.containers[0].image}'"
ok "the core stops" stop core
kubectl patch site all --type=merge -p '{"spec":{"text":"meanwhile"}}' >/dev/null
core
shows "and goes on where it was" "meanwhile" field configmap/all '{.data.text}'

# usage NAME SPEC
usage() {
  kubectl apply -f - <<YAML
apiVersion: protection.crossplane.io/v1beta1
kind: Usage
metadata: {name: $1, namespace: default}
spec: $2
YAML
}
kubectl create configmap used >/dev/null
kubectl create configmap using >/dev/null
ok "a usage for a reason" usage reason '{of: {apiVersion: v1, kind: ConfigMap, resourceRef: {name: used}}, reason: "it is precious"}'
ok "is ready" waited Ready usage.protection.crossplane.io/reason
same "what is used is marked" "true" field configmap/used '{.metadata.labels.crossplane\.io/in-use}'
says "its deletion is refused by the webhook" "admission webhook \"nousages.protection.crossplane.io\" denied the request" kubectl delete configmap used
says "for that reason" "it is precious" kubectl delete configmap used --dry-run=server
ok "without the usage" kubectl delete usage.protection.crossplane.io reason --timeout="${patience}s"
soon "it is not marked" eval "[[ -z \$(kubectl get configmap used -o 'jsonpath={.metadata.labels.crossplane\.io/in-use}') ]]"
ok "a usage by another object" usage by '{replayDeletion: true, of: {apiVersion: v1, kind: ConfigMap, resourceRef: {name: used}}, by: {apiVersion: v1, kind: ConfigMap, resourceRef: {name: using}}}'
ok "is ready as well" waited Ready usage.protection.crossplane.io/by
same "and belongs to that" "ConfigMap using" field usage.protection.crossplane.io/by '{.metadata.ownerReferences[0].kind} {.metadata.ownerReferences[0].name}'
says "its deletion is refused" "is in-use by 1 usage(s)" kubectl delete configmap used
ok "the other is deleted" kubectl delete configmap using
soon "the usage goes with it" gone usage.protection.crossplane.io by
soon "and the refused deletion is done after all" gone configmap used
says "a usage with neither reason nor user is refused" "either \"spec.by\" or \"spec.reason\" must be specified" usage none '{of: {apiVersion: v1, kind: ConfigMap, resourceRef: {name: used}}}'
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: protection.crossplane.io/v1beta1
kind: ClusterUsage
metadata: {name: site}
spec: {of: {apiVersion: example.org/v1, kind: Site, resourceRef: {name: all}}, reason: "of the cluster"}
YAML
ok "a usage of what the cluster has" waited Ready clusterusage/site
says "protects a composite resource" "of the cluster" kubectl delete site all
ok "until it is deleted" kubectl delete clusterusage site --timeout="${patience}s"

kubectl apply -f - >/dev/null <<'YAML'
apiVersion: ops.crossplane.io/v1alpha1
kind: Operation
metadata: {name: once}
spec:
  mode: Pipeline
  pipeline:
  - step: once
    functionRef: {name: application}
    input: {apiVersion: tests.example.org/v1, kind: Response, response: {output: {done: 1}, desired: {resources:
      {map: {resource: {apiVersion: v1, kind: ConfigMap, metadata: {name: once, namespace: default}, data: {by: operation}}}}}}}
YAML
ok "an operation succeeds" waited Succeeded operation/once
same "it wrote what the function asked for" "operation" field configmap/once '{.data.by}'
same "and the function's output is in its status" "1 once" field operation/once '{.status.pipeline[0].output.done} {.status.appliedResourceRefs[0].name}'

ok "a composite resource is deleted" kubectl delete app one --cascade=foreground --timeout="${patience}s"
ok "and what it composed is gone" eval "gone configmap one && gone configmap more"
ok "the other one too" kubectl delete app fixed --timeout="${patience}s"
soon "with its ConfigMap" gone configmap fixed
# While there is one, its definition stays: Crossplane asks for a deletion across namespaces, which no API server has.
says "there is no deletion across namespaces" "NotFound" kubectl delete --raw /apis/example.org/v1/apps
ok "a definition is deleted" kubectl delete compositeresourcedefinition apps.example.org --timeout="${patience}s"
soon "and its CRD" gone crd apps.example.org
soon "and the rights" gone clusterrole crossplane:composite:apps.example.org:aggregate-to-crossplane
ok "the other definition too" kubectl delete compositeresourcedefinition sites.example.org --timeout="${patience}s"
soon "its composite resource has gone with it" gone deployment all
soon "and its CRD" gone crd sites.example.org
ok "the function is deleted" kubectl delete function application --cascade=foreground --timeout="${patience}s"
soon "with its revisions" none functionrevision
soon "and its Deployment" gone deployment -n crossplane-system "$later"
ok "everything else of the test too" kubectl delete composition,operation --all --timeout="${patience}s"
# What they have read may be old by then; what the core waits for is an error to it, and so are rights to a kind that the
# other one makes a moment later, or takes away a moment before.
quiet rbac '	ERROR	|^panic' 'after stop sequence was engaged|the object has been modified|already exists'
quiet core '	ERROR	|^panic' 'after stop sequence was engaged|the object has been modified|already exists|could not find the requested resource|not found"}|: User .* at the cluster scope|no condition of type |is unavailable with message|waiting for package runtime controller to set|tests/missing:v1.0.0'

if [[ ${CROSSPLANE_E2E:-} != none ]]; then
  # As Crossplane's own tests install it: without a policy that makes every managed resource definition active.
  kubectl delete managedresourceactivationpolicy --all >/dev/null
  stop core
  flags[core]=
  core
  soon "the core is ready for its own tests" curl -sf http://127.0.0.1:8081/readyz
  tests=${CROSSPLANE_E2E:-$(grep -v '^#' "$here/e2e.txt" | paste -sd'|')}
  start e2e env -C "$upstream" "$COMPONENTS_BIN/crossplane-e2e" -test.v -test.timeout 30m -test.run "^($tests)\$" -create-kind-cluster=false \
    -destroy-kind-cluster=false -load-images-kind-cluster=false -preinstall-crossplane=false -test-suite=ops -kubeconfig="$KUBECONFIG"
  wait "${pids[e2e]}" || true
  unset "pids[e2e]"
  [[ -z ${CROSSPLANE_E2E_LOG:-} ]] || cp "$work/e2e.log" "$CROSSPLANE_E2E_LOG"
  # Of each test its steps are counted.
  while read -r said name time; do
    case $said in
      PASS) verdict 0 "$name $time" ;;
      SKIP) skipped "$name" "its own test says so" ;;
      FAIL) verdict 1 "$name $time" && grep -F -B30 -e "--- FAIL: $name " "$work/e2e.log" | grep -F .go: | cut -c-300 | tail -n 12 || true ;;
    esac
  done < <(sed -n 's/^ *--- \(PASS\|SKIP\|FAIL\): \(Test[^ ]*\/[^ ]*\/[^ ]*\|Test[^ ]*\) /\1 \2 /p' "$work/e2e.log")
  ok "they have come to their end" grep -qE '^(PASS|FAIL)$' "$work/e2e.log"
fi
finish
