//! Fixtures: claims, namespaces, and users with few permissions.

use super::*;
use crate::shared::testing::{TestContext, show};
use expect_test::expect;
use futures_util::FutureExt;
use kaji_auth::{Outcome, Rules};
use kaji_resource::BoxFuture;
use serde_json::json;

/// Allows questions of the form `verb subresource name`.
struct Only(&'static [&'static str]);

impl Authorizer for Only {
    fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        let asked = format!("{} {} {}", a.verb, a.subresource, a.name);
        let allowed = self.0.contains(&asked.trim_end());
        let outcome = if allowed { Outcome::allow("") } else { Outcome::default() };
        Box::pin(std::future::ready(outcome))
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Rules> {
        Box::pin(std::future::ready(Rules::default()))
    }
}

fn claim(status: Value) -> Value {
    json!({"metadata": {"name": "c", "namespace": "n"}, "status": status})
}

fn allocated(node: &str, devices: &[(&str, &str)]) -> Value {
    let devices: Vec<Value> = devices
        .iter()
        .map(|(driver, data)| json!({"driver": driver, "pool": "p", "device": "d", "data": data}))
        .collect();
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}, "devices": devices})
}

/// The answer to a change of the status.
fn changed(user: UserInfo, allowed: &'static [&'static str], new: Value, old: Value) -> String {
    let test = TestContext { user, ..TestContext::default() };
    let (new, old) = (claim(new), claim(old));
    let ctx = test.ctx(&new, "status", "v1");
    let permissions = Permissions(Arc::new(Only(allowed)));
    let result = permissions.status(&ctx, &new, &old).now_or_never().unwrap();
    result.map_or_else(|status| format!("{} {status}", status.code), |()| "allowed".to_owned())
}

#[test]
fn allocations_need_the_permission_to_bind() {
    let user = || TestContext::default().user;
    let seen = [
        changed(user(), &[], json!({}), json!({})),
        changed(user(), &["update binding"], allocated("m", &[]), json!({})),
        changed(user(), &["patch binding"], json!({"reservedFor": [{"uid": "u"}]}), json!({})),
        changed(user(), &["update status"], allocated("m", &[]), json!({})),
    ];
    expect![[r#"
        allowed
        allowed
        allowed
        422 ResourceClaim.resource.k8s.io "c" is invalid: status.allocation: Forbidden: changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="update" permission: resourceclaims.resource.k8s.io is forbidden: User "alice" cannot update resource "resourceclaims/binding" in API group "resource.k8s.io" at the cluster scope"#]].assert_eq(&seen.join("\n"));
}

#[test]
fn devices_need_the_permission_of_their_driver() {
    let account = |node: Option<&str>| UserInfo {
        name: "system:serviceaccount:kube-system:driver".into(),
        extra: node.map(|node| (NODE.to_owned(), vec![node.to_owned()])).into_iter().collect(),
        ..UserInfo::default()
    };
    let on = |node| account(Some(node));
    let before = || allocated("m", &[("a.io", "1"), ("b.io", "1")]);
    let after = || allocated("m", &[("a.io", "2"), ("b.io", "1")]);
    let seen = [
        changed(on("m"), &["associated-node:patch driver a.io"], after(), before()),
        changed(on("m"), &["arbitrary-node:update driver a.io"], after(), before()),
        changed(on("other"), &["associated-node:update driver a.io"], after(), before()),
        changed(account(None), &["associated-node:update driver a.io"], after(), before()),
        changed(on("m"), &["associated-node:update driver b.io"], after(), before()),
        // Devices that are gone count, too, as long as there is an allocation.
        changed(on("m"), &[], allocated("m", &[("a.io", "1")]), before()),
        changed(on("m"), &["update binding"], json!({}), before()),
    ];
    expect![[r#"
        allowed
        allowed
        422 ResourceClaim.resource.k8s.io "c" is invalid: status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", verb="[arbitrary-node:update]" permission: resourceclaims.resource.k8s.io "a.io" is forbidden: User "system:serviceaccount:kube-system:driver" cannot arbitrary-node:update resource "resourceclaims/driver" in API group "resource.k8s.io" in the namespace "n"
        422 ResourceClaim.resource.k8s.io "c" is invalid: status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", verb="[arbitrary-node:update]" permission: resourceclaims.resource.k8s.io "a.io" is forbidden: User "system:serviceaccount:kube-system:driver" cannot arbitrary-node:update resource "resourceclaims/driver" in API group "resource.k8s.io" in the namespace "n"
        422 ResourceClaim.resource.k8s.io "c" is invalid: status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", verb="[associated-node:update arbitrary-node:update]" permission: resourceclaims.resource.k8s.io "a.io" is forbidden: User "system:serviceaccount:kube-system:driver" cannot associated-node:update resource "resourceclaims/driver" in API group "resource.k8s.io" in the namespace "n"
        422 ResourceClaim.resource.k8s.io "c" is invalid: status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", verb="[associated-node:update arbitrary-node:update]" permission: resourceclaims.resource.k8s.io "b.io" is forbidden: User "system:serviceaccount:kube-system:driver" cannot associated-node:update resource "resourceclaims/driver" in API group "resource.k8s.io" in the namespace "n"
        allowed"#]].assert_eq(&seen.join("\n"));
}

#[test]
fn administrative_access_needs_a_label() {
    let namespaces = GroupResource::new("", "namespaces");
    let test = TestContext::default();
    let object = claim(json!({}));
    let ctx = test.ctx(&object, "", "v1");
    let asked = |admin: bool| {
        let mut errs = vec![];
        let requests = [json!({"name": "a"}), json!({"name": "b", "exactly": {"adminAccess": admin}})];
        admin_access(&mut errs, &ctx, &requests);
        show(&errs)
    };
    let granted = |new: bool, old: bool| {
        let mut errs = vec![];
        let of =
            |admin: bool| claim(json!({"allocation": {"devices": {"results": [{"adminAccess": admin}]}}}));
        admin_access_of_status(&mut errs, &ctx, &of(new), &of(old));
        show(&errs)
    };
    let missing = asked(true);
    test.api.put(&namespaces, json!({"metadata": {"name": "n"}}));
    expect![[r#"
        spec.devices.requests[1].adminAccess: Internal error: could not retrieve namespace to verify admin access: namespaces "n" not found
        spec.devices.requests[1].adminAccess: Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace
        status.allocation.devices.results[0].adminAccess: Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"#]].assert_eq(&[missing, asked(true), granted(true, false)].join("\n"));
    assert_eq!(
        (asked(false).as_str(), granted(true, true).as_str(), granted(false, true).as_str()),
        ("", "", "")
    );
    test.api.put(&namespaces, json!({"metadata": {"name": "n", "labels": {ADMIN: "true"}}}));
    assert_eq!((asked(true).as_str(), granted(true, false).as_str()), ("", ""));
}
