//! The routing table of group versions that extension servers serve.
//!
//! Invariants:
//! - The table is as new as the cache of APIServices at every read: an APIService counts from the moment that its write is
//!   acknowledged.
//! - A read costs two loads while no APIService changes, whatever number of them there is.

use crate::{ApiService, service::api_services};
use arc_swap::ArcSwap;
use kaji_engine::{
    Engine,
    cache::{Cache, Follower},
};
use kaji_outbound::{CallError, Client, ClientCache, ClientConfig, Target};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// Certificate chain and key, PEM, with which this server proves that it is the one that forwards.
pub type Identity = (Vec<u8>, Vec<u8>);

/// A group version of an extension server.
pub struct Route {
    /// Its APIService.
    pub service: ApiService,
    identity: Arc<Identity>,
    client: OnceLock<Result<Arc<Client>, CallError>>,
}

impl Route {
    fn new(service: ApiService, identity: Arc<Identity>) -> Route {
        Route { service, identity, client: OnceLock::new() }
    }

    /// How the server is reached.
    ///
    /// # Errors
    /// The APIService holds certificates that cannot be read.
    pub fn client(&self, clients: &ClientCache) -> Result<Arc<Client>, CallError> {
        let make = || {
            let backend = &self.service.backend;
            let target = Target::Service {
                namespace: backend.namespace.clone(),
                name: backend.name.clone(),
                path: String::new(),
                port: backend.port,
            };
            let mut config = ClientConfig::new(target, backend.ca_bundle.clone());
            config.insecure = backend.insecure;
            config.identity = Some(Identity::clone(&self.identity));
            clients.client(&config)
        };
        self.client.get_or_init(make).clone()
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Route").field(&self.service.name).finish()
    }
}

/// All of them at one moment.
#[derive(Debug, Default)]
pub struct Table {
    /// Of the cache it was made from.
    revision: u64,
    /// Grows whenever anything else in here changes.
    pub generation: u64,
    /// By group and version.
    by_version: BTreeMap<(String, String), Arc<Route>>,
}

impl Table {
    /// The route of a path that an extension server serves.
    pub fn route(&self, path: &str) -> Option<&Arc<Route>> {
        if self.by_version.is_empty() {
            return None;
        }
        let mut steps = path.trim_start_matches('/').splitn(4, '/');
        let key = match (steps.next(), steps.next(), steps.next()) {
            // The core group's APIService stands for everything below `/api`.
            (Some("api"), ..) => (String::new(), "v1".to_owned()),
            (Some("apis"), Some(group), Some(version)) => (group.to_owned(), version.to_owned()),
            _ => return None,
        };
        self.by_version.get(&key)
    }

    /// All, by group and version.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.by_version.values()
    }

    /// That of an APIService.
    pub fn named(&self, name: &str) -> Option<&Arc<Route>> {
        let (version, group) = name.split_once('.')?;
        self.by_version.get(&(group.to_owned(), version.to_owned()))
    }

    /// Whether this server serves everything itself.
    pub fn is_empty(&self) -> bool {
        self.by_version.is_empty()
    }
}

struct Source {
    cache: Arc<Cache>,
    state: Mutex<State>,
}

struct State {
    follower: Follower,
    identity: Arc<Identity>,
}

/// Keeps the table.
pub struct Routes {
    source: Option<Source>,
    table: ArcSwap<Table>,
}

impl Routes {
    /// Of an engine that serves APIServices; an engine that does not has none.
    pub fn new(engine: &Engine, identity: Identity) -> Routes {
        let cache = engine.registry().by_group_resource(&api_services()).map(|r| r.cache.clone());
        let source = cache.map(|cache| {
            let state = State { follower: Follower::new(cache.clone()), identity: Arc::new(identity) };
            Source { cache, state: Mutex::new(state) }
        });
        Routes { source, table: ArcSwap::default() }
    }

