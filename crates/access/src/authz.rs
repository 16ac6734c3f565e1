//! Authorization of a cluster: the authorizers in their order, which decide from the engine's caches.
//!
//! Invariant: a denial is as recent as the store was when the request was authorized, a permission as recent as the caches.

mod reload;
mod unmanaged;

use crate::fetch::{AttemptObserver, Reviewer};
use arc_swap::ArcSwap;
use kaji_auth::{
    Always, Attributes, Authorizer, Decision, Masters, Outcome, Rules, Union,
    authz::{
        abac::Policies,
        config::{Mode, WebhookConfig},
        feed::{Change, Feed},
        node::{self, Node},
        policy,
        rbac::{self, Rbac},
        webhook::Webhook,
    },
};
use kaji_engine::{
    Engine,
    cache::{Cache, Follower},
};
use kaji_meta::{Clock, GroupResource};
use kaji_options::{AuthzError, AuthzOptions};
use kaji_resource::{BoxFuture, ObjectReader, UserInfo};
use kaji_server::{AuthorizationMetrics, Counter};
use reload::Reload;
use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};
use tokio::sync::watch;

/// How often the node graph is updated from the caches while nodes send no requests.
const TICK: Duration = Duration::from_secs(2);

struct Followed {
    cache: Arc<Cache>,
    follower: Mutex<Follower>,
}

/// The changes of one resource of the engine.
struct EngineFeed {
    engine: Weak<Engine>,
    resource: GroupResource,
    /// Initialized once the resource is registered.
    followed: OnceLock<Followed>,
}

impl EngineFeed {
    fn boxed(engine: &Weak<Engine>, group: &str, resource: &str) -> Box<dyn Feed> {
        let resource = GroupResource::new(group, resource);
        Box::new(EngineFeed { engine: engine.clone(), resource, followed: OnceLock::new() })
    }

    /// `None` until the engine serves the resource.
    fn followed(&self) -> Option<&Followed> {
        if self.followed.get().is_none() {
            let engine = self.engine.upgrade()?;
            let cache = engine.registry().by_group_resource(&self.resource)?.cache.clone();
            let follower = Mutex::new(Follower::new(cache.clone()));
            let _ = self.followed.set(Followed { cache, follower });
        }
        self.followed.get()
    }
}

impl Feed for EngineFeed {
    fn revision(&self) -> u64 {
        self.followed().map_or(0, |f| f.cache.changed())
    }

    fn take(&self, each: &mut dyn FnMut(&Change)) -> u64 {
        let Some(followed) = self.followed() else { return 0 };
        let mut follower = followed.follower.lock().unwrap_or_else(PoisonError::into_inner);
        let (revision, entries) = follower.take();
        for (entry, there) in entries {
            each(&Change {
                namespace: entry.namespace().to_owned(),
                name: entry.name().to_owned(),
                object: there.then(|| unmanaged::decode(&entry)),
            });
        }
        revision
    }
}

/// Denies no request because of caches that lag behind the store: before a denial they catch up, for as long as a read would
/// wait for them, so that a role is effective once its write is acknowledged. What is allowed is allowed at once.
struct RetryWithFreshCaches {
    authorizers: Union,
    engine: Weak<Engine>,
}

impl Authorizer for RetryWithFreshCaches {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let engine = self.engine.upgrade();
            // Read before the decision, so that changes applied meanwhile lead to another one.
            let before = engine.as_ref().map(|engine| engine.applied());
            let outcome = self.authorizers.authorize(attributes).await;
            let (Some(engine), Some(before), Decision::NoOpinion) = (engine, before, outcome.decision) else {
                return outcome;
            };
            // Without an answer from the store the caches decide.
            if engine.sync().await.is_err() || engine.applied() == before {
                return outcome;
            }
            self.authorizers.authorize(attributes).await
        })
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> BoxFuture<'a, Rules> {
        Box::pin(async move {
            if let Some(engine) = self.engine.upgrade() {
                // As above.
                let _ = engine.sync().await;
            }
            self.authorizers.rules(user, namespace).await
        })
    }
}

