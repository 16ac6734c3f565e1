//! Privilege escalation prevention: a user that writes a role or binding must have its permissions already, or the verbs
//! `escalate` on the role or `bind` on the role that is bound.
//!
//! Source: Kubernetes, "Using RBAC Authorization", privilege escalation prevention; upstream's `ConfirmNoEscalation`.

use super::rules::GROUP;
use crate::{
    Deps,
    shared::value::{Fields, drop_field},
};
use kaji_auth::{
    Attributes, Authorizer, Grants, PolicyRule,
    authz::{
        everything, is_master,
        rule::{missing_lines, quoted, uncovered},
    },
};
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::Ctx;
use serde_json::Value;
use std::sync::{Arc, LazyLock};

/// The check of writes to one of the four kinds.
pub struct Guard {
    authorizer: Arc<dyn Authorizer>,
    grants: Arc<dyn Grants>,
    /// `roles`, `clusterroles`, `rolebindings` or `clusterrolebindings`.
    resource: &'static str,
}

/// The rules that an aggregated role may get.
static EVERYTHING: LazyLock<Vec<PolicyRule>> = LazyLock::new(everything);

/// Whether nothing differs but what garbage collection needs to change.
fn unchanged(new: &Value, old: Option<&Value>) -> bool {
    let Some(old) = old else { return false };
    let bare = |v: &Value| {
        let mut v = v.clone();
        if let Some(meta) = v.get_mut("metadata") {
            ["ownerReferences", "finalizers", "managedFields", "resourceVersion"]
                .iter()
                .for_each(|f| drop_field(meta, f));
        }
        v
    };
    bare(new) == bare(old)
}

fn aggregates(role: &Value) -> bool {
    !role.at("aggregationRule").list("clusterRoleSelectors").is_empty()
}

impl Guard {
    /// The guard of a resource.
    pub fn new(deps: &Deps, resource: &'static str) -> Self {
        Guard { authorizer: deps.authorizer.clone(), grants: deps.grants.clone(), resource }
    }

    async fn may(&self, ctx: &Ctx<'_>, verb: &str, resource: &str, name: &str) -> bool {
        let attributes = Attributes {
            namespace: ctx.namespace,
            name,
            ..Attributes::resource(ctx.user, verb, GROUP, resource)
        };
        self.authorizer.authorize(&attributes).await.allowed()
    }

    fn forbidden(&self, object: &Value, text: impl Into<String>) -> Status {
        Status::forbidden(&GroupResource::new(GROUP, self.resource), object::name(object), text.into())
    }

