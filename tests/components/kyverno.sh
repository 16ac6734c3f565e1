#!/usr/bin/env bash
# Kyverno: its CRDs, its four controllers, each with its own service account's rights, and what they make of policies:
# admission behind webhooks that they configure themselves, generation, reports, scans, cleaning, exceptions, and policies
# that the API server evaluates by itself.
# shellcheck source=tests/components/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need go python3
# shellcheck source=tests/components/kyverno/controllers.sh
source "$components/kyverno/controllers.sh"
# A schedule of cron is by the minute, and the controllers wait for each other.
patience=${KYVERNO_PATIENCE:-90}
build_kyverno
cluster --nodes sim:3
gone() { ! kubectl get "$@" 2>"$work/gone" && grep -q NotFound "$work/gone"; }
differs() {
  local other=$1
  shift
  [[ $("$@") != "$other" ]]
}
lacks() {
  local unwanted=$1
  shift
  "$@" >"$work/lacks" || return 1
  ! grep -qF -- "$unwanted" "$work/lacks"
}
ready() { kubectl wait --for=condition=Ready --timeout="${patience}s" "$@"; }
# Kyverno 1.19 gives its newer kinds no condition Ready in their status but this one.
evaluated() { kubectl wait --for=jsonpath='{.status.conditionStatus.ready}'=true --timeout="${patience}s" "$@"; }

