//! Fixtures: policies and bindings, and users with few permissions.

use super::*;
use crate::{
    admissionregistration::{
        mutatingadmissionpolicies, mutatingadmissionpolicybindings, validatingadmissionpolicies,
        validatingadmissionpolicybindings,
    },
    shared::testing::{TestContext, deps},
};
use expect_test::expect;
use futures_util::FutureExt;
use kaji_auth::{Outcome, Rules, names::MASTERS};
use kaji_resource::{BoxFuture, ResourceDef};

/// Allows questions of the form `verb group/version/resource namespace/name`. With `!` it cannot decide.
struct Allows(&'static [&'static str]);

impl Authorizer for Allows {
    fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        let asked = format!("{} {}/{}/{} {}/{}", a.verb, a.group, a.version, a.resource, a.namespace, a.name);
        let outcome = match self.0.contains(&asked.as_str()) {
            true => Outcome::allow(""),
            false => Outcome { error: (self.0 == ["!"]).then(|| "no answer".into()), ..Outcome::default() },
        };
        Box::pin(std::future::ready(outcome))
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Rules> {
        Box::pin(std::future::ready(Rules::default()))
    }
}

type Def = fn(&Deps) -> ResourceDef;

/// A server that has secrets, and limits of example.com/v2, in namespaces.
fn context() -> TestContext {
    let mut test = TestContext::default();
    let kinds = [("", "v1", "Secret", "secrets"), ("example.com", "v2", "Limit", "limits")];
    let served = kinds.map(|(group, version, kind, plural)| {
        (GroupVersionKind::new(group, version, kind), GroupResource::new(group, plural), true)
    });
    Arc::get_mut(&mut test.api).unwrap().kinds = served.into();
    test
}

fn write(
    test: &TestContext,
    def: Def,
    allowed: &'static [&'static str],
    new: Value,
    old: Option<&Value>,
) -> String {
    let deps = Deps { authorizer: Arc::new(Allows(allowed)), ..deps() };
    let ctx = test.ctx(&new, "", "v1");
    let permitted = def(&deps).hooks.permit(&ctx, &new, old).now_or_never().unwrap();
    permitted.map_or_else(|status| format!("{} {status}", status.code), |()| "ok".to_owned())
}

/// A policy with parameters of this version and kind; of none without a version.
fn policy(name: &str, version: &str, kind: &str) -> Value {
    let kind = if version.is_empty() { Value::Null } else { json!({"apiVersion": version, "kind": kind}) };
    json!({"metadata": {"name": name}, "spec": {"paramKind": kind}})
}

fn binding(policy: &str, reference: Value) -> Value {
    json!({"metadata": {"name": "b"}, "spec": {"policyName": policy, "paramRef": reference}})
}

fn root() -> UserInfo {
    UserInfo { groups: vec![MASTERS.into()], ..TestContext::default().user }
}

#[test]
fn writers_of_policies_may_read_the_kind_of_parameters() {
    let (test, masters) = (context(), TestContext { user: root(), ..context() });
    let secrets = || policy("p", "v1", "Secret");
    let of = |def: Def| {
        let mut labelled = secrets();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        [
            write(&test, def, &[], policy("p", "", ""), None),
            write(&test, def, &[], secrets(), None),
            write(&test, def, &["get /v1/secrets */*"], secrets(), None),
            write(&test, def, &["get /v1/secrets n/*", "list /v1/secrets */*"], secrets(), None),
            // The kind is not served: any resource of the version may be meant.
            write(
                &test,
                def,
                &["get example.com/v9/limits */*"],
                policy("p", "example.com/v9", "Limit"),
                None,
            ),
            write(&test, def, &["get example.com/v9/* */*"], policy("p", "example.com/v9", "Limit"), None),
            write(&test, def, &["get a/b/* */*"], policy("p", "a/b/c", "K"), None),
            write(&test, def, &["get */*/* */*"], policy("p", "a/b/c", "K"), None),
            write(&test, def, &["!"], secrets(), None),
            write(&masters, def, &[], secrets(), None),
            write(&test, def, &[], labelled, Some(&secrets())),
            write(&test, def, &[], secrets(), Some(&policy("p", "v2", "Secret"))),
            write(&test, def, &[], secrets(), Some(&policy("p", "", ""))),
            write(&test, def, &[], policy("p", "", ""), Some(&secrets())),
        ]
    };
    let seen = [of(validatingadmissionpolicies::def), of(mutatingadmissionpolicies::def)].concat();
    expect![[r#"
        ok
        422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        ok
        422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Limit, apiVersion=example.com/v9)
        ok
        422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=K, apiVersion=a/b/c)
        ok
        422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: no answer
        ok
        ok
        422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        422 ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        ok
        ok
        422 MutatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        ok
        422 MutatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        422 MutatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Limit, apiVersion=example.com/v9)
        ok
        422 MutatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=K, apiVersion=a/b/c)
        ok
        422 MutatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: no answer
        ok
        ok
        422 MutatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        422 MutatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: spec.paramKind: Forbidden: user &{alice  [devs] map[]} must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)
        ok"#]]
    .assert_eq(&seen.join("\n"));
}

