//! Authentication and authorization of requests to the server of a kubelet, or of a component of the control plane.
//!
//! Invariants:
//! - A client authenticates with a certificate of the cluster's authority or with a token that the API server accepts
//!   (TokenReview). A kubelet rejects anonymous requests.
//! - The API server authorizes requests (SubjectAccessReview); without its answer a request is denied.
//! - Its answers are cached for as long as kubelets cache them, in bounded caches; failures are not cached.
//!
//! Source: upstream's `pkg/kubelet/server/auth.go` and the filter in `server.go`; KEP-2862; `DelegatingAuthorizationOptions` of
//! `k8s.io/apiserver`.

use super::request::{self, ServerBody};
use http::{Method, Response, StatusCode, request::Parts};
use kaji_auth::{
    authn::{
        Anonymous, AuthenticationError, Cache, Chain, Identity, TokenAuthenticator, TokenChain, Verdict,
    },
    authz::{
        Attributes, Authorizer, Decision,
        config::{OnFailure, WebhookConfig},
        webhook::{Conditions, Failure, Service, Webhook, Witness},
    },
};
use kaji_meta::{Clock, Reason, Status, object};
use kaji_resource::{BoxFuture, UserInfo};
use kaji_runtime::{Client, Target};
use kaji_server::Authentication;
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

/// Seconds for which the result of a TokenReview is cached. Source: KubeletConfiguration, `authentication.webhook.cacheTTL`.
const TOKEN_TTL: i64 = 120;
/// How long an allowed request is cached. Source: likewise, `authorization.webhook.cacheAuthorizedTTL`.
const AUTHORIZED_TTL: Duration = Duration::from_secs(300);
/// How long a denied request is cached. Source: likewise, `cacheUnauthorizedTTL`.
const UNAUTHORIZED_TTL: Duration = Duration::from_secs(30);
/// How long a decision about a path of a component is cached. Source: `DelegatingAuthorizationOptions`.
const COMPONENT_TTL: Duration = Duration::from_secs(10);
/// The timeout of a review.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The results of TokenReviews, which are the same for all nodes of a cluster.
#[derive(Clone)]
pub(super) struct TokenReviewCache(Arc<Cache<Option<Identity>>>);

impl Default for TokenReviewCache {
    fn default() -> TokenReviewCache {
        TokenReviewCache(Arc::new(Cache::new(TOKEN_TTL)))
    }
}

/// The status and text of a request that is rejected.
#[derive(Debug)]
pub(super) struct Rejection {
    pub code: StatusCode,
    pub text: String,
}

/// What requests are authorized for.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// Subresources of a Node.
    Node(String),
    /// The path itself, of a component.
    Paths {
        /// The component.
        name: String,
        /// Paths that need no authorization; with `/*` at the end, all below.
        always_allowed: Vec<String>,
    },
}

impl Scope {
    pub(super) fn name(&self) -> &str {
        match self {
            Scope::Node(name) | Scope::Paths { name, .. } => name,
        }
    }

    /// Whether a path needs no authorization.
    fn always_allows(&self, path: &str) -> bool {
        let Scope::Paths { always_allowed, .. } = self else { return false };
        always_allowed.iter().any(|allowed| match allowed.strip_suffix("/*") {
            Some(root) => path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/')),
            None => path.trim_start_matches('/') == allowed.trim_start_matches('/'),
        })
    }
}

/// Authentication and authorization for one server.
pub(super) struct Auth {
    scope: Scope,
    authentication: Authentication,
    authorization: Webhook,
}

impl Auth {
    /// With the server's API client `client`.
    pub fn new(scope: Scope, client: Client, token_reviews: TokenReviewCache, clock: Arc<dyn Clock>) -> Auth {
        let mut tokens = TokenChain::default();
        let reviews = TokenReviews { client: client.clone(), cache: token_reviews, clock: clock.clone() };
        tokens.push(Arc::new(reviews));
        let (anonymous, authorized_ttl, unauthorized_ttl) = match scope {
            Scope::Node(_) => (Anonymous::Nowhere, AUTHORIZED_TTL, UNAUTHORIZED_TTL),
            Scope::Paths { .. } => (Anonymous::Everywhere, COMPONENT_TTL, COMPONENT_TTL),
        };
        let chain = Chain { proxy: None, tokens: Arc::new(tokens), anonymous };
        let config = WebhookConfig {
            name: format!("server/{}", scope.name()),
            timeout: TIMEOUT,
            authorized_ttl,
            unauthorized_ttl,
            version: "v1",
            on_failure: OnFailure::Deny,
            kubeconfig: PathBuf::new(),
            conditions: Conditions::default(),
        };
        let authorization =
            Webhook::new(Arc::new(AccessReviews(client)), config, clock.clone(), Arc::new(NoMetrics));
        Auth { scope, authentication: Authentication { chain, clock }, authorization }
    }

