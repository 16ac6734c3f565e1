//! ServiceAccounts and their `token` subresource.

use crate::{
    Deps,
    shared::{
        metadata,
        table::{age, name},
        value::{Fields, ensure_object, list_mut, put},
    },
};
use kaji_auth::authn::{BoundTo, TokenOrder};
use kaji_meta::{
    GroupKind, GroupResource, GroupVersionKind, Status,
    field::{Error, ErrorList, Path},
    object,
};
use kaji_resource::{
    BoxFuture, CallHooks, CallRequest, Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, Verb,
    age_column, name_column,
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

/// What a token is bound to, and the node of the pod if it is one.
type Bound = (Option<BoundTo>, Option<(String, String)>);

/// The object that the token shall be bound to, found and compared by uid.
async fn bound(ctx: &Ctx<'_>, spec: &Value) -> Result<Bound, Status> {
    let reference = spec.at("boundObjectRef");
    if reference.is_null() {
        return Ok((None, None));
    }
    let (kind, wanted, uid) = (reference.text("kind"), reference.text("name"), reference.text("uid"));
    let api_version = reference.text("apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let (resource, namespace) = match (group, kind) {
        ("", "Pod") => ("pods", ctx.namespace),
        ("", "Secret") => ("secrets", ctx.namespace),
        ("", "Node") => ("nodes", ""),
        _ => {
            let webhooks = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
            let off = api_version == "admissionregistration.k8s.io/v1" && webhooks.contains(&kind);
            let why = match off {
                true => " (feature gate APIServerWebhookAuthenticationToken is disabled)",
                false => "",
            };
            let text = format!("cannot bind token to object of type {group}/{version}, Kind={kind}{why}");
            return Err(Status::bad_request(text));
        }
    };
    let resource = GroupResource::new("", resource);
    // Objects created just before count.
    ctx.api.sync().await?;
    let found = ctx.api.get_or_read(&resource, namespace, wanted).await?;
    let found = found.ok_or_else(|| Status::not_found(&resource, wanted))?;
    if kind == "Pod" && found.at("spec").text("serviceAccountName") != ctx.name {
        let text = format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
            ctx.name
        );
        return Err(Status::bad_request(text));
    }
    let actual = object::uid(&found);
    if !uid.is_empty() && uid != actual {
        let text = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(Status::conflict(&GroupResource::new("", kind), wanted, text));
    }
    let node = found.at("spec").text("nodeName");
    let node = (kind == "Pod" && !node.is_empty()).then(|| {
        let found = ctx.api.get(&GroupResource::new("", "nodes"), "", node);
        (node.to_owned(), found.map(|n| object::uid(&n).to_owned()).unwrap_or_default())
    });
    let bound = BoundTo { kind: kind.to_owned(), name: wanted.to_owned(), uid: actual.to_owned() };
    Ok((Some(bound), node))
}

fn token_request() -> GroupKind {
    GroupKind::new("authentication.k8s.io", "TokenRequest")
}

/// The request's metadata has to match its path.
fn check_metadata(ctx: &Ctx<'_>, account: &Value, body: &Value) -> Result<(), Status> {
    for (field, actual, title) in [("name", ctx.name, "name"), ("namespace", ctx.namespace, "namespace")] {
        let given = object::str_at(body, &["metadata", field]);
        if !given.is_empty() && given != actual {
            let path = Path::new("metadata").child(field);
            let text = format!("must match the service account {title} if specified");
            return Err(Status::invalid(&token_request(), ctx.name, &[Error::invalid(&path, given, text)]));
        }
    }
    let (given, actual) = (object::uid(body), object::uid(account));
    if !given.is_empty() && given != actual {
        let text = format!(
            "the UID in the token request ({given}) does not match the UID of the service account ({actual})"
        );
        let resource = GroupResource::new("authentication.k8s.io", "TokenRequest");
        return Err(Status::conflict(&resource, ctx.name, text));
    }
    Ok(())
}

fn found<'a>(ctx: &Ctx<'_>, account: Option<&'a Value>) -> Result<&'a Value, Status> {
    account.ok_or_else(|| Status::not_found(&GroupResource::new("", "serviceaccounts"), ctx.name))
}

impl ServiceAccounts {
    /// What upstream fills in before validating admission: metadata, the lifetime and the audiences.
    fn complete(&self, ctx: &Ctx<'_>, account: Option<&Value>, body: &mut Value) -> Result<(), Status> {
        let account = found(ctx, account)?;
        check_metadata(ctx, account, body)?;
        let spec = ensure_object(body, "spec");
        if !spec.has("expirationSeconds") {
            put(spec, "expirationSeconds", 3600);
        }
        if let (Some(tokens), true) = (&self.deps.tokens, spec.list("audiences").is_empty()) {
            put(spec, "audiences", tokens.audiences());
        }
        let now = kaji_meta::Time::new(ctx.now).to_string();
        for (field, value) in [
            ("name", ctx.name),
            ("namespace", ctx.namespace),
            ("uid", object::uid(account)),
            ("creationTimestamp", now.as_str()),
        ] {
            object::set_at(body, &["metadata", field], value);
        }
        put(body, "status", json!({"token": "", "expirationTimestamp": null}));
        let errors = validate_request(body.at("spec"));
        if errors.is_empty() { Ok(()) } else { Err(Status::invalid(&token_request(), "", &errors)) }
    }