for crd in "$manifests"/crds/*/*.yaml; do
  ok "$(basename "$crd") is applied by the server" kubectl apply --server-side -f "$crd"
done
ok "all of them are established" kubectl wait --for=condition=Established --timeout="${patience}s" crd --all
same "none is said not to be structural" "" field crd '{.items[*].status.conditions[?(@.type=="NonStructuralSchema")].message}'
says "kubectl explain knows them" "FailureAction defines if a validation policy rule violation should block" \
  kubectl explain clusterpolicy.spec.rules.validate.failureAction --api-version=kyverno.io/v1
says "a short name leads to them" "No resources found" kubectl get cpol
says "a version that is deprecated warns, as its definition says" "Warning: kyverno.io/v1 ClusterPolicy is deprecated" kubectl get cpol
ok "the rest of its manifests" kubectl apply --server-side --force-conflicts -f "$manifests/install-latest-testing.yaml"
for part in admission background cleanup reports; do
  ok "the $part controller's deployment" kubectl -n kyverno rollout status "deployment/kyverno-$part-controller" --timeout="${patience}s"
done
ok "events of what went well are wanted" kubectl -n kyverno patch configmap kyverno -p '{"data":{"generateSuccessEvents":"true"}}'
for service in kyverno-svc kyverno-cleanup-controller; do
  ok "its Service $service becomes one of type ExternalName" to_this_machine $service
  same "without an address of the cluster" "[]" field "service -n kyverno $service" '[{.spec.clusterIP}{.spec.clusterIPs}]'
done

run_admission
run_others
for lease in kyverno kyverno-background-controller kyverno-cleanup-controller kyverno-reports-controller; do
  shows "a leader holds the Lease $lease" "-controller-" field "lease -n kyverno $lease" '{.spec.holderIdentity}'
done
for secret in kyverno-svc.kyverno.svc.kyverno-tls-pair kyverno-cleanup-controller.kyverno.svc.kyverno-tls-pair; do
  shows "it makes the certificate $secret" "LS0t" field "secret -n kyverno $secret" '{.data.tls\.crt}'
done
for configuration in validatingwebhookconfiguration/kyverno-{policy,exception,cel-exception,global-context,cleanup,ttl}-validating-webhook-cfg \
  mutatingwebhookconfiguration/kyverno-{policy,verify}-mutating-webhook-cfg; do
  shows "it writes $configuration" "LS0t" field "$configuration" '{.webhooks[0].clientConfig.caBundle}'
done
rules() { field "$1webhookconfiguration/kyverno-resource-$1-webhook-cfg" '{range .webhooks[*]}{.name}: {.rules[*].resources}{"\n"}{end}'; }

# policy NAME RULES [SPEC]: applies a ClusterPolicy.
policy() {
  kubectl apply -f - <<YAML
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: $1}
spec:
  ${3:-background: true}
  rules:
$2
YAML
}
team='  - name: check-team
    match: {any: [{resources: {kinds: [Pod], namespaces: ["enforced*"]}}]}
    validate:
      failureAction: Enforce
      message: "label team is required"
      pattern: {metadata: {labels: {team: "?*"}}}'
pod() { kubectl -n "$1" run "$2" --image=registry.example/pause:1 "${@:3}"; }
soon "policies can be written, for the webhook answers" policy require-team "$team"
ok "the policy becomes ready" ready clusterpolicy/require-team
says "a table has the printer columns" "Ready" kubectl get clusterpolicy require-team
same "the status has rules for controllers of pods" "autogen-check-team autogen-cronjob-check-team" field clusterpolicy/require-team '{.status.autogen.rules[*].name}'
shows "the webhook is configured for pods" '"pods"' rules validating
says "and controllers of pods" '"deployments"' rules validating
says "policies that cannot be are refused" "admission webhook \"validate-policy.kyverno.svc\" denied the request" \
  policy bad '  - name: both
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: {failureAction: Enforce, message: m, pattern: {spec: {x: "{{ nowhere.y }}"}}}'
kubectl create namespace enforced >/dev/null
soon "there is an account for pods" kubectl -n enforced get serviceaccount default
shows "a pod without the label is refused" "denied the request" pod enforced bad --dry-run=server
says "with Kyverno's message" "resource Pod/enforced/bad was blocked due to the following policies" pod enforced bad
says "that names rule and path" "check-team: 'validation error: label team is required. rule check-team failed at path /metadata/labels/team/'" pod enforced bad
ok "one with the label is created" pod enforced good --labels=team=a
says "a deployment is refused by the generated rule" "autogen-check-team: 'validation error: label team is required. rule autogen-check-team failed at path /spec/template/metadata/labels/team/'" \
  kubectl -n enforced create deployment bad --image=registry.example/pause:1
says "an update that takes the label away is refused" "label team is required" kubectl -n enforced label pod good team-
ok "elsewhere all is allowed" pod default free
shows "an event says what was refused" "PolicyViolation" kubectl get events --field-selector involvedObject.kind=ClusterPolicy,involvedObject.name=require-team
ok "while the policy warns alone" kubectl patch clusterpolicy require-team --type=json \
  -p '[{"op":"replace","path":"/spec/rules/0/validate/failureAction","value":"Audit"},{"op":"add","path":"/spec/emitWarning","value":true}]'
shows "the client sees a warning" "Warning: policy require-team.check-team: validation error: label team is required" pod enforced warned --dry-run=server
ok "a pod is then created" pod enforced audited
result() { field "policyreport -n $1" "{range .items[?(@.scope.name==\"$2\")]}{range .results[?(@.policy==\"$3\")]}{.rule}={.result} {end}{end}"; }
shows "its PolicyReport has the failure" "check-team=fail" result enforced audited require-team
says "which it owns" "Pod" field "policyreport -n enforced" '{.items[0].metadata.ownerReferences[0].kind}'
shows "a good pod's report passes" "check-team=pass" result enforced good require-team
says "reports have their printer columns" "PASS" kubectl -n enforced get policyreport
ok "the pod is labelled" kubectl -n enforced label pod audited team=b
shows "its report then passes" "check-team=pass" result enforced audited require-team

ok "a policy for what is there already" policy known-image '  - name: registry
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: {failureAction: Audit, message: "use the known registry", pattern: {spec: {containers: [{image: "known.example/*"}]}}}'
shows "a scan in the background reports on it" "registry=fail" result default free known-image
shows "with an event of the pod" "PolicyViolation" kubectl get events --field-selector involvedObject.name=free
ok "which is gone" kubectl delete pod free
soon "with its report" lacks free field policyreport '{.items[*].scope.name}'

ok "a policy that mutates" policy add-labels '  - name: add
    match: {any: [{resources: {kinds: [Pod], namespaces: [mutated]}}]}
    mutate: {patchStrategicMerge: {metadata: {labels: {"+(added)": "{{ request.userInfo.username }}-{{ request.object.metadata.name }}"}}, spec: {containers: [{"(image)": "*:1", imagePullPolicy: Always}]}}}
  - name: every
    match: {any: [{resources: {kinds: [Pod], namespaces: [mutated]}}]}
    mutate: {foreach: [{list: "request.object.spec.containers", patchesJson6902: "- {op: add, path: \"/spec/containers/{{elementIndex}}/env\", value: [{name: INDEX, value: \"{{elementIndex}}\"}]}"}]}' 'background: false'
ok "becomes ready" ready clusterpolicy/add-labels
shows "and is in the webhook" '"pods"' rules mutating
kubectl create namespace mutated >/dev/null
soon "there is an account for pods there" kubectl -n mutated get serviceaccount default
changed() { pod mutated "$1" --dry-run=server -o 'jsonpath={.metadata.labels.added} {.spec.containers[0].imagePullPolicy} {.spec.containers[0].env[0].name}={.spec.containers[0].env[0].value}'; }
user=$(kubectl auth whoami -o 'jsonpath={.status.userInfo.username}')
shows "a pod is changed as written" "${user//:/-}-m Always INDEX=0" changed m

more=('[""]' '[configmaps, secrets, pods]' '[get, list, watch, create, update, patch, delete]')
existing='  - name: mark
    match: {any: [{resources: {kinds: [ConfigMap], names: [trigger], namespaces: [default]}}]}
    mutate:
      targets: [{apiVersion: v1, kind: Secret, name: target, namespace: default}]
      patchStrategicMerge: {metadata: {annotations: {value: "{{ request.object.data.value }}"}}}'
says "a policy beyond the background controller's rights is refused" "system:serviceaccount:kyverno:kyverno-background-controller requires permissions" policy mark-existing "$existing"
ok "it gets them, by aggregation" beyond background-controller "${more[@]}"
soon "then it is taken" policy mark-existing "$existing"
ok "and ready" ready clusterpolicy/mark-existing
kubectl create secret generic target --from-literal=a=b >/dev/null
trigger() { kubectl create configmap trigger --from-literal=value="$1" --dry-run=client -o yaml | kubectl apply -f -; }
shows "the webhook is configured for what triggers it" '"configmaps"' rules validating
ok "the trigger is there" trigger one
shows "what exists already is changed" "one" field secret/target '{.metadata.annotations.value}'
ok "the trigger changes" trigger two
shows "and so does the other" "two" field secret/target '{.metadata.annotations.value}'

kubectl create configmap source --from-literal=key=first >/dev/null
ok "a policy that generates" policy tenants '  - name: clone
    match: {any: [{resources: {kinds: [Namespace], selector: {matchLabels: {tenant: "yes"}}}}]}
    generate: {apiVersion: v1, kind: ConfigMap, name: copy, namespace: "{{ request.object.metadata.name }}", synchronize: true, clone: {namespace: default, name: source}}
  - name: deny
    match: {any: [{resources: {kinds: [Namespace], selector: {matchLabels: {tenant: "yes"}}}}]}
    generate:
      apiVersion: networking.k8s.io/v1
      kind: NetworkPolicy
      name: default-deny
      namespace: "{{ request.object.metadata.name }}"
      synchronize: true
      data: {spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}'
ok "becomes ready and generates" ready clusterpolicy/tenants
shows "namespaces are in the webhook" '"namespaces"' rules validating
tenant() { kubectl apply -f - <<<"{apiVersion: v1, kind: Namespace, metadata: {name: $1, labels: {tenant: \"yes\"}}}"; }
ok "there is a tenant" tenant tenant-1
shows "it gets a clone" "first" field "configmap -n tenant-1 copy" '{.data.key}'
shows "and a NetworkPolicy" "Ingress Egress" field "networkpolicy -n tenant-1 default-deny" '{.spec.policyTypes[*]}'
says "which say where they come from" "tenants" field "networkpolicy -n tenant-1 default-deny" '{.metadata.labels.generate\.kyverno\.io/policy-name}'
ok "the source changes" kubectl patch configmap source --type=merge -p '{"data":{"key":"second"}}'
shows "and the clone with it" "second" field "configmap -n tenant-1 copy" '{.data.key}'
ok "the NetworkPolicy is changed" kubectl -n tenant-1 patch networkpolicy default-deny --type=merge -p '{"spec":{"policyTypes":["Ingress"]}}'
shows "which is put right" "Ingress Egress" field "networkpolicy -n tenant-1 default-deny" '{.spec.policyTypes[*]}'
uid=$(field "networkpolicy -n tenant-1 default-deny" '{.metadata.uid}')
ok "and deleted" kubectl -n tenant-1 delete networkpolicy default-deny
soon "it comes back" kubectl -n tenant-1 get networkpolicy default-deny
soon "as another object" differs "$uid" field "networkpolicy -n tenant-1 default-deny" '{.metadata.uid}'
soon "update requests are done away with" lacks updaterequest kubectl -n kyverno get updaterequests -o name
ok "the policy is deleted" kubectl delete clusterpolicy tenants
soon "and what it generated with it" gone -n tenant-1 networkpolicy default-deny

exception() {
  kubectl apply -f - <<'YAML'
apiVersion: kyverno.io/v2
kind: PolicyException
metadata: {name: legacy, namespace: enforced}
spec:
  exceptions: [{policyName: require-team, ruleNames: [check-team, autogen-check-team]}]
  match: {any: [{resources: {kinds: [Pod], namespaces: [enforced], names: [legacy*]}}]}
YAML
}
ok "the policy enforces again" kubectl patch clusterpolicy require-team --type=json -p '[{"op":"replace","path":"/spec/rules/0/validate/failureAction","value":"Enforce"}]'
shows "a pod is refused" "label team is required" pod enforced legacy-1 --dry-run=server
ok "there is an exception" exception
soon "with it the pod is created" pod enforced legacy-1
says "others are still refused" "label team is required" pod enforced other
shows "the report says skip" "check-team=skip" result enforced legacy-1 require-team
says "an exception of nothing is refused" "Required value" kubectl apply -f - <<'YAML'
apiVersion: kyverno.io/v2
kind: PolicyException
metadata: {name: empty, namespace: enforced}
spec: {match: {any: [{resources: {kinds: [Pod]}}]}}
YAML

cleanup_policy() {
  kubectl apply -f - <<YAML
apiVersion: kyverno.io/v2
kind: ClusterCleanupPolicy
metadata: {name: leftovers}
spec:
  match: {any: [{resources: {kinds: [ConfigMap], namespaces: [default], selector: {matchLabels: {leftover: "yes"}}}}]}
  conditions: {all: [{key: "{{ target.data.keep || 'no' }}", operator: NotEquals, value: "yes"}]}
  schedule: "$1"
YAML
}
for name in stays goes; do
  kubectl create configmap $name --from-literal=keep="$([[ $name == stays ]] && echo yes || echo no)" >/dev/null
  kubectl label configmap $name leftover=yes >/dev/null
done
says "a cleanup policy beyond the cleanup controller's rights is refused" "cleanup controller has no permission to delete kind ConfigMap" cleanup_policy "* * * * *"
ok "the cleanup controller gets them" beyond cleanup-controller "${more[@]}"
soon "then it is taken" cleanup_policy "* * * * *"
says "with a bad schedule it is not" "schedule spec in the cleanupPolicy is not in proper cron format" cleanup_policy "never"
ok "what has a time to live" kubectl create configmap brief
ok "as its label says" kubectl label configmap brief cleanup.kyverno.io/ttl=3s
soon "goes after it" gone configmap brief
says "a label that is no time is warned of" "Warning:" kubectl create -f - <<<'{apiVersion: v1, kind: ConfigMap, metadata: {name: odd, labels: {cleanup.kyverno.io/ttl: soon}}}'

ok "a rule in CEL" policy no-host-network '  - name: host
    match: {any: [{resources: {kinds: [Deployment], operations: [CREATE, UPDATE]}}]}
    validate:
      failureAction: Enforce
      cel: {generate: true, expressions: [{expression: "!has(object.spec.template.spec.hostNetwork) || !object.spec.template.spec.hostNetwork", message: "no host network"}]}' 'background: false'
ok "becomes ready as well" ready clusterpolicy/no-host-network
shows "and a ValidatingAdmissionPolicy" "kyverno" field validatingadmissionpolicy/cpol-no-host-network '{.metadata.labels.app\.kubernetes\.io/managed-by}'
shows "that is bound" "Deny" field validatingadmissionpolicybinding/cpol-no-host-network-binding '{.spec.validationActions[*]}'
shows "its status says so" "true" field clusterpolicy/no-host-network '{.status.validatingadmissionpolicy.generated}'
hosted() {
  kubectl apply -f - <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: hosted, namespace: default}
spec:
  selector: {matchLabels: {app: hosted}}
  template: {metadata: {labels: {app: hosted}}, spec: {hostNetwork: true, containers: [{name: c, image: "registry.example/pause:1"}]}}
YAML
}
shows "by which the API server refuses" "ValidatingAdmissionPolicy 'cpol-no-host-network' with binding 'cpol-no-host-network-binding' denied request: no host network" hosted
ok "that policy is deleted" kubectl delete clusterpolicy no-host-network
soon "and the generated one with it" gone validatingadmissionpolicy cpol-no-host-network
soon "then it is allowed" hosted

# The kinds that are CEL throughout.
kubectl create namespace celled >/dev/null
ok "policies of the newer kinds" kubectl apply -f - <<'YAML'
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: replicas}
spec:
  validationActions: [Deny]
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments]}]}
  matchConditions: [{name: where, expression: "object.metadata.namespace == 'celled'"}]
  variables: [{name: wanted, expression: "object.spec.replicas"}]
  validations: [{expression: "variables.wanted <= 3", messageExpression: "'at most 3 replicas, not ' + string(variables.wanted)"}]
---
apiVersion: policies.kyverno.io/v1
kind: MutatingPolicy
metadata: {name: mark}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}
  matchConditions: [{name: where, expression: "object.metadata.namespace == 'celled'"}]
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: Object.metadata.labels{marked: 'yes'}}}"}}]
---
apiVersion: policies.kyverno.io/v1
kind: GeneratingPolicy
metadata: {name: greet}
spec:
  evaluation: {synchronize: {enabled: true}}
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [namespaces]}]}
  matchConditions: [{name: which, expression: "object.metadata.name.startsWith('greeted')"}]
  generate:
  - expression: >-
      generator.apply(string(object.metadata.name), [{"kind": dyn("ConfigMap"), "apiVersion": dyn("v1"),
      "metadata": dyn({"name": "greeting", "namespace": string(object.metadata.name)}), "data": dyn({"hello": string(object.metadata.name)})}])
YAML
for kind in validatingpolicy/replicas mutatingpolicy/mark generatingpolicy/greet; do
  ok "$kind becomes ready" evaluated $kind
done
shows "a ValidatingPolicy refuses" "at most 3 replicas, not 4" kubectl -n celled create deployment many --image=registry.example/pause:1 --replicas=4 --dry-run=server
ok "or allows" kubectl -n celled create deployment few --image=registry.example/pause:1 --replicas=1
scaled() { kubectl -n celled scale deployment few --replicas=4; }
ok "which the scale subresource is not asked about" scaled
shows "it is reported" "fail" result celled few replicas
marked() { kubectl -n celled create configmap m --dry-run=server -o 'jsonpath={.metadata.labels.marked}'; }
shows "a MutatingPolicy changes" "yes" marked
kubectl create namespace greeted-1 >/dev/null
shows "a GeneratingPolicy generates" "greeted-1" field "configmap -n greeted-1 greeting" '{.data.hello}'

soon "the cleanup policy has removed what it matches" gone configmap goes
ok "and nothing else" kubectl get configmap stays
shows "it says when" "T" field clustercleanuppolicy/leftovers '{.status.lastExecutionTime}'
shows "and an event" "successfully cleaned up the target resource ConfigMap/default/goes" kubectl get events -A

stop admission
says "without the controller, what must be validated fails" "failed calling webhook" pod enforced late --labels=team=a
run_admission
soon "when it is back, it is validated" pod enforced late --labels=team=a
says "as before" "label team is required" pod enforced later
ok "the policies are deleted" kubectl delete clusterpolicy,validatingpolicy,mutatingpolicy,generatingpolicy --all
soon "and the webhook asks about pods no more" lacks '"pods"' rules validating
soon "nor about deployments" lacks '"deployments"' rules validating
ok "pods are free" pod enforced later
soon "the reports go with the policies" lacks Pod field "policyreport -A" '{.items[*].scope.kind}'
# What it logs of refusals that are wanted above, of the lease that it makes itself, of a second writer of a status, which it
# repeats, of events of rules that generate, which it makes without the action that a server requires, and of its own end.
for part in admission background cleanup reports; do
  quiet "$part" "(^|[[:space:]])ERR[[:space:]]|panic" \
    "policy validation errors|metadata validation errors|failed to parse label .*soon|kyverno-health.* not found|the object has been modified|action: Required value|context canceled|Server closed"
done
finish
