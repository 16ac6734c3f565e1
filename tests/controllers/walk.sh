#!/usr/bin/env bash
# The controllers and the scheduler, as their users see them: workloads, autoscaling, budgets and drain, volumes, quota, a lost node,
# preemption, spreading, gangs, clouds, clean-up.
#
#     KAJI=target/release/kaji KUBECTL=kubectl bash tests/controllers/walk.sh [FORM]
#
#   up           `kaji up` with everything in one process (default)
#   components   an API server with simulated nodes; `kaji controller-manager` and `kaji scheduler` beside it
#   upstream     the same with upstream's programs: $KUBE_CONTROLLER_MANAGER and $KUBE_SCHEDULER
#   upstream-server   upstream's API server, $KUBE_APISERVER, over etcd ($ETCD, or by PATH), with Kaji's programs and three of its agents
#   cluster      the cluster that $KUBECONFIG names, as it is; its first three nodes take part
#
# What a cluster lacks (metrics, simulated nodes, a default storage class) is skipped, and said. Objects are made in namespaces
# walk-*, and cluster-wide ones begin with walk-.
set -euo pipefail
KAJI=$(realpath "${KAJI:-target/release/kaji}")
KUBECTL=${KUBECTL:-kubectl}
form=${1:-up}
patience=${patience:-60}
# shellcheck source=tests/node/lib.sh
source "$(dirname "$0")/../node/lib.sh"
# shellcheck source=tests/controllers/lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=tests/controllers/upstream_server.sh
source "$(dirname "$0")/upstream_server.sh"
prepare "$form"
trap 'leave_controllers "controllers-$form"' EXIT
begin "$form"

soon "three nodes are ready" at_least 3 ready_nodes
nodes=$(k get nodes -o name | head -n 3 | cut -d / -f 2)
read -r one two three <<<"${nodes//$'\n'/ }"
for name in walk walk-quota walk-gone; do k create namespace $name >/dev/null; done
soon "namespaces have accounts" k -n walk get serviceaccount default
soon "namespaces have the cluster's certificate" k -n walk get configmap kube-root-ca.crt
k config set-context --current --namespace walk >/dev/null

# Its first run takes up to a minute.
k create cronjob tick --image=example.com/none --schedule='* * * * *' -- "true" >/dev/null

section "workloads"
apply_deployment web 3 '{}'
soon "a deployment becomes available" is 3 field deployment web '{.status.availableReplicas}'
soon "its pods are spread without being asked" is 3 count_of_nodes app=web
k expose deployment web --port 80 >/dev/null
soon "its service has endpoints" at_least 3 addresses web
k set image deployment/web main=example.com/none:2 >/dev/null
soon "it rolls to a new image" k rollout status deployment web --timeout 1s
soon "the old replica set is empty" is "0 3" replicas_of_sets app=web
k rollout undo deployment web >/dev/null
soon "it rolls back" is example.com/none:1 images app=web
k delete pod -l app=web --wait=false >/dev/null
soon "deleted pods are replaced" is 3 field deployment web '{.status.availableReplicas}'
k scale deployment web --replicas 1 >/dev/null
soon "it scales down" is 1 count_pods app=web

apply_stateful_set
soon "a stateful set becomes ready" is 3 field statefulset db '{.status.readyReplicas}'
is "db-0 db-1 db-2" by_creation app=db && ok "its pods came in order" || bad "its pods came in order"
uid=$(field pod db-1 '{.metadata.uid}')
k delete pod db-1 --wait=false >/dev/null
soon "a deleted pod comes back by its name" is_replaced db-1 "$uid"
soon "all of it is ready again" is 3 field statefulset db '{.status.readyReplicas}'
k scale statefulset db --replicas 1 >/dev/null
soon "it loses its last pods first" is "db-0" by_creation app=db

apply_daemon_set
soon "a daemon set has a pod on each node" daemon_set_is_everywhere
k patch daemonset agent --type merge -p '{"spec":{"template":{"metadata":{"annotations":{"walk":"2"}}}}}' >/dev/null
soon "it is updated node by node" k rollout status daemonset agent --timeout 1s

apply_job good 3 'exit 0' 0
soon "a job completes" is 3 field job good '{.status.succeeded}'
soon "it says so" is True condition job good Complete
apply_job bad 1 'exit 1' 1
soon "a job that fails is given up" is BackoffLimitExceeded reason job bad Failed
apply_job brief 1 'exit 0' 0 1
soon "a finished job goes by itself" is_gone job brief

