//! Access reviews (`kubectl auth can-i`) answered by the server's own authorizer.

use futures_util::FutureExt;
use kaji_auth::{
    Attributes, Authorizer, Decision, Outcome, PolicyRule, Rules,
    names::{AUTHENTICATED, MASTERS},
};
use kaji_builtins::{AccessDecision, AccessQuestion, AccessRules, Authorize};
use kaji_resource::{Api, BoxFuture, UserInfo};
use serde_json::json;
use std::sync::Arc;

/// Puts a review's question to the authorizer that decides about requests.
pub struct Reviews(pub Arc<dyn Authorizer>);

impl Authorize for Reviews {
    fn decide(&self, q: &AccessQuestion, _: &dyn Api) -> AccessDecision {
        let attributes = Attributes {
            namespace: &q.namespace,
            group: &q.group,
            version: &q.version,
            resource: &q.resource,
            subresource: &q.subresource,
            name: &q.name,
            ..Attributes::path(&q.user, &q.verb, q.path.as_deref().unwrap_or_default())
        };
        let outcome = self.0.authorize(&attributes).now_or_never().unwrap_or_default();
        AccessDecision {
            allowed: outcome.allowed(),
            denied: outcome.decision == Decision::Deny,
            reason: outcome.reason.into_owned(),
            error: outcome.error.unwrap_or_default(),
        }
    }

    fn rules(&self, user: &UserInfo, namespace: &str, _: &dyn Api) -> AccessRules {
        let found = self.0.rules(user, namespace).now_or_never().unwrap_or_default();
        let (paths, resources): (Vec<_>, Vec<_>) =
            found.rules.into_iter().partition(|r| !r.non_resource_urls.is_empty());
        let path = |r: PolicyRule| json!({"verbs": r.verbs, "nonResourceURLs": r.non_resource_urls});
        let resource = |r: PolicyRule| {
            let mut rule = json!({"verbs": r.verbs, "apiGroups": r.api_groups, "resources": r.resources});
            if !r.resource_names.is_empty() {
                rule["resourceNames"] = r.resource_names.into();
            }
            rule
        };
        AccessRules {
            resources: resources.into_iter().map(resource).collect(),
            paths: paths.into_iter().map(path).collect(),
            incomplete: found.incomplete,
            error: found.error.unwrap_or_default(),
        }
    }
}

/// Everybody may see health and version, everybody authenticated discovery: what upstream's default roles grant.
pub struct PublicInfo;

const PUBLIC: &[&str] = &["/healthz", "/livez", "/readyz", "/version"];
const DISCOVERY: &[&str] = &["/api", "/apis", "/openapi"];

impl PublicInfo {
    fn paths(user: &UserInfo) -> impl Iterator<Item = &'static str> {
        let known = user.groups.iter().any(|g| g == AUTHENTICATED || g == MASTERS);
        PUBLIC.iter().chain(DISCOVERY.iter().filter(move |_| known)).copied()
    }
}

impl Authorizer for PublicInfo {
    fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        let under =
            |p: &str| a.path.strip_prefix(p).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let reads = !a.is_resource() && matches!(a.verb, "get" | "head");
        let allowed = reads && Self::paths(a.user).any(under);
        Box::pin(std::future::ready(if allowed { Outcome::allow("") } else { Outcome::default() }))
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, _: &'a str) -> BoxFuture<'a, Rules> {
        let urls = Self::paths(user).flat_map(|p| [p.to_owned(), format!("{p}/*")]).collect();
        let rule = PolicyRule { verbs: vec!["get".into()], non_resource_urls: urls, ..PolicyRule::default() };
        Box::pin(std::future::ready(Rules { rules: vec![rule], ..Rules::default() }))
    }
}
