#!/usr/bin/env bash
# What the component tests share: a cluster of `kaji up`, building programs of Go modules, processes that end with the
# test, waiting, and `ok`/`FAIL` lines.
#
# A script sources this and then calls
#   need go curl              skips the whole script, aloud, if one of them is missing
#   cluster [FLAG…]           starts Kaji; afterwards KUBECONFIG leads there and `kubectl` is the one to use
#   kaji_program              prints which program is tested
#   build NAME PACKAGE [DIR]  builds a program of the Go module in DIR (this folder's if left out) to $work/bin/NAME
#   published NAME PACKAGE@VERSION  the same of a module by itself, with the versions that it was released with; false if it cannot be had
#   skipped WHAT REASON       says so, and goes on
#   module NAME@VERSION       prints the folder in which a Go module is, which it fetches if need be
#   start NAME COMMAND…       starts a process; what it says is in $work/NAME.log, its id in ${pids[NAME]}
#   stop NAME                 ends it and waits for that
#   certificate NAME HOST…    makes $work/NAME-ca.crt and, signed by it, $work/NAME.crt and .key for these hosts
#   kubeconfig_of NS ACCOUNT FILE  writes a kubeconfig with a token of a service account
#   free_port                 prints a port of the loopback without a listener
#   ok TEXT COMMAND…          passes when the command succeeds
#   says TEXT WANTED COMMAND… passes when what the command prints (both streams) has the text WANTED in it
#   same TEXT WANTED COMMAND… passes when what the command prints is exactly WANTED
#   soon TEXT COMMAND…        passes when the command succeeds within a minute ($patience seconds)
#   shows TEXT WANTED COMMAND…    passes when what it prints has WANTED in it within that time
#   quiet NAME BAD [BUT]      passes when no line of $work/NAME.log matches BAD, those aside that match BUT
#   finish                    prints the counts and ends the script with their verdict
#
# COMPONENTS_BIN may name a folder of programs that are built already. KAJI names the binary (target/release/kaji, or target/debug/kaji if that is all there is), KUBECTL the client.
# shellcheck shell=bash
set -euo pipefail

components=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$components/../.." && pwd)
work=$(mktemp -d)
patience=${patience:-60}
passed=0
failed=0
declare -A pids=()
# A proxy that the machine's user has set up is not for the loopback.
export NO_PROXY=127.0.0.1,localhost no_proxy=127.0.0.1,localhost

cleanup() {
  local code=$?
  trap - EXIT
  for name in "${!pids[@]}"; do kill "${pids[$name]}" 2>/dev/null || true; done
  for name in "${!pids[@]}"; do wait "${pids[$name]}" 2>/dev/null || true; done
  if [[ $code != 0 || $failed != 0 ]]; then
    for log in "$work"/*.log; do
      [[ -s $log ]] && { echo "--- the end of ${log##*/}"; tail -n 30 "$log"; }
    done
  fi
  # Go makes what it unpacks read-only.
  chmod -R u+w "$work" 2>/dev/null || true
  rm -rf "$work"
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

need() {
  for tool in "$@"; do
    if ! command -v "$tool" >/dev/null; then
      echo "SKIPPED $(basename "$0" .sh): there is no $tool"
      exit 0
    fi
  done
}

kubectl() { command "${KUBECTL:-kubectl}" "$@"; }

kaji_program() {
  local kaji=${KAJI:-}
  local target=${CARGO_TARGET_DIR:-$repository/target}
  [[ -n $kaji ]] || { kaji=$target/release/kaji; [[ -x $kaji ]] || kaji=$target/debug/kaji; }
  echo "$kaji"
}

cluster() {
  local kaji
  kaji=$(kaji_program)
  [[ -x $kaji ]] || { echo "there is no $kaji: build it (cargo build -p kaji) or name one by KAJI"; exit 1; }
  command -v "${KUBECTL:-kubectl}" >/dev/null || { echo "SKIPPED $(basename "$0" .sh): there is no kubectl"; exit 0; }
  export KUBECONFIG=$work/kubeconfig
  local until=$((SECONDS + patience))
  start kaji "$kaji" up --data-dir "$work/data" --port 0 --kubeconfig "$KUBECONFIG" "$@"
  until [[ -s $KUBECONFIG ]] && kubectl get --raw /readyz >/dev/null 2>&1; do
    kill -0 "${pids[kaji]}" 2>/dev/null || { echo "Kaji did not start"; exit 1; }
    ((SECONDS < until)) || { echo "Kaji is not ready after $patience seconds"; exit 1; }
    sleep 0.1
  done
  # Without the account, which a controller makes, no pod can be created.
  patiently kubectl -n default get serviceaccount default
}

build() {
  local name=$1 package=$2 dir=${3:-$components} began=$SECONDS
  mkdir -p "$work/bin"
  if [[ -n ${COMPONENTS_BIN:-} && -x $COMPONENTS_BIN/$name ]]; then
    ln -s "$(realpath "$COMPONENTS_BIN/$name")" "$work/bin/$name"
    return
  fi
  (cd "$dir" && GOFLAGS="${GOFLAGS:--buildvcs=false}" go build -o "$work/bin/$name" "$package")
  echo "built $name in $((SECONDS - began)) s"
}

