//! Access reviews (`kubectl auth can-i`) answered by the server's own authorizer.

use kaji_builtins::{AccessDecision, AccessQuestion, AccessRules, Authorize};
use kaji_resource::{Api, UserInfo};
use kaji_server::{Authorizer, MASTERS, RequestInfo, Target};
use serde_json::json;
use std::sync::Arc;

/// Puts a review's question to the authorizer that decides about requests.
pub struct Reviews(pub Arc<dyn Authorizer>);

impl Authorize for Reviews {
    fn decide(&self, question: &AccessQuestion, _: &dyn Api) -> AccessDecision {
        let q = question.clone();
        let info = match q.path {
            Some(path) if q.resource.is_empty() => RequestInfo { verb: q.verb, path, resource: None },
            _ => RequestInfo {
                verb: q.verb,
                path: String::new(),
                resource: Some(Target {
                    group: q.group,
                    version: q.version,
                    namespace: q.namespace,
                    resource: q.resource,
                    name: q.name,
                    subresource: q.subresource,
                    subpath: String::new(),
                }),
            },
        };
        match self.0.authorize(&q.user, &info) {
            Ok(()) => AccessDecision { allowed: true, ..AccessDecision::default() },
            Err(reason) => AccessDecision { reason, ..AccessDecision::default() },
        }
    }

    fn rules(&self, user: &UserInfo, _: &str, _: &dyn Api) -> AccessRules {
        if user.groups.iter().any(|g| g == MASTERS) {
            return AccessRules {
                resources: vec![json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})],
                paths: vec![json!({"verbs": ["*"], "nonResourceURLs": ["*"]})],
                ..AccessRules::default()
            };
        }
        AccessRules {
            paths: vec![json!({
                "verbs": ["get"],
                "nonResourceURLs": ["/healthz", "/livez", "/readyz", "/version", "/version/"],
            })],
            ..AccessRules::default()
        }
    }
}
