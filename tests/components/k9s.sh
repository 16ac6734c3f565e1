#!/usr/bin/env bash
# k9s in a pty, with keys as its user presses them: it lists and filters pods, describes one, shows its logs and YAML, scales a
# deployment, deletes a pod, shows a custom resource, and a user without rights what that user may see.
#
# k9s is taken from $COMPONENTS_BIN or $PATH.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need python3
k9s=${COMPONENTS_BIN:-/nowhere}/k9s
[[ -x $k9s ]] || k9s=$(command -v k9s) || { skipped k9s "there is no k9s"; exit 0; }
# It shares its cache of discovery with kubectl, in the home of the machine's user whatever HOME says.
export KUBECACHEDIR=$work/discovery
cluster --nodes sim:3
export HOME=$work/home XDG_CONFIG_HOME=$work/home/config XDG_STATE_HOME=$work/home/state XDG_DATA_HOME=$work/home/data K9S_FEATURE_GATE_NODE_SHELL=false
# It would ask a server outside for its newest release.
mkdir -p "$HOME" "$XDG_CONFIG_HOME/k9s"
echo 'k9s: {skipLatestRevCheck: true}' >"$XDG_CONFIG_HOME/k9s/config.yaml"
kubectl create namespace shop >/dev/null
kubectl -n shop create deployment web --image=nginx --replicas=2 >/dev/null
kubectl -n shop run talker --image=busybox --labels=app=talker --command -- sh -c 'echo hello from the pod; sleep 3600' >/dev/null
kubectl -n shop rollout status deployment web --timeout="${patience}s" >/dev/null
kubectl -n shop wait --for=condition=Ready --timeout="${patience}s" pod/talker >/dev/null
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
YAML
kubectl wait --for=condition=Established --timeout="${patience}s" crd/widgets.example.com >/dev/null
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: example.com/v1
kind: Widget
metadata: {name: one, namespace: shop}
spec: {size: 4711}
YAML
uid=$(kubectl -n shop get pod talker -o 'jsonpath={.metadata.uid}')

# view KUBECONFIG COMMAND: runs the steps of standard input in k9s, begun at a view.
view() {
  python3 "$components/k9s/terminal.py" "$patience" "$k9s" --kubeconfig "$1" --namespace shop --command "$2" --logoless --splashless
}
ok "pods are listed" view "$KUBECONFIG" pods <<'STEPS'
see talker
see web-
see Running
see sim-
STEPS
ok "and filtered" view "$KUBECONFIG" pods <<'STEPS'
see web-
keys /talker\r
gone web-
see talker
STEPS
ok "a pod is described" view "$KUBECONFIG" "pods /talker" <<'STEPS'
see talker
keys d
see Describe(shop/talker)
see Service Account:
see Restart Count:
STEPS
ok "its YAML is shown" view "$KUBECONFIG" "pods /talker" <<'STEPS'
see talker
keys y
see apiVersion: v1
see kind: Pod
STEPS
ok "its logs are followed" view "$KUBECONFIG" "pods /talker" <<'STEPS'
see talker
keys l
see hello from the pod
STEPS
ok "a deployment is scaled" view "$KUBECONFIG" deployments <<'STEPS'
see web
see 2/2
keys s
see Scale
keys \x7f3\t\r
see 3/3
STEPS
same "which the server knows" 3 kubectl -n shop get deployment web -o 'jsonpath={.spec.replicas}'
ok "a definition is shown, and its objects with their column" view "$KUBECONFIG" pods <<'STEPS'
see talker
keys :crd\r
see VERSIONS
see example.com
keys :widgets\r
see SIZE
see 4711
keys y
see size: 4711
STEPS
ok "nodes are shown with what they use" view "$KUBECONFIG" nodes <<'STEPS'
see sim-1
see Ready
see %CPU
STEPS
ok "a view of another namespace" view "$KUBECONFIG" pods <<'STEPS'
see talker
keys :services default\r
see kubernetes
STEPS
ok "a pod is deleted after a question" view "$KUBECONFIG" "pods /talker" <<'STEPS'
see talker
keys \x04
see Delete pods shop/talker?
keys \t\r
gone Running
STEPS
replaced() { [[ $(kubectl -n shop get pod talker --ignore-not-found -o 'jsonpath={.metadata.uid}') != "$uid" ]]; }
soon "it is gone" replaced

kubectl -n shop create serviceaccount viewer >/dev/null
kubectl -n shop create rolebinding viewer --clusterrole=view --serviceaccount=shop:viewer >/dev/null
kubeconfig_of shop viewer "$work/viewer"
ok "a user who may only look lists pods" view "$work/viewer" pods <<'STEPS'
see web-
STEPS
ok "and is told what is forbidden" view "$work/viewer" pods <<'STEPS'
see web-
keys :secrets\r
see access denied
STEPS
ok "it ends when asked" view "$KUBECONFIG" pods <<'STEPS'
see web-
keys :quit\r
ends
STEPS
finish
