#!/usr/bin/env bash
# Helm and public charts, as their users call them: each chart is installed with --wait on simulated nodes, upgraded with
# other values, upgraded to what cannot become ready and taken back by --atomic, rolled back and removed, and the cluster
# has then the objects it had before. Charts come from the Go modules that carry them. `helm test`, hooks that fail and the
# server-side dry run are tried with the chart that `helm create` writes.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3 openssl
published helm helm.sh/helm/v3/cmd/helm@v3.22.0
cluster --nodes sim:3
export HELM_CACHE_HOME=$work/helm/cache HELM_CONFIG_HOME=$work/helm/config HELM_DATA_HOME=$work/helm/data
helm() { "$work/bin/helm" "$@"; }
wait=(--wait "--timeout=${patience}s")
# shellcheck disable=SC2086
field() { kubectl get $1 -o "jsonpath=$2"; }

# Every object of every kind, but what components write by themselves.
everything() {
  local kinds
  kinds=$(kubectl api-resources --verbs=list -o name 2>/dev/null | grep -vE '^(events|events.events.k8s.io|leases.coordination.k8s.io|.*\.metrics\.k8s\.io|componentstatuses|.*\.kaji\.dev)$' | paste -sd,)
  kubectl get "$kinds" --all-namespaces --no-headers -o custom-columns=KIND:.kind,NS:.metadata.namespace,NAME:.metadata.name 2>"$work/warnings" | sort -u
}
unchanged() { diff "$1" <(everything); }
# What the release asks for, as the server has it.
wanted() { helm get manifest "$1" -n "$1" | kubectl get -f - -o json; }
desired() {
  wanted "$1" | python3 -c '
import json, sys
for item in json.load(sys.stdin)["items"]:
    item.pop("status", None)
    kept = {k: item["metadata"].get(k) for k in ("name", "namespace", "labels")}
    print(json.dumps({**item, "metadata": kept}, sort_keys=True))'
}
revisions() { helm history "$1" -n "$1" -o json | python3 -c 'import json, sys; print(*(r["status"] for r in json.load(sys.stdin)))'; }
failing() { ! helm upgrade "$1" "$chart" -n "$1" --reuse-values --atomic --timeout=8s --set-string "$2"; }

# What the program in a chart's hook would make, which simulated nodes do not run.
prepare() {
  [[ $1 == ingress-nginx ]] || return 0
  kubectl create namespace ingress-nginx >/dev/null
  certificate admission ingress-nginx-controller-admission.ingress-nginx.svc
  kubectl -n ingress-nginx create secret generic ingress-nginx-admission --from-file=ca="$work/admission-ca.crt" \
    --from-file=cert="$work/admission.crt" --from-file=key="$work/admission.key" >/dev/null
}

# tour NAME MODULE FOLDER OBJECT PATH BEFORE AFTER BROKEN [--set…] -- [--set…]: values for the installation and the upgrade,
# a field that they change, and a value by which no pod becomes ready.
tour() {
  local name=$1 module=$2 folder=$3 object=$4 path=$5 before=$6 after=$7 broken=$8 root
  local -a first=() second=()
  shift 8
  while [[ $1 != -- ]]; do first+=("$1"); shift; done
  shift
  second=("$@")
  root=$(module "$module" 2>/dev/null) || true
  [[ -n $root ]] || { skipped "$name" "$module cannot be had"; return 0; }
  cp -r "$root/$folder" "$work/$name"
  chmod -R u+w "$work/$name"
  chart=$work/$name
  everything >"$work/before"
  kubectl config set-context --current --namespace="$name" >/dev/null
  ok "$name: the chart passes helm lint" helm lint "$chart" "${first[@]}"
  ok "$name: the server takes it without writing" helm install "$name" "$chart" -n default --dry-run=server "${first[@]}"
  ok "$name: nothing was written" unchanged "$work/before"
  prepare "$name"
  ok "$name: it is installed and ready" helm install "$name" "$chart" -n "$name" --create-namespace "${wait[@]}" "${first[@]}"
  says "$name: helm status says so" "STATUS: deployed" helm status "$name" -n "$name"
  same "$name: with the first values" "$before" field "$object -n $name" "$path"
  ok "$name: all that it wants is there" wanted "$name"
  desired "$name" >"$work/desired" || true
  ok "$name: applying its manifest changes nothing" no_difference "$name"
  ok "$name: it is upgraded" helm upgrade "$name" "$chart" -n "$name" --reuse-values "${wait[@]}" "${second[@]}"
  same "$name: with other values" "$after" field "$object -n $name" "$path"
  ok "$name: an upgrade that does not become ready fails" failing "$name" "$broken"
  same "$name: and was taken back" "$after" field "$object -n $name" "$path"
  ok "$name: it is rolled back" helm rollback "$name" 1 -n "$name" "${wait[@]}"
  same "$name: to the first values" "$before" field "$object -n $name" "$path"
  ok "$name: and to the first objects" diff "$work/desired" <(desired "$name")
  same "$name: its history has all of it" "superseded superseded failed superseded deployed" revisions "$name"
  ok "$name: it is removed" helm uninstall "$name" -n "$name" "${wait[@]}"
  ok "$name: its namespace, too" kubectl delete namespace "$name" --timeout="${patience}s"
  [[ ! -d $chart/crds ]] || ok "$name: and the CRDs, which Helm leaves" kubectl delete -f "$chart/crds" --timeout="${patience}s"
  soon "$name: nothing is left" unchanged "$work/before"
}

