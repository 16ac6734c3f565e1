#!/usr/bin/env bash
# Argo Rollouts: its CRDs and its controller, with its own service account's rights: a canary by steps, an analysis by Jobs
# that succeed and one that fails, blue and green, an experiment.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3
upstream=github.com/argoproj/argo-rollouts
here=$components/argo-rollouts
build rollouts-controller $upstream/cmd/rollouts-controller "$here"
cluster --nodes sim:3
manifests=$(cd "$here" && go list -m -f '{{.Dir}}' $upstream)/manifests
# shellcheck disable=SC2086
field() { kubectl get $1 -o "jsonpath=$2"; }

for crd in "$manifests"/crds/*-crd.yaml; do
  ok "$(basename "$crd") is applied" kubectl apply --server-side -f "$crd"
done
ok "all of them are established" kubectl wait --for=condition=Established --timeout="${patience}s" crd --all
same "none is said not to be structural" "" field crd '{.items[*].status.conditions[?(@.type=="NonStructuralSchema")].message}'
says "kubectl explain knows them" "SetWeight sets what percentage of the newRS should receive" kubectl explain rollout.spec.strategy.canary.steps
kubectl create namespace argo-rollouts >/dev/null
ok "the controller's roles and account" kubectl -n argo-rollouts apply -f "$manifests/role/argo-rollouts-clusterrole.yaml" \
  -f "$manifests/cluster-install/argo-rollouts-clusterrolebinding.yaml" -f "$manifests/base/argo-rollouts-sa.yaml" \
  -f "$manifests/base/argo-rollouts-aggregate-roles.yaml" -f "$manifests/base/argo-rollouts-config.yaml"
kubeconfig_of argo-rollouts argo-rollouts "$work/account"
start controller env ARGO_ROLLOUTS_LEADER_ELECTION_NAMESPACE=argo-rollouts \
  "$work/bin/rollouts-controller" --kubeconfig "$work/account" --namespace argo-rollouts \
  --metricsPort "$(free_port)" --healthzPort "$(free_port)"
shows "it leads by a Lease" "_" field "lease -n argo-rollouts argo-rollouts-controller-lock" '{.spec.holderIdentity}'

# rollout NAME REPLICAS STRATEGY: a Rollout of pods with the label app=NAME.
rollout() {
  kubectl apply -f - >/dev/null <<YAML
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: $1, namespace: default}
spec:
  replicas: $2
  revisionHistoryLimit: 2
  selector: {matchLabels: {app: $1}}
  template:
    metadata: {labels: {app: $1}}
    spec: {containers: [{name: c, image: "argoproj/rollouts-demo:blue"}]}
  strategy: $3
YAML
}
service() { kubectl create service clusterip "$1" --tcp=80:8080 >/dev/null && kubectl set selector service "$1" "app=$2" >/dev/null; }
image() { kubectl patch rollout "$1" --type=merge -p '{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"argoproj/rollouts-demo:'"$2"'"}]}}}}'; }
# How many ready pods there are of each image, the smaller name first.
pods() { kubectl get pod -l "app=$1" -o 'jsonpath={range .items[?(@.status.containerStatuses[0].ready==true)]}{.spec.containers[0].image}{"\n"}{end}' | sort | uniq -c | sed 's/ *\([0-9]*\) .*:/\1 /' | xargs; }
test_pods() { [[ $(pods "$1") == "$2" ]] || { pods "$1"; return 1; }; }
differs() {
  local other=$1
  shift
  [[ $("$@") != "$other" ]]
}
addresses() { [[ $(field "endpointslice -l kubernetes.io/service-name=$1" '{.items[*].endpoints[*].addresses[0]}' | wc -w) == "$2" ]]; }
none() { [[ -z $(kubectl get "$@" -o name) ]]; }
phase() { field "rollout $1" '{.status.phase} {.status.currentStepIndex}'; }
# What `kubectl argo rollouts promote` does.
promote() { kubectl patch rollout "$1" --subresource=status --type=merge -p '{"status":{"pauseConditions":null}}'; }

rollout canary 5 '{canary: {steps: [{setWeight: 20}, {pause: {}}, {setWeight: 60}, {pause: {duration: 2s}}, {setWeight: 80}, {pause: {}}]}}'
shows "a canary's first version is there at once" "Healthy 6" phase canary
soon "with all its pods" test_pods canary "5 blue"
image canary yellow >/dev/null
shows "the second stops at its pause" "Paused 1" phase canary
soon "a fifth of its pods are new" test_pods canary "4 blue 1 yellow"
says "its status says why" "CanaryPauseStep" field rollout/canary '{.status.pauseConditions[0].reason} {.status.message}'
ok "it is promoted" promote canary
shows "and goes on, over the timed pause" "Paused 5" phase canary
soon "by the weight of then" test_pods canary "1 blue 4 yellow"
promote canary >/dev/null
shows "to its end" "Healthy 6" phase canary
soon "only new pods stay" test_pods canary "5 yellow"
same "the old ReplicaSet keeps none" "0 5" eval "field 'replicaset -l app=canary' '{range .items[*]}{.spec.replicas}{\"\\n\"}{end}' | sort | xargs"
image canary bad >/dev/null
shows "a third version pauses too" "Paused 1" phase canary
ok "it is aborted" kubectl patch rollout canary --subresource=status --type=merge -p '{"status":{"abort":true}}'
shows "and is degraded" "Degraded 0" phase canary
soon "the stable pods are back" test_pods canary "5 yellow"
ok "kubectl scale works on a Rollout" kubectl scale rollout canary --replicas 3
soon "pods follow" test_pods canary "3 yellow"
says "a table has the printer columns" "UP-TO-DATE" kubectl get rollout canary
ok "its conditions can be waited for" kubectl wait --for=condition=Available --timeout="${patience}s" rollout/canary

# template NAME CODE: an analysis by a Job of pods that end with CODE.
template() {
  kubectl apply -f - >/dev/null <<YAML
apiVersion: argoproj.io/v1alpha1
kind: AnalysisTemplate
metadata: {name: $1, namespace: default}
spec:
  metrics:
  - name: $1
    provider:
      job:
        spec:
          backoffLimit: 0
          template:
            metadata: {annotations: {sim.kaji.dev/exit-code: "$2"}}
            spec: {restartPolicy: Never, containers: [{name: c, image: alpine}]}
YAML
}
template pass 0
template fail 1
rollout analysed 2 '{canary: {steps: [{setWeight: 50}, {analysis: {templates: [{templateName: pass}]}}]}}'
shows "one with an analysis begins" "Healthy 2" phase analysed
image analysed yellow >/dev/null
soon "its analysis lets it pass" test_pods analysed "2 yellow"
shows "a run tells so" "Successful" field "analysisrun -l app!=none" '{.items[0].status.phase}'
kubectl patch rollout analysed --type=json -p '[{"op":"replace","path":"/spec/strategy/canary/steps/1/analysis/templates/0/templateName","value":"fail"}]' >/dev/null
image analysed bad >/dev/null
shows "an analysis that fails aborts" "Degraded 0" phase analysed
soon "and the stable pods are back" test_pods analysed "2 yellow"

service active colours
service preview colours
rollout colours 2 '{blueGreen: {activeService: active, previewService: preview, autoPromotionEnabled: false, scaleDownDelaySeconds: 1}}'
shows "blue and green: the first version is active" "Healthy" phase colours
selected() { field "service/$1" '{.spec.selector.rollouts-pod-template-hash}'; }
blue=$(selected active)
ok "the Service selects its ReplicaSet" test -n "$blue"
image colours green >/dev/null
shows "the second waits for its promotion" "Paused" phase colours
same "the active Service stays" "$blue" selected active
soon "the preview is the new one" differs "$blue" selected preview
green=$(selected preview)
soon "the preview's endpoints are the new pods" addresses preview 2
promote colours >/dev/null
shows "promoted, the active Service changes over" "$green" selected active
soon "the old pods go after their delay" test_pods colours "2 green"
shows "and it is healthy" "Healthy" phase colours

kubectl apply -f - >/dev/null <<'YAML'
apiVersion: argoproj.io/v1alpha1
kind: Experiment
metadata: {name: both, namespace: default}
spec:
  duration: 3s
  templates:
  - {name: a, replicas: 1, selector: {matchLabels: {app: both, v: a}}, template: {metadata: {labels: {app: both, v: a}}, spec: {containers: [{name: c, image: "x:a"}]}}}
  - {name: b, replicas: 1, selector: {matchLabels: {app: both, v: b}}, template: {metadata: {labels: {app: both, v: b}}, spec: {containers: [{name: c, image: "x:b"}]}}}
YAML
shows "an experiment ends" "Successful" field experiment/both '{.status.phase}'
says "events were recorded" "RolloutCompleted" kubectl get events
ok "deletion goes through ownership" kubectl delete rollout --all --cascade=foreground --timeout="${patience}s"
soon "nothing of them stays" none replicaset -l app!=both
# It logs what it creates as JSON, which a Lease on its way as protobuf is not, and warns that it runs.
quiet controller 'level=(warning|error)|^[EW][0-9]{4}' 'Controller is running|event_reason=|looking for beginning of value|the object has been modified'
finish
