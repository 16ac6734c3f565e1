//! What kinds are given from outside: configuration, time, randomness, and the parts they cannot do alone.

use kaji_auth::authn::{Identity, IssuedToken, KeyError, Refusal, TokenOrder};
use kaji_meta::{Clock, Random, field::ErrorList};
use kaji_resource::{Api, BoxFuture, UserInfo};
use serde_json::Value;
use std::{
    ops::RangeInclusive,
    sync::{Arc, OnceLock, Weak},
};

/// The engine, once it is open. Futures that outlive a request (giving back a cluster IP) reach it through this.
#[derive(Clone, Default)]
pub struct ApiHandle(Arc<OnceLock<Weak<dyn Api>>>);

impl ApiHandle {
    /// Makes the engine known. Only the first call counts.
    pub fn set(&self, api: Weak<dyn Api>) {
        let _ = self.0.set(api);
    }

    /// The engine, while it lives.
    pub fn get(&self) -> Option<Arc<dyn Api>> {
        self.0.get()?.upgrade()
    }
}

/// What an access review asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessQuestion {
    /// Whose access.
    pub user: UserInfo,
    /// Verb, such as `get`.
    pub verb: String,
    /// Namespace, `""` for none or all.
    pub namespace: String,
    /// API group of a resource.
    pub group: String,
    /// API version of a resource.
    pub version: String,
    /// Resource; empty for a path.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Name of an object, `""` for all.
    pub name: String,
    /// Path outside the API's resources, such as `/healthz`; only without `resource`.
    pub path: Option<String>,
}

/// What an authorizer answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessDecision {
    /// Access is granted.
    pub allowed: bool,
    /// Access is refused whatever other authorizers say.
    pub denied: bool,
    /// Why, in words.
    pub reason: String,
    /// What went wrong on the way, in words.
    pub error: String,
}

/// The rules that apply to a user in a namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessRules {
    /// `ResourceRule`s.
    pub resources: Vec<Value>,
    /// `NonResourceRule`s.
    pub paths: Vec<Value>,
    /// Some rules may be missing.
    pub incomplete: bool,
    /// Why, in words.
    pub error: String,
}

/// Decides and explains access.
pub trait Authorize: Send + Sync {
    /// Whether an access is allowed.
    fn decide(&self, question: &AccessQuestion, api: &dyn Api) -> AccessDecision;
    /// All that a user may do in a namespace.
    fn rules(&self, user: &UserInfo, namespace: &str, api: &dyn Api) -> AccessRules;
}

/// Refuses everything and says that no authorizer is there.
struct NoAuthorizer;

impl Authorize for NoAuthorizer {
    fn decide(&self, _question: &AccessQuestion, _api: &dyn Api) -> AccessDecision {
        AccessDecision { error: "no authorizer is configured".into(), ..AccessDecision::default() }
    }
    fn rules(&self, _user: &UserInfo, _namespace: &str, _api: &dyn Api) -> AccessRules {
        AccessRules {
            incomplete: true,
            error: "no authorizer is configured".into(),
            ..AccessRules::default()
        }
    }
}

/// Signs and checks tokens.
pub trait Tokens: Send + Sync {
    /// Signs a token for a service account.
    fn issue(&self, order: &TokenOrder, now: jiff::Timestamp) -> Result<IssuedToken, KeyError>;
    /// Finds out who a token belongs to, for these audiences or, without any, the server's own.
    fn identify<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
    ) -> BoxFuture<'a, Result<Identity, Refusal>>;
}

/// Checks a custom resource definition beyond its own fields (schemas, rules, columns).
/// The second argument is the stored object on updates.
pub type ValidateCrd = Arc<dyn Fn(&Value, Option<&Value>) -> ErrorList + Send + Sync>;

/// Texts about what a custom resource definition asks for in vain.
pub type CrdWarnings = Arc<dyn Fn(&Value) -> Vec<String> + Send + Sync>;

/// What kinds need from outside.
#[derive(Clone)]
pub struct Deps {
    /// Where hooks without a request context take the time from.
    pub clock: Arc<dyn Clock>,
    /// Randomness for allocators.
    pub random: Arc<dyn Random>,
    /// The cluster's service CIDRs, primary family first (`10.96.0.0/12`). Two of them make it dual-stack.
    pub service_cidrs: Vec<String>,
    /// Ports that `NodePort` services may have.
    pub node_port_range: RangeInclusive<u16>,
    /// The engine; set it once it is open.
    pub api: ApiHandle,
    /// Answers access reviews.
    pub authorize: Arc<dyn Authorize>,
    /// Signs and checks tokens; requests are refused without it.
    pub tokens: Option<Arc<dyn Tokens>>,
    /// The deep validation of custom resource definitions.
    pub validate_crd: Option<ValidateCrd>,
    /// Warnings about custom resource definitions.
    pub crd_warnings: Option<CrdWarnings>,
}

impl Deps {
    /// The defaults of a cluster with the given time and randomness.
    pub fn new(clock: Arc<dyn Clock>, random: Arc<dyn Random>) -> Self {
        Deps {
            clock,
            random,
            service_cidrs: vec!["10.96.0.0/12".into()],
            node_port_range: 30000..=32767,
            api: ApiHandle::default(),
            authorize: Arc::new(NoAuthorizer),
            tokens: None,
            validate_crd: None,
            crd_warnings: None,
        }
    }
}
