//! Who may ask a kubelet what.
//!
//! Invariants:
//! - A client is one of the cluster's: by a certificate of its authority, or by a token that the API server knows
//!   (TokenReview). Nobody is anonymous.
//! - The API server decides what they may do (SubjectAccessReview); without its answer nothing is allowed.
//! - Its answers are kept for as long as kubelets do, and no more of them than a bound; failures are not kept.
//!
//! Source: upstream's `pkg/kubelet/server/auth.go` and the filter in `server.go`; KEP-2862.

use http::{Method, StatusCode, request::Parts};
use kaji_auth::{
    authn::{Anonymous, Cache, Chain, Identity, Refusal, TokenAuthenticator, TokenChain, Verdict},
    authz::{
        Attributes, Authorizer, Decision,
        config::{OnFailure, WebhookConfig},
        webhook::{Conditions, Failure, Service, Webhook, Witness},
    },
};
use kaji_meta::{Clock, object};
use kaji_resource::{BoxFuture, UserInfo};
use kaji_runtime::{Client, Target};
use kaji_server::Authentication;
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

/// Seconds for which it is kept whose a token is. Source: KubeletConfiguration, `authentication.webhook.cacheTTL`.
const TOKEN_KEPT: i64 = 120;
/// How long a yes is kept. Source: likewise, `authorization.webhook.cacheAuthorizedTTL`.
const YES_KEPT: Duration = Duration::from_secs(300);
/// How long a no is kept. Source: likewise, `cacheUnauthorizedTTL`.
const NO_KEPT: Duration = Duration::from_secs(30);
/// Longest wait for a decision.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Whose tokens are, as the nodes of a cluster know from its API server; it would tell all of them the same.
#[derive(Clone)]
pub(super) struct Known(Arc<Cache<Option<Identity>>>);

impl Default for Known {
    fn default() -> Known {
        Known(Arc::new(Cache::new(TOKEN_KEPT)))
    }
}

/// What a request is not answered for.
#[derive(Debug)]
pub(super) struct Refused {
    pub code: StatusCode,
    pub text: String,
}

/// The access to one node.
pub(super) struct Access {
    node: String,
    authentication: Authentication,
    authorization: Webhook,
}

impl Access {
    /// The access to a node, which asks the API server through a client of its own.
    pub fn new(node: &str, client: Client, known: Known, clock: Arc<dyn Clock>) -> Access {
        let mut tokens = TokenChain::default();
        let reviews = Reviews { client: client.clone(), known, clock: clock.clone() };
        tokens.push(Arc::new(reviews));
        let chain = Chain { proxy: None, tokens: Arc::new(tokens), anonymous: Anonymous::Nowhere };
        let config = WebhookConfig {
            name: format!("kubelet/{node}"),
            timeout: TIMEOUT,
            authorized_ttl: YES_KEPT,
            unauthorized_ttl: NO_KEPT,
            version: "v1",
            on_failure: OnFailure::Deny,
            kubeconfig: PathBuf::new(),
            conditions: Conditions::default(),
        };
        let authorization =
            Webhook::new(Arc::new(Decisions(client)), config, clock.clone(), Arc::new(Nobody));
        Access { node: node.to_owned(), authentication: Authentication { chain, clock }, authorization }
    }

    /// Whether a request may be answered.
    pub(super) async fn check(&self, parts: &Parts, path: &str) -> Result<(), Refused> {
        let unknown = |_| Refused { code: StatusCode::UNAUTHORIZED, text: "Unauthorized".into() };
        let user = self.authentication.authenticate(parts).await.map_err(unknown)?.user;
        let verb = verb(&parts.method);
        let subresources = subresources(path);
        for subresource in &subresources {
            if self.allows(&user, verb, subresource).await? {
                return Ok(());
            }
        }
        let text = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            subresources.join(" ")
        );
        Err(Refused { code: StatusCode::FORBIDDEN, text })
    }

    async fn allows(&self, user: &UserInfo, verb: &str, subresource: &str) -> Result<bool, Refused> {
        let question = Attributes {
            version: "v1",
            subresource,
            name: &self.node,
            ..Attributes::resource(user, verb, "", "nodes")
        };
        let outcome = self.authorization.authorize(&question).await;
        if outcome.error.is_none() {
            return Ok(outcome.decision == Decision::Allow);
        }
        let name = &user.name;
        let text = format!(
            "Authorization error (user={name}, verb={verb}, resource=nodes, subresource={subresource})"
        );
        Err(Refused { code: StatusCode::INTERNAL_SERVER_ERROR, text })
    }
}

/// What the API server decides.
struct Decisions(Client);

