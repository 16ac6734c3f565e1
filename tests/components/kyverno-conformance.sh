#!/usr/bin/env bash
# Kyverno's own conformance tests, as they are in its module but for the webhooks' port, run by Chainsaw. By default a few
# folders of them, which take minutes; `kyverno-conformance.sh FOLDER…` runs others, and FOLDER may have a folder below.
# What needs more than is here, or another kubectl, is in kyverno/left-out.txt.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3
# shellcheck source=tests/components/kyverno/controllers.sh
source "$components/kyverno/controllers.sh"
folders=("$@")
((${#folders[@]})) || folders=(webhooks webhook-configurations deferred)
build_kyverno
# The only Chainsaw that is a module knows testing of Go before 1.26, and no file of a module can be added to in its place.
if [[ ! -x ${COMPONENTS_BIN:-}/chainsaw ]]; then
  cp -r "$(module github.com/kyverno/chainsaw@v0.2.12)" "$work/chainsaw-module"
  chmod -R u+w "$work/chainsaw-module"
  cat >"$work/chainsaw-module/pkg/runner/internal/module_path.go" <<'GO'
package internal

func (*TestDeps) ModulePath() string { return "" }
GO
fi
build chainsaw . "$work/chainsaw-module"
cluster --nodes sim:3
# Their scripts call kubectl.
if [[ -n ${KUBECTL:-} ]]; then PATH=$(dirname "$(realpath "$(command -v "$KUBECTL")")"):$PATH; fi

ok "Kyverno's manifests are applied" kubectl apply --server-side -f "$manifests/install-latest-testing.yaml"
ok "with its newest CRDs" kubectl apply --server-side --force-conflicts -R -f "$manifests/crds"
for part in admission background cleanup reports; do
  ok "the $part controller's deployment" kubectl -n kyverno rollout status "deployment/kyverno-$part-controller" --timeout="${patience}s"
done
for service in kyverno-svc kyverno-cleanup-controller; do
  ok "its Service $service leads here" to_this_machine $service
done
# The rights and settings of Kyverno's `scripts/config/standard`, and of `ttl` beside it.
all='[create, update, patch, delete, get, list]'
ok "the admission controller's rights of the tests" beyond admission-controller '["*"]' '[secrets]' "$all"
ok "the background controller's" beyond background-controller '["*"]' '[configmaps, networkpolicies, resourcequotas, secrets, roles, rolebindings,
  clusterroles, clusterrolebindings, limitranges, namespaces, nodes, nodes/status, pods]' "$all"
ok "the cleanup controller's" beyond cleanup-controller '[""]' '[pods]' '[list, watch, delete]'
for part in admission background cleanup reports; do
  ok "the $part controller may watch CRDs" beyond "$part-controller" '[apiextensions.k8s.io]' '[customresourcedefinitions]' '[get, list, watch]' crds
done
run_admission --crdWatcher=true
run_others --crdWatcher=true
shows "the webhook is there" "LS0t" field validatingwebhookconfiguration/kyverno-policy-validating-webhook-cfg '{.webhooks[0].clientConfig.caBundle}'

# Chainsaw writes beside the tests.
tests=$work/chainsaw
cp -r "${manifests%/config}/test/conformance/chainsaw" "$tests"
chmod -R u+w "$tests"
# A later Chainsaw's way to delete namespaces sooner.
find "$tests" -name .chainsaw.yaml -exec sed -i '/^  namespace:$/d;/^    fastDelete:/d' {} +
# The Services are at ports of the loopback here.
grep -rlZ --include='*webhook*' '^      port: 443$' "$tests" | xargs -0r sed -i "s/^      port: 443$/      port: $admission_port/"
while read -r path reason; do
  [[ -z $path || $path == \#* ]] && continue
  for folder in "${folders[@]}"; do
    if [[ $path/ == "$folder"/* && -d $tests/$path ]]; then skipped "$path" "$reason"; fi
  done
  rm -rf "${tests:?}/$path"
done <"$components/kyverno/left-out.txt"
for folder in "${folders[@]}"; do
  began=$SECONDS
  dir=$tests/$folder
  config=$dir
  until [[ -f $config/.chainsaw.yaml ]]; do config=${config%/*}; done
  (cd "$dir" && "$work/bin/chainsaw" test --config "$config/.chainsaw.yaml" --fail-fast=false --no-color --parallel 2 \
    --report-format JSON --report-name report --report-path "$work" >"$work/chainsaw.log" 2>&1) || true
  if [[ -n ${KYVERNO_CONFORMANCE_LOGS:-} ]]; then cp "$work/chainsaw.log" "$KYVERNO_CONFORMANCE_LOGS/${folder//\//_}.log"; fi
  python3 "$components/kyverno/verdicts.py" "$work/report.json" "$folder" >"$work/verdicts" || verdict 1 "$folder gives a report"
  while IFS=$'\t' read -r kind name why; do
    case $kind in
      skip) skipped "$name" "its own test says so" ;;
      ok) verdict 0 "$name" ;;
      *) verdict 1 "$name" && printf '%b\n' "$why" | sed 's/^/    /' ;;
    esac
  done <"$work/verdicts"
  # Policies that a test's script applies stay: each folder has a cluster of its own where Kyverno runs them.
  policies=$(kubectl api-resources --verbs=delete --categories=kyverno -o name | grep -E 'polic' | paste -sd,)
  kubectl delete "$policies" --all -A --timeout="${patience}s" >/dev/null 2>&1 || verdict 1 "the policies of $folder are deleted"
  echo "$folder took $((SECONDS - began)) s"
  rm -f "$work/report.json"
done
finish
