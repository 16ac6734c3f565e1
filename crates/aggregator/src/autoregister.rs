//! APIServices of the groups that this server serves: those of built-in groups are created when it starts, those of custom
//! resources are created and deleted with their definitions.
//!
//! Invariants: an APIService without the label of this controller is not changed; one that is up to date is not written. Source: upstream's `autoregister` and `crdregistration` controllers.

use crate::{
    changes::{Changes, Watched},
    priorities::{self, Priority},
    service::api_services,
};
use futures_util::{StreamExt, stream};
use kaji_engine::{Engine, cache::Follower};
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::{Api, DeleteOptions, FieldManagement, ObjectReader, UpdateOptions};
use kaji_schema::SchemaRef;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Weak,
    time::Duration,
};

/// The label of managed APIServices; its value says when they are synchronized.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Its value for those that a start of the server sees to.
const ON_START: &str = "onstart";
/// Its value for those that are always seen to.
const ALWAYS: &str = "true";
/// How many are written at once: they share commits.
const AT_ONCE: usize = 32;
/// How long after a failure it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// A group version.
type Version = (String, String);

fn definitions() -> GroupResource {
    GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions")
}

fn spec((group, version): &Version, priority: Priority) -> Value {
    json!({
        "group": group,
        "version": version,
        "groupPriorityMinimum": priority.group,
        "versionPriority": priority.version,
    })
}

fn api_service(version: &Version, priority: Priority, managed: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": name(version), "labels": {MANAGED: managed}},
        "spec": spec(version, priority),
    })
}

fn name((group, version): &Version) -> String {
    format!("{version}.{group}")
}

/// What is to be done about an APIService.
#[derive(Debug, PartialEq)]
enum Action {
    Nothing,
    Create,
    Update,
    Delete,
}

/// Upstream's table in `checkAPIService`. `starting` is whether the server starts: those that only a start sees to are
/// left alone after it.
fn decide(current: Option<&Value>, wanted: Option<&Value>, starting: bool) -> Action {
    let Some(current) = current else {
        return if wanted.is_some() { Action::Create } else { Action::Nothing };
    };
    match object::label(current, MANAGED) {
        Some(ALWAYS) => {}
        Some(ON_START) if starting => {}
        _ => return Action::Nothing,
    }
    match wanted {
        None => Action::Delete,
        Some(wanted) if wanted["spec"] == current["spec"] => Action::Nothing,
        Some(_) => Action::Update,
    }
}

async fn reconcile(api: &dyn Api, name: &str, wanted: Option<&Value>, starting: bool) -> Result<(), Status> {
    let services = api_services();
    let current = api.get(&services, "", name);
    let outcome = match (decide(current.as_deref(), wanted, starting), wanted) {
        (Action::Create, Some(wanted)) => api.create(&services, "", wanted.clone(), false).await.map(drop),
        (Action::Update, Some(wanted)) => {
            let change = |object: &mut Value| {
                object["spec"] = wanted["spec"].clone();
                Ok(())
            };
            api.update(&services, "", name, UpdateOptions::new("", FieldManagement::Record), &change)
                .await
                .map(drop)
        }
        (Action::Delete, _) => {
            let uid = current.as_deref().map(|c| object::uid(c).to_owned());
            let options = DeleteOptions { uid, ..DeleteOptions::default() };
            api.delete(&services, "", name, options).await.map(drop)
        }
        _ => Ok(()),
    };
    match outcome {
        // Created, changed or deleted by another writer meanwhile: that gives another event.
        Err(status) if matches!(status.code, 404 | 409) => Ok(()),
        other => other,
    }
}

/// The group versions that are built in.
fn builtin(engine: &Engine) -> BTreeMap<Version, Priority> {
    let mut found = BTreeMap::new();
    for resource in engine.registry().iter() {
        for version in resource.def.versions.iter().filter(|v| v.served) {
            let custom = matches!(version.schema, SchemaRef::Owned(_));
            let priority = priorities::builtin(&resource.def.group, &version.name).filter(|_| !custom);
            let key = (resource.def.group.to_string(), version.name.to_string());
            found.extend(priority.map(|priority| (key, priority)));
        }
    }
    found
}

/// Makes those of built-in groups, and removes those of groups that are built in no more.
///
/// # Errors
/// The first refusal.
pub async fn ensure(engine: &Engine) -> Result<(), Status> {
    let mut all: BTreeMap<String, Option<Value>> = BTreeMap::new();
    for found in engine.list(&api_services(), None) {
        if object::label(&found, MANAGED) == Some(ON_START) {
            all.insert(object::name(&found).to_owned(), None);
        }
    }
    for (version, priority) in builtin(engine) {
        all.insert(name(&version), Some(api_service(&version, priority, ON_START)));
    }
    let writes = all.iter().map(|(name, wanted)| reconcile(engine, name, wanted.as_ref(), true));
    let outcomes: Vec<_> = stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
    outcomes.into_iter().collect()
}

/// What a definition serves, as far as APIServices go.
#[derive(Deserialize)]
struct Definition {
    spec: DefinitionSpec,
}

#[derive(Deserialize)]
struct DefinitionSpec {
    group: String,
    #[serde(default)]
    versions: Vec<DefinitionVersion>,
}

#[derive(Deserialize)]
struct DefinitionVersion {
    name: String,
    #[serde(default)]
    served: bool,
}

fn served(definition: &[u8]) -> BTreeSet<Version> {
    let Ok(Definition { spec }) = serde_json::from_slice(definition) else { return BTreeSet::new() };
    let DefinitionSpec { group, versions } = spec;
    versions.into_iter().filter(|v| v.served).map(|v| (group.clone(), v.name)).collect()
}

