//! Policies in, warnings out.

use super::*;
use expect_test::expect;

fn known(group: &str, version: &str, kind: &str) -> Known {
    let schema = kaji_schema::types::for_gvk(group, version, kind).unwrap();
    (GroupVersionKind::new(group, version, kind), whole(&schema, kind))
}

fn warnings(spec: Value, kinds: &[Known]) -> String {
    let params = known("", "v1", "ConfigMap").1;
    let list = check(&spec, kinds, Some(&params));
    let line = |w: &Value| format!("{}: {}", w["fieldRef"].as_str().unwrap(), w["warning"].as_str().unwrap());
    list.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn reports_type_errors_for_each_kind() {
    let kinds = [known("apps", "v1", "Deployment"), known("apps", "v1", "ReplicaSet")];
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
    "variables": [{"name": "replicas", "expression": "object.spec.replicas"}, {"name": "broken", "expression": "object.spec +"}],
    "validations": [
        {"expression": "object.spec.replicas > 1 && params.data['a'] == 'b'"},
        {"expression": "object.spec.replicas > '1'", "messageExpression": "'wants more, got ' + variables.replicas"},
        {"expression": "object.spec.strategy.type == 'Recreate' && variables.broken"},
        {"expression": "object.metadata.creationTimestamp > timestamp('2020-01-01T00:00:00Z') && oldObject.metadata.labels.a == 'b'"},
        {"expression": "authorizer.requestResource.check('x').allowed()"},
    ]});
    expect![[r#"
        spec.validations[1].expression: apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'
         | object.spec.replicas > '1'
         | .....................^

        apps/v1, Kind=ReplicaSet: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'
         | object.spec.replicas > '1'
         | .....................^

        spec.validations[1].messageExpression: apps/v1, Kind=Deployment: ERROR: <input>:1:20: found no matching overload for '_+_' applied to '(string, int)'
         | 'wants more, got ' + variables.replicas
         | ...................^

        apps/v1, Kind=ReplicaSet: ERROR: <input>:1:20: found no matching overload for '_+_' applied to '(string, int)'
         | 'wants more, got ' + variables.replicas
         | ...................^

        spec.validations[2].expression: apps/v1, Kind=ReplicaSet: ERROR: <input>:1:12: undefined field 'strategy'
         | object.spec.strategy.type == 'Recreate' && variables.broken
         | ...........^

        spec.validations[4].expression: apps/v1, Kind=Deployment: ERROR: <input>:1:11: undefined field 'requestResource'
         | authorizer.requestResource.check('x').allowed()
         | ..........^

        apps/v1, Kind=ReplicaSet: ERROR: <input>:1:11: undefined field 'requestResource'
         | authorizer.requestResource.check('x').allowed()
         | ..........^
    "#]]
    .assert_eq(&warnings(spec, &kinds));
}

/// A type that contains itself ends somewhere.
#[test]
fn checks_recursive_types() {
    let kinds = [known("apiextensions.k8s.io", "v1", "CustomResourceDefinition")];
    let expression =
        "object.spec.versions.all(v, v.schema.openAPIV3Schema.properties['a'].properties['b'].nothing == 1)";
    assert_eq!(warnings(json!({"validations": [{"expression": expression}]}), &kinds), "");
}

#[test]
fn kinds_are_those_that_rules_name() {
    let of = |g: &str, v: &str, r: &str| (r != "unknown").then(|| GroupVersionKind::new(g, v, r));
    let rule = |groups: Value, resources: Value| json!({"apiGroups": groups, "apiVersions": ["v1"], "resources": resources});
    let spec = json!({"matchConstraints": {"resourceRules": [
        rule(json!(["b", "a"]), json!(["x", "y/status", "unknown", "*"])), rule(json!(["*"]), json!(["z"]))]}});
    let found: Vec<String> = kinds(&spec, &of).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["a/v1, Kind=x", "b/v1, Kind=x"]);
    let many: Vec<String> = (0..20).map(|i| format!("r{i:02}")).collect();
    let spec = json!({"matchConstraints": {"resourceRules": [rule(json!(["a"]), json!(many))]}});
    assert_eq!(kinds(&spec, &of).len(), MAX_KINDS);
}
