#!/usr/bin/env bash
# cert-manager: its CRDs, its webhook behind a Service that leads to the loopback, its CA injector and its controllers:
# self-signed and CA issuers, certificates with their Secrets, certificates of an Ingress.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3
here=$components/cert-manager
build cert-manager . "$here"
cluster --nodes none
manifests=$(cd "$here" && go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)/deploy
# shellcheck disable=SC2086
field() { kubectl get $1 -o "jsonpath=$2"; }

for crd in "$manifests"/crds/*.yaml; do
  ok "$(basename "$crd") is applied" kubectl apply --server-side -f "$crd"
done
ok "all of them are established" kubectl wait --for=condition=Established --timeout="${patience}s" crd --all
same "none is said not to be structural" "" field crd '{.items[*].status.conditions[?(@.type=="NonStructuralSchema")].message}'
says "kubectl explain knows them" "Requested 'duration'" kubectl explain certificate.spec.duration
says "their categories are served" "certificaterequest" kubectl api-resources --categories=cert-manager -o name

# The chart's configurations of webhooks; the Service's name is that of the webhook's certificate, and leads to this machine.
kubectl create namespace cert-manager >/dev/null
port=$(free_port)
kubectl apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Service
metadata: {name: cert-manager-webhook, namespace: cert-manager}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: cert-manager-webhook
  annotations: {cert-manager.io/inject-ca-from-secret: cert-manager/cert-manager-webhook-ca}
webhooks:
- name: webhook.cert-manager.io
  rules: [{apiGroups: [cert-manager.io], apiVersions: [v1], operations: [CREATE], resources: [certificaterequests]}]
  admissionReviewVersions: [v1]
  matchPolicy: Equivalent
  timeoutSeconds: 30
  failurePolicy: Fail
  sideEffects: None
  clientConfig: {service: {name: cert-manager-webhook, namespace: cert-manager, path: /mutate, port: $port}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: cert-manager-webhook
  annotations: {cert-manager.io/inject-ca-from-secret: cert-manager/cert-manager-webhook-ca}
webhooks:
- name: webhook.cert-manager.io
  rules: [{apiGroups: [cert-manager.io, acme.cert-manager.io], apiVersions: [v1], operations: [CREATE, UPDATE], resources: ["*/*"]}]
  admissionReviewVersions: [v1]
  matchPolicy: Equivalent
  timeoutSeconds: 30
  failurePolicy: Fail
  sideEffects: None
  clientConfig: {service: {name: cert-manager-webhook, namespace: cert-manager, path: /validate, port: $port}}
YAML
issuers() {
  kubectl apply -f - <<'YAML'
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: self, namespace: default}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {name: everywhere}
spec: {selfSigned: {}}
YAML
}
says "without the webhook there is no writing" "failed calling webhook" issuers
start cert-manager "$work/bin/cert-manager" --kubeconfig "$KUBECONFIG" --port "$port"
shows "the webhook makes itself a CA" "LS0t" field "secret -n cert-manager cert-manager-webhook-ca" '{.data.ca\.crt}'
shows "which is injected" "LS0t" field validatingwebhookconfiguration/cert-manager-webhook '{.webhooks[0].clientConfig.caBundle}'
shows "into both" "LS0t" field mutatingwebhookconfiguration/cert-manager-webhook '{.webhooks[0].clientConfig.caBundle}'
soon "issuers are taken" issuers
ok "the Issuer is ready" kubectl wait --for=condition=Ready --timeout="${patience}s" issuer/self
ok "the ClusterIssuer is ready" kubectl wait --for=condition=Ready --timeout="${patience}s" clusterissuer/everywhere

# wanted NAME ISSUER CA EXTRA
wanted() {
  kubectl apply -f - <<YAML
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: $1, namespace: default}
spec: {secretName: $1-tls, commonName: $1.example.com, dnsNames: [$1.example.com], isCA: $3, issuerRef: {name: $2, kind: Issuer}, $4}
YAML
}
says "the webhook refuses what no schema can" "certificate duration must be greater than 1h0m0s" wanted short self false 'duration: 5m'
says "and two ways to renew" "are mutually exclusive" wanted both self false 'renewBefore: 10m, renewBeforePercentage: 20'
ok "a certificate is asked for" wanted root self true 'privateKey: {algorithm: ECDSA, size: 256}'
ok "it becomes ready" kubectl wait --for=condition=Ready --timeout="${patience}s" certificate/root
same "its Secret is one of TLS" "kubernetes.io/tls root Issuer" field secret/root-tls \
  '{.type} {.metadata.annotations.cert-manager\.io/certificate-name} {.metadata.annotations.cert-manager\.io/issuer-kind}'
