#!/usr/bin/env bash
# Starts the cluster KAJI_CLUSTER in the background, and names its kubeconfig to later steps.
set -euo pipefail
: "${KAJI_CLUSTER:?}"
kubeconfig=${RUNNER_TEMP:?}/kaji/$KAJI_CLUSTER.kubeconfig
# shellcheck disable=SC2086
"$RUNNER_TEMP/kaji/bin/kaji" up --name "$KAJI_CLUSTER" --detach --kubeconfig "$kubeconfig" ${KAJI_FLAGS:-}
echo "kubeconfig=$kubeconfig" >>"${GITHUB_OUTPUT:?}"
echo "KUBECONFIG=$kubeconfig" >>"${GITHUB_ENV:?}"
