//! Admission policies over the real stack: upstream's rows, and what configuration does from the moment it is written.

mod parameters;

use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person},
    api::Api,
};
use expect_test::expect;
use serde_json::{Value, json};

const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/here/deployments";
const MAPS: &str = "/api/v1/namespaces/here/configmaps";

async fn start() -> TestCluster {
    let test = TestCluster::start(0).await;
    for name in ["here", "there"] {
        let namespace = json!({"metadata": {"name": name, "labels": {"place": name}}});
        ok(&test, &admin(), "POST /api/v1/namespaces", namespace).await;
    }
    test
}

/// Makes a policy and binds it to the namespace `here`. The kind is `validating` or `mutating`.
async fn policy(test: &TestCluster, kind: &str, name: &str, rule: (&str, &str), spec: Value) -> Value {
    let (group, resource) = rule;
    let mut spec = spec;
    spec["matchConstraints"] = json!({"resourceRules": [
        {"operations": ["CREATE", "UPDATE"], "apiGroups": [group], "apiVersions": ["v1"], "resources": [resource]}]});
    let object = json!({"metadata": {"name": name}, "spec": spec});
    let made = ok(test, &admin(), &format!("POST {REGISTRATION}/{kind}admissionpolicies"), object).await;
    let mut spec = json!({"policyName": name, "matchResources":
        {"namespaceSelector": {"matchLabels": {"place": "here"}}}});
    if kind == "validating" {
        spec["validationActions"] = json!(["Deny"]);
    }
    bind(test, kind, name, spec).await;
    made
}

async fn bind(test: &TestCluster, kind: &str, name: &str, spec: Value) {
    let object = json!({"metadata": {"name": name}, "spec": spec});
    ok(test, &admin(), &format!("POST {REGISTRATION}/{kind}admissionpolicybindings"), object).await;
}

fn deployment(name: &str, replicas: u32) -> Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "a"}},
        "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

/// Code, and the message if it is refused.
async fn answer(test: &TestCluster, request: &str, body: Value) -> String {
    let (code, answer) = ask(test, &admin(), request, &body).await;
    format!("{code} {}\n", answer["message"].as_str().unwrap_or_default())
}