    async fn issue(&self, ctx: &Ctx<'_>, request: CallRequest<'_>) -> Result<(u16, Value), Status> {
        let account = found(ctx, request.object)?;
        let mut body = request.body;
        let spec = ensure_object(&mut body, "spec");
        let (bound, node) = bound(ctx, spec).await?;
        let Some(tokens) = &self.deps.tokens else {
            return Err(Status::service_unavailable("this server has no signer for service account tokens"));
        };
        let wanted = spec.int("expirationSeconds");
        let order = TokenOrder {
            namespace: ctx.namespace.to_owned(),
            name: ctx.name.to_owned(),
            uid: object::uid(account).to_owned(),
            audiences: spec.strings("audiences").map(str::to_owned).collect(),
            expiration_seconds: wanted,
            bound,
            node,
        };
        let issued = tokens
            .issue(&order, ctx.now)
            .map_err(|e| Status::internal(format!("failed to generate token: {e}")))?;
        let granted = issued.expiration_seconds;
        if granted < wanted {
            ctx.warn(format!("requested expiration of {wanted} seconds shortened to {granted} seconds"));
            put(spec, "expirationSeconds", granted);
        }
        put(spec, "audiences", issued.audiences.clone());
        let expires = kaji_meta::Time::new(issued.expires).to_string();
        put(&mut body, "status", json!({"token": issued.token, "expirationTimestamp": expires}));
        Ok((201, body))
    }
}

/// Of references to secrets only the names count: the others' places are that of the account.
fn clean_secret_references(account: &mut Value) {
    for secret in list_mut(account, "secrets") {
        let name = secret.text("name").to_owned();
        *secret = if name.is_empty() { json!({}) } else { json!({"name": name}) };
    }
}

impl Hooks for ServiceAccounts {
    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        clean_secret_references(object);
    }

    fn prepare_update(&self, _ctx: &Ctx<'_>, new: &mut Value, _old: &Value) {
        clean_secret_references(new);
    }

    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        const KEY: &str = "kubernetes.io/enforce-mountable-secrets";
        let has = |v: &Value| object::annotation(v, KEY).is_some();
        if has(new) && !old.is_some_and(has) {
            return vec![format!(
                "metadata.annotations[{KEY}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
            )];
        }
        vec![]
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), age(object, now)]
    }
}

impl CallHooks for ServiceAccounts {
    fn prepare_call(&self, ctx: &Ctx<'_>, account: Option<&Value>, body: &mut Value) -> Result<(), Status> {
        self.complete(ctx, account, body)
    }

    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(self.issue(ctx, request))
    }
}

/// The definition of ServiceAccounts.
pub fn def(deps: &Deps) -> ResourceDef {
    let request = GroupVersionKind::new("authentication.k8s.io", "v1", "TokenRequest");
    let hooks = ServiceAccounts { deps: deps.clone() };
    ResourceDef::builtin("", "v1", "ServiceAccount", "serviceaccounts", Scope::Namespaced, COLUMNS, hooks)
        .metadata_checks(&[metadata::UPDATE, metadata::WHOLE], &[metadata::UPDATE])
        .return_deleted_object()
        .short(&["sa"])
        .sub(&[SubresourceDef::call("token", request, &[Verb::Create])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{TestContext, row, show};
    use expect_test::expect;

    #[test]
    fn references_to_secrets_are_names_alone() {
        let mut account =
            json!({"secrets": [{"name": "a", "namespace": "b", "kind": "Secret"}, {"kind": "x"}]});
        clean_secret_references(&mut account);
        assert_eq!(account["secrets"], json!([{"name": "a"}, {}]));
    }

    #[test]
    fn rejects_lifetimes_outside_of_the_limits() {
        expect!["spec.expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes"]
            .assert_eq(&show(&validate_request(&json!({"expirationSeconds": 1}))));
        assert!(validate_request(&json!({"expirationSeconds": 3600})).is_empty());
    }

    #[test]
    fn tokens_are_bound_to_few_kinds() {
        let (test, seen) = (TestContext::default(), json!({}));
        let ctx = test.ctx(&seen, "token", "v1");
        let refused = |api_version: &str, kind: &str| {
            let spec = json!({"boundObjectRef": {"apiVersion": api_version, "kind": kind, "name": "x"}});
            let found = futures_util::FutureExt::now_or_never(bound(&ctx, &spec));
            found.unwrap().err().unwrap().message
        };
        expect!["cannot bind token to object of type apps/v1, Kind=Deployment"]
            .assert_eq(&refused("apps/v1", "Deployment"));
        expect!["cannot bind token to object of type admissionregistration.k8s.io/v1, Kind=MutatingWebhookConfiguration (feature gate APIServerWebhookAuthenticationToken is disabled)"]
            .assert_eq(&refused("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"));
    }

    #[test]
    fn warns_of_an_annotation_that_is_new() {
        let of = |annotations: Value| json!({"metadata": {"name": "a", "annotations": annotations}});
        let (none, some) = (of(json!({})), of(json!({"kubernetes.io/enforce-mountable-secrets": "false"})));
        let test = TestContext::default();
        let hooks = def(&crate::shared::testing::deps()).hooks;
        let warned = |new: &Value, old: Option<&Value>| hooks.warnings(&test.ctx(new, "", "v1"), new, old);
        let text = "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
        assert_eq!(warned(&some, None), [text]);
        assert_eq!(warned(&some, Some(&none)), [text]);
        let on = of(json!({"kubernetes.io/enforce-mountable-secrets": "true"}));
        assert!(warned(&on, Some(&some)).is_empty() && warned(&none, Some(&some)).is_empty());
    }

    #[test]
    fn prints_a_row() {
        let deps = crate::shared::testing::deps();
        assert_eq!(row(&def(&deps), &json!({"metadata": {"name": "sa"}})), "sa | <unknown>");
    }
}
