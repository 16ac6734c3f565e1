//! Parameters: a user that writes policies and bindings refers to what it may read itself, whichever request it is.

use super::{REGISTRATION, start};
use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person},
    api::Api,
};
use expect_test::expect;
use kaji_resource::Verb;
use serde_json::{Value, json};
use std::fmt::Write as _;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";

/// Users that may write policies and bindings: `pia`, `sam` that may read all secrets, and `nat` those in the namespace `here`.
async fn users(test: &TestCluster) {
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
    let roles = [
        ("writers", rule("admissionregistration.k8s.io", "*", &["*"])),
        ("readers", rule("", "secrets", &["get", "list"])),
    ];
    for (name, rule) in roles {
        let role = json!({"metadata": {"name": name}, "rules": [rule]});
        ok(test, &admin(), &format!("POST {RBAC}/clusterroles"), role).await;
    }
    let bindings: [(&str, &str, &[&str]); 3] = [
        ("clusterrolebindings", "writers", &["pia", "sam", "nat"]),
        ("clusterrolebindings", "readers", &["sam"]),
        ("namespaces/here/rolebindings", "readers", &["nat"]),
    ];
    for (path, role, users) in bindings {
        let subject = |user: &&str| json!({"apiGroup": GROUP, "kind": "User", "name": user});
        let subjects: Vec<Value> = users.iter().map(subject).collect();
        let reference = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": role});
        let binding = json!({"metadata": {"name": role}, "subjects": subjects, "roleRef": reference});
        ok(test, &admin(), &format!("POST {RBAC}/{path}"), binding).await;
    }
}

/// A policy about requests that do not happen, with secrets as parameters or without any.
fn policy(kind: &str, name: &str, secrets: bool) -> Value {
    let mut spec = match kind {
        "Validating" => json!({"validations": [{"expression": "true"}]}),
        _ => json!({"reinvocationPolicy": "Never", "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{}"}}]}),
    };
    spec["matchConstraints"] = json!({"resourceRules": [
        {"operations": ["CREATE"], "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["things"]}]});
    if secrets {
        spec["paramKind"] = json!({"apiVersion": "v1", "kind": "Secret"});
    }
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}AdmissionPolicy"),
        "metadata": {"name": name}, "spec": spec})
}

fn binding(kind: &str, name: &str, policy: &str, reference: Option<Value>) -> Value {
    let mut spec = json!({"policyName": policy});
    if let Some(reference) = reference {
        spec["paramRef"] = reference;
        spec["paramRef"]["parameterNotFoundAction"] = "Deny".into();
    }
    if kind == "Validating" {
        spec["validationActions"] = json!(["Deny"]);
    }
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}AdmissionPolicyBinding"),
        "metadata": {"name": name}, "spec": spec})
}

/// What is tried, and what was answered.
struct Tries<'a> {
    test: &'a TestCluster,
    text: String,
}

