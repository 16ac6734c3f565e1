#!/usr/bin/env bash
# Collects what explains a failure into RUNNER_TEMP/kaji-failure: the server's log, what the machine lacks, and the cluster's objects.
set -uo pipefail
: "${KAJI_CLUSTER:?}"
kaji=${RUNNER_TEMP:?}/kaji/bin/kaji
to=$RUNNER_TEMP/kaji-failure
kubeconfig=$RUNNER_TEMP/kaji/$KAJI_CLUSTER.kubeconfig
mkdir -p "$to"
"$kaji" status "$KAJI_CLUSTER" >"$to/status.txt" 2>&1
"$kaji" logs "$KAJI_CLUSTER" --tail 20000 >"$to/server.log" 2>&1
"$kaji" doctor >"$to/doctor.txt" 2>&1
if command -v kubectl >/dev/null; then
  for kind in nodes pods events deployments.apps jobs.batch services persistentvolumeclaims; do
    kubectl --kubeconfig "$kubeconfig" --request-timeout 10s get "$kind" --all-namespaces -o yaml >"$to/$kind.yaml" 2>&1
  done
  for pod in $(kubectl --kubeconfig "$kubeconfig" --request-timeout 10s get pods --all-namespaces \
    -o jsonpath='{range .items[?(@.status.phase!="Running")]}{.metadata.namespace}/{.metadata.name}{"\n"}{end}' 2>/dev/null); do
    "$kaji" why "pod/${pod#*/}" --namespace "${pod%%/*}" --kubeconfig "$kubeconfig" >>"$to/why.txt" 2>&1
  done
fi
exit 0