/// What is answered about bindings to these policies.
fn answers(def: Def, policies: &str) -> Vec<String> {
    let (test, masters) = (context(), TestContext { user: root(), ..context() });
    let resource = GroupResource::new(GROUP, policies);
    test.api.put(&resource, policy("p", "v1", "Secret"));
    test.api.put(&resource, policy("free", "", ""));
    test.api.put(&resource, policy("odd", "a/b/c", "K"));
    test.api.put(&resource, policy("unserved", "example.com/v9", "Limit"));
    test.api.put_late(&resource, policy("late", "v1", "Secret"));
    let one = || json!({"name": "s", "namespace": "n", "parameterNotFoundAction": "Deny"});
    let anywhere = || json!({"name": "s"});
    let selected = || json!({"selector": {}, "namespace": "n"});
    let mut labelled = binding("p", one());
    labelled["metadata"]["labels"] = json!({"a": "b"});
    vec![
        write(&test, def, &[], binding("p", Value::Null), None),
        // What was acknowledged is not missed.
        write(&test, def, &["get /v1/secrets n/s"], binding("late", one()), None),
        write(&test, def, &["get /v1/secrets n/t"], binding("p", one()), None),
        write(&test, def, &["get /v1/secrets n/s"], binding("p", one()), None),
        // Without a namespace, those of all namespaces are meant.
        write(&test, def, &["get /v1/secrets n/s"], binding("p", anywhere()), None),
        write(&test, def, &["get /v1/secrets /s"], binding("p", anywhere()), None),
        write(&test, def, &["get /v1/secrets n/"], binding("p", selected()), None),
        write(&test, def, &["list /v1/secrets n/"], binding("p", selected()), None),
        write(&test, def, &["get /v1/secrets n/s"], binding("none", one()), None),
        write(&test, def, &["get */*/* n/s"], binding("none", one()), None),
        write(&test, def, &["get /v1/secrets n/s"], binding("free", one()), None),
        write(&test, def, &["get */*/* n/s"], binding("free", one()), None),
        write(&test, def, &[], binding("odd", one()), None),
        write(&test, def, &["get */*/* n/s"], binding("odd", one()), None),
        write(&test, def, &["get example.com/v9/limits n/s"], binding("unserved", one()), None),
        write(&test, def, &["get example.com/v9/* n/s"], binding("unserved", one()), None),
        write(&test, def, &["!"], binding("p", one()), None),
        write(&test, def, &[], labelled, Some(&binding("p", one()))),
        write(&test, def, &[], binding("p", one()), Some(&binding("free", one()))),
        write(&test, def, &[], binding("p", one()), Some(&binding("p", anywhere()))),
        write(&test, def, &[], binding("p", Value::Null), Some(&binding("p", one()))),
        write(&masters, def, &[], binding("none", one()), None),
    ]
}

#[test]
fn writers_of_bindings_may_read_the_parameters() {
    let seen = [
        answers(validatingadmissionpolicybindings::def, "validatingadmissionpolicies"),
        answers(mutatingadmissionpolicybindings::def, "mutatingadmissionpolicies"),
    ];
    expect![[r#"
        ok
        ok
        422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user &{alice  [devs] map[]} does not have "get" permission on the object referenced by paramRef
        ok
        422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user &{alice  [devs] map[]} does not have "get" permission on the object referenced by paramRef
        ok
        422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user &{alice  [devs] map[]} does not have "list" permission on the object referenced by paramRef
        ok
        422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: unable to get policy none to determine minimum required permissions and user &{alice  [devs] map[]} does not have "get" permission for all groups, versions and resources
        ok
        422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user &{alice  [devs] map[]} does not have "get" permission on the object referenced by paramRef
        ok
        422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: unable to parse paramKind &{a/b/c K} to determine minimum required permissions and user &{alice  [devs] map[]} does not have "get" permission for all groups, versions and resources
        ok
        422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: unable to resolve paramKind &{example.com/v9 Limit} to determine minimum required permissions and user &{alice  [devs] map[]} does not have "get" permission for all groups, versions and resources
        ok
        422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: failed to authorize request: no answer
        ok
        422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user &{alice  [devs] map[]} does not have "get" permission on the object referenced by paramRef
        422 ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user &{alice  [devs] map[]} does not have "get" permission on the object referenced by paramRef
        ok
        ok
        ok
        ok
        422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user get does not have "&{alice  [devs] map[]}" permission on the object referenced by paramRef
        ok
        422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user get does not have "&{alice  [devs] map[]}" permission on the object referenced by paramRef
        ok
        422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user list does not have "&{alice  [devs] map[]}" permission on the object referenced by paramRef
        ok
        422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: unable to get policy none to determine minimum required permissions and user &{alice  [devs] map[]} does not have "get" permission for all groups, versions and resources
        ok
        422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user get does not have "&{alice  [devs] map[]}" permission on the object referenced by paramRef
        ok
        422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: unable to parse paramKind &{a/b/c K} to determine minimum required permissions and user &{alice  [devs] map[]} does not have "get" permission for all groups, versions and resources
        ok
        422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: unable to resolve paramKind &{example.com/v9 Limit} to determine minimum required permissions and user &{alice  [devs] map[]} does not have "get" permission for all groups, versions and resources
        ok
        422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: no answer
        ok
        422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user get does not have "&{alice  [devs] map[]}" permission on the object referenced by paramRef
        422 MutatingAdmissionPolicyBinding.admissionregistration.k8s.io "b" is invalid: spec.paramRef: Forbidden: user get does not have "&{alice  [devs] map[]}" permission on the object referenced by paramRef
        ok
        ok"#]]
    .assert_eq(&seen.concat().join("\n"));
}

#[test]
fn users_are_shown_as_upstreams_struct() {
    let user = UserInfo {
        name: "a".into(),
        uid: "u".into(),
        groups: vec!["g".into(), "h".into()],
        extra: [("k".to_owned(), vec!["v".to_owned(), "w".to_owned()])].into(),
    };
    assert_eq!(shown(&user), "&{a u [g h] map[k:[v w]]}");
}