/// Controllers here patch where upstream's update, so that they write only the fields that they own. Their service accounts
/// and the controller manager may patch what they may update, which keeps the default roles as they are upstream.
struct ControllerPatches(Arc<Rbac>);

impl ControllerPatches {
    fn is_controller(user: &str) -> bool {
        match user.strip_prefix("system:serviceaccount:kube-system:") {
            Some(account) => policy::controller_accounts().any(|name| name == account),
            None => user == "system:kube-controller-manager",
        }
    }
}

impl Authorizer for ControllerPatches {
    fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        if a.verb != "patch" || !Self::is_controller(&a.user.name) {
            return Box::pin(std::future::ready(Outcome::default()));
        }
        Box::pin(async move {
            let outcome = self.0.authorize(&Attributes { verb: "update", ..*a }).await;
            // The reason for denying the patch is given already.
            if outcome.allowed() { outcome } else { Outcome::default() }
        })
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Rules> {
        Box::pin(std::future::ready(Rules::default()))
    }
}

/// Counts the final decisions of one authorizer.
struct Counted {
    inner: Arc<dyn Authorizer>,
    kind: &'static str,
    name: String,
    decisions: Arc<AuthorizationMetrics>,
    // Registered with the first decision, as upstream's are.
    allowed: OnceLock<Counter>,
    denied: OnceLock<Counter>,
}

impl Authorizer for Counted {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let outcome = self.inner.authorize(attributes).await;
            let counter = |word| self.decisions.counter(self.kind, &self.name, word);
            match outcome.decision {
                Decision::Allow => drop(self.allowed.get_or_init(|| counter("allowed")).inc()),
                Decision::Deny => drop(self.denied.get_or_init(|| counter("denied")).inc()),
                Decision::NoOpinion => {}
            }
            outcome
        })
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> BoxFuture<'a, Rules> {
        self.inner.rules(user, namespace)
    }
}

/// The authorizers in use, which a reload replaces.
#[derive(Default)]
pub(crate) struct Current(ArcSwap<Union>);

impl Current {
    fn set(&self, authorizers: Union) {
        self.0.store(Arc::new(authorizers));
    }
}

impl Authorizer for Current {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        let current = self.0.load_full();
        Box::pin(async move { current.authorize(attributes).await })
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> BoxFuture<'a, Rules> {
        let current = self.0.load_full();
        Box::pin(async move { current.rules(user, namespace).await })
    }
}

/// Authorizers in their order.
type Chain = Vec<Arc<dyn Authorizer>>;

/// What authorizers are built from.
#[derive(Clone)]
struct Parts {
    rbac: Arc<Rbac>,
    node: Arc<Node>,
    abac: Arc<Policies>,
    engine: Weak<Engine>,
    decisions: Arc<AuthorizationMetrics>,
}

impl Parts {
    fn new(decisions: Arc<AuthorizationMetrics>, abac: Policies, engine: Weak<Engine>) -> Parts {
        let feed = |group, resource| EngineFeed::boxed(&engine, group, resource);
        let roles = |resource| feed("rbac.authorization.k8s.io", resource);
        let rbac = Arc::new(Rbac::new(rbac::Feeds {
            cluster_roles: roles("clusterroles"),
            cluster_role_bindings: roles("clusterrolebindings"),
            roles: roles("roles"),
            role_bindings: roles("rolebindings"),
        }));
        let feeds = node::Feeds {
            pods: feed("", "pods"),
            volumes: feed("", "persistentvolumes"),
            attachments: feed("storage.k8s.io", "volumeattachments"),
            slices: feed("resource.k8s.io", "resourceslices"),
            certificate_requests: feed("certificates.k8s.io", "podcertificaterequests"),
        };
        let node = Arc::new(Node::new(feeds, policy::node_rules()));
        Parts { rbac, node, abac: Arc::new(abac), engine, decisions }
    }