# kubectl diff, without the generation, which a dry run counts up.
printf '#!/bin/sh\nexec diff -r -u -I "^  generation:" "$@"\n' >"$work/compare"
chmod +x "$work/compare"
no_difference() {
  helm get manifest "$1" -n "$1" | KUBECTL_EXTERNAL_DIFF="$work/compare" kubectl diff --server-side --force-conflicts -f -
}

nginx=ingress-nginx-controller
tour ingress-nginx k8s.io/ingress-nginx@v0.0.0-20240708192948-52c50467d67d charts/ingress-nginx \
  "deployment $nginx" '{.spec.replicas}' 1 2 controller.image.image=nginx:404,controller.image.digest= \
  --set controller.service.type=ClusterIP,defaultBackend.enabled=true -- \
  --set controller.replicaCount=2,controller.service.type=NodePort,controller.config.use-gzip=true
tour metrics-server sigs.k8s.io/metrics-server@v0.9.0 charts/metrics-server \
  "deployment metrics-server" '{.spec.template.spec.containers[0].resources.requests.cpu}' 100m 150m image.tag=404 \
  --set args='{--kubelet-insecure-tls}' -- --set resources.requests.cpu=150m,podDisruptionBudget.enabled=true,podDisruptionBudget.minAvailable=1
tour external-dns sigs.k8s.io/external-dns@v0.22.0 charts/external-dns \
  "deployment external-dns" '{.spec.template.spec.containers[0].args[5]}' --policy=upsert-only --policy=sync image.tag=404 \
  --set provider.name=inmemory,policy=upsert-only --set 'sources={service,ingress}' -- --set policy=sync
tour cert-manager github.com/cert-manager/cert-manager@v1.21.2 deploy/charts/cert-manager \
  "deployment cert-manager-webhook" '{.spec.replicas}' 1 3 webhook.image.tag=404 \
  --set crds.enabled=true,crds.keep=false -- --set webhook.replicaCount=3,webhook.podDisruptionBudget.enabled=true
tour gatekeeper github.com/open-policy-agent/gatekeeper/v3@v3.23.1 charts/gatekeeper \
  "deployment gatekeeper-controller-manager" '{.spec.replicas}' 1 2 image.repository=gatekeeper,image.release=404 \
  --set replicas=1 -- --set replicas=2,auditInterval=30

# Helm's own start of a chart, with tests of which each does something that needs no image.
helm create "$work/own" >/dev/null
rm "$work"/own/templates/tests/*
cat >"$work/own/templates/tests/tests.yaml" <<'YAML'
{{- range $name, $command := dict "passes" "echo all is well; exit 0" "fails" "echo all is not well; exit 3" }}
---
apiVersion: v1
kind: Pod
metadata:
  name: {{ $.Release.Name }}-{{ $name }}
  annotations: {helm.sh/hook: test, helm.sh/hook-delete-policy: before-hook-creation}
spec:
  restartPolicy: Never
  containers:
  - {name: test, image: busybox, command: [sh, -c, {{ $command | quote }}]}
{{- end }}
YAML
cat >"$work/own/templates/hook.yaml" <<'YAML'
{{- if .Values.hook }}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .Release.Name }}-hook
  annotations: {helm.sh/hook: pre-upgrade, helm.sh/hook-delete-policy: "before-hook-creation,hook-succeeded"}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: hook, image: busybox, command: [sh, -c, {{ .Values.hook | quote }}]}
{{- end }}
YAML
everything >"$work/before"
ok "helm create's chart is installed" helm install own "$work/own" -n own --create-namespace "${wait[@]}"
ok "a test passes" helm test own -n own --filter name=own-passes --logs --timeout "${patience}s"
says "with its logs" "all is well" helm test own -n own --filter name=own-passes --logs --timeout "${patience}s"
says "a test fails" "pod own-fails failed" helm test own -n own --filter name=own-fails --timeout "${patience}s"
ok "an upgrade with a hook that succeeds" helm upgrade own "$work/own" -n own --set 'hook=exit 0' "${wait[@]}"
says "whose Job is deleted" "not found" kubectl -n own get job own-hook
says "an upgrade with one that fails is none" "pre-upgrade hooks failed" helm upgrade own "$work/own" -n own --set 'hook=exit 1' "${wait[@]}"
says "and its Job stays" "own-hook" kubectl -n own get job own-hook
ok "an upgrade by apply's rules of three ways keeps what others wrote" kubectl -n own annotate deployment own other=kept
ok "with a horizontal autoscaler" helm upgrade own "$work/own" -n own --set autoscaling.enabled=true,autoscaling.minReplicas=2 "${wait[@]}"
same "the annotation was kept" kept field "deployment own -n own" '{.metadata.annotations.other}'
says "a second release of the same objects is refused" "cannot be imported into the current release" \
  helm install other "$work/own" -n own --set fullnameOverride=own
says "a field that no schema knows is refused" "unknown field" helm install third "$work/own" -n own --set-json 'podSecurityContext={"fsGruop":1}'
ok "such a release is removed" helm uninstall third -n own "${wait[@]}"
ok "the history's Secrets are Helm's" kubectl -n own get secret -l owner=helm,status=deployed
ok "it is removed, its history kept" helm uninstall own -n own --keep-history "${wait[@]}"
says "as helm list --uninstalled says" "uninstalled" helm list -n own --uninstalled
ok "its namespace is deleted" kubectl delete namespace own --timeout="${patience}s"
soon "nothing is left" unchanged "$work/before"
same "there is no release" "[]" helm list --all-namespaces --all --output json
finish
