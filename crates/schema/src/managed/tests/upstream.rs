//! Cases that upstream tests on built-in types.

use super::*;

fn deployment(spec: Value) -> Value {
    json!({"metadata": {"labels": {"app": "nginx"}}, "spec": spec})
}

/// A deployment as client-side apply leaves it.
fn client_side(replicas: u64) -> (Value, Value) {
    let template = |image: &str| json!({"metadata": {"labels": {"app": "nginx"}}, "spec": {"containers": [{"name": "nginx", "image": image}]}});
    let config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "labels": {"app": "nginx"}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "nginx"}}, "template": template("nginx:1")}});
    let mut live = config.clone();
    live["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": config.to_string() + "\n"});
    (live, config)
}

#[test]
fn client_side_apply_is_taken_over_without_conflicts() {
    let mut s = Server::builtin("apps", "v1", "Deployment");
    let (live, mut config) = client_side(3);
    s.update("kubectl-client-side-apply", live);
    config["spec"]["template"]["spec"]["containers"][0]["image"] = "nginx:2".into();
    config["spec"]["replicas"] = 4.into();
    // Any other name than kubectl does not get that.
    expect![[r#"
        409 "Conflict": Apply failed with 2 conflicts: conflicts with "kubectl-client-side-apply" using apps/v1:
        - .spec.replicas
        - .spec.template.spec.containers[name="nginx"].image
          FieldManagerConflict .spec.replicas (conflict with "kubectl-client-side-apply" using apps/v1)
          FieldManagerConflict .spec.template.spec.containers[name="nginx"].image (conflict with "kubectl-client-side-apply" using apps/v1)"#]].assert_eq(&s.refused("other", config.clone()));
    s.apply("kubectl", config);
    s.check(&expect![[r#"
        {"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"apiVersion\":\"apps/v1\",\"kind\":\"Deployment\",\"metadata\":{\"labels\":{\"app\":\"nginx\"},\"name\":\"x\"},\"spec\":{\"replicas\":4,\"selector\":{\"matchLabels\":{\"app\":\"nginx\"}},\"template\":{\"metadata\":{\"labels\":{\"app\":\"nginx\"}},\"spec\":{\"containers\":[{\"image\":\"nginx:2\",\"name\":\"nginx\"}]}}}}\n"},"labels":{"app":"nginx"}},"spec":{"replicas":4,"selector":{"matchLabels":{"app":"nginx"}},"template":{"metadata":{"labels":{"app":"nginx"}},"spec":{"containers":[{"image":"nginx:2","name":"nginx"}]}}}}
        Apply kubectl apps/v1 @03: {"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"nginx\"}":{".":{},"f:image":{},"f:name":{}}}}}}}
        Update kubectl-client-side-apply apps/v1 @01: {"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/last-applied-configuration":{}},"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:selector":{},"f:template":{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"nginx\"}":{".":{},"f:name":{}}}}}}}"#]]);
}

