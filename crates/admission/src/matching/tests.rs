//! Fixtures: which requests rules and selectors take, and for what.

use super::*;
use crate::test_support::Request;
use expect_test::expect;
use kaji_resource::{NoHooks, Scope as ResourceScope};
use serde_json::json;

fn rule(operations: &str, group: &str, version: &str, resource: &str, scope: &str) -> Value {
    json!({"operations": [operations], "apiGroups": [group], "apiVersions": [version], "resources": [resource],
        "scope": scope})
}

async fn taken(request: &mut Request, rules: &[Value], equivalent: bool) -> String {
    let rules = Rule::list(&Value::from(rules.to_vec()));
    request
        .with(async |a| match by_rules(&rules, equivalent, a) {
            None => "-".to_owned(),
            Some(m) => format!("{} as {}", m.resource, m.kind),
        })
        .await
}

#[tokio::test]
async fn matches_rules_by_operation_group_and_resource() {
    let mut seen = String::new();
    for (operation, group, version, resource, scope) in [
        ("CREATE", "", "v1", "configmaps", "*"),
        ("*", "*", "*", "*", "*"),
        ("*", "*", "*", "*/*", "*"),
        ("UPDATE", "", "v1", "configmaps", "*"),
        ("CREATE", "apps", "v1", "configmaps", "*"),
        ("CREATE", "", "v2", "configmaps", "*"),
        ("CREATE", "", "v1", "pods", "*"),
        ("CREATE", "", "v1", "configmaps/status", "*"),
        ("CREATE", "", "v1", "configmaps/*", "*"),
        ("CREATE", "", "v1", "configmaps", "Namespaced"),
        ("CREATE", "", "v1", "configmaps", "Cluster"),
        ("CREATE", "", "v1", "configmaps", "Universal"),
    ] {
        let rule = rule(operation, group, version, resource, scope);
        let taken = taken(&mut Request::new(), &[rule], true).await;
        seen += &format!("{operation} {group:?} {version} {resource} {scope}: {taken}\n");
    }
    expect![[r#"
        CREATE "" v1 configmaps *: /v1, Resource=configmaps as /v1, Kind=ConfigMap
        * "*" * * *: /v1, Resource=configmaps as /v1, Kind=ConfigMap
        * "*" * */* *: /v1, Resource=configmaps as /v1, Kind=ConfigMap
        UPDATE "" v1 configmaps *: -
        CREATE "apps" v1 configmaps *: -
        CREATE "" v2 configmaps *: -
        CREATE "" v1 pods *: -
        CREATE "" v1 configmaps/status *: -
        CREATE "" v1 configmaps/* *: /v1, Resource=configmaps as /v1, Kind=ConfigMap
        CREATE "" v1 configmaps Namespaced: /v1, Resource=configmaps as /v1, Kind=ConfigMap
        CREATE "" v1 configmaps Cluster: -
        CREATE "" v1 configmaps Universal: -
    "#]]
    .assert_eq(&seen);
}

#[tokio::test]
async fn subresources_are_named() {
    let mut request = Request::of("", "v1", "Pod", "pods", ResourceScope::Namespaced);
    request.subresource = "status";
    let mut seen = String::new();
    for resource in ["pods", "*", "pods/*", "pods/status", "*/status", "*/*", "pods/log"] {
        let taken = taken(&mut request, &[rule("*", "*", "*", resource, "*")], true).await;
        seen += &format!("{resource}: {}\n", taken != "-");
    }
    expect![[r#"
        pods: false
        *: false
        pods/*: true
        pods/status: true
        */status: true
        */*: true
        pods/log: false
    "#]]
    .assert_eq(&seen);
}

/// A namespace is of the cluster, although the request's namespace is its name.
#[tokio::test]
async fn namespaces_are_of_the_cluster() {
    let mut request = Request::of("", "v1", "Namespace", "namespaces", ResourceScope::Cluster);
    (request.namespace, request.name) = ("n", "n");
    let mut at = async |scope| taken(&mut request, &[rule("*", "*", "*", "*", scope)], true).await != "-";
    assert!(at("Cluster").await);
    assert!(!at("Namespaced").await);
}

#[tokio::test]
async fn matches_equivalent_resources() {
    let scope = ResourceScope::Namespaced;
    let mut request = Request::of("autoscaling", "v2", "HorizontalPodAutoscaler", "hpas", scope);
    request.def = request.def.also_version("v1", None);
    let old = rule("*", "autoscaling", "v1", "hpas", "*");
    let other = rule("*", "batch", "v1", "hpas", "*");
    assert_eq!(taken(&mut request, std::slice::from_ref(&old), false).await, "-");
    assert_eq!(
        taken(&mut request, &[other, old.clone()], true).await,
        "autoscaling/v1, Resource=hpas as autoscaling/v1, Kind=HorizontalPodAutoscaler"
    );
    // A rule for the resource itself counts before earlier ones that mean it, too.
    let own = rule("*", "autoscaling", "v2", "*", "*");
    assert_eq!(
        taken(&mut request, &[old.clone(), own], true).await,
        "autoscaling/v2, Resource=hpas as autoscaling/v2, Kind=HorizontalPodAutoscaler"
    );
    // A version without the subresource is no equivalent of it.
    request.subresource = "scale";
    let scale = rule("*", "autoscaling", "v1", "hpas/scale", "*");
    assert_eq!(taken(&mut request, std::slice::from_ref(&scale), true).await, "-");
    request.def = request.def.sub(&[kaji_resource::SubresourceDef::scale()]);
    assert_eq!(
        taken(&mut request, &[scale], true).await,
        "autoscaling/v1, Resource=hpas as autoscaling/v1, Kind=Scale"
    );
    request.subresource = "";
    request.def.versions[1].served = false;
    assert_eq!(taken(&mut request, &[old], true).await, "-");
}

/// Events are there in two groups.
#[tokio::test]
async fn resources_of_other_groups_that_share_storage() {
    let mut request = Request::of("", "v1", "Event", "events", ResourceScope::Namespaced);
    let def =
        |group| ResourceDef::builtin(group, "v1", "Event", "events", ResourceScope::Namespaced, &[], NoHooks);
    request.api.shared = vec![Arc::new(def("")), Arc::new(def("events.k8s.io"))];
    let new = rule("*", "events.k8s.io", "v1", "events", "*");
    assert_eq!(
        taken(&mut request, std::slice::from_ref(&new), true).await,
        "events.k8s.io/v1, Resource=events as events.k8s.io/v1, Kind=Event"
    );
    assert_eq!(taken(&mut request, &[new], false).await, "-");
}

async fn selected(request: &mut Request, owner: Value) -> String {
    let selectors = Selectors::parse(&owner);
    request
        .with(async |a| match selectors.select(a, a.new_object(), a.old).await {
            Ok(selected) => selected.to_string(),
            Err(status) => format!("{} {}", status.code, status.message),
        })
        .await
}

fn selectors(namespace: Value, object: Value) -> Value {
    json!({"namespaceSelector": namespace, "objectSelector": object})
}

#[tokio::test]
async fn matches_the_labels_of_namespaces() {
    let all = json!({});
    let team = |team: &str| selectors(json!({"matchLabels": {"team": team}}), json!({}));
    let mut request = Request::new();
    assert_eq!(selected(&mut request, selectors(all.clone(), all.clone())).await, "true");
    assert_eq!(selected(&mut request, team("a")).await, "true");
    assert_eq!(selected(&mut request, team("b")).await, "false");
    // An absent selector was never defaulted and selects nothing.
    assert_eq!(selected(&mut request, json!({})).await, "false");
    let wrong = selectors(json!({"matchExpressions": [{"key": "a", "operator": "Has"}]}), all);
    assert_eq!(
        selected(&mut request, wrong).await,
        "500 Internal error occurred: \"Has\" is not a valid label selector operator"
    );
    request.namespace = "gone";
    assert_eq!(selected(&mut request, team("a")).await, "404 namespaces \"gone\" not found");
    // What is in no namespace is never left out for it.
    request.namespace = "";
    assert_eq!(selected(&mut request, team("b")).await, "true");
}

/// A namespace is selected by the labels that it is going to have; its deletion, by those that it has.
#[tokio::test]
async fn matches_the_labels_of_a_namespace_itself() {
    let mut request = Request::of("", "v1", "Namespace", "namespaces", ResourceScope::Cluster);
    (request.namespace, request.name) = ("n", "n");
    request.object = Some(json!({"metadata": {"name": "n", "labels": {"team": "b"}}}));
    let team = |team: &str| selectors(json!({"matchLabels": {"team": team}}), json!({}));
    assert_eq!(selected(&mut request, team("b")).await, "true");
    assert_eq!(selected(&mut request, team("a")).await, "false");
    (request.operation, request.object) = (Operation::Delete, None);
    assert_eq!(selected(&mut request, team("a")).await, "true");
}

#[tokio::test]
async fn matches_the_labels_of_objects() {
    let app = |app: &str| selectors(json!({}), json!({"matchLabels": {"app": app}}));
    let mut request = Request::new();
    assert_eq!(selected(&mut request, app("x")).await, "true");
    assert_eq!(selected(&mut request, app("y")).await, "false");
    request.old = Some(json!({"metadata": {"labels": {"app": "y"}}}));
    assert_eq!(selected(&mut request, app("y")).await, "true");
    let none =
        selectors(json!({}), json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}));
    assert_eq!(selected(&mut request, none.clone()).await, "false");
    // What has no metadata (the options of a stream) has no labels either, not even none.
    (request.old, request.object) = (None, Some(json!({"kind": "PodExecOptions"})));
    assert_eq!(selected(&mut request, none.clone()).await, "false");
    // Not selected is not selected, whatever is wrong with the namespace.
    request.namespace = "gone";
    assert_eq!(selected(&mut request, none).await, "false");
}

#[tokio::test]
async fn policies_name_resources_and_leave_some_out() {
    let mut request = Request::new();
    let mut matched = async |constraints: Value| {
        let parsed = MatchResources::parse(&constraints);
        request
            .with(async |a| parsed.matches(a, a.new_object(), a.old).await.map(|m| m.is_some()))
            .await
            .unwrap()
    };
    let base = |rules: Value, exclude: Value| {
        json!({"namespaceSelector": {}, "objectSelector": {}, "matchPolicy": "Equivalent",
            "resourceRules": rules, "excludeResourceRules": exclude})
    };
    let all = rule("*", "*", "*", "*", "*");
    let named = |names: &[&str]| {
        let mut rule = rule("*", "*", "*", "*", "*");
        rule["resourceNames"] = json!(names);
        rule
    };
    assert!(matched(base(json!([]), json!([]))).await);
    assert!(matched(base(json!([all]), json!([]))).await);
    assert!(!matched(base(json!([all]), json!([all]))).await);
    assert!(!matched(base(json!([]), json!([named(&["c"])]))).await);
    assert!(matched(base(json!([named(&["a", "c"])]), json!([named(&["d"])]))).await);
    assert!(!matched(base(json!([named(&["a"])]), json!([]))).await);
}

#[tokio::test]
async fn does_not_match_its_own_configuration() {
    let scope = ResourceScope::Cluster;
    let group = "admissionregistration.k8s.io";
    for (kind, plural, is) in [
        ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", true),
        ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", true),
    ] {
        let mut request = Request::of(group, "v1", kind, plural, scope);
        assert_eq!(request.with(async |a| exempt(a)).await, is, "{kind}");
    }
    assert!(!Request::new().with(async |a| exempt(a)).await);
}
