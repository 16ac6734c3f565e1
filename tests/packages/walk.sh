#!/usr/bin/env bash
# What a release consists of, installed as its users do and tried: the archive, the package for Debian, the wheel, the packages for
# npm, the image, and what else there is.
#
#     XTASK=target/debug/xtask KAJI=target/release/kaji KUBECTL=kubectl bash tests/packages/walk.sh [TARGET]
#
# TARGET is what KAJI was built for; x86_64-unknown-linux-gnu if it is left out. Nothing is installed outside a directory of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
KAJI=$(realpath "${KAJI:-target/release/kaji}")
XTASK=$(realpath "${XTASK:-target/debug/xtask}")
KUBECTL=$(command -v "${KUBECTL:-kubectl}")
target=${1:-x86_64-unknown-linux-gnu}
work=$(mktemp -d)
passed=0 failed=0
pids=()
leave() {
  local code=$?
  trap - EXIT
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$work"
  echo "packages: $passed passed, $failed failed"
  ((code == 0 && failed == 0)) || exit 1
}
trap leave EXIT
ok() { passed=$((passed + 1)); echo "ok    $1"; }
bad() { failed=$((failed + 1)); echo "FAIL  $1"; }
check() { local what=$1; shift; if "$@" >"$work/out" 2>&1; then ok "$what"; else bad "$what"; tail -n 20 "$work/out"; fi; }
skip() { echo "SKIPPED $1: $2"; }

# plugin NAME DIRECTORY: with the directory in PATH, kubectl has the command why.
plugin() {
  local name=$1 kubeconfig=$work/$1.extract
  check "$name: kubectl why is there" env PATH="$2:$PATH" "$KUBECTL" why "configmap/$name" --kubeconfig "$kubeconfig"
  cp "$work/out" "$work/$name.why"
  check "$name: and explains" grep -q "ConfigMap default/$name: nothing is wrong with it" "$work/$name.why"
}

# walk NAME PROGRAM...: a cluster of the program answers, and names its kubeconfig.
walk() {
  local name=$1 socket=$work/$1.notify
  shift
  check "$name: shows its version" "$@" --version
  # What a unit with Type=notify waits for.
  python3 - "$socket" >"$work/$name.notices" <<'P' &
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
s.settimeout(120)
while True:
    text = s.recv(64).decode().strip()
    print(text, flush=True)
    if text == "STOPPING=1":
        break
P
  local listener=$! pid
  pids+=("$listener")
  until [[ -S $socket ]]; do sleep 0.05; done
  NOTIFY_SOCKET=$socket "$@" up --nodes sim:1 --port 0 --data-dir "$work/$name" --kubeconfig "$work/$name.kubeconfig" >"$work/$name.log" 2>&1 &
  pid=$!
  pids+=("$pid")
  for _ in {1..600}; do
    grep -q READY=1 "$work/$name.notices" && break
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  check "$name: tells that it is ready" grep -q READY=1 "$work/$name.notices"
  "$@" kubeconfig --data-dir "$work/$name" >"$work/$name.extract" || true
  check "$name: its cluster answers" "$KUBECTL" --kubeconfig "$work/$name.extract" create configmap "$name"
  [[ ! -e $(dirname "$1")/kubectl-why ]] || plugin "$name" "$(dirname "$1")"
  kill -TERM "$pid"
  wait "$pid" || true
  check "$name: tells that it stops" grep -q STOPPING=1 "$work/$name.notices"
}

SOURCE_DATE_EPOCH=1700000000 "$XTASK" package --binary "$target=$KAJI" --out "$work/dist"
version=$("$KAJI" --version | awk '{ print $2 }')
ls -l "$work/dist"
check "checksums are true" bash -c "cd '$work/dist' && sha256sum --quiet --check SHA256SUMS"
SOURCE_DATE_EPOCH=1700000000 "$XTASK" package --binary "$target=$KAJI" --out "$work/again"
check "the same programs make the same bytes" diff -r "$work/dist" "$work/again"

mkdir "$work/tar"
check "the archive is unpacked" tar -xzf "$work/dist/kaji-$version-linux-amd64.tar.gz" -C "$work/tar" --strip-components 1
walk tar "$work/tar/bin/kaji"
check "kubectl-why is a link to it" test "$(readlink "$work/tar/bin/kubectl-why")" = kaji
check "it has manual pages" test -s "$work/tar/share/man/man1/kaji-up.1"
check "its completions are bash" bash -n "$work/tar/share/bash-completion/completions/kaji"

