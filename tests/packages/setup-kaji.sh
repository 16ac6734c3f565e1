#!/usr/bin/env bash
# The scripts of the action setup-kaji, as a runner runs them, with a release on the loopback. walk.sh has `check`, `work`, `pids`.
# shellcheck shell=bash disable=SC2154

# serve_release DIRECTORY: serves it, but refuses the first two requests; its URL is in $work/url.
serve_release() {
  python3 - "$1" "$work/url" <<'P' &
import functools, http.server, os, sys
refusals = 2
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        global refusals
        if refusals:
            refusals -= 1
            return self.send_error(503)
        super().do_GET()
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=sys.argv[1]))
with open(sys.argv[2] + ".part", "w") as file:
    file.write("http://127.0.0.1:%d" % server.server_port)
os.rename(sys.argv[2] + ".part", sys.argv[2])
server.serve_forever()
P
  release_server=$!
  pids+=("$release_server")
  until [[ -s $work/url ]]; do
    kill -0 "$release_server"
    sleep 0.05
  done
}

# action SCRIPT [VARIABLE=VALUE…]: one step of a job, with a runner's directories and files.
action() {
  local script=$1 runner=$work/runner
  shift
  env HOME="$runner/home" RUNNER_TEMP="$runner/temp" GITHUB_PATH="$runner/path" GITHUB_ENV="$runner/env" GITHUB_OUTPUT="$runner/output" \
    KAJI_DATA_DIR="$runner/data" PATH="$(dirname "$KUBECTL"):$PATH" "$@" bash "packaging/setup-kaji/$script"
}

refused() { ! "$@"; }

# setup_kaji DIST VERSION: the action with a release of these artefacts.
setup_kaji() {
  local dist=$1 version=$2 runner=$work/runner archive url release kaji
  mkdir -p "$runner/home" "$runner/temp" "$work/releases"
  ln -s "$dist" "$work/releases/v$version"
  serve_release "$work/releases"
  url=$(<"$work/url")
  release=("KAJI_VERSION=$version" "KAJI_BASE_URL=$url/")
  archive=$runner/home/.cache/setup-kaji/$version/kaji-$version-linux-amd64.tar.gz
  check "setup-kaji: a release is downloaded, at the third attempt" action install.sh "${release[@]}"
  check "setup-kaji: later steps have it in their PATH" grep -qx "$runner/temp/kaji/bin" "$runner/path"
  check "setup-kaji: and stand-ins for envtest" test -x "$(sed -n 's/^assets=//p' "$runner/output")/kube-apiserver"
  check "setup-kaji: named in a variable as well" grep -qx "KUBEBUILDER_ASSETS=$runner/temp/.*" "$runner/env"
  printf damaged >>"$archive"
  check "setup-kaji: a damaged archive of the cache is replaced" action install.sh "${release[@]}"
  check "setup-kaji: an archive with another checksum is refused" refused action install.sh "${release[@]}" "KAJI_CHECKSUM=$(printf x | sha256sum | cut -d ' ' -f 1)"
  cp "$work/out" "$work/refusal"
  check "setup-kaji: with an annotation" grep -q '^::error::kaji-.* does not have the checksum' "$work/refusal"
  check "setup-kaji: and is not kept" test ! -e "$archive"
  check "setup-kaji: a release that does not exist is an error" refused action install.sh "KAJI_VERSION=0.0.0" "KAJI_BASE_URL=$url" "KAJI_CHECKSUM="
  check "setup-kaji: the release is there again" action install.sh "${release[@]}"
  kill "$release_server"
  wait "$release_server" || true
  check "setup-kaji: the cached release needs no server" action install.sh "${release[@]}"

  kaji=$runner/temp/kaji/bin/kaji
  check "setup-kaji: a cluster is started" action start.sh KAJI_CLUSTER=walk "KAJI_FLAGS=--nodes sim:1"
  local kubeconfig
  kubeconfig=$(sed -n 's/^KUBECONFIG=//p' "$runner/env")
  check "setup-kaji: it answers by the kubeconfig of the variable" "$KUBECTL" --kubeconfig "$kubeconfig" create namespace shop
  check "setup-kaji: a pod whose image does not exist" "$KUBECTL" --kubeconfig "$kubeconfig" -n shop run broken --image example.com/none:404
  check "setup-kaji: does not run" "$KUBECTL" --kubeconfig "$kubeconfig" -n shop wait pod/broken --timeout 60s \
    --for 'jsonpath={.status.containerStatuses[0].state.waiting.reason}=ImagePullBackOff'
  check "setup-kaji: a failure is explained" action bundle.sh KAJI_CLUSTER=walk
  check "setup-kaji: by the server's log" test -s "$runner/temp/kaji-failure/server.log"
  check "setup-kaji: by its objects" grep -q 'name: broken' "$runner/temp/kaji-failure/pods.yaml"
  check "setup-kaji: and by why the pod does not run" grep -q 'example.com/none:404' "$runner/temp/kaji-failure/why.txt"
  check "setup-kaji: the cluster is deleted" env KAJI_DATA_DIR="$runner/data" HOME="$runner/home" "$kaji" delete walk
}
