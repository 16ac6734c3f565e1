#!/usr/bin/env bash
# Tries clients of other languages against a running cluster: each creates, lists, watches, patches and deletes.
# KUBECONFIG=FILE tests/clients/run.sh [java|js|python|go ...]; PYTHON names an interpreter that has the kubernetes package.
# Dependencies come from the usual registries. What is not installed is skipped aloud; what fails makes this fail.
set -uo pipefail
cd "$(dirname "$0")"
: "${KUBECONFIG:?which cluster?}"
KUBECONFIG=$(realpath "$KUBECONFIG")
export KUBECONFIG
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

# attempt NAME COMMAND...: runs one client, with an end.
attempt() {
  local name=$1 began=$SECONDS
  shift
  if timeout 300 "$@" >"$work/log" 2>&1; then
    tail -n 1 "$work/log"
    echo "PASSED $name ($((SECONDS - began)) s)"
    passed=$((passed + 1))
  else
    tail -n 40 "$work/log"
    echo "FAILED $name ($((SECONDS - began)) s)"
    failed=$((failed + 1))
  fi
}

# has NAME TOOL...: whether its tools are there.
has() {
  local name=$1 tool
  shift
  for tool in "$@"; do
    if ! type -P "$tool" >/dev/null; then
      echo "SKIPPED $name: there is no $tool"
      skipped=$((skipped + 1))
      return 1
    fi
  done
}

java() {
  has java mvn java || return
  if ! timeout 150 mvn -q -B -f java/pom.xml -DbuildDirectory="$work/java" compile \
    dependency:build-classpath -Dmdep.outputFile="$work/classpath" >"$work/log" 2>&1; then
    tail -n 40 "$work/log"
    echo "FAILED java: it does not build"
    failed=$((failed + 1))
    return
  fi
  local class
  for class in Fabric8 Official; do
    attempt "java $class" "$(type -P java)" -cp "$work/java/classes:$(<"$work/classpath")" "clients.$class" "$KUBECONFIG"
  done
}

js() {
  has js npm node || return
  cp js/* "$work/" && mkdir -p "$work/js" && mv "$work/package.json" "$work/client.js" "$work/js/"
  if ! (cd "$work/js" && timeout 120 npm install --silent --no-audit --no-fund >"$work/log" 2>&1); then
    tail -n 40 "$work/log"
    echo "FAILED js: its packages do not install"
    failed=$((failed + 1))
    return
  fi
  attempt js node "$work/js/client.js" "$KUBECONFIG"
}

python() {
  local interpreter=${PYTHON:-python3}
  has python "$interpreter" || return
  if ! "$interpreter" -c 'import kubernetes' 2>/dev/null; then
    "$interpreter" -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet kubernetes || return
    interpreter=$work/venv/bin/python
  fi
  attempt python "$interpreter" ../../crates/kaji/tests/clients/python_client.py "$KUBECONFIG"
}

go() {
  has go go || return
  attempt go env -C go "$(type -P go)" test -count=1 ./...
}

for client in "${@:-java js python go}"; do
  for one in $client; do "$one"; done
done
echo "clients: $passed passed, $failed failed, $skipped skipped"
((failed == 0))
