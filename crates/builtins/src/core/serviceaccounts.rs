//! ServiceAccounts and their `token` subresource.

use crate::{
    Deps, TokenOrder,
    shared::{
        table::{age, name},
        value::{Fields, ensure_object, put},
    },
};
use kaji_meta::{
    GroupKind, GroupResource, GroupVersionKind, Status,
    field::{Error, ErrorList, Path},
    object,
};
use kaji_resource::{
    BoxFuture, CallRequest, Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, Verb, age_column,
    name_column,
};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[name_column(), age_column()];

/// The shortest lifetime of a token, in seconds.
const MIN_EXPIRATION: i64 = 10 * 60;
/// The longest lifetime of a token, in seconds.
const MAX_EXPIRATION: i64 = 1 << 32;

struct ServiceAccounts {
    deps: Deps,
}

fn validate_request(spec: &Value) -> ErrorList {
    let mut errs = vec![];
    let path = Path::new("spec").child("expirationSeconds");
    let seconds = spec.int("expirationSeconds");
    if seconds < MIN_EXPIRATION {
        errs.push(Error::invalid(&path, seconds, "may not specify a duration less than 10 minutes"));
    }
    if seconds > MAX_EXPIRATION {
        errs.push(Error::invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds"));
    }
    errs
}

/// The object that the token shall be bound to, found and compared by uid.
#[allow(clippy::type_complexity)]
fn bound(
    ctx: &Ctx<'_>,
    spec: &Value,
) -> Result<(Option<(String, String, String)>, Option<(String, String)>), Status> {
    let reference = spec.at("boundObjectRef");
    if reference.is_null() {
        return Ok((None, None));
    }
    let (kind, wanted, uid) = (reference.text("kind"), reference.text("name"), reference.text("uid"));
    let (resource, namespace) = match (reference.text("apiVersion"), kind) {
        ("v1", "Pod") => (GroupResource::new("", "pods"), ctx.namespace),
        ("v1", "Secret") => (GroupResource::new("", "secrets"), ctx.namespace),
        ("v1", "Node") => (GroupResource::new("", "nodes"), ""),
        (api_version, _) => {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to object type {group}/{version}, Kind={kind}",
                ctx.name
            )));
        }
    };
    let found =
        ctx.api.get(&resource, namespace, wanted).ok_or_else(|| Status::not_found(&resource, wanted))?;
    let actual = object::uid(&found);
    if !uid.is_empty() && uid != actual {
        let text = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(Status::conflict(&resource, wanted, text));
    }
    if kind == "Pod" && found.at("spec").text("serviceAccountName") != ctx.name {
        let text = format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
            ctx.name
        );
        return Err(Status::bad_request(text));
    }
    let node = found.at("spec").text("nodeName");
    let node = (kind == "Pod" && !node.is_empty()).then(|| {
        let node_uid = ctx
            .api
            .get(&GroupResource::new("", "nodes"), "", node)
            .map_or_else(String::new, |n| object::uid(&n).to_owned());
        (node.to_owned(), node_uid)
    });
    Ok((Some((kind.to_owned(), wanted.to_owned(), actual.to_owned())), node))
}

impl ServiceAccounts {
    fn issue(&self, ctx: &Ctx<'_>, request: CallRequest<'_>) -> Result<(u16, Value), Status> {
        let account = request.object.ok_or_else(Status::generic_not_found)?;
        let mut body = request.body;
        let named = object::name(&body).to_owned();
        if !named.is_empty() && named != ctx.name {
            let text = format!(
                "must match the service account name: {named:?} does not match the name in the URL ({:?})",
                ctx.name
            );
            return Err(Status::bad_request(text));
        }
        let spec = ensure_object(&mut body, "spec");
        if !spec.has("expirationSeconds") {
            put(spec, "expirationSeconds", 3600);
        }
        let errors = validate_request(spec);
        if !errors.is_empty() {
            let kind = GroupKind::new("authentication.k8s.io", "TokenRequest");
            return Err(Status::invalid(&kind, ctx.name, &errors));
        }
        let (bound, node) = bound(ctx, spec)?;
        let Some(tokens) = &self.deps.tokens else {
            return Err(Status::service_unavailable("this server has no signer for service account tokens"));
        };
        let order = TokenOrder {
            namespace: ctx.namespace.to_owned(),
            name: ctx.name.to_owned(),
            uid: object::uid(account).to_owned(),
            audiences: spec.strings("audiences").map(str::to_owned).collect(),
            expiration_seconds: spec.int("expirationSeconds"),
            bound,
            node,
        };
        let issued = tokens.issue(order, ctx.now)?;
        put(spec, "audiences", issued.audiences.clone());
        let now = kaji_meta::Time::new(ctx.now).to_string();
        object::set_at(&mut body, &["metadata", "name"], ctx.name);
        object::set_at(&mut body, &["metadata", "namespace"], ctx.namespace);
        object::set_at(&mut body, &["metadata", "creationTimestamp"], now);
        let expires = kaji_meta::Time::new(issued.expires).to_string();
        put(&mut body, "status", json!({"token": issued.token, "expirationTimestamp": expires}));
        Ok((201, body))
    }
}

impl Hooks for ServiceAccounts {
    fn returns_deleted_object(&self) -> bool {
        true
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        const KEY: &str = "kubernetes.io/enforce-mountable-secrets";
        let enforced = |v: &Value| object::annotation(v, KEY) == Some("true");
        if enforced(new) && !old.is_some_and(enforced) {
            return vec![format!(
                "metadata.annotations[{KEY}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
            )];
        }
        vec![]
    }

    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async move { self.issue(ctx, request) })
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), age(object, now)]
    }
}

/// The definition of ServiceAccounts.
pub fn def(deps: &Deps) -> ResourceDef {
    let request = GroupVersionKind::new("authentication.k8s.io", "v1", "TokenRequest");
    let hooks = ServiceAccounts { deps: deps.clone() };
    ResourceDef::builtin("", "v1", "ServiceAccount", "serviceaccounts", Scope::Namespaced, COLUMNS, hooks)
        .short(&["sa"])
        .sub(&[SubresourceDef::call("token", request, &[Verb::Create])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{row, show};
    use expect_test::expect;

    #[test]
    fn lifetimes() {
        expect!["spec.expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes"]
            .assert_eq(&show(&validate_request(&json!({"expirationSeconds": 1}))));
        assert!(validate_request(&json!({"expirationSeconds": 3600})).is_empty());
    }

    #[test]
    fn table() {
        let deps = crate::shared::testing::deps();
        assert_eq!(row(&def(&deps), &json!({"metadata": {"name": "sa"}})), "sa | <unknown>");
    }
}