    /// `Err`: what is missing, in words.
    async fn confirm(&self, ctx: &Ctx<'_>, rules: &[PolicyRule]) -> Result<(), String> {
        let look = || {
            let (held, error) = self.grants.held(ctx.user, ctx.namespace);
            (uncovered(held.iter().flat_map(|rules| rules.iter()), rules), error)
        };
        if look().0.is_empty() {
            return Ok(());
        }
        // It may have been granted just before. If the store does not answer, the cached roles decide.
        let _ = ctx.api.sync().await;
        let (missing, error) = look();
        if missing.is_empty() {
            return Ok(());
        }
        let mut text = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            ctx.user.name,
            quoted(&ctx.user.groups),
            missing_lines(&missing).join("\n")
        );
        if let Some(error) = error {
            text += &format!("; resolution errors: [{error}]");
        }
        Err(text)
    }

    /// Checks the write of a role.
    ///
    /// # Errors
    /// 403 with what is missing.
    pub async fn role(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Result<(), Status> {
        if is_master(ctx.user)
            || unchanged(new, old)
            // The name in the path: a create is about none.
            || self.may(ctx, "escalate", self.resource, if old.is_some() { ctx.name } else { "" }).await
        {
            return Ok(());
        }
        let rules = PolicyRule::of_role(new);
        self.confirm(ctx, &rules).await.map_err(|text| self.forbidden(new, text))?;
        if aggregates(new) || old.is_some_and(aggregates) {
            let text = "must have cluster-admin privileges to use the aggregationRule";
            self.confirm(ctx, &EVERYTHING).await.map_err(|_| self.forbidden(new, text))?;
        }
        Ok(())
    }

    /// Checks the write of a binding.
    ///
    /// # Errors
    /// 403 with what is missing; 404 if the role is not there to look at.
    pub async fn binding(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Result<(), Status> {
        if is_master(ctx.user) || unchanged(new, old) {
            return Ok(());
        }
        let reference = new.at("roleRef");
        let (resource, namespace) = match reference.text("kind") {
            "Role" => ("roles", ctx.namespace),
            _ => ("clusterroles", ""),
        };
        let name = reference.text("name");
        if self.may(ctx, "bind", resource, name).await {
            return Ok(());
        }
        let resource = GroupResource::new(GROUP, resource);
        ctx.api.sync().await?;
        let role =
            ctx.api.get(&resource, namespace, name).ok_or_else(|| Status::not_found(&resource, name))?;
        let rules = PolicyRule::of_role(&role);
        self.confirm(ctx, &rules).await.map_err(|text| self.forbidden(new, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, deps};
    use expect_test::expect;
    use futures_util::FutureExt;
    use kaji_auth::{Outcome, Rules};
    use kaji_resource::{BoxFuture, ResourceDef, UserInfo};
    use serde_json::json;

    /// Holds reading pods by a role, and may do what is listed.
    struct Holds(&'static [&'static str]);

    impl Authorizer for Holds {
        fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
            let allowed = self.0.contains(&format!("{} {} {}", a.verb, a.resource, a.name).as_str());
            Box::pin(std::future::ready(if allowed { Outcome::allow("") } else { Outcome::default() }))
        }
        fn rules<'a>(&'a self, _: &'a UserInfo, _: &'a str) -> BoxFuture<'a, Rules> {
            Box::pin(std::future::ready(Rules::default()))
        }
    }

    impl Grants for Holds {
        fn held(&self, _: &UserInfo, namespace: &str) -> (Vec<Arc<[PolicyRule]>>, Option<String>) {
            let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
            let error = (namespace == "broken").then(|| r#"roles.x "y" not found"#.to_owned());
            (vec![Arc::new([PolicyRule::from_value(&rule)])], error)
        }
    }

    fn write(
        fixture: &TestContext,
        def: fn(&Deps) -> ResourceDef,
        may: &'static [&'static str],
        new: Value,
        old: Option<&Value>,
    ) -> String {
        let deps = Deps { authorizer: Arc::new(Holds(may)), grants: Arc::new(Holds(may)), ..deps() };
        let ctx = fixture.ctx(&new, "", "v1");
        let permitted = def(&deps).hooks.permit(&ctx, &new, old).now_or_never().unwrap();
        permitted.map_or_else(|s| s.message, |()| "ok".into())
    }

    fn role(verbs: &[&str]) -> Value {
        json!({"metadata": {"name": "r", "namespace": "n"}, "rules": [{"verbs": verbs, "apiGroups": [""], "resources": ["pods"]}]})
    }

    #[test]
    fn grants_require_the_permissions() {
        let fixture = TestContext::default();
        fixture.api.put(&GroupResource::new(GROUP, "roles"), role(&["get", "delete"]));
        let binding = |role: &str| json!({"metadata": {"name": "b", "namespace": "n"}, "roleRef": {"kind": "Role", "name": role}});
        let (roles, bindings) = (crate::rbac::roles::def, crate::rbac::rolebindings::def);
        let old = role(&["delete"]);
        let mut collected = old.clone();
        collected["metadata"]["finalizers"] = json!(["x"]);
        let mut broken = role(&["put"]);
        broken["metadata"]["namespace"] = "broken".into();
        let all = [
            write(&fixture, roles, &[], role(&["get"]), None),
            write(&fixture, roles, &[], role(&["get", "delete", "*"]), None),
            write(&fixture, roles, &["escalate roles "], role(&["delete"]), None),
            write(&fixture, roles, &["escalate roles r"], role(&["delete"]), None),
            write(&fixture, roles, &["escalate roles r"], role(&["put"]), Some(&old)),
            write(&fixture, roles, &[], role(&["put"]), Some(&old)),
            write(&fixture, roles, &[], collected, Some(&old)),
            write(&fixture, roles, &[], broken, None),
            write(&fixture, bindings, &[], binding("r"), None),
            write(&fixture, bindings, &["bind roles r"], binding("r"), None),
            write(&fixture, bindings, &["bind roles r"], binding("gone"), None),
        ];
        expect![[r#"
            ok
            roles.rbac.authorization.k8s.io "r" is forbidden: user "alice" (groups=["devs"]) is attempting to grant RBAC permissions not currently held:
            {APIGroups:[""], Resources:["pods"], Verbs:["delete" "*"]}
            ok
            roles.rbac.authorization.k8s.io "r" is forbidden: user "alice" (groups=["devs"]) is attempting to grant RBAC permissions not currently held:
            {APIGroups:[""], Resources:["pods"], Verbs:["delete"]}
            ok
            roles.rbac.authorization.k8s.io "r" is forbidden: user "alice" (groups=["devs"]) is attempting to grant RBAC permissions not currently held:
            {APIGroups:[""], Resources:["pods"], Verbs:["put"]}
            ok
            roles.rbac.authorization.k8s.io "r" is forbidden: user "alice" (groups=["devs"]) is attempting to grant RBAC permissions not currently held:
            {APIGroups:[""], Resources:["pods"], Verbs:["put"]}; resolution errors: [roles.x "y" not found]
            rolebindings.rbac.authorization.k8s.io "b" is forbidden: user "alice" (groups=["devs"]) is attempting to grant RBAC permissions not currently held:
            {APIGroups:[""], Resources:["pods"], Verbs:["delete"]}
            ok
            roles.rbac.authorization.k8s.io "gone" not found"#]].assert_eq(&all.join("\n"));
    }

    #[test]
    fn aggregation_requires_all_permissions() {
        let fixture = TestContext::default();
        let roles = crate::rbac::clusterroles::def;
        let aggregated =
            json!({"metadata": {"name": "r"}, "aggregationRule": {"clusterRoleSelectors": [{}]}});
        let plain = json!({"metadata": {"name": "r"}});
        let all = [
            write(&fixture, roles, &[], aggregated.clone(), None),
            write(&fixture, roles, &[], plain.clone(), Some(&aggregated)),
            write(&fixture, roles, &[], plain, None),
        ];
        expect![[r#"
            clusterroles.rbac.authorization.k8s.io "r" is forbidden: must have cluster-admin privileges to use the aggregationRule
            clusterroles.rbac.authorization.k8s.io "r" is forbidden: must have cluster-admin privileges to use the aggregationRule
            ok"#]].assert_eq(&all.join("\n"));
    }
}
