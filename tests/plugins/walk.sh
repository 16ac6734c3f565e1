#!/usr/bin/env bash
# The plug-ins for pytest, Node.js and JUnit, each with a client and an operator framework of its language: a set-up that tests
# share, forks, faults, clocks. jenvtest and kube-api-test, too, which start kaji as if it were kube-apiserver.
#
#     KAJI=target/release/kaji bash tests/plugins/walk.sh [python js java]
#
# Dependencies come from the usual registries. What is not installed is skipped aloud.
set -uo pipefail
KAJI=$(realpath -e "${KAJI:-target/release/kaji}") || exit 1
export KAJI
cd "$(dirname "$0")" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

python() {
  command -v python3 >/dev/null || { echo "SKIPPED plugins-python: there is no python3"; return; }
  local interpreter=${PYTHON:-}
  if [[ -z $interpreter ]]; then
    python3 -m venv "$work/venv" && timeout 120 "$work/venv/bin/pip" install --quiet pytest kopf kubernetes ||
      { echo "SKIPPED plugins-python: pytest, kopf and kubernetes cannot be installed"; return; }
    interpreter=$work/venv/bin/python
  fi
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=../../packaging/python timeout 200 "$interpreter" -m pytest -p kaji_pytest.plugin -p no:cacheprovider -q python ||
    failed=$((failed + 1))
}

# kaji's package as npm lays it out; a link would be taken for source of the suite.
js() {
  { command -v node && command -v npm; } >/dev/null || { echo "SKIPPED plugins-js: there is no node, or no npm"; return; }
  mkdir "$work/js" && cp -r js/. greetings.yaml "$work/js/"
  (cd "$work/js" && timeout 240 npm install --prefer-offline --silent --no-audit --no-fund) ||
    { echo "SKIPPED plugins-js: its packages cannot be installed"; return; }
  mkdir "$work/js/node_modules/kaji" && cp ../../packaging/npm/envtest.js "$work/js/node_modules/kaji/" &&
    echo '{"name": "kaji", "version": "0.0.0", "exports": {"./envtest": "./envtest.js"}}' >"$work/js/node_modules/kaji/package.json" ||
    { failed=$((failed + 1)); return; }
  attempt js "node --test" timeout 200 node --test envtest.test.js
  attempt js vitest env NO_COLOR=1 timeout 200 node_modules/.bin/vitest run --root vitest
  attempt js jest env NO_COLOR=1 timeout 200 node --no-warnings --experimental-vm-modules node_modules/.bin/jest --rootDir jest --config jest/jest.config.cjs
}

java() {
  { type -P mvn && type -P java; } >/dev/null || { echo "SKIPPED plugins-java: there is no mvn, or no java"; return; }
  local began=$SECONDS architecture log=$work/java.log
  architecture=$([[ $(uname -m) == aarch64 ]] && echo arm64 || echo amd64)
  if type -P kubectl >/dev/null; then
    # jenvtest and kube-api-test have a folder a version below theirs.
    export JENVTEST_DIR=$work/jenvtest KUBE_API_TEST_DIR=$work/kube-api-test
    "$KAJI" envtest --print-assets "$JENVTEST_DIR/k8s/1.37.0-linux-$architecture" &&
      "$KAJI" envtest --print-assets "$KUBE_API_TEST_DIR/k8s/1.37.0-linux-$architecture" ||
      { failed=$((failed + 1)); return; }
  else
    echo "SKIPPED plugins-jenvtest: there is no kubectl, with which jenvtest waits for the server"
  fi
  if timeout 280 mvn -B -ntp -f java/pom.xml -DbuildDirectory="$work/java" test >"$log" 2>&1; then
    grep -E 'Tests run: [0-9]+, .*Skipped: [0-9]+$' "$log"
    echo "PASSED java ($((SECONDS - began)) s)"
  elif grep -qE 'Could not (resolve|transfer|find artifact)' "$log"; then
    tail -n 5 "$log"
    echo "SKIPPED plugins-java: its packages cannot be had"
  else
    tail -n 60 "$log"
    echo "FAILED java ($((SECONDS - began)) s)"
    failed=$((failed + 1))
  fi
}

# attempt FOLDER NAME COMMAND...: a suite, in a folder of the work.
attempt() {
  local began=$SECONDS folder=$1 name=$2
  shift 2
  if (cd "$work/$folder" && "$@"); then
    echo "PASSED $name ($((SECONDS - began)) s)"
  else
    echo "FAILED $name ($((SECONDS - began)) s)"
    failed=$((failed + 1))
  fi
}

for language in ${*:-python js java}; do "$language"; done
echo "plug-ins: $failed failed"
((failed == 0))
