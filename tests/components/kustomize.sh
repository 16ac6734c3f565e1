#!/usr/bin/env bash
# Kustomize, as a program and within kubectl: bases, overlays and components, generators, patches, replacements; apply by the server
# and by the client, diff, prune by labels and by an apply set; patches of lists by the schema that the server publishes.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3
published kustomize sigs.k8s.io/kustomize/kustomize/v5@v5.8.1
cluster --nodes sim:2
# shellcheck disable=SC2086
field() { kubectl get $1 -o "jsonpath=$2"; }
gone() { ! kubectl get "$@" 2>"$work/reason" && grep -q NotFound "$work/reason"; }
build_of() { "$work/bin/kustomize" build "$@"; }
put() { mkdir -p "$(dirname "$work/site/$1")" && cat >"$work/site/$1"; }

put base/kustomization.yaml <<'YAML'
resources: [web.yaml, rights.yaml]
configMapGenerator:
- {name: settings, literals: [color=red]}
secretGenerator:
- {name: password, literals: [password=base]}
labels:
- {pairs: {app.kubernetes.io/part-of: site}, includeSelectors: false, includeTemplates: true}
YAML
put base/web.yaml <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      serviceAccountName: web
      containers:
      - name: web
        image: nginx
        ports: [{containerPort: 80, name: http}]
        env:
        - {name: HOST, value: HOST}
        - {name: PASSWORD, valueFrom: {secretKeyRef: {name: password, key: password}}}
        envFrom: [{configMapRef: {name: settings}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
YAML
put base/rights.yaml <<'YAML'
apiVersion: v1
kind: ServiceAccount
metadata: {name: web}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: web}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: web}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: web}
subjects: [{kind: ServiceAccount, name: web}]
YAML
put cached/kustomization.yaml <<'YAML'
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
- patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: web}
    spec: {template: {spec: {containers: [{name: cache, image: redis}]}}}
YAML
put production/namespace.yaml <<'YAML'
apiVersion: v1
kind: Namespace
metadata: {name: production}
YAML
put production/kustomization.yaml <<'YAML'
namespace: production
namePrefix: p-
resources: [../base, namespace.yaml]
components: [../cached]
images: [{name: nginx, newTag: "1.27"}]
replicas: [{name: web, count: 3}]
configMapGenerator:
- {name: settings, behavior: merge, literals: [size=large]}
patches:
- target: {kind: Service, name: web}
  patch: |
    - {op: replace, path: /spec/ports/0/port, value: 8080}
- patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: web}
    spec:
      template:
        spec:
          containers:
          - name: web
            resources: {requests: {cpu: 10m}}
replacements:
- source: {kind: Service, name: web, fieldPath: metadata.name}
  targets: [{select: {kind: Deployment}, fieldPaths: ["spec.template.spec.containers.[name=web].env.[name=HOST].value"]}]
YAML

# Apply by the server.
build_of "$work/site/production" >"$work/built.yaml"
same "kubectl builds what the program builds" "$(<"$work/built.yaml")" kubectl kustomize "$work/site/production"
says "without the namespace the server refuses what is in it" 'namespaces "production" not found' \
  kubectl apply --server-side --dry-run=server -f "$work/built.yaml"
through() { build_of "$work/site/production" | kubectl apply --server-side --field-manager=pipeline -f -; }
ok "kustomize build | kubectl apply --server-side" through
ok "the deployment is rolled out" kubectl rollout status deployment/p-web -n production --timeout="${patience}s"
same "with replicas, image, component and replacement" "3 nginx:1.27 redis p-web" field "deployment p-web -n production" \
  '{.spec.replicas} {.spec.template.spec.containers[?(@.name=="web")].image} {.spec.template.spec.containers[?(@.name=="cache")].image} {.spec.template.spec.containers[?(@.name=="web")].env[?(@.name=="HOST")].value}'
settings() { field "deployment p-web -n production" '{.spec.template.spec.containers[?(@.name=="web")].envFrom[0].configMapRef.name}'; }
same "the generated ConfigMap has both values" '{"color":"red","size":"large"}' field "configmap -n production $(settings)" '{.data}'
same "the binding's account has its new name and namespace" "p-web production" field "rolebinding p-web -n production" '{.subjects[0].name} {.subjects[0].namespace}'
can() { kubectl auth can-i get pods -n production --as=system:serviceaccount:production:p-web; }
same "and its right" yes can
same "the pipeline is the manager" "pipeline Apply" kubectl get service p-web -n production --show-managed-fields -o 'jsonpath={.metadata.managedFields[0].manager} {.metadata.managedFields[0].operation}'
versions() { kubectl get -f "$work/built.yaml" -o 'jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.metadata.generation}{"\n"}{end}'; }
versions >"$work/before"
ok "again" through
same "it changes nothing" "$(<"$work/before")" versions

