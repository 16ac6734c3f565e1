//! Nobody may grant what they do not hold: who writes a role or binding must have its permissions already, or the
//! verbs `escalate` on the role or `bind` on the role that is bound.
//!
//! Each permission is put to the authorizer as a question; `*` in a rule asks for `*`, which only `*` grants.

use super::rules::GROUP;
use crate::{
    AccessQuestion, Authorize,
    shared::{
        rules::is_zero,
        value::{Fields, drop_field},
    },
};
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::Ctx;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const MASTERS: &str = "system:masters";

/// The check of writes to one of the four kinds.
pub struct Guard {
    /// Answers whether a permission is held.
    pub authorize: Arc<dyn Authorize>,
    /// `roles`, `clusterroles`, `rolebindings` or `clusterrolebindings`.
    pub resource: &'static str,
}

/// What is asked for but not held: verbs by group, resource and name, or by path.
type Missing = BTreeMap<(String, String, String, String), Vec<String>>;

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

/// `["a" "b"]`, as Go prints quoted strings.
fn quoted(list: &[&str]) -> String {
    let all: Vec<String> = list.iter().map(|s| format!("{s:?}")).collect();
    format!("[{}]", all.join(" "))
}

impl Guard {
    fn ask(&self, ctx: &Ctx<'_>, question: AccessQuestion) -> bool {
        let question = AccessQuestion { user: ctx.user.clone(), ..question };
        self.authorize.decide(&question, ctx.api).allowed
    }

    fn holds(&self, ctx: &Ctx<'_>, verb: &str, resource: &str, name: &str) -> bool {
        let question = AccessQuestion {
            verb: verb.to_owned(),
            namespace: ctx.namespace.to_owned(),
            group: GROUP.to_owned(),
            version: "*".to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            ..AccessQuestion::default()
        };
        self.ask(ctx, question)
    }

    fn missing(&self, ctx: &Ctx<'_>, rules: &[Value]) -> Missing {
        let mut missing = Missing::new();
        for rule in rules {
            for verb in rule.strings("verbs") {
                self.missing_paths(ctx, rule, verb, &mut missing);
                self.missing_resources(ctx, rule, verb, &mut missing);
            }
        }
        missing
    }

    fn missing_paths(&self, ctx: &Ctx<'_>, rule: &Value, verb: &str, missing: &mut Missing) {
        for path in rule.strings("nonResourceURLs") {
            let question = AccessQuestion {
                verb: verb.to_owned(),
                path: Some(path.to_owned()),
                ..AccessQuestion::default()
            };
            if !self.ask(ctx, question) {
                let key = (String::new(), String::new(), String::new(), path.to_owned());
                missing.entry(key).or_default().push(verb.to_owned());
            }
        }
    }

    fn missing_resources(&self, ctx: &Ctx<'_>, rule: &Value, verb: &str, missing: &mut Missing) {
        let mut names: Vec<&str> = rule.strings("resourceNames").collect();
        if names.is_empty() {
            names.push("");
        }
        for group in rule.strings("apiGroups") {
            for combined in rule.strings("resources") {
                let (resource, subresource) = combined.split_once('/').unwrap_or((combined, ""));
                for name in &names {
                    let question = AccessQuestion {
                        verb: verb.to_owned(),
                        namespace: ctx.namespace.to_owned(),
                        group: group.to_owned(),
                        version: "*".to_owned(),
                        resource: resource.to_owned(),
                        subresource: subresource.to_owned(),
                        name: (*name).to_owned(),
                        ..AccessQuestion::default()
                    };
                    if !self.ask(ctx, question) {
                        let key = (group.to_owned(), combined.to_owned(), (*name).to_owned(), String::new());
                        missing.entry(key).or_default().push(verb.to_owned());
                    }
                }
            }
        }
    }

