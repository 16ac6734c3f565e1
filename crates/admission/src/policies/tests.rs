//! Policies and bindings in, refusals, warnings and annotations out.

use super::*;
use crate::test_support::Request;
use crate::validating_admission_policy::{ValidatingAdmissionPolicy, Validator};
use expect_test::expect;
use kaji_engine::Admission;
use serde_json::json;

fn rules() -> Value {
    json!({"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, "resourceRules": [{
        "operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "scope": "*"}]})
}

/// A request, with policies `p0`, `p1`, … each of which has the bindings given with it.
fn world(policies: &[(Value, &[Value])]) -> Request {
    let mut request = Request::new();
    request.api.kinds = vec![
        (GroupVersionKind::new("", "v1", "ConfigMap"), GroupResource::new("", "configmaps"), true),
        (GroupVersionKind::new("", "v1", "Node"), GroupResource::new("", "nodes"), false),
    ];
    for (i, (spec, bindings)) in policies.iter().enumerate() {
        let mut spec = spec.clone();
        spec["matchConstraints"] = rules();
        let policy = json!({"metadata": {"name": format!("p{i}"), "uid": format!("u{i}"), "generation": 1}, "spec": spec});
        request.api.put(&GroupResource::new(GROUP, "validatingadmissionpolicies"), policy);
        for (j, spec) in bindings.iter().enumerate() {
            let mut spec = spec.clone();
            spec["policyName"] = json!(format!("p{i}"));
            let binding = json!({"metadata": {"name": format!("p{i}b{j}")}, "spec": spec});
            request.api.put(&GroupResource::new(GROUP, "validatingadmissionpolicybindings"), binding);
        }
    }
    for (name, namespace, most) in [("one", "n", 1), ("two", "n", 2), ("three", "other", 3)] {
        let param = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"most": most.to_string()},
            "metadata": {"name": name, "namespace": namespace, "labels": {"for": "policies"}}});
        request.api.put(&GroupResource::new("", "configmaps"), param);
    }
    request
}

/// What comes of the request: the answer, warnings and annotations.
async fn admit(request: &mut Request) -> String {
    let deps = crate::test_support::deps();
    let plugin = ValidatingAdmissionPolicy::new(&deps);
    let result =
        request.with(async |a| if plugin.handles(a) { plugin.validate(a).await } else { Ok(()) }).await;
    let mut out = match result {
        Ok(()) => "allowed\n".to_owned(),
        Err(status) => {
            let causes = status.details.as_ref().map_or(0, |d| d.causes.len());
            format!("{} {:?} {} causes: {causes}\n", status.code, status.reason, status.message)
        }
    };
    for warning in request.warnings.lock().unwrap().drain(..) {
        out.push_str(&format!("warning: {warning}\n"));
    }
    for (key, value) in request.annotations.take() {
        out.push_str(&format!("{key} = {value}\n"));
    }
    out
}

async fn one(spec: Value, bindings: &[Value]) -> String {
    admit(&mut world(&[(spec, bindings)])).await
}

fn deny() -> Value {
    json!({"validationActions": ["Deny"]})
}

