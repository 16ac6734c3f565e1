//! Permissions beyond those of the request: administrative access to devices, by a label of the namespace, and the parts of a
//! claim's status, by synthetic subresources (`resourceclaims/binding`, `resourceclaims/driver`). Source: KEP-5018, KEP-4817;
//! kubernetes `pkg/registry/resource/utils.go`.
//!
//! Invariant: verbs of updates and patches count alike; which of the two a request is, hooks do not know.

use super::rules::GROUP;
use crate::shared::value::Fields;
use kaji_auth::{Attributes, Authorizer};
use kaji_meta::{
    GroupKind, GroupResource, Status,
    field::{Error, ErrorList, Path},
    object, semantic_equal,
    text::quote,
};
use kaji_resource::{Ctx, UserInfo};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The namespace's label.
const ADMIN: &str = "resource.kubernetes.io/admin-access";
/// Where a token of a service account that is bound to a node says so.
const NODE: &str = "authentication.kubernetes.io/node-name";

/// Whether requests for devices ask for administrative access without the namespace's label.
pub(super) fn admin_access(errs: &mut ErrorList, ctx: &Ctx<'_>, requests: &[Value]) {
    let asks = |request: &Value| request.at("exactly").at("adminAccess") == true;
    if let Some(i) = requests.iter().position(asks) {
        let path = Path::new("spec").child("devices").child("requests").index(i);
        labelled(errs, ctx, &path.child("adminAccess"));
    }
}

/// The same of devices that are allocated; what was granted stays.
pub(super) fn admin_access_of_status(errs: &mut ErrorList, ctx: &Ctx<'_>, new: &Value, old: &Value) {
    let granted = |claim: &Value| {
        let results = claim.at("status").at("allocation").at("devices").list("results");
        results.iter().position(|result| result.at("adminAccess") == true)
    };
    if let (Some(i), None) = (granted(new), granted(old)) {
        let path = Path::new("status").child("allocation").child("devices").child("results").index(i);
        labelled(errs, ctx, &path.child("adminAccess"));
    }
}

fn labelled(errs: &mut ErrorList, ctx: &Ctx<'_>, path: &Path) {
    let namespaces = GroupResource::new("", "namespaces");
    match ctx.api.get(&namespaces, "", ctx.namespace) {
        Some(namespace) if object::label(&namespace, ADMIN) == Some("true") => {}
        Some(_) => {
            let text = format!(
                "admin access to devices requires the `{ADMIN}: true` label on the containing namespace"
            );
            errs.push(Error::forbidden(path, text));
        }
        None => {
            let why = Status::not_found(&namespaces, ctx.namespace);
            let text = format!("could not retrieve namespace to verify admin access: {why}");
            errs.push(Error::internal(path, text));
        }
    }
}

/// A subresource that no request names.
#[derive(Clone, Copy)]
struct Synthetic<'a> {
    subresource: &'static str,
    namespace: &'a str,
    name: &'a str,
}

/// Asks about the parts of a claim's status.
pub(super) struct Permissions(pub Arc<dyn Authorizer>);

impl Permissions {
    /// Refuses a change of the status by a user that lacks a permission for a part of it.
    pub(super) async fn status(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> Result<(), Status> {
        let mut errs = vec![];
        self.binding(&mut errs, ctx, new.at("status"), old.at("status")).await;
        self.drivers(&mut errs, ctx, new.at("status"), old.at("status")).await;
        match errs.is_empty() {
            true => Ok(()),
            false => Err(Status::invalid(&GroupKind::new(GROUP, "ResourceClaim"), object::name(new), &errs)),
        }
    }

    async fn binding(&self, errs: &mut ErrorList, ctx: &Ctx<'_>, new: &Value, old: &Value) {
        let same = |field: &str| semantic_equal(new.at(field), old.at(field));
        if same("allocation") && same("reservedFor") {
            return;
        }
        let subresource = Synthetic { subresource: "binding", namespace: "", name: "" };
        if let Err(why) = self.ask(ctx.user, &[""], subresource).await {
            let text = "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\"";
            let path = Path::new("status").child("allocation");
            errs.push(Error::forbidden(&path, format!("{text}, verb=\"update\" permission: {why}")));
        }
    }

    /// Without its allocation, a claim has no devices that report.
    async fn drivers(&self, errs: &mut ErrorList, ctx: &Ctx<'_>, new: &Value, old: &Value) {
        if !new.has("allocation") {
            return;
        }
        let prefixes: &[&str] = match is_on(ctx.user, node_of(new.at("allocation"))) {
            true => &["associated-node:", "arbitrary-node:"],
            false => &["arbitrary-node:"],
        };
        for driver in changed_drivers(new, old) {
            let subresource = Synthetic { subresource: "driver", namespace: ctx.namespace, name: driver };
            if let Err(why) = self.ask(ctx.user, prefixes, subresource).await {
                let verbs: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}update")).collect();
                let text = format!(
                    "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {why}",
                    verbs.join(" ")
                );
                errs.push(Error::forbidden(&Path::new("status").child("devices"), text));
            }
        }
    }