    /// `system:masters`, then the authorizers of a list. Adjacent authorizers that decide from the caches are retried with
    /// fresh caches together, before the next webhook is called.
    async fn build(&self, modes: &[Mode], clock: &Arc<dyn Clock>) -> Result<Union, String> {
        let mut all: Chain = vec![Arc::new(Masters)];
        let mut local: Chain = vec![];
        let retried = |local: &mut Chain| -> Option<Arc<dyn Authorizer>> {
            let authorizers = Union(std::mem::take(local));
            let any = !authorizers.0.is_empty();
            any.then(|| Arc::new(RetryWithFreshCaches { authorizers, engine: self.engine.clone() }) as _)
        };
        for mode in modes {
            let inner: Arc<dyn Authorizer> = match mode {
                Mode::Node => self.node.clone(),
                Mode::Rbac => Arc::new(Union(vec![
                    self.rbac.clone() as Arc<dyn Authorizer>,
                    Arc::new(ControllerPatches(self.rbac.clone())),
                ])),
                Mode::Abac => self.abac.clone(),
                Mode::AlwaysAllow => Arc::new(Always(Decision::Allow)),
                Mode::AlwaysDeny => Arc::new(Always(Decision::NoOpinion)),
                Mode::Webhook(config) => Arc::new(self.webhook(config, clock).await?),
            };
            let counted = Arc::new(Counted {
                inner,
                kind: mode.kind(),
                name: mode.name(),
                decisions: self.decisions.clone(),
                allowed: OnceLock::new(),
                denied: OnceLock::new(),
            });
            if matches!(mode, Mode::Webhook(_)) {
                all.extend(retried(&mut local));
                all.push(counted);
            } else {
                local.push(counted);
            }
        }
        all.extend(retried(&mut local));
        Ok(Union(all))
    }

    async fn webhook(&self, config: &WebhookConfig, clock: &Arc<dyn Clock>) -> Result<Webhook, String> {
        let (name, decisions) = (config.name.clone(), self.decisions.clone());
        let observer: AttemptObserver = Arc::new(move |result, took| decisions.asked(&name, result, took));
        let reviewer = Reviewer::timed(&config.kubeconfig, config.timeout, Some(observer)).await?;
        Ok(Webhook::new(Arc::new(reviewer), config.clone(), clock.clone(), self.decisions.clone()))
    }
}

/// The authorizers of a cluster.
pub struct Authz {
    /// All of them, in their order.
    pub authorizer: Arc<dyn Authorizer>,
    /// RBAC alone.
    pub rbac: Arc<Rbac>,
    /// What they decided.
    pub decisions: Arc<AuthorizationMetrics>,
    node: Arc<Node>,
    reload: Option<Reload>,
}

impl Authz {
    /// Until the engine has resources, only `system:masters` is allowed anything. `server` is the label of this server in
    /// metrics.
    ///
    /// # Errors
    /// Options that cannot be used.
    pub async fn new(
        options: &AuthzOptions,
        server: &str,
        clock: &Arc<dyn Clock>,
        engine: Weak<Engine>,
    ) -> Result<Authz, AuthzError> {
        let configured = options.read()?;
        let policies = options.policies(&configured.modes)?.unwrap_or_default();
        let parts = Parts::new(Arc::new(AuthorizationMetrics::new(server)), policies, engine);
        let current = Arc::new(Current::default());
        current.set(parts.build(&configured.modes, clock).await.map_err(AuthzError::Config)?);
        let reload = configured
            .file
            .map(|file| Reload::new(file, configured.modes, parts.clone(), current.clone(), clock.clone()));
        let Parts { rbac, node, decisions, .. } = parts;
        Ok(Authz { authorizer: current, rbac, decisions, node, reload })
    }

    /// Keeps the node graph up to date and reloads the configuration file, until `stop` turns true.
    pub async fn follow(self, stop: watch::Receiver<bool>) {
        if let Some(reload) = self.reload {
            tokio::join!(reload.run(stop.clone()), tick(self.node, stop));
        } else {
            tick(self.node, stop).await;
        }
    }
}

async fn tick(node: Arc<Node>, mut stop: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = ticks.tick() => node.tick(),
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}