#[tokio::test]
async fn denial_has_message_and_reason() {
    let mut out = String::new();
    for validation in [
        json!({"expression": "object.data.k == 'v'"}),
        json!({"expression": " object.data.k == 'w' "}),
        json!({"expression": "object.data.k == 'w'", "message": " must be w ", "reason": "Forbidden"}),
        json!({"expression": "object.data.k == 'w'", "message": "must be w", "messageExpression": "'not ' + object.data.k"}),
        json!({"expression": "object.data.k == 'w'", "message": "must be w", "messageExpression": "'two\\nlines'"}),
        json!({"expression": "object.data.k == 'w'", "message": "must be w", "messageExpression": "object.data.x + ''"}),
        json!({"expression": "object.data.x == 'w'"}),
        json!({"expression": "object.data.k", "reason": "RequestEntityTooLarge"}),
        json!({"expression": "namespaceObject.metadata.labels.team == 'b' || request.name != 'c'"}),
        json!({"expression": "variables.big || variables.broken"}),
    ] {
        let spec = json!({"failurePolicy": "Fail", "validations": [validation], "variables": [
            {"name": "big", "expression": "size(object.data) > 1"}, {"name": "broken", "expression": "object.data.x"}]});
        out.push_str(&one(spec, &[deny()]).await);
    }
    expect![[r#"
        allowed
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: failed expression: object.data.k == 'w' causes: 1
        403 Forbidden configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: must be w causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: not v causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: must be w causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: must be w causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: expression 'object.data.x == 'w'' resulted in error: no such key: x causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: compilation error: must evaluate to bool but got dyn causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: failed expression: namespaceObject.metadata.labels.team == 'b' || request.name != 'c' causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: expression 'variables.big || variables.broken' resulted in error: composited variable "broken" fails to evaluate: no such key: x causes: 1
    "#]]
    .assert_eq(&out);
}

#[tokio::test]
async fn errors_follow_failure_policy() {
    let mut out = String::new();
    // Two questions are nearly all that one expression may cost, and fifteen such more than a request may.
    let asks =
        "!authorizer.path('/a').check('get').allowed() && !authorizer.path('/b').check('get').allowed()";
    let dear = vec![json!({"expression": asks}); 15];
    for policy in ["Fail", "Ignore"] {
        for spec in [
            json!({"validations": [{"expression": "object.nothing == 1"}, {"expression": "object.data.k == 'w'"}]}),
            json!({"validations": [{"expression": "false"}], "matchConditions": [{"name": "c", "expression": "object.x == 1"}]}),
            json!({"validations": [{"expression": "false"}], "matchConditions": [{"name": "c", "expression": "false"}]}),
            json!({"validations": [{"expression": "true"}], "auditAnnotations": [{"key": "a", "valueExpression": "object.x + ''"}]}),
            json!({"validations": [{"expression": "true"}], "paramKind": {"apiVersion": "example.com/v1", "kind": "Limit"}}),
            json!({"validations": dear}),
        ] {
            let mut spec = spec;
            spec["failurePolicy"] = json!(policy);
            out.push_str(&one(spec, &[deny()]).await);
        }
    }
    expect![[r#"
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: expression 'object.nothing == 1' resulted in error: no such key: nothing causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: expression 'object.x == 1' resulted in error: no such key: x causes: 1
        allowed
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: expression 'object.x + ''' resulted in error: no such key: x causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'example.com/v1, Kind=Limit' causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: validation failed due to running out of cost budget, no further validation rules will be run causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: failed expression: object.data.k == 'w' causes: 1
        allowed
        allowed
        allowed
        allowed
        allowed
    "#]]
    .assert_eq(&out);
}

#[tokio::test]
async fn bindings_select_validation_actions() {
    let spec = json!({"failurePolicy": "Fail", "validations": [{"expression": "true"}, {"expression": "false", "message": "no"}],
        "auditAnnotations": [{"key": "user", "valueExpression": "request.userInfo.username"}, {"key": "none", "valueExpression": "null"}]});
    let warn = json!({"validationActions": ["Warn", "Audit"]});
    let other = json!({"validationActions": ["Deny"], "matchResources": {"matchPolicy": "Exact",
        "namespaceSelector": {"matchLabels": {"team": "b"}}, "objectSelector": {}}});
    let mut out = one(spec.clone(), &[warn, other]).await;
    out.push_str(&admit(&mut world(&[(spec.clone(), &[]), (spec, &[deny(), deny()])])).await);
    expect![[r#"
        allowed
        warning: Validation failed for ValidatingAdmissionPolicy 'p0' with binding 'p0b0': no
        p0/user = alice
        validation.policy.admission.k8s.io/validation_failure = [{"message":"no","policy":"p0","binding":"p0b0","expressionIndex":1,"validationActions":["Warn","Audit"]}]
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p1' with binding 'p1b0' denied request: no causes: 1
        p1/user = alice
    "#]]
    .assert_eq(&out);
}

#[tokio::test]
async fn evaluates_with_each_parameter() {
    let spec = |kind: &str| {
        json!({"failurePolicy": "Fail", "paramKind": {"apiVersion": "v1", "kind": kind}, "validations": [
            {"expression": "params == null || size(object.data) > int(params.data.most)",
             "messageExpression": "'more than ' + params.data.most"}],
            "auditAnnotations": [{"key": "most", "valueExpression": "params == null ? 'none' : string(params.data.most)"}]})
    };
    let by = |reference: Value| json!({"validationActions": ["Deny"], "paramRef": reference});
    let mut out = String::new();
    for (kind, binding) in [
        ("ConfigMap", deny()),
        ("ConfigMap", by(json!({"name": "one", "parameterNotFoundAction": "Deny"}))),
        ("ConfigMap", by(json!({"name": "three", "namespace": "other", "parameterNotFoundAction": "Deny"}))),
        ("ConfigMap", by(json!({"name": "three", "parameterNotFoundAction": "Deny"}))),
        ("ConfigMap", by(json!({"name": "three", "parameterNotFoundAction": "Allow"}))),
        (
            "ConfigMap",
            by(json!({"selector": {"matchLabels": {"for": "policies"}}, "parameterNotFoundAction": "Deny"})),
        ),
        (
            "ConfigMap",
            by(json!({"selector": {"matchLabels": {"for": "none"}}, "parameterNotFoundAction": "Deny"})),
        ),
        ("Node", by(json!({"name": "n", "namespace": "x", "parameterNotFoundAction": "Deny"}))),
        ("Node", by(json!({"name": "n", "parameterNotFoundAction": "Deny"}))),
    ] {
        out.push_str(&one(spec(kind), &[binding]).await);
    }
    let mut cluster_scoped =
        world(&[(spec("ConfigMap"), &[by(json!({"name": "one", "parameterNotFoundAction": "Deny"}))])]);
    cluster_scoped.namespace = "";
    out.push_str(&admit(&mut cluster_scoped).await);
    expect![[r#"
        allowed
        p0/most = none
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: more than 1 causes: 1
        p0/most = 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: more than 3 causes: 1
        p0/most = 3
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction causes: 1
        allowed
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: more than 1 causes: 1
        p0/most = 1, 2
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: failed to configure binding: paramRef.namespace must not be provided for a cluster-scoped `paramKind` causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction causes: 1
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: failed to configure binding: cannot use namespaced paramRef in policy binding that matches cluster-scoped resources causes: 1
    "#]]
    .assert_eq(&out);
}

/// The caches may not have a write yet that has been acknowledged: a parameter's, or that of the namespace's labels.
#[tokio::test]
async fn reads_acknowledged_parameters_and_namespaces() {
    let spec = json!({"failurePolicy": "Fail", "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": [
        {"expression": "size(object.data) > int(params.data.most)", "messageExpression": "'more than ' + params.data.most"}]});
    let mut out = String::new();
    for reference in [json!({"name": "two"}), json!({"selector": {"matchLabels": {"late": "true"}}})] {
        let mut reference = reference;
        reference["parameterNotFoundAction"] = json!("Deny");
        let binding = json!({"validationActions": ["Deny"], "paramRef": reference,
            "matchResources": {"matchPolicy": "Exact", "objectSelector": {},
                "namespaceSelector": {"matchLabels": {"late": "true"}}}});
        let mut request = world(&[(spec.clone(), &[binding])]);
        let namespaces = GroupResource::new("", "namespaces");
        request.api.put(&namespaces, json!({"metadata": {"name": "n"}}));
        out.push_str(&admit(&mut request).await);
        let param = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"most": "7"},
            "metadata": {"name": "two", "namespace": "n", "labels": {"late": "true"}}});
        request.api.put(&namespaces, json!({"metadata": {"name": "n", "labels": {"late": "true"}}}));
        request.api.put_late(&GroupResource::new("", "configmaps"), param);
        out.push_str(&admit(&mut request).await);
        request.api.put_late(&namespaces, json!({"metadata": {"name": "n"}}));
        out.push_str(&admit(&mut request).await);
    }
    expect![[r#"
        allowed
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: more than 7 causes: 1
        allowed
        allowed
        422 Invalid configmaps "c" is forbidden: ValidatingAdmissionPolicy 'p0' with binding 'p0b0' denied request: more than 7 causes: 1
        allowed
    "#]]
    .assert_eq(&out);
}

/// Policies about policies or about access reviews could make a cluster unusable.
#[tokio::test]
async fn exempts_policies_and_access_reviews() {
    let spec = json!({"failurePolicy": "Fail", "validations": [{"expression": "false"}]});
    for (group, resource, refused) in [
        ("admissionregistration.k8s.io", "validatingadmissionpolicies", false),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", true),
        ("authorization.k8s.io", "subjectaccessreviews", false),
        ("", "subjectaccessreviews", true),
    ] {
        let mut request = world(&[(spec.clone(), &[deny()])]);
        request.resource = kaji_meta::GroupVersionResource::new(group, "v1", resource);
        assert_eq!(admit(&mut request).await.starts_with("422"), refused, "{group} {resource}");
    }
}

/// A policy is compiled again when its generation moves, and only then; it counts at once.
#[tokio::test]
async fn recompiles_changed_policies_only() {
    let spec = json!({"failurePolicy": "Fail", "validations": [{"expression": "false"}]});
    let request = world(&[(spec, &[deny()])]);
    let policies: Policies<Validator> = Policies::new();
    let first = policies.hooks(&request.api);
    assert!(Arc::ptr_eq(&first, &policies.hooks(&request.api)));
    request.api.put(
        &GroupResource::new(GROUP, "validatingadmissionpolicybindings"),
        json!({"metadata": {"name": "x"}, "spec": {"policyName": "p0"}}),
    );
    let second = policies.hooks(&request.api);
    assert_eq!(second[0].bindings.len(), 2);
    assert!(Arc::ptr_eq(&first[0].evaluator, &second[0].evaluator));
    let resource = GroupResource::new(GROUP, "validatingadmissionpolicies");
    assert!(request.api.change(&resource, "", "p0", |policy| policy["metadata"]["generation"] = json!(2)));
    assert!(!Arc::ptr_eq(&first[0].evaluator, &policies.hooks(&request.api)[0].evaluator));
}