impl Tries<'_> {
    /// A request; a merge patch if the method is PATCH.
    async fn of(&mut self, user: &str, request: &str, body: &Value) {
        let (method, path) = request.split_once(' ').unwrap();
        let full = format!("{method} {REGISTRATION}/{path}");
        let (code, answer) = ask(self.test, &person(user), &full, body).await;
        self.note(&format!("{user} {request}: {code}"), &answer);
    }

    async fn apply(&mut self, user: &str, path: &str, body: &Value) {
        let full = format!("admissionregistration.k8s.io/v1/{path}?fieldManager=m&force=true");
        let kind = "application/apply-patch+yaml";
        let response = Api(self.test).raw_as(person(user), Verb::Patch, &full, kind, body).await;
        let code = response.code;
        let answer = serde_json::from_slice(&response.body.into_bytes().unwrap()).unwrap();
        self.note(&format!("{user} APPLY {path}: {code}"), &answer);
    }

    fn note(&mut self, what: &str, answer: &Value) {
        let said = format!("{what} {}", answer["message"].as_str().unwrap_or_default());
        writeln!(self.text, "{}", said.trim_end()).unwrap();
    }

    async fn get(&self, path: &str) -> Value {
        ok(self.test, &admin(), &format!("GET {REGISTRATION}/{path}"), Value::Null).await
    }

    async fn policies(&mut self, kind: &str) {
        let all = format!("{}admissionpolicies", kind.to_lowercase());
        let (post, one) = (format!("POST {all}"), format!("{all}/mine"));
        let secrets = json!({"spec": {"paramKind": {"apiVersion": "v1", "kind": "Secret"}}});
        let mine = policy(kind, "mine", true);
        self.of("pia", &post, &mine).await;
        self.of("pia", &format!("{post}?dryRun=All"), &mine).await;
        // A PUT does not create.
        self.of("pia", &format!("PUT {one}"), &mine).await;
        self.apply("pia", &one, &mine).await;
        self.of("pia", &post, &policy(kind, "mine", false)).await;
        self.of("pia", &format!("PATCH {one}"), &secrets).await;
        self.of("pia", &format!("PATCH {one}?dryRun=All"), &secrets).await;
        let mut put = self.get(&one).await;
        put["spec"]["paramKind"] = secrets["spec"]["paramKind"].clone();
        self.of("pia", &format!("PUT {one}"), &put).await;
        self.apply("pia", &one, &mine).await;
        self.of("sam", &post, &policy(kind, "theirs", true)).await;
        let patch = format!("PATCH {all}/theirs");
        self.of("pia", &patch, &json!({"metadata": {"labels": {"a": "b"}}})).await;
        self.of("pia", &patch, &json!({"spec": {"paramKind": {"kind": "ConfigMap"}}})).await;
        self.of("nat", &post, &policy(kind, "nats", true)).await;
        assert_eq!(self.get(&one).await["spec"].get("paramKind"), None);
        assert_eq!(self.get(&format!("{all}/theirs")).await["spec"]["paramKind"]["kind"], "Secret");
    }

    async fn bindings(&mut self, kind: &str) {
        let all = format!("{}admissionpolicybindings", kind.to_lowercase());
        let (post, one) = (format!("POST {all}"), format!("{all}/b"));
        let here = || Some(json!({"name": "s", "namespace": "here"}));
        let refers = binding(kind, "b", "theirs", here());
        self.of("pia", &post, &refers).await;
        self.of("pia", &format!("{post}?dryRun=All"), &refers).await;
        self.of("pia", &format!("PUT {one}"), &refers).await;
        self.apply("pia", &one, &refers).await;
        self.of("pia", &post, &binding(kind, "b", "theirs", None)).await;
        let patch = format!("PATCH {one}");
        self.of("pia", &patch, &json!({"spec": {"paramRef": refers["spec"]["paramRef"]}})).await;
        self.of("nat", &patch, &json!({"spec": {"paramRef": refers["spec"]["paramRef"]}})).await;
        self.of("pia", &patch, &json!({"metadata": {"labels": {"a": "b"}}})).await;
        self.of("pia", &patch, &json!({"spec": {"policyName": "mine"}})).await;
        let there = json!({"name": "s", "namespace": "there"});
        self.of("nat", &post, &binding(kind, "c", "theirs", Some(there))).await;
        // Without a namespace, those of all namespaces are meant.
        self.of("nat", &post, &binding(kind, "c", "theirs", Some(json!({"name": "s"})))).await;
        self.of("sam", &post, &binding(kind, "c", "theirs", Some(json!({"selector": {}})))).await;
        let unknown = binding(kind, "d", "none", here());
        self.of("pia", &post, &unknown).await;
        ok(self.test, &admin(), &format!("POST {REGISTRATION}/{all}"), unknown).await;
        assert_eq!(self.get(&one).await["spec"]["policyName"], "theirs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_refer_to_what_they_may_read() {
    let test = start().await;
    users(&test).await;
    let mut tries = Tries { test: &test, text: String::new() };
    for kind in ["Validating", "Mutating"] {
        tries.policies(kind).await;
        tries.bindings(kind).await;
    }
    let text = tries.text;
    expect![[r#"
        pia POST validatingadmissionpolicies: 422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia POST validatingadmissionpolicies?dryRun=All: 422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia PUT validatingadmissionpolicies/mine: 404 validatingadmissionpolicies.admissionregistration.k8s.io "mine" not found
        pia APPLY validatingadmissionpolicies/mine: 422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia POST validatingadmissionpolicies: 201
        pia PATCH validatingadmissionpolicies/mine: 422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia PATCH validatingadmissionpolicies/mine?dryRun=All: 422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia PUT validatingadmissionpolicies/mine: 422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia APPLY validatingadmissionpolicies/mine: 422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        sam POST validatingadmissionpolicies: 201
        pia PATCH validatingadmissionpolicies/theirs: 200
        pia PATCH validatingadmissionpolicies/theirs: 422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "theirs" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=ConfigMap, apiVersion=v1)
        nat POST validatingadmissionpolicies: 422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "nats" is invalid: spec.paramKind: Forbidden: user &{nat  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia POST validatingadmissionpolicybindings: 422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user &{pia  [system:authenticated] map[]} does not have "get" permission on the object referenced by paramRef
        pia POST validatingadmissionpolicybindings?dryRun=All: 422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user &{pia  [system:authenticated] map[]} does not have "get" permission on the object referenced by paramRef
        pia PUT validatingadmissionpolicybindings/b: 404 validatingadmissionpolicybindings.admissionregistration.k8s.io "b" not found
        pia APPLY validatingadmissionpolicybindings/b: 422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user &{pia  [system:authenticated] map[]} does not have "get" permission on the object referenced by paramRef
        pia POST validatingadmissionpolicybindings: 201
        pia PATCH validatingadmissionpolicybindings/b: 422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user &{pia  [system:authenticated] map[]} does not have "get" permission on the object referenced by paramRef
        nat PATCH validatingadmissionpolicybindings/b: 200
        pia PATCH validatingadmissionpolicybindings/b: 200
        pia PATCH validatingadmissionpolicybindings/b: 422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user &{pia  [system:authenticated] map[]} does not have "get" permission on the object referenced by paramRef
        nat POST validatingadmissionpolicybindings: 422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "c" is invalid: spec.paramRef: Forbidden: user &{nat  [system:authenticated] map[]} does not have "get" permission on the object referenced by paramRef
        nat POST validatingadmissionpolicybindings: 422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "c" is invalid: spec.paramRef: Forbidden: user &{nat  [system:authenticated] map[]} does not have "get" permission on the object referenced by paramRef
        sam POST validatingadmissionpolicybindings: 201
        pia POST validatingadmissionpolicybindings: 422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "d" is invalid: spec.paramRef: Forbidden: unable to get policy none to determine minimum required permissions and user &{pia  [system:authenticated] map[]} does not have "get" permission for all groups, versions and resources
        pia POST mutatingadmissionpolicies: 422 MutatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia POST mutatingadmissionpolicies?dryRun=All: 422 MutatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia PUT mutatingadmissionpolicies/mine: 404 mutatingadmissionpolicies.admissionregistration.k8s.io "mine" not found
        pia APPLY mutatingadmissionpolicies/mine: 422 MutatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia POST mutatingadmissionpolicies: 201
        pia PATCH mutatingadmissionpolicies/mine: 422 MutatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia PATCH mutatingadmissionpolicies/mine?dryRun=All: 422 MutatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia PUT mutatingadmissionpolicies/mine: 422 MutatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia APPLY mutatingadmissionpolicies/mine: 422 MutatingAdmissionPolicy.admissionregistration.k8s.io "mine" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        sam POST mutatingadmissionpolicies: 201
        pia PATCH mutatingadmissionpolicies/theirs: 200
        pia PATCH mutatingadmissionpolicies/theirs: 422 MutatingAdmissionPolicy.admissionregistration.k8s.io "theirs" is invalid: spec.paramKind: Forbidden: user &{pia  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=ConfigMap, apiVersion=v1)
        nat POST mutatingadmissionpolicies: 422 MutatingAdmissionPolicy.admissionregistration.k8s.io "nats" is invalid: spec.paramKind: Forbidden: user &{nat  [system:authenticated] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        pia POST mutatingadmissionpolicybindings: 422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user get does not have "&{pia  [system:authenticated] map[]}" permission on the object referenced by paramRef
        pia POST mutatingadmissionpolicybindings?dryRun=All: 422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user get does not have "&{pia  [system:authenticated] map[]}" permission on the object referenced by paramRef
        pia PUT mutatingadmissionpolicybindings/b: 404 mutatingadmissionpolicybindings.admissionregistration.k8s.io "b" not found
        pia APPLY mutatingadmissionpolicybindings/b: 422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user get does not have "&{pia  [system:authenticated] map[]}" permission on the object referenced by paramRef
        pia POST mutatingadmissionpolicybindings: 201
        pia PATCH mutatingadmissionpolicybindings/b: 422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user get does not have "&{pia  [system:authenticated] map[]}" permission on the object referenced by paramRef
        nat PATCH mutatingadmissionpolicybindings/b: 200
        pia PATCH mutatingadmissionpolicybindings/b: 200
        pia PATCH mutatingadmissionpolicybindings/b: 422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user get does not have "&{pia  [system:authenticated] map[]}" permission on the object referenced by paramRef
        nat POST mutatingadmissionpolicybindings: 422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "c" is invalid: spec.paramRef: Forbidden: user get does not have "&{nat  [system:authenticated] map[]}" permission on the object referenced by paramRef
        nat POST mutatingadmissionpolicybindings: 422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "c" is invalid: spec.paramRef: Forbidden: user get does not have "&{nat  [system:authenticated] map[]}" permission on the object referenced by paramRef
        sam POST mutatingadmissionpolicybindings: 201
        pia POST mutatingadmissionpolicybindings: 422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "d" is invalid: spec.paramRef: Forbidden: unable to get policy none to determine minimum required permissions and user &{pia  [system:authenticated] map[]} does not have "get" permission for all groups, versions and resources
    "#]]
    .assert_eq(&text);
    test.stop().await;
}
