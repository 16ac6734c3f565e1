//! The dependencies of the built-in kinds: configuration, time, randomness, authorizer, tokens, the engine.

use kaji_auth::{
    Attributes, Authorizer, Grants, Outcome, PolicyRule, Rules,
    authn::{AuthenticationError, Identity, IssuedToken, KeyError, TokenOrder},
};
use kaji_meta::{Clock, Features, Random, ServedVersions, Status, field::ErrorList};
use kaji_resource::{Api, BoxFuture, UserInfo};
use serde_json::Value;
use std::{
    ops::RangeInclusive,
    sync::{Arc, Weak},
    time::Duration,
};

/// The engine. Futures that outlive a request (giving back a cluster IP) reach it through this.
#[derive(Clone, Default)]
pub struct ApiHandle(Option<Weak<dyn Api>>);

impl ApiHandle {
    /// A handle of an engine.
    pub fn new(api: Weak<dyn Api>) -> ApiHandle {
        ApiHandle(Some(api))
    }

    /// The engine, while it lives.
    pub fn get(&self) -> Option<Arc<dyn Api>> {
        self.0.as_ref()?.upgrade()
    }
}

/// Denies everything, with the reason that no authorizer is configured.
struct NoAuthorizer;

const NO_AUTHORIZER: &str = "no authorizer is configured";

impl Authorizer for NoAuthorizer {
    fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        let outcome = Outcome { error: Some(NO_AUTHORIZER.into()), ..Outcome::default() };
        Box::pin(std::future::ready(outcome))
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Rules> {
        let rules = Rules { incomplete: true, error: Some(NO_AUTHORIZER.into()), ..Rules::default() };
        Box::pin(std::future::ready(rules))
    }
}

impl Grants for NoAuthorizer {
    fn held(&self, _user: &UserInfo, _namespace: &str) -> (Vec<Arc<[PolicyRule]>>, Option<String>) {
        (vec![], Some(NO_AUTHORIZER.into()))
    }
}

/// Signs and checks tokens.
pub trait Tokens: Send + Sync {
    /// The server's own audiences, which tokens are for when nothing else is asked for.
    fn audiences(&self) -> &[String];
    /// Signs a token for a service account.
    fn issue(&self, order: &TokenOrder, now: jiff::Timestamp) -> Result<IssuedToken, KeyError>;
    /// Authenticates a token for these audiences or, without any, the server's.
    fn identify<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
    ) -> BoxFuture<'a, Result<Identity, AuthenticationError>>;
}

/// The record of node ports that several servers over one store share.
pub trait SharedPorts: Send + Sync {
    /// Takes ports, all or none: answers with those that are taken already. Where there is no record yet, it begins with the
    /// ports that are `held`.
    ///
    /// # Errors
    /// When the record cannot be read or written; then none was taken.
    fn take<'a>(
        &'a self,
        range: RangeInclusive<u16>,
        ports: &'a [u16],
        held: &'a [u16],
    ) -> BoxFuture<'a, Result<Vec<u16>, Status>>;

    /// Gives ports back. In vain at worst: the record is repaired regularly.
    fn give_back<'a>(&'a self, ports: &'a [u16]) -> BoxFuture<'a, ()>;
}

/// Checks a custom resource definition beyond its own fields (schemas, rules, columns).
/// The second argument is the stored object on updates.
pub type ValidateCrd = Arc<dyn Fn(&Value, Option<&Value>) -> ErrorList + Send + Sync>;

/// The dependencies of the built-in kinds.
#[derive(Clone)]
pub struct Deps {
    /// The clock of hooks without a request context.
    pub clock: Arc<dyn Clock>,
    /// Randomness for allocators.
    pub random: Arc<dyn Random>,
    /// The cluster's service CIDRs, primary family first (`10.96.0.0/12`). Two of them make it dual-stack.
    pub service_cidrs: Vec<String>,
    /// Ports that `NodePort` services may have.
    pub node_port_range: RangeInclusive<u16>,
    /// How long events are kept.
    pub event_ttl: Duration,
    /// The record of node ports, where other servers allocate them too.
    pub shared_ports: Option<Arc<dyn SharedPorts>>,
    /// The feature gates.
    pub features: Features,
    /// The versions that are served although they are off by default.
    pub served: ServedVersions,
    /// The engine.
    pub api: ApiHandle,
    /// Decides about requests; answers access reviews.
    pub authorizer: Arc<dyn Authorizer>,
    /// The permissions that a user holds and may therefore grant by roles.
    pub grants: Arc<dyn Grants>,
    /// Signs and checks tokens; requests are refused without it.
    pub tokens: Option<Arc<dyn Tokens>>,
    /// The deep validation of custom resource definitions.
    pub validate_crd: Option<ValidateCrd>,
    /// Components of the control plane that run in this process without a lease, by the names of ComponentStatuses.
    pub components: Vec<&'static str>,
}

impl Deps {
    /// The defaults of a cluster with the given time and randomness.
    pub fn new(clock: Arc<dyn Clock>, random: Arc<dyn Random>) -> Self {
        Deps {
            clock,
            random,
            service_cidrs: vec!["10.96.0.0/12".into()],
            node_port_range: 30000..=32767,
            event_ttl: Duration::from_secs(3600),
            shared_ports: None,
            features: Features::default(),
            served: ServedVersions::default(),
            api: ApiHandle::default(),
            authorizer: Arc::new(NoAuthorizer),
            grants: Arc::new(NoAuthorizer),
            tokens: None,
            validate_crd: None,
            components: vec![],
        }
    }
}
