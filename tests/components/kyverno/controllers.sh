#!/usr/bin/env bash
# What Kyverno's two tests share: building its controllers and starting them beside the simulated pods of its manifests, with
# the pods' command lines, environment and names, and with their accounts' rights. lib.sh is sourced before.
#   build_kyverno             builds the controllers; $manifests is then the folder with Kyverno's manifests
#   field OBJECT PATH         prints what a JSONPath finds in it
#   to_this_machine SERVICE   makes a Service of Kyverno lead to the loopback
#   run_admission FLAG…       starts the admission controller
#   run_others FLAG…          starts the other three
#   beyond PART GROUPS RESOURCES VERBS [NAME]  gives a controller rights beyond its own, by aggregation, as Kyverno documents it
# shellcheck shell=bash
admission_port=$(free_port)
cleanup_port=$(free_port)

# Without the warning that a ClusterPolicy is deprecated, which is not what is asked for.
# shellcheck disable=SC2086
field() { kubectl get $1 -o "jsonpath=$2" 2> >(grep -v '^Warning: kyverno.io/' >&2); }

build_kyverno() {
  local upstream=github.com/kyverno/kyverno program
  for program in kyverno background-controller cleanup-controller reports-controller; do
    build "$program" "$upstream/cmd/$program" "$components/kyverno"
  done
  manifests=$(cd "$components/kyverno" && go list -m -f '{{.Dir}}' $upstream)/config
}

to_this_machine() {
  kubectl -n kyverno patch service "$1" -p '{"spec":{"type":"ExternalName","externalName":"localhost"}}'
}

# controller PART PROGRAM FLAG…
controller() {
  local part=$1 program=$2 pod args variables
  shift 2
  local container='{range .spec.template.spec.containers[0]'
  pod=$(field "pod -n kyverno -l app.kubernetes.io/component=$part-controller" '{.items[0].metadata.name}')
  mapfile -t args < <(field "deployment -n kyverno kyverno-$part-controller" "$container.args[*]}{@}{\"\\n\"}{end}")
  mapfile -t variables < <(field "deployment -n kyverno kyverno-$part-controller" "$container.env[?(@.value)]}{.name}={.value}{\"\\n\"}{end}")
  kubeconfig_of kyverno "kyverno-$part-controller" "$work/$part.kubeconfig"
  # Of a flag that is there twice the last one counts.
  start "$part" env "${variables[@]}" KYVERNO_NAMESPACE=kyverno KYVERNO_POD_NAME="$pod" TUF_ROOT="$work" \
    "$work/bin/$program" "${args[@]}" --disableLogColor=true --kubeconfig="$work/$part.kubeconfig" \
    --metricsHost=127.0.0.1 --metricsPort="$(free_port)" "$@"
}

exceptions=(--enablePolicyException=true "--exceptionNamespace=*")

run_admission() {
  controller admission kyverno "${exceptions[@]}" --webhookServerHost=127.0.0.1 --webhookServerPort="$admission_port" \
    --servicePort="$admission_port" --controllerRuntimeMetricsAddress=0 --omitEvents= "$@"
}

run_others() {
  controller background background-controller "${exceptions[@]}" --controllerRuntimeMetricsAddress=0 --omitEvents= "$@"
  controller cleanup cleanup-controller --cleanupServerHost=127.0.0.1 --cleanupServerPort="$cleanup_port" \
    --servicePort="$cleanup_port" --ttlReconciliationInterval=2s "$@"
  controller reports reports-controller "${exceptions[@]}" --backgroundScanInterval=10s --omitEvents= "$@"
}

beyond() {
  kubectl apply -f - <<YAML
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "kyverno:$1:${5:-more}", labels: {rbac.kyverno.io/aggregate-to-$1: "true"}}
rules: [{apiGroups: $2, resources: $3, verbs: $4}]
YAML
}
