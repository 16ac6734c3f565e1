//! Who may do what in this cluster: the authorizers in their order, fed from the engine's caches.
//!
//! Invariant: a refusal is as new as the store was when it was asked for; a permission as new as the caches are.

use kaji_auth::{
    Always, Attributes, Authorizer, Decision, Masters, Outcome, Rules, Union,
    authz::{
        config::Mode,
        feed::{Change, Feed},
        node::{self, Node},
        policy,
        rbac::{self, Rbac},
    },
};
use kaji_engine::{
    Engine,
    cache::{Cache, Follower},
};
use kaji_meta::GroupResource;
use kaji_resource::{Api, BoxFuture, UserInfo};
use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};
use tokio::sync::watch;

/// How often the node graph follows the caches when no node asks.
const TICK: Duration = Duration::from_secs(2);

/// The engine once it is open: authorizers are made before it, because admission and hooks ask them.
#[derive(Clone, Default)]
struct Source(Arc<OnceLock<Weak<Engine>>>);

struct Followed {
    cache: Arc<Cache>,
    follower: Mutex<Follower>,
}

/// One resource of the engine.
struct EngineFeed {
    source: Source,
    resource: GroupResource,
    followed: OnceLock<Followed>,
}

impl EngineFeed {
    fn boxed(source: &Source, group: &str, resource: &str) -> Box<dyn Feed> {
        let resource = GroupResource::new(group, resource);
        Box::new(EngineFeed { source: source.clone(), resource, followed: OnceLock::new() })
    }

    /// `None` until the engine serves the resource.
    fn followed(&self) -> Option<&Followed> {
        if self.followed.get().is_none() {
            let engine = self.source.0.get()?.upgrade()?;
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

    fn take(&self) -> (u64, Vec<Change>) {
        let Some(followed) = self.followed() else { return (0, vec![]) };
        let mut follower = followed.follower.lock().unwrap_or_else(PoisonError::into_inner);
        let (revision, entries) = follower.take();
        let changes = entries.into_iter().map(|(entry, there)| Change {
            namespace: entry.namespace().to_owned(),
            name: entry.name().to_owned(),
            object: there.then(|| entry.decode()),
        });
        (revision, changes.collect())
    }
}

/// Refuses nobody on account of caches that lag behind the store: before that, they catch up, as long as a read would wait
/// for them. So whoever was told that a role is written may use it. What is allowed is allowed at once.
struct Fresh {
    authorizers: Union,
    source: Source,
}

impl Authorizer for Fresh {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let engine = self.source.0.get().and_then(Weak::upgrade);
            // Looked at before the answer, so that what is applied meanwhile counts as news.
            let before = engine.as_ref().map(|engine| engine.applied());
            let outcome = self.authorizers.authorize(attributes).await;
            let (Some(engine), Some(before), Decision::NoOpinion) = (engine, before, outcome.decision) else {
                return outcome;
            };
            // Without an answer from the store, what is known has to do.
            if engine.sync().await.is_err() || engine.applied() == before {
                return outcome;
            }
            self.authorizers.authorize(attributes).await
        })
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> BoxFuture<'a, Rules> {
        Box::pin(async move {
            if let Some(engine) = self.source.0.get().and_then(Weak::upgrade) {
                // As above: what is known has to do.
                let _ = engine.sync().await;
            }
            self.authorizers.rules(user, namespace).await
        })
    }
}

/// Controllers here patch what upstream's update, so that they write no more than they mean to. Whoever is one of their
/// service accounts or their manager and may update an object may do it by a patch: that gives them nothing new, and leaves the default
/// roles what they are upstream.
struct ControllerPatches(Arc<Rbac>);

impl ControllerPatches {
    fn stands_for(user: &str) -> bool {
        match user.strip_prefix("system:serviceaccount:kube-system:") {
            Some(account) => policy::controller_accounts().any(|known| known == account),
            None => user == "system:kube-controller-manager",
        }
    }
}

impl Authorizer for ControllerPatches {
    fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        if a.verb != "patch" || !Self::stands_for(&a.user.name) {
            return Box::pin(std::future::ready(Outcome::default()));
        }
        Box::pin(async move {
            let outcome = self.0.authorize(&Attributes { verb: "update", ..*a }).await;
            // What is missing was said of the patch already.
            if outcome.allowed() { outcome } else { Outcome::default() }
        })
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Rules> {
        Box::pin(std::future::ready(Rules::default()))
    }
}

/// The authorizers of a cluster.
pub struct Access {
    /// All of them, in upstream's order.
    pub authorizer: Arc<dyn Authorizer>,
    /// RBAC alone.
    pub rbac: Arc<Rbac>,
    node: Arc<Node>,
    source: Source,
}

impl Access {
    /// They allow nothing but what `system:masters` may do until they know the engine.
    pub fn new(modes: &[Mode]) -> Access {
        let source = Source::default();
        let feed = |group, resource| EngineFeed::boxed(&source, group, resource);
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
        let mut all: Vec<Arc<dyn Authorizer>> = vec![Arc::new(Masters)];
        for mode in modes {
            match mode {
                Mode::Node => all.push(node.clone()),
                Mode::Rbac => all
                    .extend([rbac.clone() as Arc<dyn Authorizer>, Arc::new(ControllerPatches(rbac.clone()))]),
                Mode::AlwaysAllow => all.push(Arc::new(Always(Decision::Allow))),
                Mode::AlwaysDeny => all.push(Arc::new(Always(Decision::NoOpinion))),
            }
        }
        let authorizer = Arc::new(Fresh { authorizers: Union(all), source: source.clone() });
        Access { authorizer, rbac, node, source }
    }

    /// Makes the engine known. Only the first call counts.
    pub fn set(&self, engine: &Arc<Engine>) {
        let _ = self.source.0.set(Arc::downgrade(engine));
    }

    /// Follows what nodes seldom ask for, until told to stop.
    pub async fn follow(node: Arc<Node>, mut stop: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => node.tick(),
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// The node authorizer.
    pub fn node(&self) -> Arc<Node> {
        self.node.clone()
    }
}