    /// Authenticates a request and authorizes it.
    pub(super) async fn check(&self, parts: &Parts, path: &str) -> Result<(), Rejection> {
        let unknown = |_| Rejection { code: StatusCode::UNAUTHORIZED, text: "Unauthorized".into() };
        let user = self.authentication.authenticate(parts).await.map_err(unknown)?.user;
        let node = match &self.scope {
            Scope::Paths { .. } => return self.check_path(&user, &parts.method, path).await,
            Scope::Node(node) => node,
        };
        let verb = verb(&parts.method);
        let subresources = subresources(path);
        for subresource in &subresources {
            if self.allows(node, &user, verb, subresource).await? {
                return Ok(());
            }
        }
        let text = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            subresources.join(" ")
        );
        Err(Rejection { code: StatusCode::FORBIDDEN, text })
    }

    /// The response to a request that is rejected: a line of a kubelet, a Status of other servers.
    pub(super) fn refusal(&self, code: StatusCode, text: String) -> Response<ServerBody> {
        if matches!(self.scope, Scope::Node(_)) {
            return request::error(code, text);
        }
        let reason = match code {
            StatusCode::UNAUTHORIZED => Reason::Unauthorized,
            StatusCode::FORBIDDEN => Reason::Forbidden,
            _ => Reason::InternalError,
        };
        let status = Status::new(code.as_u16(), reason, text).to_value();
        request::respond(code, request::JSON, status.to_string())
    }

    /// Authorizes the path itself, as a server of API machinery does: with its texts.
    async fn check_path(&self, user: &UserInfo, method: &Method, path: &str) -> Result<(), Rejection> {
        if self.scope.always_allows(path) {
            return Ok(());
        }
        let verb = method.as_str().to_ascii_lowercase();
        let outcome = self.authorization.authorize(&Attributes::path(user, &verb, path)).await;
        if outcome.allowed() {
            return Ok(());
        }
        let text = format!("User {:?} cannot {verb} path {path:?}", user.name);
        let (code, text) = match outcome.error {
            Some(error) => {
                tracing::warn!(%error, path, "a request cannot be authorized");
                let text = format!("Internal Server Error: {path:?}: {error}");
                (StatusCode::INTERNAL_SERVER_ERROR, text)
            }
            None => (StatusCode::FORBIDDEN, format!("forbidden: {text}")),
        };
        Err(Rejection { code, text })
    }

    async fn allows(
        &self,
        node: &str,
        user: &UserInfo,
        verb: &str,
        subresource: &str,
    ) -> Result<bool, Rejection> {
        let attributes = Attributes {
            version: "v1",
            subresource,
            name: node,
            ..Attributes::resource(user, verb, "", "nodes")
        };
        let outcome = self.authorization.authorize(&attributes).await;
        if outcome.error.is_none() {
            return Ok(outcome.decision == Decision::Allow);
        }
        let name = &user.name;
        let text = format!(
            "Authorization error (user={name}, verb={verb}, resource=nodes, subresource={subresource})"
        );
        Err(Rejection { code: StatusCode::INTERNAL_SERVER_ERROR, text })
    }
}

/// Posts SubjectAccessReviews to the API server.
struct AccessReviews(Client);

impl Service for AccessReviews {
    fn review(&self, review: Value) -> BoxFuture<'_, Result<Value, Failure>> {
        Box::pin(async move {
            let target = reviews("authorization.k8s.io", "subjectaccessreviews");
            match tokio::time::timeout(TIMEOUT, self.0.create(&target, &review)).await {
                Ok(answer) => answer.map_err(|e| Failure { text: e.to_string(), timeout: false }),
                Err(late) => Err(Failure { text: late.to_string(), timeout: true }),
            }
        })
    }
}

/// Simulated nodes count no webhook calls.
struct NoMetrics;

impl Witness for NoMetrics {
    fn failed_open(&self, _: &str, _: &'static str) {}

    fn conditions(&self, _: &str, _: Duration, _: bool, _: bool) {}
}

/// The API verb of an HTTP method.
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

/// The subresources of `nodes` that a path requires, of which one is enough.
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

/// The collection of a review kind.
fn reviews(group: &str, resource: &str) -> Target {
    Target {
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        namespace: String::new(),
        name: String::new(),
        subresource: String::new(),
    }
}

/// Authenticates tokens by TokenReviews.
struct TokenReviews {
    client: Client,
    cache: TokenReviewCache,
    clock: Arc<dyn Clock>,
}

impl TokenReviews {
    async fn check(&self, token: &str) -> Verdict {
        let now = self.clock.now();
        if let Some(verdict) = self.cache.0.get(token, now) {
            return Ok(verdict);
        }
        let found = self.review(token).await?;
        self.cache.0.put(token, found.clone(), now);
        Ok(found)
    }