    fn confirm(&self, ctx: &Ctx<'_>, object: &Value, rules: &[Value]) -> Result<(), Status> {
        let missing = self.missing(ctx, rules);
        if missing.is_empty() {
            return Ok(());
        }
        let line =
            |((group, resource, name, path), verbs): (&(String, String, String, String), &Vec<String>)| {
                let verbs: Vec<&str> = verbs.iter().map(String::as_str).collect();
                if !path.is_empty() {
                    return format!("{{NonResourceURLs:{}, Verbs:{}}}", quoted(&[path]), quoted(&verbs));
                }
                let names = if name.is_empty() {
                    String::new()
                } else {
                    format!(", ResourceNames:{}", quoted(&[name]))
                };
                let (group, resource) = (quoted(&[group]), quoted(&[resource]));
                format!("{{APIGroups:{group}, Resources:{resource}{names}, Verbs:{}}}", quoted(&verbs))
            };
        let lines: Vec<String> = missing.iter().map(line).collect();
        let groups: Vec<&str> = ctx.user.groups.iter().map(String::as_str).collect();
        let text = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            ctx.user.name,
            quoted(&groups),
            lines.join("\n")
        );
        Err(Status::forbidden(&GroupResource::new(GROUP, self.resource), object::name(object), text))
    }

    /// Checks the write of a role.
    ///
    /// # Errors
    /// 403 with what is missing.
    pub fn role(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Result<(), Status> {
        if ctx.user.groups.iter().any(|g| g == MASTERS)
            || unchanged(new, old)
            || self.holds(ctx, "escalate", self.resource, object::name(new))
        {
            return Ok(());
        }
        let aggregates = !is_zero(new.at("aggregationRule"));
        if aggregates && old.is_none_or(|o| o.at("aggregationRule") != new.at("aggregationRule")) {
            // It may come to hold any rule.
            let everything = [
                json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
                json!({"verbs": ["*"], "nonResourceURLs": ["*"]}),
            ];
            self.confirm(ctx, new, &everything)?;
        }
        self.confirm(ctx, new, new.list("rules"))
    }

    /// Checks the write of a binding.
    ///
    /// # Errors
    /// 403 with what is missing; 404 if the role is not there to look at.
    pub fn binding(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Result<(), Status> {
        if ctx.user.groups.iter().any(|g| g == MASTERS) || unchanged(new, old) {
            return Ok(());
        }
        let reference = new.at("roleRef");
        let (resource, namespace) = match reference.text("kind") {
            "Role" => ("roles", ctx.namespace),
            _ => ("clusterroles", ""),
        };
        let name = reference.text("name");
        if self.holds(ctx, "bind", resource, name) {
            return Ok(());
        }
        let resource = GroupResource::new(GROUP, resource);
        let role =
            ctx.api.get(&resource, namespace, name).ok_or_else(|| Status::not_found(&resource, name))?;
        self.confirm(ctx, new, role.list("rules"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AccessDecision, AccessRules, Deps,
        shared::testing::{World, deps},
    };
    use expect_test::expect;
    use kaji_resource::{Api, ResourceDef, UserInfo};

    /// Allows reading pods, and whatever is listed.
    struct Holds(&'static [&'static str]);

    impl Authorize for Holds {
        fn decide(&self, q: &AccessQuestion, _api: &dyn Api) -> AccessDecision {
            let asked = format!("{} {}", q.verb, q.resource);
            AccessDecision {
                allowed: asked == "get pods" || self.0.contains(&asked.as_str()),
                ..AccessDecision::default()
            }
        }
        fn rules(&self, _user: &UserInfo, _namespace: &str, _api: &dyn Api) -> AccessRules {
            AccessRules::default()
        }
    }

    fn write(
        world: &World,
        def: impl Fn(&Deps) -> ResourceDef,
        holds: &'static [&'static str],
        mut new: Value,
    ) -> String {
        let deps = Deps { authorize: Arc::new(Holds(holds)), ..deps() };
        let seen = new.clone();
        let ctx = world.ctx(&seen, "", "v1");
        let taken =
            futures_util::FutureExt::now_or_never(def(&deps).hooks.reserve(&ctx, &mut new, None)).unwrap();
        taken.map_or_else(|s| s.message, |_| "ok".into())
    }

    #[test]
    fn grants_need_to_be_held() {
        let world = World::default();
        let role = |verbs: &[&str]| json!({"metadata": {"name": "r", "namespace": "n"}, "rules": [{"verbs": verbs, "apiGroups": [""], "resources": ["pods"]}]});
        world.api.put(&GroupResource::new(GROUP, "roles"), role(&["get", "delete"]));
        let binding =
            || json!({"metadata": {"name": "b", "namespace": "n"}, "roleRef": {"kind": "Role", "name": "r"}});
        let roles = crate::rbac::roles::def;
        let bindings = crate::rbac::rolebindings::def;
        let all = [
            write(&world, roles, &[], role(&["get"])),
            write(&world, roles, &[], role(&["get", "delete", "*"])),
            write(&world, roles, &["escalate roles"], role(&["delete"])),
            write(&world, bindings, &[], binding()),
            write(&world, bindings, &["bind roles"], binding()),
        ];
        expect![[r#"
            ok
            roles.rbac.authorization.k8s.io "r" is forbidden: user "alice" (groups=["devs"]) is attempting to grant RBAC permissions not currently held:
            {APIGroups:[""], Resources:["pods"], Verbs:["delete" "*"]}
            ok
            rolebindings.rbac.authorization.k8s.io "b" is forbidden: user "alice" (groups=["devs"]) is attempting to grant RBAC permissions not currently held:
            {APIGroups:[""], Resources:["pods"], Verbs:["delete"]}
            ok"#]].assert_eq(&all.join("\n"));
    }
}
