#!/usr/bin/env bash
# The descheduler, with its own service account's rights: it evicts pods of a tainted node, of a node that no longer fits,
# duplicates and old ones, and stops at a PodDisruptionBudget.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3
upstream=sigs.k8s.io/descheduler
here=$components/descheduler
build descheduler $upstream/cmd/descheduler "$here"
cluster --nodes sim:3
manifests=$(cd "$here" && go list -m -f '{{.Dir}}' $upstream)/kubernetes
# shellcheck disable=SC2086
field() { kubectl get $1 -o "jsonpath=$2"; }
ok "its roles and account" kubectl apply -f "$manifests/base/rbac.yaml"
kubeconfig_of kube-system descheduler-sa "$work/account"

# descheduled NAME PLUGIN KIND [ARGS]: one round of a plugin.
descheduled() {
  cat >"$work/policy.yaml" <<YAML
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: p
  pluginConfig:
  - {name: DefaultEvictor, args: {nodeFit: true}}
  - {name: $1, args: ${3:-{\}}}
  plugins: {$2: {enabled: [$1]}}
YAML
  "$work/bin/descheduler" --kubeconfig "$work/account" --policy-config-file "$work/policy.yaml" --disable-metrics --v 2 --secure-port "$(free_port)" \
    >"$work/descheduler.log" 2>&1
}
on() { [[ $(field "pod -l app=$1" '{.items[*].spec.nodeName}' | tr ' ' '\n' | grep -c "$2") == "$3" ]]; }
ready() { kubectl rollout status "deployment/$1" --timeout="${patience}s"; }
evicted() { grep -c '"Evicted pod"' "$work/descheduler.log"; }

kubectl create deployment web --image=nginx --replicas=6 >/dev/null
ok "a deployment is spread over the nodes" ready web
kubectl taint node sim-1 broken=yes:NoSchedule >/dev/null
ok "a round for taints" descheduled RemovePodsViolatingNodeTaints deschedule
soon "nothing stays on the tainted node" on web sim-1 0
ok "the deployment has all its pods, on other nodes" ready web
kubectl taint node sim-1 broken- >/dev/null

ok "a round for duplicates" descheduled RemoveDuplicates balance
ok "after it the deployment is whole" ready web
soon "and two are on each node again" on web sim-1 2

kubectl create poddisruptionbudget web --selector=app=web --min-available=6 >/dev/null
shows "the budget allows nothing" "0 6" field pdb/web '{.status.disruptionsAllowed} {.status.currentHealthy}'
kubectl taint node sim-2 broken=yes:NoSchedule >/dev/null
ok "a round against the budget" descheduled RemovePodsViolatingNodeTaints deschedule
says "it is told why" "Cannot evict pod as it would violate the pod's disruption budget" cat "$work/descheduler.log"
soon "the pods stay" on web sim-2 2
kubectl patch pdb web --type=merge -p '{"spec":{"minAvailable":5}}' >/dev/null
shows "the budget allows one" "1" field pdb/web '{.status.disruptionsAllowed}'
ok "a round with a budget of one" descheduled RemovePodsViolatingNodeTaints deschedule
same "evicts one" 1 evicted
kubectl delete pdb web >/dev/null
kubectl taint node sim-2 broken- >/dev/null

kubectl label node sim-1 disk=fast >/dev/null
kubectl create deployment near --image=nginx --replicas=1 --dry-run=client -o yaml | kubectl patch --local -f - --type=merge -o yaml -p \
  '{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"disk","operator":"In","values":["fast"]}]}]}}}}}}}' \
  | kubectl apply -f - >/dev/null
ok "a pod with an affinity runs" ready near
same "on the node that it wants" sim-1 field "pod -l app=near" '{.items[0].spec.nodeName}'
kubectl label node sim-1 disk- >/dev/null
kubectl label node sim-3 disk=fast >/dev/null
ok "a round for affinities" descheduled RemovePodsViolatingNodeAffinity deschedule '{nodeAffinityType: [requiredDuringSchedulingIgnoredDuringExecution]}'
soon "it goes where it now belongs" on near sim-3 1
ok "the deployment is whole" ready web
older() {
  local newest
  newest=$(kubectl get pod -l app=web -o jsonpath='{range .items[*]}{.metadata.creationTimestamp}{"\n"}{end}' | sort | tail -n 1)
  (($(date +%s) - $(date -d "$newest" +%s) > 2))
}
soon "every pod is older than the limit" older
ok "a round for age" descheduled PodLifeTime deschedule '{maxPodLifeTimeSeconds: 1, labelSelector: {matchLabels: {app: web}}}'
same "evicts them all" 6 evicted
ok "which are replaced" ready web
says "events were recorded" "pod eviction" kubectl get events
# Built without a version, it does not know its own; and it ends without waiting for its last event.
quiet descheduler '^[EW][0-9]{4}' 'failed to convert Descheduler minor version|Unable to write event.*context canceled'
finish
