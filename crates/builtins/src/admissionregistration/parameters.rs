//! Permission to read parameters: for a policy that of all objects of its `paramKind`, for a binding that of its `paramRef`. Without it
//! the writer of a policy could read, by its messages and mutations, objects that only the server may.
//!
//! Invariants:
//! - What is not known (the policy of a binding, the kind, the store's answer) widens what has to be allowed.
//! - An update is asked about if it changes the reference; a binding refers by its policy, too.
//!
//! Source: upstream's `authz.go` of the four kinds in `pkg/registry/admissionregistration`.

use super::rules::GROUP;
use crate::{Deps, shared::value::Fields};
use kaji_auth::{Attributes, Authorizer, authz::is_master};
use kaji_meta::{
    GroupKind, GroupResource, GroupVersion, GroupVersionKind, Status,
    field::{Error, Path},
    object,
    text::plain,
};
use kaji_resource::{Ctx, UserInfo};
use serde_json::{Value, json};
use std::sync::Arc;

/// The check of writes to one of the four kinds.
pub struct Guard {
    authorizer: Arc<dyn Authorizer>,
    kind: &'static str,
    /// Of validating policies or their bindings.
    pub(super) validating: bool,
}

/// What is not known of parameters.
enum Unknown {
    Policy,
    Version,
    Resource,
}

/// Group, version and resource of parameters; `*` for what is not known.
struct Readable {
    group: String,
    version: String,
    resource: String,
    unknown: Option<Unknown>,
}

impl Readable {
    fn everything(unknown: Option<Unknown>) -> Readable {
        let all = || "*".to_owned();
        Readable { group: all(), version: all(), resource: all(), unknown }
    }

    fn of_kind(ctx: &Ctx<'_>, kind: &Value) -> Readable {
        let Ok(GroupVersion { group, version }) = GroupVersion::parse(kind.text("apiVersion")) else {
            return Readable::everything(Some(Unknown::Version));
        };
        let kind = GroupVersionKind::new(group.as_str(), version.as_str(), kind.text("kind"));
        let (resource, unknown) = match ctx.api.resource_of(&kind) {
            Some((resource, _)) => (resource.resource, None),
            None => ("*".to_owned(), Some(Unknown::Resource)),
        };
        Readable { group, version, resource, unknown }
    }
}

/// A user as Go prints the struct.
fn shown(user: &UserInfo) -> String {
    let (groups, extra) = (plain(&json!(user.groups)), plain(&json!(user.extra)));
    format!("&{{{} {} {groups} {extra}}}", user.name, user.uid)
}

impl Guard {
    /// The guard of a kind.
    pub fn new(deps: &Deps, kind: &'static str, validating: bool) -> Self {
        Guard { authorizer: deps.authorizer.clone(), kind, validating }
    }

    /// Checks the write of a policy.
    ///
    /// # Errors
    /// 422 if the user may not get all objects of its `paramKind`.
    pub async fn policy(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Result<(), Status> {
        let kind = new.at("spec").at("paramKind");
        let before = old.map(|old| old.at("spec").at("paramKind"));
        if kind.is_null() || before == Some(kind) || is_master(ctx.user) {
            return Ok(());
        }
        let readable = Readable::of_kind(ctx, kind);
        let why = match self.may(ctx.user, "get", &readable, ("*", "*")).await {
            Ok(true) => return Ok(()),
            Ok(false) => format!(
                r#"user {} must have "get" permission on all objects of the referenced paramKind (kind={}, apiVersion={})"#,
                shown(ctx.user),
                kind.text("kind"),
                kind.text("apiVersion")
            ),
            Err(error) => error,
        };
        Err(self.refusal(new, "paramKind", why))
    }

    /// Checks the write of a binding.
    ///
    /// # Errors
    /// 422 if the user may not read what its `paramRef` names, of all namespaces if it names none.
    pub async fn binding(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Result<(), Status> {
        let (spec, reference) = (new.at("spec"), new.at("spec").at("paramRef"));
        // Upstream compares pointers, too, and asks about most updates that change neither.
        let same =
            |old: &Value| ["paramRef", "policyName"].iter().all(|f| old.at("spec").at(f) == spec.at(f));
        if reference.is_null() || old.is_some_and(same) || is_master(ctx.user) {
            return Ok(());
        }
        let policy = self.policy_of(ctx, spec.text("policyName")).await;
        let kind = policy.as_deref().map(|policy| policy.at("spec").at("paramKind"));
        let readable = match kind {
            None => Readable::everything(Some(Unknown::Policy)),
            Some(Value::Null) => Readable::everything(None),
            Some(kind) => Readable::of_kind(ctx, kind),
        };
        let (name, namespace) = (reference.text("name"), reference.text("namespace"));
        let verb = if name.is_empty() { "list" } else { "get" };
        let why = match self.may(ctx.user, verb, &readable, (namespace, name)).await {
            Ok(true) => return Ok(()),
            Ok(false) => self.lack(ctx.user, verb, &readable, (spec, kind.unwrap_or(&Value::Null))),
            Err(error) if self.validating => format!("failed to authorize request: {error}"),
            Err(error) => error,
        };
        Err(self.refusal(new, "paramRef", why))
    }

    /// The policy of a binding, also one that was written just before. If the store does not answer, it is not known.
    async fn policy_of(&self, ctx: &Ctx<'_>, name: &str) -> Option<Arc<Value>> {
        let plural =
            if self.validating { "validatingadmissionpolicies" } else { "mutatingadmissionpolicies" };
        ctx.api.sync().await.ok()?;
        ctx.api.get(&GroupResource::new(GROUP, plural), "", name)
    }

    /// Whether the user may read these objects.
    ///
    /// # Errors
    /// Why the authorizer cannot decide.
    async fn may(
        &self,
        user: &UserInfo,
        verb: &str,
        of: &Readable,
        (namespace, name): (&str, &str),
    ) -> Result<bool, String> {
        let attributes = Attributes {
            namespace,
            name,
            version: &of.version,
            ..Attributes::resource(user, verb, &of.group, &of.resource)
        };
        let outcome = self.authorizer.authorize(&attributes).await;
        let allowed = outcome.allowed();
        outcome.error.map_or(Ok(allowed), Err)
    }

    /// What a user lacks that may not write a binding of this spec, to a policy with this kind of parameters.
    fn lack(&self, user: &UserInfo, verb: &str, of: &Readable, (spec, kind): (&Value, &Value)) -> String {
        let user = shown(user);
        let (version, kind) = (kind.text("apiVersion"), kind.text("kind"));
        let what = match of.unknown {
            Some(Unknown::Policy) => format!("get policy {}", spec.text("policyName")),
            Some(Unknown::Version) => format!("parse paramKind &{{{version} {kind}}}"),
            Some(Unknown::Resource) => format!("resolve paramKind &{{{version} {kind}}}"),
            None => {
                // Upstream mixes the two up where policies mutate.
                let (user, verb) = if self.validating { (&*user, verb) } else { (verb, &*user) };
                return format!(
                    r#"user {user} does not have "{verb}" permission on the object referenced by paramRef"#
                );
            }
        };
        format!(
            r#"unable to {what} to determine minimum required permissions and user {user} does not have "{verb}" permission for all groups, versions and resources"#
        )
    }

    fn refusal(&self, object: &Value, field: &str, why: String) -> Status {
        let error = Error::forbidden(&Path::new("spec").child(field), why);
        Status::invalid(&GroupKind::new(GROUP, self.kind), object::name(object), &[error])
    }
}

#[cfg(test)]
mod tests;
