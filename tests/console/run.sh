#!/usr/bin/env bash
# The console in a browser. KAJI names the program; npm brings playwright-core and axe-core, the browser is Debian's.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
[[ -z ${SCREENSHOTS:-} ]] || SCREENSHOTS=$(realpath -m "$SCREENSHOTS")
[[ -z ${KAJI_CONSOLE_FILES:-} ]] || KAJI_CONSOLE_FILES=$(realpath "$KAJI_CONSOLE_FILES")
export KAJI SCREENSHOTS=${SCREENSHOTS-} KAJI_CONSOLE_FILES=${KAJI_CONSOLE_FILES-}
cd "$(dirname "$0")"
if ! npm ci --no-audit --no-fund --ignore-scripts --silent; then
  echo "SKIPPED console: npm cannot bring playwright-core and axe-core"
  exit 0
fi
exec node run.mjs
