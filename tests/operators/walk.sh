#!/usr/bin/env bash
# `kaji test` on the operator of examples/operators/go/database: each mistake that can be switched on is found, by the fault that brings
# it about, and nothing is found without one.
#
#     KAJI=target/release/kaji bash tests/operators/walk.sh [stale-read missed-state crash-between-writes none]
set -euo pipefail
cd "$(dirname "$0")/../.."
KAJI=$(realpath "${KAJI:-target/release/kaji}")
manifests=$PWD/examples/operators/manifests
work=$(mktemp -d)
passed=0 failed=0
leave() {
  local code=$?
  trap - EXIT
  rm -rf "$work"
  echo "operators by faults: $passed passed, $failed failed"
  ((code == 0 && failed == 0)) || exit 1
}
trap leave EXIT

(cd examples/operators/go && go build -o "$work/database" ./database)
cp "$manifests"/database-*.yaml "$work/"

# try NAME CODE FAULTS RESOURCES TEXT [ARGUMENT…]: the scenario ends with this code, and says this text.
try() {
  local name=$1 wanted=$2 faults=$3 resources=$4 text=$5 code=0 command='./database'
  shift 5
  for argument in "$@"; do command+=", $argument"; done
  sed -e "s|^  command:.*|  command: [$command]|" "$manifests/database-go-test.yaml" >"$work/scenario.yaml"
  printf 'faults: [%s]\nresources: [%s]\n' "$faults" "$resources" >>"$work/scenario.yaml"
  "$KAJI" test "$work/scenario.yaml" --jobs 4 --output "$work/report" >"$work/out" 2>"$work/err" || code=$?
  if [[ $code == "$wanted" ]] && grep -qE "$text" "$work/out"; then
    passed=$((passed + 1))
    echo "ok    $name: $(grep -m1 -oE "$text" "$work/out")"
  else
    failed=$((failed + 1))
    echo "FAIL  $name: ended with $code"
    tail -n 40 "$work/err" "$work/out"
  fi
}

for mistake in ${*:-stale-read missed-state crash-between-writes none}; do
  case $mistake in
    stale-read) try "a stale read" 3 stale-view secrets 'secrets default/orders-credentials-\*: [0-9]+ objects, not 1' --bug=stale-read ;;
    missed-state) try "a missed state" 3 skipped-states databases.db.example.com 'configmaps default/database-hosts.*' --bug=missed-state ;;
    crash-between-writes) try "a crash between writes" 3 kill configmaps 'services default/orders is missing' --bug=crash-between-writes ;;
    none)
      try "nothing without mistakes" 0 "stale-view, skipped-states, kill" \
        "secrets, databases.db.example.com, configmaps" '[0-9]+ runs with faults: 0 failed.*'
      ;;
  esac
done