# Diff: 0 without a difference, 1 with one.
differs() { local code=0; kubectl diff "$@" || code=$?; [[ $code == 1 ]]; }
ok "kubectl diff -k finds no difference" kubectl diff --server-side --field-manager=pipeline -k "$work/site/production"
sed -i 's/count: 3/count: 4/; s/size=large/size=small/' "$work/site/production/kustomization.yaml"
ok "after an edit it finds one" differs --server-side --field-manager=pipeline -k "$work/site/production"
says "in replicas" "+  replicas: 4" kubectl diff --server-side --field-manager=pipeline -k "$work/site/production"
says "and the ConfigMap of another name" "+  size: small" kubectl diff --server-side --field-manager=pipeline -k "$work/site/production"
same "nothing was written by it" 3 field "deployment p-web -n production" '{.spec.replicas}'
before=$(settings)
says "kubectl apply -k under another name conflicts" 'Apply failed with 2 conflicts: conflicts with "pipeline":' kubectl apply --server-side -k "$work/site/production"
ok "under the same it applies" kubectl apply --server-side --field-manager=pipeline -k "$work/site/production"
renamed() { [[ $(settings) != "$before" ]]; }
ok "the deployment has the other ConfigMap" renamed
ok "and is rolled out with it" kubectl rollout status deployment/p-web -n production --timeout="${patience}s"
same "in a second revision" 2 field "deployment p-web -n production" '{.metadata.annotations.deployment\.kubernetes\.io/revision}'
ok "the ConfigMap of before stays" kubectl get configmap "$before" -n production

# By the client, with its annotation; and the deletion of a field.
cp -r "$work/site/production" "$work/site/staging"
sed -i 's/namespace: production/namespace: staging/; s/p-/s-/' "$work/site/staging/kustomization.yaml"
sed -i 's/production/staging/' "$work/site/staging/namespace.yaml"
ok "kubectl apply -k by the client" kubectl apply -k "$work/site/staging"
says "with its annotation" '"name":"s-web"' field "deployment s-web -n staging" '{.metadata.annotations.kubectl\.kubernetes\.io/last-applied-configuration}'
same "again it changes nothing" "" eval "kubectl apply -k '$work/site/staging' | grep -v ' unchanged$' || true"
ok "nor does diff find something" kubectl diff -k "$work/site/staging"
sed -i '/components:/d; /^replicas:/d' "$work/site/staging/kustomization.yaml"
ok "without the component and the replicas" kubectl apply -k "$work/site/staging"
same "the container goes, and replicas are the default" "web 1" field "deployment s-web -n staging" '{.spec.template.spec.containers[*].name} {.spec.replicas}'

# Pruning, by labels and by an apply set.
sed -i 's/size=small/size=tiny/' "$work/site/staging/kustomization.yaml"
old=$(kubectl get deployment s-web -n staging -o 'jsonpath={.spec.template.spec.containers[0].envFrom[0].configMapRef.name}')
says "apply --prune deletes what is no longer built" "configmap/$old pruned" kubectl apply -k "$work/site/staging" --prune \
  -l app.kubernetes.io/part-of=site --prune-allowlist=core/v1/ConfigMap -n staging
ok "the ConfigMap of before is gone" gone configmap "$old" -n staging
put set/kustomization.yaml <<'YAML'
namespace: default
resources: [one.yaml, two.yaml]
YAML
for name in one two; do
  put "set/$name.yaml" <<YAML
apiVersion: v1
kind: ConfigMap
metadata: {name: $name}
YAML
done
applyset() { KUBECTL_APPLYSET=true kubectl apply --server-side --prune --applyset=configmaps/set -n default -k "$work/site/set"; }
kubectl create configmap set -n default >/dev/null
says "a parent that is no apply set is refused" "already exists and is missing required annotation \"applyset.kubernetes.io/tooling\"" applyset
kubectl delete configmap set -n default >/dev/null
applyset_secret() { KUBECTL_APPLYSET=true kubectl apply --server-side --prune --applyset=set -n default -k "$work/site/set"; }
ok "an apply set" applyset_secret
same "its parent has the kinds" "kubectl/v1.37" eval "kubectl get secret set -n default -o 'jsonpath={.metadata.annotations.applyset\.kubernetes\.io/tooling}' | cut -d. -f1,2"
same "its members its label" "$(field 'secret set -n default' '{.metadata.labels.applyset\.kubernetes\.io/id}')" \
  field "configmap one -n default" '{.metadata.labels.applyset\.kubernetes\.io/part-of}'
sed -i 's/, two.yaml//' "$work/site/set/kustomization.yaml"
says "prunes what left it" "configmap/two pruned" applyset_secret
ok "from the server" gone configmap two -n default
ok "and nothing else" kubectl get configmap one -n default

# The server's own schema for patches of lists.
"$work/bin/kustomize" openapi fetch >"$work/fetched" 2>&1 || true
kubectl get --raw /openapi/v2 >"$work/site/base/schema.json"
same "kustomize openapi fetch gets the server's" "$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["info"]["version"])' "$work/site/base/schema.json")" \
  python3 -c 'import json,sys; text=open(sys.argv[1]).read(); print(json.loads(text[text.index("{"):])["info"]["version"])' "$work/fetched"
cp "$work/site/base/schema.json" "$work/site/production/schema.json"
build_of "$work/site/production" >"$work/with-own"
printf 'openapi: {path: schema.json}\n' >>"$work/site/production/kustomization.yaml"
same "patches with it give the same as with kustomize's" "$(<"$work/with-own")" build_of "$work/site/production"

# Deletion.
ok "kubectl delete -k" kubectl delete -k "$work/site/staging" --timeout="${patience}s"
ok "kustomize build | kubectl delete" eval "'$work/bin/kustomize' build '$work/site/production' | kubectl delete --timeout=${patience}s -f -"
for name in production staging; do ok "the namespace $name is gone" gone namespace "$name"; done
same "as is what was in them" "" kubectl get deployments --all-namespaces -o name
finish
