#!/usr/bin/env bash
# The plug-ins for pytest and for Node.js, each with a client of its language: a set-up that tests share, forks, faults, clocks.
#
#     KAJI=target/release/kaji bash tests/plugins/walk.sh [python js]
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

js() {
  { command -v node && command -v npm; } >/dev/null || { echo "SKIPPED plugins-js: there is no node, or no npm"; return; }
  mkdir "$work/js" && cp js/* "$work/js/" && cp ../../packaging/npm/envtest.js "$work/js/envtest.cjs"
  (cd "$work/js" && timeout 120 npm install --silent --no-audit --no-fund) ||
    { echo "SKIPPED plugins-js: its packages cannot be installed"; return; }
  (cd "$work/js" && timeout 200 node --test) || failed=$((failed + 1))
}

for language in ${*:-python js}; do "$language"; done
echo "plug-ins: $failed failed"
((failed == 0))