section "budgets and drain"
apply_deployment guarded 2 '{}'
soon "two pods run" is 2 field deployment guarded '{.status.availableReplicas}'
k create pdb guard --selector app=guarded --min-available 2 >/dev/null
soon "a budget counts them" is "2 0" field pdb guard '{.status.currentHealthy} {.status.disruptionsAllowed}'
victim=$(node_of app=guarded)
drain() { k drain "$victim" --ignore-daemonsets --delete-emptydir-data --force --pod-selector app=guarded --timeout "$1"; }
! drain 3s >"$work/drain" 2>&1 && grep -q "disruption budget" "$work/drain" && ok "a drain waits for the budget" || bad "a drain waits for the budget"
k patch pdb guard --type merge -p '{"spec":{"minAvailable":1}}' >/dev/null
soon "a smaller budget lets one go" is 1 field pdb guard '{.status.disruptionsAllowed}'
drain 60s >"$work/drain" 2>&1 && ok "the drain goes on" || bad "the drain goes on"
soon "its pods run elsewhere" is 2 field deployment guarded '{.status.availableReplicas}'
not_on "$victim" app=guarded && ok "and not on the drained node" || bad "and not on the drained node"
k uncordon "$victim" >/dev/null
k delete deployment guarded >/dev/null

section "volumes"
apply_volume
soon "a claim finds its volume" is Bound field pvc walk-data '{.status.phase}'
soon "the volume knows its claim" is walk-data field pv walk-data '{.spec.claimRef.name}'
k delete pvc walk-data >/dev/null
soon "the volume is released" is Released field pv walk-data '{.status.phase}'
if [[ -n $(k get storageclass -o 'jsonpath={.items[?(@.metadata.annotations.storageclass\.kubernetes\.io/is-default-class=="true")].metadata.name}') ]]; then
  apply_claim
  soon "a claim without a class gets a volume" is Bound field pvc made '{.status.phase}'
  soon "its pod runs" is Running field pod reader '{.status.phase}'
  k delete pod reader --now >/dev/null
  k delete pvc made >/dev/null
else
  skip "dynamic volumes: there is no default storage class"
fi

section "quota"
k -n walk-quota create quota few --hard=pods=1,configmaps=10 >/dev/null
soon "a quota is counted" is 0 k -n walk-quota get quota few -o 'jsonpath={.status.used.pods}'
soon "accounts come before pods" k -n walk-quota get serviceaccount default
k -n walk-quota run first --image=example.com/none >/dev/null
soon "it counts a pod" is 1 k -n walk-quota get quota few -o 'jsonpath={.status.used.pods}'
refused "exceeded quota: few" k -n walk-quota run second --image=example.com/none && ok "it refuses another one" || bad "it refuses another one"
k -n walk-quota delete pod first --now >/dev/null
soon "it lets go of a pod that is gone" is 0 k -n walk-quota get quota few -o 'jsonpath={.status.used.pods}'

section "scheduling"
apply_deployment apart 3 '{"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"apart"}}}]}'
soon "constraints spread pods" is 3 count_of_nodes app=apart
apply_deployment together 3 '{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"kubernetes.io/hostname","labelSelector":{"matchLabels":{"app":"together"}}}]}}}'
soon "affinity keeps pods together" is 1 count_of_nodes app=together
k delete deployment apart together >/dev/null
k patch node "$one" --subresource status --type merge -p '{"status":{"capacity":{"walk.example.com/thing":"1"},"allocatable":{"walk.example.com/thing":"1"}}}' >/dev/null
k create priorityclass walk-high --value 1000 >/dev/null
apply_pod low '{"containers":[{"name":"main","image":"example.com/none","resources":{"limits":{"walk.example.com/thing":"1"}}}]}'
soon "a pod has what there is one of" is "$one" field pod low '{.spec.nodeName}'
apply_pod high '{"priorityClassName":"walk-high","containers":[{"name":"main","image":"example.com/none","resources":{"limits":{"walk.example.com/thing":"1"}}}]}'
soon "a pod of higher priority takes its place" is "$one" field pod high '{.spec.nodeName}'
is_gone pod low && ok "the other one is gone" || bad "the other one is gone"
apply_pod nowhere '{"nodeSelector":{"walk":"none"},"containers":[{"name":"main","image":"example.com/none"}]}'
soon "a pod that fits nowhere says why" shows "didn't match Pod's node affinity/selector" field pod nowhere '{.status.conditions[?(@.type=="PodScheduled")].message}'
k label node "$two" walk=none >/dev/null
soon "it runs when a node fits" is "$two" field pod nowhere '{.spec.nodeName}'
k label node "$two" walk- >/dev/null
k delete pod high nowhere --now >/dev/null

