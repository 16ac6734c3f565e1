#!/usr/bin/env bash
# This server and upstream's kube-apiserver on the same etcd: an object of each kind (objects.yaml) that one has written is read from the other,
# field by field, uid and resourceVersion included; the other one updates and deletes it, and what it writes is read back. With JSON
# in etcd, with protobuf, and with each local provider of encryption for all resources.
#
#     KAJI=target/release/kaji KUBE_APISERVER=kube-apiserver KUBECTL=kubectl bash tests/etcd/upstream.sh
#
# etcd and python3 are taken from the PATH. Everything listens on the loopback. Kinds that only one of the two serves are listed.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
UPSTREAM=${KUBE_APISERVER:-kube-apiserver}
here=$(cd "$(dirname "$0")" && pwd)
for tool in etcd openssl python3 "$KUBECTL" "$UPSTREAM"; do
  command -v "$tool" >/dev/null || { echo "SKIPPED etcd-upstream: $tool is not there"; exit 0; }
done

work=$(mktemp -d)
export NO_PROXY='*' no_proxy='*' HOME=$work
base=$((20000 + $$ % 6000))
port=$((base + 1))
declare -A pids=()
leave() {
  local code=$? name
  trap - EXIT
  for name in "${!pids[@]}"; do kill -9 "${pids[$name]}" 2>/dev/null || true; done
  wait 2>/dev/null || true
  if ((code == 0)); then rm -rf "$work"; else echo "the logs are in $work"; fi
  exit "$code"
}
trap leave EXIT
trap 'exit 130' INT TERM

start() {
  local name=$1
  shift
  "$@" >>"$work/$name.log" 2>&1 &
  pids[$name]=$!
}
end() {
  kill -TERM "${pids[$1]}"
  wait "${pids[$1]}" || true
  unset "pids[$1]"
}
within() {
  local until=$((SECONDS + $1)) text=$2
  shift 2
  until "$@" >"$work/out" 2>&1; do
    ((SECONDS < until)) || { echo "FAIL  $text"; tail -n 5 "$work/out"; exit 1; }
    sleep 0.1
  done
}
k() { "$KUBECTL" --kubeconfig "$work/kubeconfig" "$@"; }
ready() { k get --raw /readyz; }

start_kaji() {
  start kaji "$KAJI" apiserver --data-dir "$work/data" --port "$port" --kubeconfig "$work/kubeconfig" \
    --etcd-servers "http://127.0.0.1:$base" --storage-media-type "$media" ${encryption[@]+"${encryption[@]}"}
  within 60 "the server writes its kubeconfig" test -s "$work/kubeconfig"
  within 60 "the server is ready" ready
}
start_upstream() {
  local pki=$work/data/pki
  start upstream "$UPSTREAM" --etcd-servers "http://127.0.0.1:$base" --bind-address 127.0.0.1 --secure-port "$port" \
    --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" --client-ca-file "$pki/ca.crt" \
    --service-account-issuer https://kubernetes.default.svc.cluster.local --service-account-key-file "$pki/sa.pub" \
    --service-account-signing-key-file "$pki/sa.key" --service-cluster-ip-range 10.96.0.0/16 --authorization-mode Node,RBAC \
    --cert-dir "$work" --storage-media-type "$media" --endpoint-reconciler-type none ${encryption[@]+"${encryption[@]}"}
  within 120 "upstream's server is ready" ready
}

