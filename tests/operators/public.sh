#!/usr/bin/env bash
# `kaji test` on operators that others publish, built from their Go modules (public/go.mod): JobSet, KubeRay, and cert-manager's
# controllers. Each one's scenario is run once for each fault that its bounds leave. A run that fails has to be in
# public/known-findings.txt, with the reason.
#
#     KAJI=target/release/kaji bash tests/operators/public.sh [jobset kuberay cert-manager]
#
# JOBS are the runs at once (4), SEED draws the faults (0), REPORTS is a folder in which the reports stay. COMPONENTS_BIN, KAJI: see
# tests/components/lib.sh.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../components/lib.sh"
need go python3 openssl
public=$repository/tests/operators/public
kaji=$(realpath "$(kaji_program)")
[[ -x $kaji ]] || { echo "there is no $kaji: build it (cargo build --release -p kaji) or name one by KAJI"; exit 1; }
reports=$(realpath -m "${REPORTS:-$work/reports}")
export TMPDIR=$work/tmp
mkdir -p "$work/modules" "$work/certs" "$TMPDIR" "$reports"
# A scenario's paths are from where its file is.
ln -s "$public"/*.yaml "$public"/*.sh "$work/"

# explore NAME MODULE PACKAGE: builds an operator, and runs its scenario with faults.
explore() {
  local name=$1 module=$2 package=$3 began code=0
  if ! (cd "$public" && go mod download "$module") >"$work/said" 2>&1; then
    skipped "$name" "its module cannot be had: $(tail -n 1 "$work/said")"
    return
  fi
  build "$name" "$package" "$public"
  ln -s "$(cd "$public" && go list -m -f '{{.Dir}}' "$module")" "$work/modules/$name"
  began=$SECONDS
  start "$name" "$kaji" test "$work/$name-test.yaml" --jobs "${JOBS:-4}" --seed "${SEED:-0}" --output "$reports/$name"
  wait "${pids[$name]}" || code=$?
  unset "pids[$name]"
  echo "$name was explored in $((SECONDS - began)) s"
  # 3: a law does not hold, which may be known.
  if [[ $code != 0 && $code != 3 ]]; then
    verdict 1 "$name: kaji test ended with $code"
    return
  fi
  code=0
  python3 "$public/findings.py" "$name" "$reports/$name/report.json" "$public/known-findings.txt" || code=1
  verdict "$code" "$name: what it does after a fault is as without one, or known"
}

certificate jobset localhost
mv "$work/jobset.crt" "$work/certs/tls.crt"
mv "$work/jobset.key" "$work/certs/tls.key"
for name in ${*:-jobset kuberay cert-manager}; do
  case $name in
    jobset) explore jobset sigs.k8s.io/jobset sigs.k8s.io/jobset ;;
    kuberay) explore kuberay github.com/ray-project/kuberay/ray-operator github.com/ray-project/kuberay/ray-operator ;;
    cert-manager) explore cert-manager github.com/cert-manager/cert-manager ./cert-manager ;;
    *) echo "there is no scenario for $name" && exit 1 ;;
  esac
done
finish