/// "should validate against a Deployment", "should allow expressions to refer variables."
#[tokio::test(flavor = "multi_thread")]
async fn rejects_deployments_that_a_policy_denies() {
    let test = start().await;
    let spec = json!({
        "variables": [{"name": "replicas", "expression": "object.spec.replicas"},
            {"name": "odd", "expression": "variables.replicas % 2 == 1"}],
        "validations": [
            {"expression": "variables.replicas > 1", "messageExpression": "'wants more than 1, got ' + string(variables.replicas)"},
            {"expression": "variables.odd"},
            {"expression": "namespaceObject.metadata.name == 'here'"}]});
    policy(&test, "validating", "odd", ("apps", "deployments"), spec).await;
    let mut out = String::new();
    for (name, replicas) in [("one", 1), ("two", 2), ("three", 3)] {
        out += &answer(&test, &format!("POST {DEPLOYMENTS}"), deployment(name, replicas)).await;
    }
    let scaled = json!({"spec": {"replicas": 4}});
    out += &answer(&test, &format!("PATCH {DEPLOYMENTS}/three"), scaled.clone()).await;
    // No policy matches scale, nor the other namespace.
    out += &answer(&test, &format!("PATCH {DEPLOYMENTS}/three/scale"), scaled).await;
    out += &answer(&test, "POST /apis/apps/v1/namespaces/there/deployments", deployment("one", 1)).await;
    // Without its binding the policy is nothing, at once.
    ok(&test, &admin(), &format!("DELETE {REGISTRATION}/validatingadmissionpolicybindings/odd"), Value::Null)
        .await;
    out += &answer(&test, &format!("POST {DEPLOYMENTS}"), deployment("one", 1)).await;
    expect![[r#"
        422 deployments.apps "one" is forbidden: ValidatingAdmissionPolicy 'odd' with binding 'odd' denied request: wants more than 1, got 1
        422 deployments.apps "two" is forbidden: ValidatingAdmissionPolicy 'odd' with binding 'odd' denied request: failed expression: variables.odd
        201 
        422 deployments.apps "three" is forbidden: ValidatingAdmissionPolicy 'odd' with binding 'odd' denied request: failed expression: variables.odd
        200 
        201 
        201 
    "#]]
    .assert_eq(&out);
}

/// Parameters of a custom kind, questions to the authorizer, and what policies cannot be about.
#[tokio::test(flavor = "multi_thread")]
async fn evaluates_parameters_and_authorization_checks() {
    let test = start().await;
    let schema = json!({"type": "object", "properties": {"most": {"type": "integer"}}});
    let crd = json!({"metadata": {"name": "limits.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "limits", "kind": "Limit", "singular": "limit", "listKind": "LimitList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    ok(&test, &admin(), "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).await;
    let limits = "/apis/example.com/v1/namespaces/here/limits";
    let limit =
        json!({"apiVersion": "example.com/v1", "kind": "Limit", "metadata": {"name": "l"}, "most": 1});
    crate::common::until("the custom resource is served", async || {
        ask(&test, &admin(), &format!("POST {limits}"), &limit).await.0 == 201
    })
    .await;
    let spec = json!({"paramKind": {"apiVersion": "example.com/v1", "kind": "Limit"}, "validations": [
        {"expression": "size(object.data) <= params.most || authorizer.group('example.com').resource('limits').namespace('here').check('delete').allowed()",
         "messageExpression": "'at most ' + string(params.most) + ' for ' + request.userInfo.username"}]});
    let object = json!({"metadata": {"name": "limit"}, "spec": {"validations": spec["validations"], "paramKind": spec["paramKind"],
        "matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}}});
    ok(&test, &admin(), &format!("POST {REGISTRATION}/validatingadmissionpolicies"), object).await;
    bind(
        &test,
        "validating",
        "limit",
        json!({"policyName": "limit", "validationActions": ["Deny"],
        "paramRef": {"name": "l", "parameterNotFoundAction": "Deny"}}),
    )
    .await;
    let role = json!({"metadata": {"name": "maps"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]});
    ok(&test, &admin(), "POST /apis/rbac.authorization.k8s.io/v1/clusterroles", role).await;
    let bound = json!({"metadata": {"name": "maps"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "maps"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}]});
    ok(&test, &admin(), "POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings", bound).await;
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"a": "1", "b": "2"}});
    let mut out = String::new();
    for (user, place) in [(person("ann"), "here"), (admin(), "here"), (admin(), "there")] {
        let request = format!("POST /api/v1/namespaces/{place}/configmaps");
        let (code, answer) = ask(&test, &user, &request, &map("m")).await;
        out += &format!("{code} {}\n", answer["message"].as_str().unwrap_or_default());
    }
    // A change of the parameter counts at once.
    ok(&test, &admin(), &format!("PATCH {limits}/l"), json!({"most": 2})).await;
    let (code, _) = ask(&test, &person("ann"), &format!("POST {MAPS}"), &map("n")).await;
    assert_eq!(code, 201);
    expect![[r#"
        422 configmaps "m" is forbidden: ValidatingAdmissionPolicy 'limit' with binding 'limit' denied request: at most 1 for ann
        201 
        422 configmaps "m" is forbidden: ValidatingAdmissionPolicy 'limit' with binding 'limit' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction
    "#]]
    .assert_eq(&out);
}

/// "should type check validation expressions", "should type check a CRD"
#[tokio::test(flavor = "multi_thread")]
async fn types_are_checked() {
    let test = TestCluster::start(1).await;
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}});
    let crd = json!({"metadata": {"name": "crontabs.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "crontabs", "kind": "CronTab", "singular": "crontab", "listKind": "CronTabList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    ok(&test, &admin(), "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).await;
    let api = Api(&test);
    let definitions = "apiextensions.k8s.io/v1/customresourcedefinitions";
    api.until(definitions, "crontabs.example.com", |crd| {
        let conditions = crd.and_then(|c| c["status"]["conditions"].as_array());
        conditions.into_iter().flatten().any(|c| c["type"] == "Established" && c["status"] == "True")
    })
    .await;
    let mut out = String::new();
    for (name, group, resource, validations) in [
        ("correct", "apps", "deployments", json!([{"expression": "object.spec.replicas > 1"}])),
        (
            "confused",
            "apps",
            "deployments",
            json!([{"expression": "object.spec.replicas > '1'",
            "messageExpression": "'wants replicas > 1, got ' + object.spec.replicas"}]),
        ),
        ("custom", "example.com", "crontabs", json!([{"expression": "object.spec.replicas > 1"}])),
        ("confused-custom", "example.com", "crontabs", json!([{"expression": "object.spec.replicas > '1'"}])),
    ] {
        let spec = json!({"validations": validations, "matchConstraints": {"resourceRules": [
            {"operations": ["CREATE"], "apiGroups": [group], "apiVersions": ["v1"], "resources": [resource]}]}});
        let object = json!({"metadata": {"name": name}, "spec": spec});
        ok(&test, &admin(), &format!("POST {REGISTRATION}/validatingadmissionpolicies"), object).await;
        let policies = "admissionregistration.k8s.io/v1/validatingadmissionpolicies";
        api.until(policies, name, |policy| {
            let Some(status) = policy.map(|p| &p["status"]).filter(|s| s["typeChecking"].is_object()) else {
                return false;
            };
            out += &format!("{name} {}\n", status["observedGeneration"]);
            for warning in status["typeChecking"]["expressionWarnings"].as_array().into_iter().flatten() {
                out += &format!(
                    "  {}: {}\n",
                    warning["fieldRef"].as_str().unwrap(),
                    warning["warning"].as_str().unwrap()
                );
            }
            true
        })
        .await;
    }
    expect![[r#"
        correct 1
        confused 1
          spec.validations[0].expression: apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'
         | object.spec.replicas > '1'
         | .....................^

          spec.validations[0].messageExpression: apps/v1, Kind=Deployment: ERROR: <input>:1:28: found no matching overload for '_+_' applied to '(string, int)'
         | 'wants replicas > 1, got ' + object.spec.replicas
         | ...........................^

        custom 1
        confused-custom 1
          spec.validations[0].expression: example.com/v1, Kind=CronTab: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'
         | object.spec.replicas > '1'
         | .....................^

    "#]]
    .assert_eq(&out);
}

fn configuration(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

/// "should mutate a Deployment with annotations", "should mutate a Deployment"; and what mutations add to each other.
#[tokio::test(flavor = "multi_thread")]
async fn deployments_are_changed() {
    let test = start().await;
    let spec = json!({"reinvocationPolicy": "Never",
    "variables": [{"name": "more", "expression": "object.spec.replicas + 1"}],
    "mutations": [
        configuration("Object{metadata: Object.metadata{annotations: {'my-foo-annotation': 'myAnnotationValue'}}}"),
        configuration("Object{spec: Object.spec{replicas: variables.more, template: Object.spec.template{spec: Object.spec.template.spec{\
            containers: [Object.spec.template.spec.containers{name: 'c', imagePullPolicy: 'Never'}, \
                Object.spec.template.spec.containers{name: 'side', image: 'car'}]}}}}"),
        patch("[JSONPatch{op: 'test', path: '/spec/replicas', value: 3}, \
            JSONPatch{op: 'add', path: '/metadata/labels', value: {'environment': namespaceObject.metadata.labels.place}}, \
            JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('example.com/who'), value: request.userInfo.username}]"),
        patch("[JSONPatch{op: 'test', path: '/spec/replicas', value: 100}, JSONPatch{op: 'remove', path: '/spec'}]"),
    ]});
    policy(&test, "mutating", "all", ("apps", "deployments"), spec).await;
    ok(&test, &admin(), &format!("POST {DEPLOYMENTS}"), deployment("d", 2)).await;
    let made = ok(&test, &admin(), &format!("GET {DEPLOYMENTS}/d"), Value::Null).await;
    let containers = made["spec"]["template"]["spec"]["containers"].as_array().unwrap().iter();
    let containers: Vec<Value> = containers
        .map(|c| json!([c["name"], c["image"], c["imagePullPolicy"], c["terminationMessagePath"]]))
        .collect();
    let meta = &made["metadata"];
    assert_eq!(
        json!([meta["annotations"], meta["labels"], made["spec"]["replicas"], containers]),
        json!([{"my-foo-annotation": "myAnnotationValue", "example.com/who": "admin"}, {"environment": "here"}, 3,
            [["c", "i", "Never", "/dev/termination-log"], ["side", "car", "Always", "/dev/termination-log"]]])
    );
    // Other namespaces are not affected.
    let there =
        ok(&test, &admin(), "POST /apis/apps/v1/namespaces/there/deployments", deployment("d", 2)).await;
    assert_eq!(there["spec"]["replicas"], 2);
}

/// A plugin with reinvocation is called again when something changed after it, and never a third time.
#[tokio::test(flavor = "multi_thread")]
async fn some_are_asked_again() {
    let test = start().await;
    for (name, again, text) in [("a", "IfNeeded", "a"), ("b", "Never", "b"), ("c", "IfNeeded", "c")] {
        let expression = format!(
            "Object{{data: {{'seen': (has(object.data) && 'seen' in object.data ? object.data.seen : '') + '{text}'}}}}"
        );
        let spec = json!({"reinvocationPolicy": again, "mutations": [configuration(&expression)]});
        policy(&test, "mutating", name, ("", "configmaps"), spec).await;
    }
    let made = ok(&test, &admin(), &format!("POST {MAPS}"), json!({"metadata": {"name": "m"}})).await;
    assert_eq!(made["data"]["seen"], "abcac");
}

/// Mutations that cannot be made refuse the request, or do nothing where failures are ignored.
#[tokio::test(flavor = "multi_thread")]
async fn rejects_failed_mutations() {
    let test = start().await;
    let mut out = String::new();
    for (i, mutation) in [
        configuration("Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'a': 'b'}}}}"),
        configuration("Object{spec: Object.spec{nothing: 1}}"),
        configuration("Object{spec: Object.status{}}"),
        configuration("Object{spec: Object.spec{replicas: object.nothing}}"),
        patch("[JSONPatch{op: 'remove', path: '/spec/nothing'}]"),
        patch("[JSONPatch{op: 'add', path: '/spec/replicas', value: 'many'}]"),
        patch("[JSONPatch{op: 'add', path: '/spec/unknown', value: 1}]"),
    ]
    .into_iter()
    .enumerate()
    {
        for failure in ["Fail", "Ignore"] {
            let name = format!("p{i}-{}", failure.to_lowercase());
            let spec = json!({"failurePolicy": failure, "reinvocationPolicy": "Never", "mutations": [mutation.clone()]});
            policy(&test, "mutating", &name, ("apps", "deployments"), spec).await;
            out += &answer(&test, &format!("POST {DEPLOYMENTS}?dryRun=All"), deployment("d", 2)).await;
            ok(
                &test,
                &admin(),
                &format!("DELETE {REGISTRATION}/mutatingadmissionpolicybindings/{name}"),
                Value::Null,
            )
            .await;
        }
    }
    expect![[r#"
        403 policy 'p0-fail' with binding 'p0-fail' denied request: error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector
        201 
        403 policy 'p1-fail' with binding 'p1-fail' denied request: error applying patch: failed to convert patch object to typed object: .spec.nothing: field not declared in schema
        201 
        403 policy 'p2-fail' with binding 'p2-fail' denied request: type mismatch: unexpected type name "Object.status", expected "Object.spec", which matches field name path from root Object type
        201 
        403 policy 'p3-fail' with binding 'p3-fail' denied request: expression 'Object{spec: Object.spec{replicas: object.nothing}}' resulted in error: no such key: nothing
        201 
        403 policy 'p4-fail' with binding 'p4-fail' denied request: JSON Patch: error in remove for path: '/spec/nothing': Unable to remove nonexistent key: nothing: missing value
        201 
        500 Internal error occurred: json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32
        500 Internal error occurred: json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32
        500 Internal error occurred: strict decoding error: unknown field "spec.unknown"
        500 Internal error occurred: strict decoding error: unknown field "spec.unknown"
    "#]]
    .assert_eq(&out);
}

/// Custom resources are merged by their schemas; parameters are given to mutations, too.
#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_are_changed() {
    let test = start().await;
    let part = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}});
    let parts = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": part});
    let whole = json!({"type": "array", "items": {"type": "string"}});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "parts": parts, "whole": whole, "color": {"type": "string", "default": "red"}}}}});
    let crd = json!({"metadata": {"name": "toys.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "toys", "kind": "Toy", "singular": "toy", "listKind": "ToyList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    ok(&test, &admin(), "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).await;
    let definitions = "apiextensions.k8s.io/v1/customresourcedefinitions";
    Api(&test)
        .until(definitions, "toys.example.com", |crd| {
            let conditions = crd.and_then(|c| c["status"]["conditions"].as_array());
            conditions.into_iter().flatten().any(|c| c["type"] == "Established" && c["status"] == "True")
        })
        .await;
    let param = json!({"metadata": {"name": "size"}, "data": {"size": "7"}});
    ok(&test, &admin(), &format!("POST {MAPS}"), param).await;
    let rules = json!({"resourceRules": [{"operations": ["CREATE"], "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["toys"]}]});
    let spec = json!({"reinvocationPolicy": "Never", "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "matchConstraints": rules,
        "matchConditions": [{"name": "sized", "expression": "params.data.size != ''"}],
        "mutations": [configuration("Object{spec: Object.spec{parts: [Object.spec.parts{name: 'b', size: int(params.data.size)}]}}")]});
    ok(
        &test,
        &admin(),
        &format!("POST {REGISTRATION}/mutatingadmissionpolicies"),
        json!({"metadata": {"name": "toys"}, "spec": spec}),
    )
    .await;
    bind(
        &test,
        "mutating",
        "toys",
        json!({"policyName": "toys", "paramRef": {"name": "size", "parameterNotFoundAction": "Deny"}}),
    )
    .await;
    let toys = "/apis/example.com/v1/namespaces/here/toys";
    let toy = json!({"apiVersion": "example.com/v1", "kind": "Toy", "metadata": {"name": "t"},
        "spec": {"parts": [{"name": "a", "size": 1}, {"name": "b"}], "whole": ["x"]}});
    let made = ok(&test, &admin(), &format!("POST {toys}"), toy.clone()).await;
    assert_eq!(
        made["spec"],
        json!({"parts": [{"name": "a", "size": 1}, {"name": "b", "size": 7}], "whole": ["x"], "color": "red"})
    );
    let (code, refused) = ask(&test, &admin(), "POST /apis/example.com/v1/namespaces/there/toys", &toy).await;
    assert_eq!(
        (code, refused["message"].as_str().unwrap()),
        (
            403,
            "policy 'toys' with binding 'toys' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
        )
    );
}

/// What does not compile is refused when it is written.
#[tokio::test(flavor = "multi_thread")]
async fn expressions_are_checked_when_they_are_written() {
    let test = start().await;
    let rules = json!({"resourceRules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
    let mut out = String::new();
    for spec in [
        json!({"validations": [{"expression": "object.spec >"}]}),
        json!({"validations": [{"expression": "'a'", "messageExpression": "authorizer.path('/x').check('get').reason()"}]}),
        json!({"variables": [{"name": "v", "expression": "params.x"}], "validations": [{"expression": "variables.w"}]}),
        json!({"matchConditions": [{"name": "c", "expression": "1 + 'a' == 2"}], "auditAnnotations": [{"key": "k", "valueExpression": "1"}]}),
    ] {
        let mut spec = spec;
        spec["matchConstraints"] = rules.clone();
        let object = json!({"metadata": {"name": "p"}, "spec": spec});
        out += &answer(&test, &format!("POST {REGISTRATION}/validatingadmissionpolicies"), object).await;
    }
    for mutation in [
        json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[1]"}}),
        json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object.spec{}"}}),
    ] {
        let spec = json!({"reinvocationPolicy": "Never", "mutations": [mutation], "matchConstraints": rules});
        let object = json!({"metadata": {"name": "p"}, "spec": spec});
        out += &answer(&test, &format!("POST {REGISTRATION}/mutatingadmissionpolicies"), object).await;
    }
    expect![[r#"
        422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.validations[0].expression: Invalid value: "object.spec >": compilation failed: ERROR: <input>:1:14: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}
         | object.spec >
         | .............^
        422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: [spec.validations[0].expression: Invalid value: "'a'": must evaluate to bool but got string, spec.validations[0].messageExpression: Invalid value: "authorizer.path('/x').check('get').reason()": compilation failed: ERROR: <input>:1:1: undeclared reference to 'authorizer' (in container '')
         | authorizer.path('/x').check('get').reason()
         | ^]
        422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: [spec.variables[0].expression: Invalid value: "params.x": compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')
         | params.x
         | ^, spec.validations[0].expression: Invalid value: "variables.w": compilation failed: ERROR: <input>:1:10: undefined field 'w'
         | variables.w
         | .........^]
        422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: [spec.matchConditions[0].expression: Invalid value: "1 + 'a' == 2": compilation failed: ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, string)'
         | 1 + 'a' == 2
         | ..^, spec.auditAnnotations[0].valueExpression: Invalid value: "1": must evaluate to one of [string null_type] but got int]
        422 MutatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.mutations[0].jsonPatch.expression: Invalid value: "[1]": must evaluate to list(JSONPatch) but got list(int)
        422 MutatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.mutations[0].applyConfiguration.expression: Invalid value: "Object.spec{}": must evaluate to Object but got Object.spec
    "#]]
    .assert_eq(&out);
}
