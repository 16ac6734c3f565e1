//! Who may ask a kubelet what.
//!
//! Invariants:
//! - A client is one of the cluster's: by a certificate of its authority, or by a token that the API server knows
//!   (TokenReview). Nobody is anonymous.
//! - The API server decides what they may do (SubjectAccessReview); without its answer nothing is allowed. Its answers are
//!   not kept: what is taken from somebody is gone at once.
//!
//! Source: upstream's `pkg/kubelet/server/auth.go` and the filter in `server.go`; KEP-2862.

use http::{Method, StatusCode, request::Parts};
use kaji_auth::authn::{Anonymous, Chain, Identity, Refusal, TokenAuthenticator, TokenChain, Verdict};
use kaji_meta::{Clock, object};
use kaji_resource::{BoxFuture, UserInfo};
use kaji_runtime::{Client, Target};
use kaji_server::Authentication;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// What a request is not answered for.
#[derive(Debug)]
pub(super) struct Refused {
    pub code: StatusCode,
    pub text: String,
}

/// The access to one node.
pub(super) struct Access {
    node: String,
    /// As the node.
    client: Client,
    authentication: Authentication,
}

impl Access {
    /// The access to a node, which asks the API server through a client of its own.
    pub fn new(node: &str, client: Client, clock: Arc<dyn Clock>) -> Access {
        let mut tokens = TokenChain::default();
        tokens.push(Arc::new(Reviews(client.clone())));
        let chain = Chain { proxy: None, tokens: Arc::new(tokens), anonymous: Anonymous::Nowhere };
        Access { node: node.to_owned(), client, authentication: Authentication { chain, clock } }
    }

    /// Whether a request may be answered.
    pub(super) async fn check(&self, parts: &Parts, path: &str) -> Result<(), Refused> {
        let unknown = |_| Refused { code: StatusCode::UNAUTHORIZED, text: "Unauthorized".into() };
        let user = self.authentication.authenticate(parts).await.map_err(unknown)?.user;
        let verb = verb(&parts.method);
        let subresources = subresources(path);
        for subresource in &subresources {
            match self.allows(&user, verb, subresource).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(node = self.node, %error, "a kubelet cannot ask who may do what");
                    let (name, code) = (&user.name, StatusCode::INTERNAL_SERVER_ERROR);
                    let text = format!(
                        "Authorization error (user={name}, verb={verb}, resource=nodes, subresource={subresource})"
                    );
                    return Err(Refused { code, text });
                }
            }
        }
        let text = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            subresources.join(" ")
        );
        Err(Refused { code: StatusCode::FORBIDDEN, text })
    }

    async fn allows(
        &self,
        user: &UserInfo,
        verb: &str,
        subresource: &str,
    ) -> Result<bool, kaji_runtime::Error> {
        let UserInfo { name, uid, groups, extra } = user;
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": name,
                "uid": uid,
                "groups": groups,
                "extra": extra,
                "resourceAttributes": {
                    "verb": verb,
                    "version": "v1",
                    "resource": "nodes",
                    "subresource": subresource,
                    "name": self.node,
                },
            },
        });
        let answer = self.client.create(&to("authorization.k8s.io", "subjectaccessreviews"), &review).await?;
        Ok(answer["status"]["allowed"] == true)
    }
}

/// What the API calls a method.
fn verb(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// Any of these of `nodes` gives the right to a path.
fn subresources(path: &str) -> Vec<&'static str> {
    let below =
        |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let fine = match () {
        () if below("/pods") || below("/runningpods") => Some("pods"),
        () if below("/healthz") => Some("healthz"),
        () if below("/configz") => Some("configz"),
        () => None,
    };
    let usual = match () {
        () if below("/stats") => "stats",
        () if below("/metrics") => "metrics",
        () if below("/logs") => "log",
        () if below("/checkpoint") => "checkpoint",
        () if below("/statusz") => "statusz",
        () if below("/flagz") => "configz",
        () => "proxy",
    };
    fine.into_iter().chain([usual]).collect()
}

/// Where reviews are posted.
fn to(group: &str, resource: &str) -> Target {
    Target {
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        namespace: String::new(),
        name: String::new(),
        subresource: String::new(),
    }
}

/// Tokens that the API server knows.
struct Reviews(Client);

impl Reviews {
    async fn review(&self, token: &str) -> Verdict {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        });
        let answer = self.0.create(&to("authentication.k8s.io", "tokenreviews"), &review).await;
        let answer = answer.map_err(|e| Refusal(e.to_string()))?;
        let status = &answer["status"];
        if status["authenticated"] != true {
            return match status["error"].as_str().unwrap_or_default() {
                "" => Ok(None),
                error => Err(Refusal(error.to_owned())),
            };
        }
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
        };
        let text = |key: &str| object::str_at(status, &["user", key]).to_owned();
        let extra = object::obj_at(status, &["user", "extra"]).into_iter().flatten();
        let extra: BTreeMap<_, _> = extra.map(|(key, value)| (key.clone(), texts(value))).collect();
        let groups = texts(&status["user"]["groups"]);
        let user = UserInfo { name: text("username"), uid: text("uid"), groups, extra };
        Ok(Some(Identity { user, ..Identity::default() }))
    }
}

impl TokenAuthenticator for Reviews {
    fn authenticate<'a>(&'a self, token: &'a str, _: &'a [String]) -> BoxFuture<'a, Verdict> {
        Box::pin(self.review(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_takes() {
        let all = [
            "/metrics",
            "/metrics/resource",
            "/metricsx",
            "/stats/summary",
            "/healthz/ping",
            "/healthz",
            "/pods",
            "/podsandmore",
            "/runningpods/",
            "/configz",
            "/flagz",
            "/logs/kubelet.log",
            "/exec/a/b/c",
            "/",
            "",
        ];
        let lines: Vec<String> =
            all.iter().map(|path| format!("{path:?}: {}", subresources(path).join(" "))).collect();
        expect_test::expect![[r#"
            "/metrics": metrics
            "/metrics/resource": metrics
            "/metricsx": proxy
            "/stats/summary": stats
            "/healthz/ping": healthz proxy
            "/healthz": healthz proxy
            "/pods": pods proxy
            "/podsandmore": proxy
            "/runningpods/": pods proxy
            "/configz": configz proxy
            "/flagz": configz
            "/logs/kubelet.log": log
            "/exec/a/b/c": proxy
            "/": proxy
            "": proxy"#]]
        .assert_eq(&lines.join("\n"));
        assert_eq!(verb(&Method::HEAD), "");
    }
}