#[test]
fn fields_changed_since_client_side_apply_conflict() {
    let mut s = Server::builtin("apps", "v1", "Deployment");
    let (mut live, mut config) = client_side(3);
    s.update("kubectl-client-side-apply", live.clone());
    live["spec"]["replicas"] = 5.into();
    s.update("scaler", live);
    config["spec"]["replicas"] = 4.into();
    config["spec"]["template"]["spec"]["containers"][0]["image"] = "nginx:2".into();
    expect![[r#"
        409 "Conflict": Apply failed with 1 conflict: conflict with "scaler" using apps/v1: .spec.replicas
          FieldManagerConflict .spec.replicas (conflict with "scaler" using apps/v1)"#]]
    .assert_eq(&s.refused("kubectl", config));
}

#[test]
fn the_annotation_follows_kubectl_only() {
    let note = |s: &Server| {
        let value = s.live.pointer("/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration");
        value.map_or("none".to_owned(), |v| v.to_string())
    };
    let mut s = Server::builtin("", "v1", "ConfigMap");
    let config = json!({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "data": {"a": "<1>"}});
    s.apply("kubectl", config);
    let mut got = vec![note(&s)];
    s.apply("other", json!({"data": {"b": "1"}}));
    got.push(note(&s));
    s.apply("kubectl", json!({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "data": {"a": "<2>"}}));
    got.push(note(&s));
    // Without the annotation there is nothing to follow.
    s.apply("kubectl", json!({"data": {"a": "<2>"}}));
    got.push(note(&s));
    expect![[r#"
        "{\"apiVersion\":\"v1\",\"data\":{\"a\":\"\\u003c1\\u003e\"},\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"x\"}}\n"
        "{\"apiVersion\":\"v1\",\"data\":{\"a\":\"\\u003c1\\u003e\"},\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"x\"}}\n"
        "{\"apiVersion\":\"v1\",\"data\":{\"a\":\"\\u003c2\\u003e\"},\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"x\"}}\n"
        none"#]].assert_eq(&got.join("\n"));
}

#[test]
fn fills_in_defaulted_list_keys() {
    let mut s = Server::builtin("", "v1", "Service");
    s.apply("a", json!({"spec": {"ports": [{"port": 80}, {"port": 80, "protocol": "UDP"}]}}));
    s.check(&expect![[r#"
        {"spec":{"ports":[{"port":80},{"port":80,"protocol":"UDP"}]}}
        Apply a v1 @01: {"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}},"k:{\"port\":80,\"protocol\":\"UDP\"}":{".":{},"f:port":{},"f:protocol":{}}}}}"#]]);
    // The server has defaulted the protocol by now; it is still the same port.
    s.update(
        "default",
        json!({"spec": {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80},
        {"port": 80, "protocol": "UDP", "targetPort": 80}]}}),
    );
    assert_eq!(
        s.try_apply("a", false, json!({"spec": {"ports": [{"port": 80}, {"port": 80, "protocol": "UDP"}]}})),
        Ok(false)
    );
    s.apply("a", json!({"spec": {"ports": [{"port": 80}]}}));
    s.check(&expect![[r#"
        {"spec":{"ports":[{"port":80,"protocol":"TCP","targetPort":80}]}}
        Apply a v1 @04: {"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}}}}
        Update default v1 @02: {"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{"f:protocol":{},"f:targetPort":{}}}}}"#]]);
}

#[test]
fn config_maps_conflict_by_key() {
    let mut s = Server::builtin("", "v1", "ConfigMap");
    s.apply("a", json!({"data": {"k": "1", "l": "1"}}));
    expect![[r#"
        409 "Conflict": Apply failed with 1 conflict: conflict with "a": .data.k
          FieldManagerConflict .data.k (conflict with "a")"#]]
    .assert_eq(&s.refused("b", json!({"data": {"k": "2"}})));
    s.update("editor", json!({"data": {"k": "3", "l": "1"}}));
    expect![[r#"
        409 "Conflict": Apply failed with 1 conflict: conflict with "editor" using v1: .data.k
          FieldManagerConflict .data.k (conflict with "editor" using v1)"#]]
    .assert_eq(&s.refused("a", json!({"data": {"k": "2", "l": "1"}})));
    expect![[r#"
        409 "Conflict": Apply failed with 2 conflicts: conflicts with "a":
        - .data.l
        conflicts with "editor" using v1:
        - .data.k
          FieldManagerConflict .data.l (conflict with "a")
          FieldManagerConflict .data.k (conflict with "editor" using v1)"#]]
    .assert_eq(&s.refused("c", json!({"data": {"k": "2", "l": "2"}})));
}

#[test]
fn applies_pods_and_their_status() {
    let mut s = Server::builtin("", "v1", "Pod");
    s.reset = Some(FieldSet::from_paths(&[&["status"]]));
    let spec = json!({"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Always"});
    s.update("kubectl-create", json!({"spec": spec, "status": {"phase": "Pending"}}));
    s.update("scheduler", json!({"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Always", "nodeName": "n"}, "status": {"phase": "Pending"}}));
    s.subresource = "status";
    s.reset = Some(FieldSet::from_paths(&[&["spec"]]));
    let mut live = s.live.clone();
    live["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIPs": [{"ip": "1.2.3.4"}]});
    s.update("kubelet", live);
    s.check(&expect![[r#"
        {"spec":{"containers":[{"image":"i","name":"c"}],"nodeName":"n","restartPolicy":"Always"},"status":{"conditions":[{"status":"True","type":"Ready"}],"phase":"Running","podIPs":[{"ip":"1.2.3.4"}]}}
        Update kubectl-create v1 @01: {"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{}}},"f:restartPolicy":{}}}
        Update scheduler v1 @02: {"f:spec":{"f:nodeName":{}}}
        Update kubelet/status v1 @03: {"f:status":{"f:conditions":{".":{},"k:{\"type\":\"Ready\"}":{".":{},"f:status":{},"f:type":{}}},"f:phase":{},"f:podIPs":{".":{},"k:{\"ip\":\"1.2.3.4\"}":{".":{},"f:ip":{}}}}}"#]]);
}

#[test]
fn appliers_keep_their_time_when_nothing_changes() {
    let mut s = Server::builtin("", "v1", "Pod");
    let config = json!({"metadata": {"labels": {"a": "b"}}});
    s.apply("first", config.clone());
    // A new manager gets an entry, but changes nothing.
    s.apply("other", config.clone());
    s.check(&expect![[r#"
        {"metadata":{"labels":{"a":"b"}}}
        Apply other v1 @-: {"f:metadata":{"f:labels":{"f:a":{}}}}
        Apply first v1 @01: {"f:metadata":{"f:labels":{"f:a":{}}}}"#]]);
    let before = s.live.clone();
    s.update("updater", json!({"metadata": {"labels": {"a": "b"}}}));
    assert_eq!(s.try_apply("first", true, config), Ok(false));
    assert_eq!(s.live, before);
}

#[test]
fn merges_containers_of_several_appliers() {
    let mut s = Server::builtin("apps", "v1", "Deployment");
    let pod = |containers: Value| deployment(json!({"template": {"spec": {"containers": containers}}}));
    s.apply("app", pod(json!([{"name": "app", "image": "app:1", "env": [{"name": "A", "value": "1"}]}])));
    s.apply("mesh", pod(json!([{"name": "proxy", "image": "proxy:1"}, {"name": "app", "env": [{"name": "P", "value": "1"}]}])));
    s.check(&expect![[r#"
        {"metadata":{"labels":{"app":"nginx"}},"spec":{"template":{"spec":{"containers":[{"image":"proxy:1","name":"proxy"},{"env":[{"name":"A","value":"1"},{"name":"P","value":"1"}],"image":"app:1","name":"app"}]}}}}
        Apply app apps/v1 @01: {"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:env":{"k:{\"name\":\"A\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:name":{}}}}}}}
        Apply mesh apps/v1 @02: {"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:env":{"k:{\"name\":\"P\"}":{".":{},"f:name":{},"f:value":{}}},"f:name":{}},"k:{\"name\":\"proxy\"}":{".":{},"f:image":{},"f:name":{}}}}}}}"#]]);
    s.apply("app", pod(json!([{"name": "app", "image": "app:2"}])));
    s.check(&expect![[r#"
        {"metadata":{"labels":{"app":"nginx"}},"spec":{"template":{"spec":{"containers":[{"image":"proxy:1","name":"proxy"},{"env":[{"name":"P","value":"1"}],"image":"app:2","name":"app"}]}}}}
        Apply mesh apps/v1 @02: {"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:env":{"k:{\"name\":\"P\"}":{".":{},"f:name":{},"f:value":{}}},"f:name":{}},"k:{\"name\":\"proxy\"}":{".":{},"f:image":{},"f:name":{}}}}}}}
        Apply app apps/v1 @03: {"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:image":{},"f:name":{}}}}}}}"#]]);
    s.apply("mesh", deployment(json!({})));
    s.check(&expect![[r#"
        {"metadata":{"labels":{"app":"nginx"}},"spec":{"template":{"spec":{"containers":[{"image":"app:2","name":"app"}]}}}}
        Apply app apps/v1 @03: {"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{".":{},"f:image":{},"f:name":{}}}}}}}
        Apply mesh apps/v1 @04: {"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{}}"#]]);
}

/// Upstream's types have defaults for required scalars, which are the keys of elements that lack them. What is wrong with those is
/// for validation to say.
#[test]
fn elements_without_their_keys_have_the_types_defaults() {
    let mut s = Server::builtin("apps", "v1", "Deployment");
    let spec = json!({"containers": [{"image": "i", "ports": [{"hostPort": 1}]}], "hostAliases": [{"hostnames": ["h"]}]});
    s.apply("a", json!({"spec": {"template": {"spec": spec}}}));
    s.check(&expect![[r#"
        {"spec":{"template":{"spec":{"containers":[{"image":"i","ports":[{"hostPort":1}]}],"hostAliases":[{"hostnames":["h"]}]}}}}
        Apply a apps/v1 @01: {"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"\"}":{".":{},"f:image":{},"f:ports":{"k:{\"containerPort\":0,\"protocol\":\"TCP\"}":{".":{},"f:hostPort":{}}}}},"f:hostAliases":{"k:{\"ip\":\"\"}":{".":{},"f:hostnames":{}}}}}}}"#]]);
    let twice = json!({"spec": {"template": {"spec": {"containers": [{"image": "i"}, {"name": ""}]}}}});
    expect![[r#"failed to create typed patch object (/x; apps/v1, Kind=Deployment): .spec.template.spec.containers: duplicate entries for key [name=""]"#]].assert_eq(&s.try_apply("b", false, twice).unwrap_err().message);
}

#[test]
fn unknown_fields_of_built_in_types() {
    let mut s = Server::builtin("apps", "v1", "Deployment");
    let got = [
        s.live.is_null().then(|| s.try_apply("a", false, json!({"metadata": {"namespace": "ns"}, "spec": {"bogus": 1}})).unwrap_err().message),
        Some(s.try_apply("a", false, json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": 1, "env": [{"name": "E", "value": 1}]}]}}}})).unwrap_err().message),
    ];
    expect![[r#"
        failed to create typed patch object (ns/x; apps/v1, Kind=Deployment): .spec.bogus: field not declared in schema
        failed to create typed patch object (/x; apps/v1, Kind=Deployment): errors:
          .spec.template.spec.containers[name="c"].env[name="E"].value: expected string, got &value.valueUnstructured{Value:1}
          .spec.template.spec.containers[name="c"].image: expected string, got &value.valueUnstructured{Value:1}"#]].assert_eq(&got.into_iter().flatten().collect::<Vec<_>>().join("\n"));
}