same "its request was approved and signed" "True True" field certificaterequest \
  '{.items[0].status.conditions[?(@.type=="Approved")].status} {.items[0].status.conditions[?(@.type=="Ready")].status}'
same "the webhook wrote the requester" "system:masters system:authenticated" field certificaterequest '{.items[0].spec.groups[*]}'
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: ca, namespace: default}
spec: {ca: {secretName: root-tls}}
YAML
ok "an Issuer by that CA is ready" kubectl wait --for=condition=Ready --timeout="${patience}s" issuer/ca
ok "a leaf is asked for" wanted leaf ca false 'usages: [server auth]'
ok "and becomes ready" kubectl wait --for=condition=Ready --timeout="${patience}s" certificate/leaf
same "with its CA beside it" "$(field secret/root-tls '{.data.tls\.crt}')" field secret/leaf-tls '{.data.ca\.crt}'
says "it is what was asked for" "leaf.example.com" eval "kubectl get secret leaf-tls -o 'jsonpath={.data.tls\.crt}' | base64 -d | python3 -c '
import ssl, sys, tempfile
with tempfile.NamedTemporaryFile(\"w\") as file:
    file.write(sys.stdin.read()), file.flush()
    print(ssl._ssl._test_decode_cert(file.name))'"
serial() { field secret/leaf-tls '{.data.tls\.crt}'; }
test_revision() { [[ $(field certificate/leaf '{.status.revision}') == "$1" ]]; }
test_new() { [[ $(serial) != "$1" ]]; }
gone() { ! kubectl get "$1"; }
before=$(serial)
ok "a name more is asked for" kubectl patch certificate leaf --type=merge -p '{"spec":{"dnsNames":["leaf.example.com","more.example.com"]}}'
soon "there is a second revision" test_revision 2
ok "which becomes ready" kubectl wait --for=condition=Ready --timeout="${patience}s" certificate/leaf
soon "with another certificate" test_new "$before"
ok "the Secret is deleted" kubectl delete secret leaf-tls
soon "and made anew" kubectl get secret leaf-tls
says "a request cannot be approved by an edit of its spec" "cannot change" kubectl patch certificaterequest/root-1 --type=merge -p '{"spec":{"isCA":false,"username":"other"}}'
kubectl create clusterrole nearly --verb=get,patch --resource=certificaterequests.cert-manager.io,certificaterequests.cert-manager.io/status >/dev/null
kubectl create clusterrolebinding nearly --clusterrole=nearly --user=unprivileged >/dev/null
deny() {
  kubectl --as="$@" patch certificaterequest/root-1 --subresource=status --type=json \
    -p '[{"op":"add","path":"/status/conditions/-","value":{"type":"Denied","status":"True","reason":"x","message":"x"}}]'
}
says "a user without the right to approve for the signer is refused by the webhook, which asks the API" "does not have permissions to set approved/denied conditions" deny unprivileged
says "and a request is not both approved and denied" "conditions cannot coexist" deny root --as-group=system:masters

kubectl apply -f - >/dev/null <<'YAML'
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: site, namespace: default, annotations: {cert-manager.io/issuer: ca}}
spec:
  tls: [{hosts: [site.example.com], secretName: site-tls}]
  rules: [{host: site.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}}]
YAML
soon "an Ingress gets a Certificate" kubectl get certificate site-tls
ok "that becomes ready" kubectl wait --for=condition=Ready --timeout="${patience}s" certificate/site-tls
ok "the Ingress is deleted" kubectl delete ingress site
soon "and the Certificate with it" gone certificate/site-tls
says "events were recorded" "Stored new private key" kubectl get events
says "a table has the printer columns" "SECRET" kubectl get certificate
# Its caches may still have the key of the certificate before, which it has deleted itself; it says so and tries again.
quiet cert-manager '^[EW][0-9]{4}' 'the object has been modified|secrets ."leaf-[a-z0-9]+." not found'
finish