/// Reconciles APIServices of custom resources with their definitions, until the engine is gone.
pub(crate) async fn follow(engine: Weak<Engine>) {
    let Some(mut registrar) = engine.upgrade().and_then(|e| Registrar::new(&e)) else { return };
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let kinds = [Watched::all(definitions(), "v1"), Watched::all(api_services(), "v1")];
        let Some(mut changes) = Changes::of(&strong, kinds).await else { return };
        drop(strong);
        loop {
            let Some(strong) = engine.upgrade() else { return };
            let late = !registrar.reconcile(&strong).await;
            drop(strong);
            let again = async {
                match late {
                    true => tokio::time::sleep(AGAIN).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                more = changes.next() => if !more { break },
                () = again => {}
            }
        }
    }
}

struct Registrar {
    definitions: Follower,
    services: Follower,
    builtin: BTreeMap<Version, Priority>,
    of_definition: HashMap<String, BTreeSet<Version>>,
    /// By how many definitions each is served.
    wanted: HashMap<Version, usize>,
    /// What is to be looked at.
    dirty: BTreeSet<Version>,
}

impl Registrar {
    fn new(engine: &Engine) -> Option<Registrar> {
        let registry = engine.registry();
        let follower =
            |gr: &GroupResource| registry.by_group_resource(gr).map(|r| Follower::new(r.cache.clone()));
        Some(Registrar {
            definitions: follower(&definitions())?,
            services: follower(&api_services())?,
            builtin: builtin(engine),
            of_definition: HashMap::new(),
            wanted: HashMap::new(),
            dirty: BTreeSet::new(),
        })
    }

    /// Looks at everything that changed. False when something has to be tried again.
    async fn reconcile(&mut self, engine: &Engine) -> bool {
        for (entry, there) in self.definitions.take().1 {
            let now = if there { served(&entry.object()) } else { BTreeSet::new() };
            self.defined(entry.name(), now);
        }
        for (entry, _) in self.services.take().1 {
            let version = entry.name().split_once('.').map(|(v, g)| (g.to_owned(), v.to_owned()));
            self.dirty.extend(version);
        }
        let dirty = std::mem::take(&mut self.dirty);
        let wanted = |version: &Version| {
            self.wanted.contains_key(version).then(|| api_service(version, priorities::CUSTOM, ALWAYS))
        };
        let writes = dirty.into_iter().filter(|v| !self.builtin.contains_key(v)).map(|version| {
            let wanted = wanted(&version);
            async move {
                let outcome = reconcile(engine, &name(&version), wanted.as_ref(), false).await;
                outcome.map_err(|status| (version, status)).err()
            }
        });
        let failed: Vec<_> = stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
        for (version, error) in failed.into_iter().flatten() {
            tracing::warn!(name = name(&version), %error, "an APIService could not be synchronized");
            self.dirty.insert(version);
        }
        self.dirty.is_empty()
    }

    fn defined(&mut self, definition: &str, now: BTreeSet<Version>) {
        let before = self.of_definition.remove(definition).unwrap_or_default();
        for version in now.difference(&before) {
            *self.wanted.entry(version.clone()).or_default() += 1;
            self.dirty.insert(version.clone());
        }
        for version in before.difference(&now) {
            if let Some(count) = self.wanted.get_mut(version) {
                *count -= 1;
                if *count == 0 {
                    self.wanted.remove(version);
                }
            }
            self.dirty.insert(version.clone());
        }
        if !now.is_empty() {
            self.of_definition.insert(definition.to_owned(), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_as_upstream() {
        let version = ("a.io".to_owned(), "v1".to_owned());
        let object = |managed: &str| api_service(&version, priorities::CUSTOM, managed);
        let other = |managed: &str| api_service(&version, priorities::OWN, managed);
        let mut theirs = other("");
        theirs["metadata"]["labels"] = json!({});
        let wanted = object(ALWAYS);
        let mut got = String::new();
        for (what, current) in [
            ("absent", None),
            ("theirs", Some(theirs)),
            ("onstart, same", Some(object(ON_START))),
            ("onstart, other", Some(other(ON_START))),
            ("always, same", Some(object(ALWAYS))),
            ("always, other", Some(other(ALWAYS))),
        ] {
            let now = |wanted, starting| decide(current.as_ref(), wanted, starting);
            got += &format!(
                "{what}: unwanted {:?}/{:?} wanted {:?}/{:?}\n",
                now(None, true),
                now(None, false),
                now(Some(&wanted), true),
                now(Some(&wanted), false)
            );
        }
        expect_test::expect![[r#"
            absent: unwanted Nothing/Nothing wanted Create/Create
            theirs: unwanted Nothing/Nothing wanted Nothing/Nothing
            onstart, same: unwanted Delete/Nothing wanted Nothing/Nothing
            onstart, other: unwanted Delete/Nothing wanted Update/Nothing
            always, same: unwanted Delete/Delete wanted Nothing/Nothing
            always, other: unwanted Delete/Delete wanted Update/Update
        "#]]
        .assert_eq(&got);
    }

    #[test]
    fn definitions_say_what_they_serve() {
        let definition = json!({"metadata": {"name": "x"}, "spec": {"group": "a.io", "names": {"plural": "x"},
            "versions": [{"name": "v1", "served": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
                {"name": "v0", "served": false}]}});
        let found: Vec<_> = served(definition.to_string().as_bytes()).iter().map(name).collect();
        assert_eq!(found, ["v1.a.io"]);
        assert!(served(b"{}").is_empty());
    }
}