published() {
  local name=$1 package=$2 began=$SECONDS made=${2%@*}
  mkdir -p "$work/bin" "$work/made"
  if [[ -n ${COMPONENTS_BIN:-} && -x $COMPONENTS_BIN/$name ]]; then
    ln -sf "$(realpath "$COMPONENTS_BIN/$name")" "$work/bin/$name"
    return
  fi
  # The folder of a module's next major version is no program's name.
  [[ ${made##*/} =~ ^v[0-9]+$ ]] && made=${made%/*}
  (cd "$work" && GOBIN=$work/made GOFLAGS="${GOFLAGS:--buildvcs=false}" go install "$package") >"$work/said" 2>&1 || return 1
  mv "$work/made/${made##*/}" "$work/bin/$name"
  echo "built $name in $((SECONDS - began)) s"
}

skipped() {
  echo "SKIPPED $1: $2"
}

module() {
  (cd "$work" && go mod download -json "$1") | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'
}

start() {
  local name=$1
  shift
  # A function would be a child of the process that has the known id.
  [[ $1 != kubectl ]] || set -- "${KUBECTL:-kubectl}" "${@:2}"
  "$@" >>"$work/$name.log" 2>&1 &
  pids[$name]=$!
}

stop() {
  kill "${pids[$1]}" 2>/dev/null || true
  wait "${pids[$1]}" 2>/dev/null || true
  unset "pids[$1]"
}

# Below the range that connections take theirs from, so that none takes it before it is listened on.
free_port() {
  python3 - <<'END'
import random, socket
while True:
    port = random.randrange(12000, 32000)
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break
END
}

certificate() {
  local name=$1 names="" host
  shift
  for host in "$@"; do
    if [[ $host =~ ^[0-9.]+$ ]]; then names+=,IP:$host; else names+=,DNS:$host; fi
  done
  local key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2)
  openssl req -x509 "${key[@]}" -subj "/CN=$name-ca" -keyout "$work/$name-ca.key" -out "$work/$name-ca.crt" 2>/dev/null
  openssl req -x509 "${key[@]}" -subj "/CN=$1" -addext "subjectAltName=${names#,}" -addext basicConstraints=critical,CA:FALSE \
    -CA "$work/$name-ca.crt" -CAkey "$work/$name-ca.key" -keyout "$work/$name.key" -out "$work/$name.crt" 2>/dev/null
}

kubeconfig_of() {
  local namespace=$1 account=$2 file=$3
  kubectl config view --raw --minify --flatten >"$file"
  local context
  context=$(kubectl config current-context)
  kubectl config set-credentials account --kubeconfig "$file" --token "$(kubectl create token "$account" --namespace "$namespace")" >/dev/null
  kubectl config set-context "$context" --kubeconfig "$file" --user account --namespace "$namespace" >/dev/null
}

verdict() {
  if [[ $1 == 0 ]]; then
    passed=$((passed + 1))
    echo "ok $2"
  else
    failed=$((failed + 1))
    echo "FAIL $2"
  fi
}

ok() {
  local text=$1 code=0
  shift
  "$@" >"$work/said" 2>&1 || code=1
  verdict "$code" "$text"
  [[ $code == 0 ]] || tail -n 20 "$work/said" | cut -c-300 | sed 's/^/    /'
}

says() {
  local text=$1 wanted=$2 code=0
  shift 2
  "$@" >"$work/said" 2>&1 || true
  grep -qF -- "$wanted" "$work/said" || code=1
  verdict "$code" "$text"
  [[ $code == 0 ]] || { echo "    wanted: $wanted"; tail -n 20 "$work/said" | cut -c-300 | sed 's/^/    /'; }
}

same() {
  local text=$1 wanted=$2 code=0
  shift 2
  "$@" >"$work/said" 2>&1 || code=1
  [[ $(<"$work/said") == "$wanted" ]] || code=1
  verdict "$code" "$text"
  [[ $code == 0 ]] || { echo "    wanted: $wanted"; tail -n 20 "$work/said" | sed 's/^/    /'; }
}

# Tries a command until it succeeds or the time is over.
patiently() {
  local until=$((SECONDS + patience))
  until "$@" >"$work/said" 2>&1; do
    ((SECONDS < until)) || return 1
    sleep 0.2
  done
}

soon() {
  local text=$1 code=0
  shift
  patiently "$@" || code=1
  verdict "$code" "$text (within $patience s)"
  [[ $code == 0 ]] || tail -n 20 "$work/said" | cut -c-300 | sed 's/^/    /'
}

has() {
  local wanted=$1
  shift
  "$@" >"$work/has" 2>&1 || true
  cat "$work/has"
  grep -qF -- "$wanted" "$work/has"
}

shows() {
  local text=$1 wanted=$2 code=0
  shift 2
  patiently has "$wanted" "$@" || code=1
  verdict "$code" "$text"
  [[ $code == 0 ]] || { echo "    wanted: $wanted"; tail -n 20 "$work/said" | cut -c-300 | sed 's/^/    /'; }
}

quiet() {
  local code=0
  grep -E -- "$2" "$work/$1.log" | grep -vE -- "${3:-^$}" >"$work/said" && code=1
  verdict "$code" "$1 complains of nothing"
  [[ $code == 0 ]] || cut -c1-400 "$work/said" | sort -u | head -n 20 | sed 's/^/    /'
}

finish() {
  echo "$passed passed, $failed failed"
  [[ $failed == 0 && $passed -gt 0 ]]
  exit
}