if command -v dpkg >/dev/null && ((EUID == 0)); then
  root=$work/root
  mkdir -p "$root"/var/lib/dpkg/{info,updates}
  : >"$root/var/lib/dpkg/status"
  package=$work/dist/kaji_${version}_amd64.deb
  check "the package for Debian is installed" dpkg --root="$root" --force-script-chrootless --log=/dev/null -i "$package"
  walk deb "$root/usr/bin/kaji"
  check "its configuration is kept as the administrator's" grep -q /etc/default/kaji "$root/var/lib/dpkg/info/kaji.conffiles"
  check "it is removed" dpkg --root="$root" --force-script-chrootless --log=/dev/null -r kaji
  check "and its program with it" test ! -e "$root/usr/bin/kaji" -a ! -L "$root/usr/bin/kubectl-why"
else
  skip deb "there is no dpkg, or this is not root"
fi

if command -v rpm >/dev/null; then
  check "the RPM is read" rpm -qp --nosignature --list "$work/dist/kaji-$version-1.x86_64.rpm"
  cp "$work/out" "$work/files"
  check "it has the program" grep -qx /usr/bin/kaji "$work/files"
  check "and the plug-in for kubectl" grep -qx /usr/bin/kubectl-why "$work/files"
else
  skip rpm "there is no rpm"
fi

check "a virtual environment" python3 -m venv "$work/venv"
wheel=$(echo "$work"/dist/*x86_64.whl)
check "the wheel is installed" "$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$wheel"
walk wheel "$work/venv/bin/kaji"
check "wheel: its plug-in for pytest serves a cluster" env -u KAJI PATH="$work/venv/bin:$PATH" "$work/venv/bin/python" -c \
  'import kaji_pytest; c = kaji_pytest.Control(); c.base.fork().delete(); c.stop()'
check "wheel: pytest finds the plug-in" grep -qx 'kaji = kaji_pytest.plugin' "$work"/venv/lib/python3*/site-packages/kaji-*.dist-info/entry_points.txt

if command -v npm >/dev/null; then
  mkdir "$work/npm"
  echo '{"private": true}' >"$work/npm/package.json"
  check "the packages for npm are installed" npm --prefix "$work/npm" install --offline --no-audit --no-fund --omit=optional \
    "$work/dist/kaji-linux-x64-$version.tgz" "$work/dist/kaji-$version.tgz"
  walk npm "$work/npm/node_modules/.bin/kaji"
  check "npm: its helper serves a cluster" env -u KAJI -C "$work/npm" node -e \
    'require("kaji/envtest").start().then(async (c) => { await c.withFork(() => {}); await c.stop(); })'
else
  skip npm "there is no npm"
fi

# The image is loaded by Kaji's own reader of images.
mkdir -p "$work/images"
check "the image is loaded" "$KAJI" image load "$work/dist/kaji-$version-image.tar" --data-dir "$work/images"
check "it has its name" bash -c "'$KAJI' image ls --data-dir '$work/images' | grep -q 'kaji:$version'"
check "the bill of materials names what is linked" python3 - "$work/dist/kaji-$version.cdx.json" <<'P'
import json, sys
bill = json.load(open(sys.argv[1]))
names = {c["name"] for c in bill["components"]}
assert {"tokio", "rustls", "kaji-engine"} <= names, sorted(names)
assert "expect-test" not in names
refs = {d["ref"] for d in bill["dependencies"]}
assert all(r in refs for d in bill["dependencies"] for r in d["dependsOn"])
P
if command -v systemd-analyze >/dev/null; then
  sed "s,/usr/bin/kaji,$KAJI," packaging/kaji.service >"$work/kaji.service"
  sed "s,/usr/bin/kaji,$KAJI," packaging/kaji-control-plane.service >"$work/kaji-control-plane.service"
  check "the units are understood" systemd-analyze verify --man=no "$work/kaji.service" "$work/kaji-control-plane.service"
else
  skip systemd-analyze "there is no systemd-analyze"
fi
# shellcheck source=setup-kaji.sh
source tests/packages/setup-kaji.sh
if [[ $(uname -m) == x86_64 ]]; then
  setup_kaji "$work/dist" "$version"
else
  skip setup-kaji "the archive is for x86_64"
fi
