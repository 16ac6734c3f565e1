#!/usr/bin/env bash
# A cluster with upstream's API server: etcd, $KUBE_APISERVER, Kaji's controllers and scheduler, and three of Kaji's agents, which
# join by a bootstrap token. What kubeadm would write for them is applied here.
#
# It is sourced after tests/controllers/lib.sh. Ports are $server_port and the two after it, of etcd.
# shellcheck shell=bash disable=SC2154
token=walk01.0123456789abcdef

begin_upstream_server() {
  local pki=$work/pki port=${server_port:-20261} hash node
  local etcd=http://127.0.0.1:$((port + 1)) peer=http://127.0.0.1:$((port + 2))
  mkdir "$pki"
  make_authority "$pki"
  issue "$pki" server "/CN=kube-apiserver" "IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
  issue "$pki" admin "/O=system:masters/CN=walk-admin"
  issue "$pki" kubelet-client "/O=system:masters/CN=kube-apiserver-kubelet-client"
  write_kubeconfig "$pki" "https://127.0.0.1:$port"
  start_program etcd "${ETCD:-etcd}" --data-dir "$work/etcd" --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer"
  start_program kube-apiserver "$KUBE_APISERVER" --etcd-servers "$etcd" --secure-port "$port" --bind-address 127.0.0.1 \
    --advertise-address 127.0.0.1 --endpoint-reconciler-type none \
    --tls-cert-file "$pki/server.crt" --tls-private-key-file "$pki/server.key" --client-ca-file "$pki/ca.crt" \
    --kubelet-client-certificate "$pki/kubelet-client.crt" --kubelet-client-key "$pki/kubelet-client.key" \
    --service-account-key-file "$pki/sa.key" --service-account-signing-key-file "$pki/sa.key" \
    --service-account-issuer https://kubernetes.default.svc --authorization-mode Node,RBAC \
    --enable-admission-plugins NodeRestriction --enable-bootstrap-token-auth --service-cluster-ip-range 10.96.0.0/16
  soon "upstream's server is ready" k get --raw /readyz
  hash=$(openssl x509 -in "$pki/ca.crt" -noout -pubkey | openssl pkey -pubin -outform DER | sha256sum | cut -d ' ' -f 1)
  # The namespaces of the system come a moment after the server.
  soon "what lets nodes join is applied" allow_joining
  start_components "$form" "$pki" --controllers='*,bootstrap-signer-controller,token-cleaner-controller'
  soon "the public configuration is signed" shows .. k -n kube-public get configmap cluster-info -o "jsonpath={.data.jws-kubeconfig-${token%.*}}"
  for node in walk-node-1 walk-node-2 walk-node-3; do
    start_program "$node" "$KAJI" agent --simulated --join "127.0.0.1:$port" --token "$token" \
      --discovery-token-ca-cert-hash "sha256:$hash" --node-name "$node" --data-dir "$work/$node"
  done
}

key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2)

make_authority() {
  openssl req -x509 "${key[@]}" -subj /CN=kubernetes -addext keyUsage=critical,digitalSignature,keyCertSign \
    -keyout "$1/ca.key" -out "$1/ca.crt" 2>/dev/null
  openssl genrsa -out "$1/sa.key" 2048 2>/dev/null
}

# issue PKI NAME SUBJECT [NAMES]
issue() {
  openssl req -x509 "${key[@]}" -subj "$3" -addext basicConstraints=critical,CA:FALSE -addext extendedKeyUsage=serverAuth,clientAuth \
    ${4:+-addext "subjectAltName=$4"} -CA "$1/ca.crt" -CAkey "$1/ca.key" -keyout "$1/$2.key" -out "$1/$2.crt" 2>/dev/null
}

write_kubeconfig() {
  k config set-cluster walk --server "$2" --certificate-authority "$1/ca.crt" --embed-certs >/dev/null
  k config set-credentials walk --client-certificate "$1/admin.crt" --client-key "$1/admin.key" --embed-certs >/dev/null
  k config set-context walk --cluster walk --user walk >/dev/null
  k config use-context walk >/dev/null
}

allow_joining() {
  local group=system:bootstrappers:kubeadm:default-node-token approval=system:certificates.k8s.io:certificatesigningrequests
  {
    public_configuration
    bootstrap_token "$group"
    k create role walk:cluster-info -n kube-public --verb get --resource configmaps --resource-name cluster-info --dry-run=client -o yaml
    echo ---
    k create rolebinding walk:cluster-info -n kube-public --role walk:cluster-info --user system:anonymous --dry-run=client -o yaml
    echo ---
    k create clusterrole walk:get-nodes --verb get --resource nodes --dry-run=client -o yaml
    binding get-nodes walk:get-nodes "$group"
    binding bootstrap system:node-bootstrapper "$group"
    binding approve "$approval:nodeclient" "$group"
    binding rotate "$approval:selfnodeclient" system:nodes
  } | k apply -f -
}

# binding NAME ROLE GROUP
binding() {
  echo ---
  k create clusterrolebinding "walk:$1" --clusterrole "$2" --group "$3" --dry-run=client -o yaml
}

public_configuration() {
  k config view --raw --flatten --minify | sed '/^users:/,$d;/^contexts:/,/^current-context/d' >"$work/public"
  printf 'users: []\ncontexts: []\n' >>"$work/public"
  k -n kube-public create configmap cluster-info --from-file "kubeconfig=$work/public" --dry-run=client -o yaml
  echo ---
}

bootstrap_token() {
  k -n kube-system create secret generic "bootstrap-token-${token%.*}" --type bootstrap.kubernetes.io/token --dry-run=client -o yaml \
    --from-literal "token-id=${token%.*}" --from-literal "token-secret=${token#*.}" --from-literal usage-bootstrap-authentication=true \
    --from-literal usage-bootstrap-signing=true --from-literal "auth-extra-groups=$1"
  echo ---
}
