//! Tests of `resource_claim`: fixtures in, expectations out.

use super::*;
use crate::testing::{observed, reconcile, sample, snapshot, text};
use expect_test::expect;

fn pod(statuses: Value, node: &str) -> Value {
    json!({"metadata": {"name": "p", "namespace": "ns", "uid": "p1"}, "spec": {"nodeName": node, "resourceClaims": [
            {"name": "gpu", "resourceClaimTemplateName": "t"}, {"name": "shared", "resourceClaimName": "s"}]},
        "status": {"phase": "Pending", "resourceClaimStatuses": statuses}})
}

fn template(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}},
        "spec": {"devices": {"requests": [{"name": "r"}]}}}})
}

fn claim(name: &str, owner: &str, of: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "7", "annotations": {POD_CLAIM: of},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]}})
}

fn plan(pod: Value, templates: &[&str], claims: Vec<Value>) -> String {
    let view = View::default()
        .with(snapshot::<Pod>([pod]))
        .with(snapshot::<ResourceClaim>(claims))
        .with(snapshot::<ResourceClaimTemplate>(templates.iter().map(|name| template(name))));
    text(&reconcile(&PodClaims, &view, "ns", "p", &[])).replace("/apis/resource.k8s.io/v1/namespaces/ns/", "")
}

#[test]
fn claims_are_counted() {
    let counted = |admin: bool| {
        let mut template = template("t");
        template["spec"]["spec"]["devices"]["requests"][0]["exactly"] = json!({"adminAccess": admin});
        let view = View::default()
            .with(snapshot::<Pod>([pod(json!([]), "")]))
            .with(snapshot::<ResourceClaim>([]))
            .with(snapshot::<ResourceClaimTemplate>([template]));
        let text = observed(&reconcile(&PodClaims, &view, "ns", "p", &[]));
        text.replace("/apis/resource.k8s.io/v1/namespaces/ns/", "")
    };
    expect![[r#"
        written resourceclaims: resourceclaim_controller_creates_total "success" "false" = 1
        not written resourceclaims: resourceclaim_controller_creates_total "failure" "false" = 1
    "#]]
    .assert_eq(&counted(false));
    assert!(counted(true).contains("\"success\" \"true\" = 1"), "{}", counted(true));
    let mut of_admin = claim("b", "p1", "");
    of_admin["status"] = json!({"allocation": {}});
    of_admin["spec"] = json!({"devices": {"requests": [{"name": "r", "exactly": {"adminAccess": true}}]}});
    let mut extended = claim("c", "p1", "");
    extended["metadata"]["annotations"] = json!({"resource.kubernetes.io/extended-resource-claim": "true"});
    let all = snapshot::<ResourceClaim>([claim("a", "p1", "gpu"), of_admin, extended]);
    let gauges: Vec<String> = metrics::gauges(&all).iter().map(sample).collect();
    expect![[r#"
        resourceclaim_controller_resource_claims "false" "false" "extended_resource" = 1
        resourceclaim_controller_resource_claims "false" "false" "resource_claim_template" = 1
        resourceclaim_controller_resource_claims "true" "true" "" = 1"#]]
    .assert_eq(&gauges.join("\n"));
}

#[test]
fn claims_are_made_from_templates_once() {
    expect![[r#"
        create resourceclaims {"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"annotations":{"resource.kubernetes.io/pod-claim-name":"gpu","x":"y"},"generateName":"p-gpu-","labels":{"a":"b"},"ownerReferences":[{"apiVersion":"v1","controller":true,"kind":"Pod","name":"p","uid":"p1"}]},"spec":{"devices":{"requests":[{"name":"r"}]}}}
            failed: Warning FailedResourceClaimCreation: PodResourceClaim gpu: create ResourceClaim : {error}
    "#]]
    .assert_eq(&plan(pod(json!([]), ""), &["t"], vec![claim("other", "p2", "gpu"), claim("p-x", "p1", "x")]));
    expect![[r#"
        strategic /api/v1/namespaces/ns/pods/p/status {"metadata":{"uid":"p1"},"status":{"resourceClaimStatuses":[{"name":"gpu","resourceClaimName":"p-gpu-1"}]}}
    "#]]
    .assert_eq(&plan(pod(json!([]), ""), &["t"], vec![claim("p-gpu-1", "p1", "gpu")]));
    let known = json!([{"name": "gpu", "resourceClaimName": "p-gpu-1"}]);
    assert_eq!(plan(pod(known.clone(), ""), &["t"], vec![claim("p-gpu-1", "p1", "gpu")]), "");
    // It was deleted, or is another pod's.
    assert!(plan(pod(known.clone(), ""), &["t"], vec![]).starts_with("create resourceclaims"));
    assert!(
        plan(pod(known, ""), &["t"], vec![claim("p-gpu-1", "p2", "gpu")])
            .starts_with("create resourceclaims")
    );
    assert_eq!(plan(pod(json!([{"name": "gpu"}]), ""), &["t"], vec![]), "");
}

#[test]
fn a_missing_template_is_reported() {
    expect![[r#"
        event: Warning FailedResourceClaimCreation: PodResourceClaim gpu: resource claim template "t": resourceclaimtemplate.resource.k8s.io "t" not found
    "#]]
    .assert_eq(&plan(pod(json!([]), ""), &[], vec![]));
}

#[test]
fn claims_of_bound_pods_are_reserved() {
    let mut made = claim("p-gpu-1", "p1", "gpu");
    made["status"] = json!({"allocation": {"devices": {}}});
    let mut shared = claim("s", "", "");
    shared["status"] = json!({"allocation": {"devices": {}}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "p1"}]});
    let known = json!([{"name": "gpu", "resourceClaimName": "p-gpu-1"}]);
    expect![[r#"
        merge resourceclaims/p-gpu-1/status {"metadata":{"resourceVersion":"7","uid":"p-gpu-1"},"status":{"reservedFor":[{"name":"p","resource":"pods","uid":"p1"}]}}
    "#]]
    .assert_eq(&plan(pod(known.clone(), "n"), &["t"], vec![made.clone(), shared.clone()]));
    assert_eq!(plan(pod(known, ""), &["t"], vec![made, shared]), "");
}

#[test]
fn prefixes_are_cut_in_proportion() {
    assert_eq!(prefix("pod", "gpu"), "pod-gpu-");
    let long = prefix(&"p".repeat(90), &"c".repeat(30));
    assert_eq!(long, format!("{}-{}", "p".repeat(42), "c".repeat(14)));
}