impl Service for Decisions {
    fn review(&self, review: Value) -> BoxFuture<'_, Result<Value, Failure>> {
        Box::pin(async move {
            let to = to("authorization.k8s.io", "subjectaccessreviews");
            match tokio::time::timeout(TIMEOUT, self.0.create(&to, &review)).await {
                Ok(answer) => answer.map_err(|e| Failure { text: e.to_string(), timeout: false }),
                Err(late) => Err(Failure { text: late.to_string(), timeout: true }),
            }
        })
    }
}

/// There are no metrics of simulated nodes' own.
struct Nobody;

impl Witness for Nobody {
    fn failed_open(&self, _: &str, _: &'static str) {}

    fn conditions(&self, _: &str, _: Duration, _: bool, _: bool) {}
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
struct Reviews {
    client: Client,
    known: Known,
    clock: Arc<dyn Clock>,
}

impl Reviews {
    async fn check(&self, token: &str) -> Verdict {
        let now = self.clock.now();
        if let Some(verdict) = self.known.0.get(token, now) {
            return Ok(verdict);
        }
        let found = self.review(token).await?;
        self.known.0.put(token, found.clone(), now);
        Ok(found)
    }

    async fn review(&self, token: &str) -> Verdict {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        });
        let answer = self.client.create(&to("authentication.k8s.io", "tokenreviews"), &review).await;
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
        Box::pin(self.check(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::ManualClock;
    use std::sync::Mutex;

    /// An API server that knows the token `good` and allows what is asked of `metrics`; counts what it is asked.
    fn server(asked: &Arc<Mutex<BTreeMap<String, usize>>>) -> Client {
        let asked = asked.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let asked = asked.clone();
            async move {
                let kind = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                let body = request.into_body().collect_bytes().await.unwrap();
                let mut review: Value = serde_json::from_slice(&body).unwrap();
                review["status"] = match &*kind {
                    "tokenreviews" if review["spec"]["token"] == "broken" => json!({"error": "broken"}),
                    "tokenreviews" => {
                        let good = review["spec"]["token"] == "good";
                        json!({"authenticated": good, "user": {"username": "alice"}})
                    }
                    _ => json!({"allowed": review["spec"]["resourceAttributes"]["subresource"] == "metrics"}),
                };
                *asked.lock().unwrap().entry(kind).or_default() += 1;
                let body = kube::client::Body::from(serde_json::to_vec(&review).unwrap());
                Ok::<_, std::convert::Infallible>(http::Response::builder().status(201).body(body).unwrap())
            }
        });
        Client::new(kube::Client::new(service, "default"), "test")
    }

    #[tokio::test]
    async fn answers_are_kept_for_a_time() {
        let asked = Arc::default();
        let clock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let known = Known::default();
        let node = |name| Access::new(name, server(&asked), known.clone(), clock.clone());
        let nodes = [node("a"), node("b")];
        let mut seen = vec![];
        let ask = async |node: usize, token: &str, path: &str| {
            let request = http::Request::get(path).header("authorization", format!("Bearer {token}"));
            let (parts, ()) = request.body(()).unwrap().into_parts();
            nodes[node].check(&parts, path).await.map_or_else(|refused| refused.code.as_u16(), |()| 200)
        };
        // Seconds that pass, and what is asked then.
        for (seconds, node, token, path) in [
            (0, 0, "good", "/metrics"),
            (0, 0, "good", "/metrics"),
            (0, 1, "good", "/metrics"),
            (0, 0, "good", "/stats"),
            (29, 0, "good", "/stats"),
            (1, 0, "good", "/stats"),
            (90, 0, "good", "/metrics"),
            (180, 0, "good", "/metrics"),
            (0, 0, "bad", "/metrics"),
            (0, 1, "bad", "/metrics"),
            (0, 0, "broken", "/metrics"),
            (0, 0, "broken", "/metrics"),
        ] {
            clock.advance(jiff::SignedDuration::from_secs(seconds));
            let code = ask(node, token, path).await;
            let asked: Vec<String> = std::mem::take(&mut *asked.lock().unwrap())
                .into_iter()
                .map(|(k, n)| format!("{n} {k}"))
                .collect();
            seen.push(format!("+{seconds} {token} {path}: {code} {}", asked.join(" ")).trim_end().to_owned());
        }
        expect_test::expect![[r#"
            +0 good /metrics: 200 1 subjectaccessreviews 1 tokenreviews
            +0 good /metrics: 200
            +0 good /metrics: 200 1 subjectaccessreviews
            +0 good /stats: 403 1 subjectaccessreviews
            +29 good /stats: 403
            +1 good /stats: 403 1 subjectaccessreviews
            +90 good /metrics: 200 1 tokenreviews
            +180 good /metrics: 200 1 subjectaccessreviews 1 tokenreviews
            +0 bad /metrics: 401 1 tokenreviews
            +0 bad /metrics: 401
            +0 broken /metrics: 401 1 tokenreviews
            +0 broken /metrics: 401 1 tokenreviews"#]]
        .assert_eq(&seen.join("\n"));
    }

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