    /// The table as of now.
    pub fn table(&self) -> Arc<Table> {
        let table = self.table.load();
        match &self.source {
            Some(source) if source.cache.changed() != table.revision => self.follow(source),
            _ => Arc::clone(&table),
        }
    }

    /// The route of a path, if an extension server serves it.
    pub fn route(&self, path: &str) -> Option<Arc<Route>> {
        let table = self.table.load();
        match &self.source {
            Some(source) if source.cache.changed() != table.revision => {
                self.follow(source).route(path).cloned()
            }
            _ => table.route(path).cloned(),
        }
    }

    fn follow(&self, source: &Source) -> Arc<Table> {
        let mut state = source.state.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.table.load_full();
        if source.cache.changed() == old.revision {
            return old;
        }
        let (revision, changes) = state.follower.take();
        let mut by_version = old.by_version.clone();
        let mut moved = false;
        for (entry, there) in changes {
            let Some((version, group)) = entry.name().split_once('.') else { continue };
            let key = (group.to_owned(), version.to_owned());
            let service = if there { ApiService::parse(&entry.decode()) } else { None };
            match service {
                Some(service) if by_version.get(&key).is_some_and(|r| r.service == service) => {}
                Some(service) => {
                    moved = true;
                    by_version.insert(key, Arc::new(Route::new(service, state.identity.clone())));
                }
                None => moved |= by_version.remove(&key).is_some(),
            }
        }
        let table = Arc::new(Table { revision, generation: old.generation + u64::from(moved), by_version });
        self.table.store(table.clone());
        table
    }

    /// From now on this server proves itself by another certificate.
    pub fn identify(&self, identity: Identity) {
        let Some(source) = &self.source else { return };
        // What is there is followed first, so that nothing made with the old one comes after.
        self.table();
        let mut state = source.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state.identity == identity {
            return;
        }
        state.identity = Arc::new(identity);
        let old = self.table.load_full();
        let again = |(key, route): (&(String, String), &Arc<Route>)| {
            (key.clone(), Arc::new(Route::new(route.service.clone(), state.identity.clone())))
        };
        let by_version = old.by_version.iter().map(again).collect();
        self.table.store(Arc::new(Table {
            revision: old.revision,
            generation: old.generation + 1,
            by_version,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_are_found_by_group_and_version() {
        let service = |name: &str, group: &str, version: &str| {
            let object = json!({"metadata": {"name": name}, "spec": {"group": group, "version": version,
                "service": {"namespace": "n", "name": "s", "port": 443}}});
            let route = Route::new(ApiService::parse(&object).unwrap(), Arc::default());
            ((group.to_owned(), version.to_owned()), Arc::new(route))
        };
        let table = Table {
            by_version: [service("v1.a.io", "a.io", "v1"), service("v1.", "", "v1")].into(),
            ..Table::default()
        };
        let found = |path: &str| table.route(path).map_or("-", |r| &r.service.name);
        let paths = [
            "/apis/a.io/v1",
            "/apis/a.io/v1/",
            "/apis/a.io/v1/namespaces/x/y",
            "/apis/a.io/v2/x",
            "/apis/a.io",
            "/apis",
            "/api",
            "/api/v1/pods",
            "/openapi/v2",
            "/apis/a.io/v11",
        ];
        let got: Vec<String> = paths.iter().map(|p| format!("{p} {}", found(p))).collect();
        expect_test::expect![[r#"
            /apis/a.io/v1 v1.a.io
            /apis/a.io/v1/ v1.a.io
            /apis/a.io/v1/namespaces/x/y v1.a.io
            /apis/a.io/v2/x -
            /apis/a.io -
            /apis -
            /api v1.
            /api/v1/pods v1.
            /openapi/v2 -
            /apis/a.io/v11 -"#]]
        .assert_eq(&got.join("\n"));
        assert_eq!(table.named("v1.a.io").unwrap().service.name, "v1.a.io");
    }
}