section "gangs"
if [[ $form != upstream ]] && k get --raw /apis/scheduling.k8s.io/v1beta1 >/dev/null 2>&1; then
  k patch node "$two" --subresource status --type merge -p '{"status":{"capacity":{"walk.example.com/seat":"2"},"allocatable":{"walk.example.com/seat":"2"}}}' >/dev/null
  apply_gang band 3
  for name in band-1 band-2; do apply_gang_pod $name band; done
  apply_gang_pod band-3 band
  soon "a gang that does not fit says so" is Unschedulable reason podgroup band PodGroupInitiallyScheduled
  is "" field pod band-1 '{.spec.nodeName}' && ok "none of its pods has a node" || bad "none of its pods has a node"
  k patch node "$two" --subresource status --type merge -p '{"status":{"capacity":{"walk.example.com/seat":"3"},"allocatable":{"walk.example.com/seat":"3"}}}' >/dev/null
  soon "it is scheduled once all fit" is True condition podgroup band PodGroupInitiallyScheduled
  soon "all of its pods have a node" is 3 count_on "$two" gang=band
  k delete podgroup band --wait=false >/dev/null
  soon "a group in use stays" shows podgroup-protection field podgroup band '{.metadata.finalizers}'
  k delete pod -l gang=band --now >/dev/null
  soon "it goes with its pods" is_gone podgroup band
else
  skip "gangs: the API is not served"
fi

section "autoscaling"
if k get --raw /apis/metrics.k8s.io/v1beta1/nodes >/dev/null 2>&1; then
  apply_deployment busy 1 '{}' '"sim.kaji.dev/cpu-usage":"200m"'
  apply_autoscaler
  soon "an autoscaler sees the load" shows '"averageUtilization":200' field hpa busy '{.status.currentMetrics}'
  soon "it adds replicas up to its limit" is 4 field deployment busy '{.status.readyReplicas}'
  k patch deployment busy --type merge -p '{"spec":{"template":{"metadata":{"annotations":{"sim.kaji.dev/cpu-usage":"1m"}}}}}' >/dev/null
  soon "it takes them back without load" is 1 field deployment busy '{.spec.replicas}'
  k delete hpa,deployment busy >/dev/null
else
  skip "autoscaling: there are no metrics"
fi

section "a lost node"
if [[ $(field node "$three" '{.status.nodeInfo.containerRuntimeVersion}') == *sim* ]]; then
  apply_deployment moving 3 '{"tolerations":[{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":1},{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":1}]}'
  soon "its pods run" is 3 field deployment moving '{.status.availableReplicas}'
  k annotate node "$three" sim.kaji.dev/down=crashed >/dev/null
  patience=120 soon "a silent node is not ready" is Unknown condition node "$three" Ready
  soon "it is tainted" shows unreachable field node "$three" '{.spec.taints}'
  soon "its pods run elsewhere" running_elsewhere "$three" app=moving
  k annotate node "$three" sim.kaji.dev/down- >/dev/null
  soon "it comes back" is True condition node "$three" Ready
  soon "its taints go" lacks unreachable field node "$three" '{.spec.taints}'
else
  skip "a lost node: the nodes are not simulated"
fi

# Only `kaji up` has a cloud provider; the other forms have nothing to show here.
if [[ $form == up ]]; then
  section "clouds"
  apply_uninitialized walk-cloud
  soon "a node of a machine without a cloud is initialized" is kaji://walk-cloud field node walk-cloud '{.spec.providerID}'
  soon "pods may come" lacks uninitialized field node walk-cloud '{.spec.taints}'
  k label node walk-cloud failure-domain.beta.kubernetes.io/zone=here >/dev/null
  soon "its newer labels follow" is here field node walk-cloud '{.metadata.labels.topology\.kubernetes\.io/zone}'
  k delete node walk-cloud >/dev/null
  start_program outside "$KAJI" up --nodes sim:1 --cloud-provider=external --data-dir "$work/outside" --port 0 --kubeconfig "$work/outside.kubeconfig"
  soon "a cluster of an external cloud has a node" outside get node sim-1
  shows node.cloudprovider.kubernetes.io/uninitialized outside get node sim-1 -o 'jsonpath={.spec.taints}' && ok "it is uninitialized" || bad "it is uninitialized"
  soon "accounts come before pods" outside get serviceaccount default
  outside run waits --image=example.com/none >/dev/null
  soon "no pod goes there" shows "untolerated taint" outside get pod waits -o 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}'
  is "" outside get node sim-1 -o 'jsonpath={.spec.providerID}' && ok "nothing here initializes it" || bad "nothing here initializes it"
  # As a cloud-controller-manager does.
  outside patch node sim-1 --type merge -p '{"metadata":{"labels":{"topology.kubernetes.io/zone":"a"}},"spec":{"providerID":"walk://1","taints":null}}' >/dev/null
  soon "once its cloud knows it, pods run" is Running outside get pod waits -o 'jsonpath={.status.phase}'
fi

section "clean-up"
patience=75 soon "a cron job has run" shows Complete k get jobs -l walk!=none
k delete cronjob tick >/dev/null
k delete deployment web >/dev/null
soon "what it owned goes with it" is 0 count_pods app=web
k -n walk-gone create deployment left --image=example.com/none --replicas=2 >/dev/null
k delete namespace walk-gone walk-quota --wait=false >/dev/null
soon "a namespace goes with all that is in it" is_gone namespace walk-gone