    async fn review(&self, token: &str) -> Verdict {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        });
        let answer = self.client.create(&reviews("authentication.k8s.io", "tokenreviews"), &review).await;
        let answer = answer.map_err(|e| AuthenticationError(e.to_string()))?;
        let status = &answer["status"];
        if status["authenticated"] != true {
            return match status["error"].as_str().unwrap_or_default() {
                "" => Ok(None),
                error => Err(AuthenticationError(error.to_owned())),
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

impl TokenAuthenticator for TokenReviews {
    fn authenticate<'a>(&'a self, token: &'a str, _: &'a [String]) -> BoxFuture<'a, Verdict> {
        Box::pin(self.check(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::ManualClock;
    use std::sync::Mutex;

    /// An API server that accepts the token `good` and allows `metrics`; counts requests.
    fn server(requests: &Arc<Mutex<BTreeMap<String, usize>>>) -> Client {
        let requests = requests.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let requests = requests.clone();
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
                    _ if review["spec"]["user"] == "alice" => {
                        let spec = &review["spec"];
                        let path = spec["nonResourceAttributes"]["path"] == "/metrics";
                        json!({"allowed": path || spec["resourceAttributes"]["subresource"] == "metrics"})
                    }
                    _ => json!({"allowed": false}),
                };
                *requests.lock().unwrap().entry(kind).or_default() += 1;
                let body = kube::client::Body::from(serde_json::to_vec(&review).unwrap());
                Ok::<_, std::convert::Infallible>(http::Response::builder().status(201).body(body).unwrap())
            }
        });
        Client::new(kube::Client::new(service, "default"), "test")
    }

    #[tokio::test]
    async fn caches_reviews_until_they_expire() {
        let requests = Arc::default();
        let clock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let known = TokenReviewCache::default();
        let node =
            |name: &str| Auth::new(Scope::Node(name.into()), server(&requests), known.clone(), clock.clone());
        let nodes = [node("a"), node("b")];
        let mut seen = vec![];
        let ask = async |node: usize, token: &str, path: &str| {
            let request = http::Request::get(path).header("authorization", format!("Bearer {token}"));
            let (parts, ()) = request.body(()).unwrap().into_parts();
            nodes[node].check(&parts, path).await.map_or_else(|refused| refused.code.as_u16(), |()| 200)
        };
        // Seconds that pass, and the request that follows.
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
            let requests: Vec<String> = std::mem::take(&mut *requests.lock().unwrap())
                .into_iter()
                .map(|(k, n)| format!("{n} {k}"))
                .collect();
            seen.push(
                format!("+{seconds} {token} {path}: {code} {}", requests.join(" ")).trim_end().to_owned(),
            );
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

    #[tokio::test]
    async fn a_component_authorizes_paths() {
        let requests = Arc::default();
        let clock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let always_allowed = vec!["/healthz".to_owned(), "/readyz/*".to_owned()];
        let scope = Scope::Paths { name: "component".into(), always_allowed };
        let auth = Auth::new(scope, server(&requests), TokenReviewCache::default(), clock);
        let mut seen = vec![];
        for (token, path) in [
            ("", "/healthz"),
            ("", "/healthz/ping"),
            ("", "/readyz/ping"),
            ("", "/readyzx"),
            ("", "/metrics"),
            ("good", "/metrics"),
            ("bad", "/healthz"),
        ] {
            let mut request = http::Request::get(path);
            if !token.is_empty() {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let answer = auth.check(&parts, path).await;
            let answer = answer.map_or_else(
                |refused| format!("{} {}", refused.code.as_u16(), refused.text),
                |()| "ok".into(),
            );
            seen.push(format!("{token} {path}: {answer}"));
        }
        expect_test::expect![[r#"
             /healthz: ok
             /healthz/ping: 403 forbidden: User "system:anonymous" cannot get path "/healthz/ping"
             /readyz/ping: ok
             /readyzx: 403 forbidden: User "system:anonymous" cannot get path "/readyzx"
             /metrics: 403 forbidden: User "system:anonymous" cannot get path "/metrics"
            good /metrics: ok
            bad /healthz: 401 Unauthorized"#]]
        .assert_eq(&seen.join("\n"));
    }

    #[test]
    fn paths_require_subresources() {
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
