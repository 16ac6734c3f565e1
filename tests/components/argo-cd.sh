#!/usr/bin/env bash
# Argo CD: its controller, API server, repository server, ApplicationSet controller and CLI, each with its own service account's rights,
# beside the documented installation on simulated nodes; then its own end-to-end tests, as they are in its module.
#
#   argo-cd.sh             the walk, and the tests that are named in argo-cd/tests.txt
#   argo-cd.sh walk        the walk alone
#   argo-cd.sh PATTERN…    upstream's tests of these names (regular expressions of whole names), without the walk
#
# It listens on every address and its tests have fixed ports, a folder and a `pkill` by name: all of it runs in a network,
# process and mount namespace of its own, with which every process ends. What the tests need that is not here is in argo-cd/left-out.txt.
# ARGO_CD_LOGS names a folder that keeps what the tests and the programs say.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
here=$components/argo-cd

# ---- Outside: what needs the network.
if [[ -z ${ARGO_CD_INSIDE:-} ]]; then
  need go git python3 redis-server unshare ip curl
  [[ -x $(kaji_program) ]] || { echo "there is no $(kaji_program): build it (cargo build -p kaji) or name one by KAJI"; exit 1; }
  command -v "${KUBECTL:-kubectl}" >/dev/null || { echo "SKIPPED argo-cd: there is no kubectl"; exit 0; }
  apart=(unshare --net --mount --pid --fork --kill-child --mount-proc)
  ((EUID == 0)) || apart+=(--map-root-user)
  "${apart[@]}" true 2>/dev/null || { echo "SKIPPED argo-cd: there are no namespaces to be had (unshare)"; exit 0; }
  # The module's folder has the replacements that it is released with.
  pinned() { (cd "$here" && go mod download -json "$1") | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }
  tree=$(pinned github.com/argoproj/argo-cd/v3)
  clusters=$(pinned open-cluster-management.io/api)
  build argocd ./cmd "$tree"
  published kustomize sigs.k8s.io/kustomize/kustomize/v5@v5.8.1 || skipped kustomize "its module cannot be had"
  published helm helm.sh/helm/v3/cmd/helm@v3.22.0 || skipped helm "its module cannot be had"
  if [[ ${1:-} != walk ]]; then
    began=$SECONDS
    if [[ -x ${COMPONENTS_BIN:-}/argo-cd-e2e.test ]]; then
      ln -s "$(realpath "$COMPONENTS_BIN/argo-cd-e2e.test")" "$work/bin/argo-cd-e2e.test"
    else
      (cd "$tree" && GOFLAGS="${GOFLAGS:--buildvcs=false}" go test -vet=off -c -o "$work/bin/argo-cd-e2e.test" ./test/e2e)
      echo "built argo-cd-e2e.test in $((SECONDS - began)) s"
    fi
  fi
  ended() {
    local code=$?
    set +e
    # Its child ends with it, and with the child, which is the first of its processes, all others.
    [[ -z ${inside:-} ]] || kill -KILL "$inside" 2>/dev/null
    [[ -z ${folder:-} ]] || rm -rf "$folder"
    (exit "$code")
    cleanup
  }
  trap ended EXIT
  if [[ ${1:-} != walk ]]; then
    mkdir /tmp/argo-e2e || { echo "upstream's tests need /tmp/argo-e2e for themselves"; exit 1; }
    folder=/tmp/argo-e2e
  fi
  ARGO_CD_INSIDE=$tree ARGO_CD_CLUSTERS=$clusters COMPONENTS_BIN=$work/bin KAJI=$(kaji_program) TMPDIR=$work "${apart[@]}" bash "$0" "$@" &
  inside=$!
  code=0
  wait "$inside" || code=$?
  inside=
  exit "$code"
fi

# ---- Inside.
tree=$ARGO_CD_INSIDE
manifests=$tree/manifests
ip link set lo up
export PATH=$COMPONENTS_BIN:$PATH
# What Argo CD and its tests run by name.
mkdir -p "$work/tools" "$work/home" "$work/tmp"
ln -s "$(realpath "$(command -v "${KUBECTL:-kubectl}")")" "$work/tools/kubectl"
export PATH=$work/tools:$PATH HOME=$work/home TMPDIR=$work/tmp
export GIT_CONFIG_GLOBAL=$work/home/.gitconfig GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com GIT_TERMINAL_PROMPT=0
printf '[safe]\n\tdirectory = *\n' >"$GIT_CONFIG_GLOBAL"
cluster --nodes sim:3

# program NAME COMMAND…: starts a part of Argo CD, which is one program by several names.
program() {
  start "$1" env ARGOCD_BINARY_NAME="argocd-$1" ARGOCD_FAKE_IN_CLUSTER=true "${@:2}"
}
listens() { curl -s -o /dev/null "http://127.0.0.1:$1$2"; }
# shellcheck disable=SC2086
field() { kubectl get $1 -o "jsonpath=$2"; }

if (($# == 0)) || [[ $1 == walk ]]; then
  # shellcheck source=tests/components/argo-cd/walk.sh
  source "$here/walk.sh"
fi
if [[ ${1:-} == walk ]]; then
  :
elif ! command -v gpg >/dev/null; then
  skipped "upstream's tests" "there is no gpg"
else
  # shellcheck source=tests/components/argo-cd/upstream.sh
  source "$here/upstream.sh"
fi
finish
