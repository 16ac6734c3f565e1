#!/usr/bin/env bash
# Checks that the table of built-in types is what `cargo xtask codegen` makes of its inputs. These are public and pinned by
# checksums: the type definitions by requirements.txt, the Go modules by go.sum.
# check.sh [--write] [XTASK]: XTASK is the built program, target/debug/xtask if left out; PYTHON an interpreter with pip.
set -euo pipefail
cd "$(dirname "$0")"
check=(--check)
if [[ ${1:-} == --write ]]; then
  check=()
  shift
fi
root=$(cd ../.. && pwd)
xtask=${1:-$root/target/debug/xtask}
inputs=$(mktemp -d)
trap 'rm -rf "$inputs"' EXIT
"${PYTHON:-python3}" -m pip install --quiet --no-deps --require-hashes --target "$inputs" -r requirements.txt
modules=(k8s.io/api k8s.io/apiextensions-apiserver k8s.io/apimachinery k8s.io/kube-aggregator)
GOFLAGS=-mod=readonly go mod download "${modules[@]}"
mapfile -t sources < <(go list -mod=readonly -m -f '{{.Dir}}' "${modules[@]}")
definitions=$inputs/kubernetes_validate/kubernetes-json-schema/v1.37.0-local/_definitions.json
cd "$root"
"$xtask" codegen ${check[@]+"${check[@]}"} --definitions "$definitions" --protos "${sources[@]}"
echo "codegen: the table is what these inputs make"