# make PREFIX OCTET: an object of each kind, and a custom one. A kind that is not served is left out.
make() {
  local csr
  csr=$(openssl req -new -newkey rsa:2048 -nodes -keyout /dev/null -subj "/CN=$1" 2>/dev/null | base64 -w0)
  sed "s|NAME|$1|g; s|OCTET|$2|g; s|request: CSR|request: $csr|" "$here/objects.yaml" >"$work/$1.yaml"
  k create -f "$work/$1.yaml" >"$work/$1.out" 2>&1 || true
  if grep -v 'created$\|^Warning\|no matches for kind\|ensure CRDs are installed first' "$work/$1.out"; then
    echo "FAIL  objects could not be created"
    exit 1
  fi
  grep -o 'no matches for kind.*' "$work/$1.out" | sort -u || true
  k wait --for=condition=Established "crd/widgets.$1.example.com" --timeout=30s >/dev/null
  widget() { k apply -f - <<<"{\"apiVersion\": \"$1.example.com/v1\", \"kind\": \"Widget\", \"metadata\": {\"name\": \"$1\"}, \"spec\": {\"free\": {\"a\": [1, 2.5, null]}}}"; }
  within 20 "a custom object is made" widget "$1"
  if ! k delete "pod/$1" --wait=false >/dev/null; then exit 1; fi
}
annotate() {
  k annotate --overwrite -f "$work/$1.yaml" "touched=$2" >"$work/annotate.out" 2>&1 || true
  if grep -v 'annotated$\|^Warning\|no matches for kind\|ensure CRDs are installed first' "$work/annotate.out"; then
    echo "FAIL  objects could not be annotated"
    exit 1
  fi
  k annotate --overwrite "widgets.$1.example.com/$1" "touched=$2" >/dev/null
}
see() { python3 "$here/objects.py" see "$KUBECTL" "$work/kubeconfig" "$work/$1.json" from-kaji from-upstream; }
same() {
  see "$2"
  python3 "$here/objects.py" compare "$work/$1.json" "$work/$2.json" || failed=1
}

# encrypt PROVIDER: both servers encrypt all resources by it, in the order of calls. `none`: neither encrypts.
encrypt() {
  encryption=()
  [[ $1 != none ]] || return 0
  cat >"$work/encryption.yaml" <<Y
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: ["*.*"]
  providers:
  - $1: {keys: [{name: key1, secret: $(head -c 32 /dev/urandom | base64 -w0)}]}
  - identity: {}
Y
  encryption=(--encryption-provider-config "$work/encryption.yaml")
}
# encrypted PROVIDER: all values below /registry are encrypted by it, but for the few keys that no server encrypts.
encrypted() {
  local plain
  plain=$(python3 "$here/objects.py" plain "http://127.0.0.1:$base" "$1")
  [[ -z $plain ]] || { echo "FAIL  these are not encrypted by $1:"; echo "$plain"; failed=1; }
}

failed=0
for round in json/none vnd.kubernetes.protobuf/none json/aescbc vnd.kubernetes.protobuf/aesgcm vnd.kubernetes.protobuf/secretbox; do
  media=application/${round%/*} provider=${round#*/}
  encrypt "$provider"
  rm -rf "$work/data" "$work/etcd" "$work/kubeconfig"
  start etcd etcd --data-dir "$work/etcd" --log-level warn --listen-client-urls "http://127.0.0.1:$base" \
    --advertise-client-urls "http://127.0.0.1:$base" --listen-peer-urls "http://127.0.0.1:$((base + 2))" \
    --initial-advertise-peer-urls "http://127.0.0.1:$((base + 2))" --initial-cluster "default=http://127.0.0.1:$((base + 2))"
  start_kaji
  # No controllers run.
  k create serviceaccount default >/dev/null
  make from-kaji 201
  see kaji-1
  end kaji
  start_upstream
  echo "$round: what this server wrote, read from upstream's"
  same kaji-1 upstream-1
  annotate from-kaji upstream
  make from-upstream 202
  see upstream-2
  end upstream
  start_kaji
  echo "$round: what upstream's server wrote, read from this one"
  same upstream-2 kaji-2
  annotate from-upstream kaji
  see kaji-3
  end kaji
  start_upstream
  echo "$round: what this server updated, read from upstream's"
  same kaji-3 upstream-3
  end upstream
  [[ $provider == none ]] || encrypted "$provider"
  end etcd
done
((failed == 0)) && echo "etcd-upstream: passed"
exit "$failed"
