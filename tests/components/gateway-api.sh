#!/usr/bin/env bash
# The Gateway API's CRDs of both channels: their schemas and CEL rules, upstream's own valid and invalid examples, and the
# ValidatingAdmissionPolicy that guards upgrades. Nothing is built.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go
cluster --nodes none

api=$(module sigs.k8s.io/gateway-api@v1.6.3)
field() { kubectl get "$1" -o "jsonpath=$2"; }

# The CRDs of a channel all have to be served, with a schema that is structural.
crds() {
  local channel=$1 file crd
  for file in "$api/config/crd/$channel"/*.yaml; do
    [[ $file == */kustomization.yaml ]] || soon "$channel: $(basename "$file") is applied" kubectl apply --server-side -f "$file"
  done
  for crd in $(kubectl get crd -o name); do
    ok "$channel: ${crd#*/} is established" kubectl wait --for=condition=Established --timeout="${patience}s" "$crd"
    same "$channel: ${crd#*/} is structural" "" field "$crd" '{.status.conditions[?(@.type=="NonStructuralSchema")].message}'
  done
}

# Upstream's examples of what is allowed are taken, those of what is not are refused.
examples() {
  local channel=$1 file
  # Namespaces come first: its files are numbered for that.
  ok "$channel: what upstream shows as valid is taken" kubectl apply $(find "$api/examples/$channel" -name '*.yaml' ! -path '*/v1alpha*' | sort | sed 's/^/-f /')
  while IFS= read -r file; do
    says "$channel: invalid ${file#"$api/hack/invalid-examples/"}" "is invalid:" kubectl create --dry-run=server -f "$file"
  done < <(find "$api/hack/invalid-examples/$channel" -name '*.yaml' | sort)
}

# What a rule says when it refuses the example.
refused() { says "$1 says why" "$2" kubectl create --dry-run=server -f "$api/hack/invalid-examples/$1.yaml"; }

relabelled() { kubectl get crd "$1" -o yaml | sed "s/$2/$3/" | kubectl apply --server-side --force-conflicts -f -; }

crds standard
examples standard
refused standard/gateway/hostname-tcp "hostname must not be specified for protocols ['TCP', 'UDP']"
refused standard/gateway/duplicate-listeners 'Listener name must be unique within the Gateway'
refused standard/gateway/invalid-addresses '"spec.addresses[3]" must validate one and only one schema (oneOf)'
refused standard/gateway/invalid-listener-port 'should be less than or equal to 65535'
refused standard/httproute/httproute-portless-service 'Must have port for Service reference'
refused standard/httproute/invalid-filter-duplicate 'filter cannot be repeated'
refused standard/httproute/duplicate-header-match 'Duplicate value: {"name":"foo"}'
refused standard/httproute/invalid-request-redirect-with-backendref 'RequestRedirect filter must not be used together with backendRefs'
refused standard/httproute/invalid-method 'supported values: "GET", "HEAD"'

kubectl create -f - >/dev/null <<'YAML'
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: defaults, namespace: default}
spec:
  gatewayClassName: c
  listeners: [{name: web, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: HTTPRoute
metadata: {name: defaults, namespace: default}
spec:
  parentRefs: [{name: defaults}]
  rules: [{backendRefs: [{name: s, port: 80}]}]
YAML
same "a Gateway's status is defaulted" "Pending Waiting for controller" field gateway/defaults \
  '{.status.conditions[0].reason} {.status.conditions[0].message}'
same "a listener's routes are defaulted" "Same" field gateway/defaults '{.spec.listeners[0].allowedRoutes.namespaces.from}'
same "an HTTPRoute of v1beta1 is read as v1, with defaults" "gateway.networking.k8s.io/v1 PathPrefix / 1" field httproutes.v1.gateway.networking.k8s.io/defaults \
  '{.apiVersion} {.spec.rules[0].matches[0].path.type} {.spec.rules[0].matches[0].path.value} {.spec.rules[0].backendRefs[0].weight}'
shows "kubectl explain knows a field" "AllowedRoutes defines the types of routes that MAY be attached" \
  kubectl explain gateways.spec.listeners.allowedRoutes
shows "kubectl explain knows what may be said" RegularExpression kubectl explain httproutes.spec.rules.matches.path.type
says "a table has the printer columns" "CLASS" kubectl get gateway -A
says "the class of a GatewayClass cannot change" "Value is immutable" \
  kubectl patch gatewayclass "$(field gatewayclass '{.items[0].metadata.name}')" --type=merge -p '{"spec":{"controllerName":"other.io/x"}}'

shows "the policy refuses CRDs of the experimental channel" "Installing experimental CRDs on top of standard channel CRDs is prohibited" \
  relabelled httproutes.gateway.networking.k8s.io 'channel: standard' 'channel: experimental'
says "and those of an old release" "Installing CRDs with version before v1.5.0 is prohibited" \
  relabelled httproutes.gateway.networking.k8s.io 'bundle-version: v1.6.3' 'bundle-version: v1.4.1'
ok "a release candidate passes" relabelled httproutes.gateway.networking.k8s.io 'bundle-version: v1.6.3' 'bundle-version: v1.7.0-rc.1'
ok "without the policy the experimental channel can be had" \
  kubectl delete validatingadmissionpolicy,validatingadmissionpolicybinding safe-upgrades.gateway.networking.k8s.io
crds experimental
examples experimental
finish