    /// Whether a user may update or patch a subresource, the verb having one of these prefixes.
    ///
    /// # Errors
    /// Why not, about the first verb.
    async fn ask(&self, user: &UserInfo, prefixes: &[&str], about: Synthetic<'_>) -> Result<(), Status> {
        let mut refusal = None;
        for verb in
            prefixes.iter().flat_map(|prefix| ["update", "patch"].map(|verb| format!("{prefix}{verb}")))
        {
            let attributes = Attributes {
                subresource: about.subresource,
                namespace: about.namespace,
                name: about.name,
                version: "v1",
                ..Attributes::resource(user, &verb, GROUP, "resourceclaims")
            };
            let outcome = self.0.authorize(&attributes).await;
            if outcome.allowed() {
                return Ok(());
            }
            refusal.get_or_insert_with(|| {
                let why = match (&outcome.error, &*outcome.reason) {
                    (Some(error), "") => format!(": {error}"),
                    (Some(error), reason) => format!(": {error}: {reason}"),
                    (None, "") => String::new(),
                    (None, reason) => format!(": {reason}"),
                };
                refused(&attributes, &why)
            });
        }
        refusal.map_or(Ok(()), Err)
    }
}

/// The 403 of a request that these attributes would be of.
fn refused(a: &Attributes<'_>, why: &str) -> Status {
    let place = match a.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {}", quote(namespace)),
    };
    let what = quote(&format!("{}/{}", a.resource, a.subresource));
    let text = format!(
        "User {} cannot {} resource {what} in API group {} {place}{why}",
        quote(&a.user.name),
        a.verb,
        quote(a.group)
    );
    Status::forbidden(&GroupResource::new(a.group, a.resource), a.name, text)
}

/// The drivers that have devices in one status and not, or otherwise, in the other.
fn changed_drivers<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    fn by_key(status: &Value) -> BTreeMap<[&str; 4], &Value> {
        let devices = status.list("devices").iter();
        devices.map(|d| (["driver", "pool", "device", "shareID"].map(|f| d.text(f)), d)).collect()
    }
    let (new, old) = (by_key(new), by_key(old));
    let differ = |key: &[&'a str; 4]| match (new.get(key), old.get(key)) {
        (Some(new), Some(old)) => !semantic_equal(new, old),
        _ => true,
    };
    new.keys().chain(old.keys()).filter(|key| differ(key)).map(|key| key[0]).collect()
}

/// The one node that an allocation is for; `""` if there may be others.
fn node_of(allocation: &Value) -> &str {
    let [term] = allocation.at("nodeSelector").list("nodeSelectorTerms") else { return "" };
    let ([], [field]) = (term.list("matchExpressions"), term.list("matchFields")) else { return "" };
    let values = field.list("values");
    match (field.text("key"), field.text("operator"), values) {
        ("metadata.name", "In", [name]) => name.as_str().unwrap_or_default(),
        _ => "",
    }
}

/// Whether a user is a service account with a token that is bound to this node.
fn is_on(user: &UserInfo, node: &str) -> bool {
    let account = user.name.strip_prefix("system:serviceaccount:").is_some_and(|rest| rest.contains(':'));
    let nodes = user.extra.get(NODE).map_or(&[][..], Vec::as_slice);
    account && !node.is_empty() && matches!(nodes, [only] if only == node)
}

#[cfg(test)]
mod tests;
