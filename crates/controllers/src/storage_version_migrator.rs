//! Storage version migration: every object of a resource is written anew, so that the store has it in the version and
//! under the encryption key that new objects get.
//!
//! A migration takes one step at a time, each recorded in its status: it runs (one a resource, the oldest first), it gets the
//! resource version up to which objects are to be migrated, it succeeds or fails, it is cleared away. So after a restart
//! it goes on where it was. An object is migrated by an apply of nothing.
//! Source: KEP-4192; reasons and texts are those that users see upstream.
//!
//! Invariants:
//! - No object is changed, made or brought back: an apply names the uid and the resourceVersion that were seen, and
//!   the other write has migrated the object.
//! - `storedVersions` of a definition lose what was migrated only if the definition's spec stayed the same throughout.

use crate::{
    ControllerContext, Descriptor, Start,
    shared::{
        conditions::seconds,
        discovery::{Found, Resource, find},
        workers::{self, Works},
    },
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::{StreamExt, TryStreamExt, stream};
use kaji_runtime::{
    Client, Error, Informer, Key, PatchKind, Shared, client::Target, client::escape,
    objects::StorageVersionMigration, queue::Queue,
};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tokio::task::JoinSet;

/// The field manager of the migration's part of a definition's status.
const RUNNER: &str = "migration-runner-controller";
/// Resources migrated at once.
const WORKERS: usize = 5;
/// Objects of one resource migrated at once.
const PARALLEL: usize = 8;
/// Objects listed at once.
const PAGE: usize = 500;
/// How long after a migration's creation its resource may begin to exist, seconds.
const RESOURCE_GRACE_SECONDS: i64 = 60;
/// What a resource must support.
const VERBS: [&str; 3] = ["update", "patch", "list"];

type Migration = StorageVersionMigration;

struct Migrator {
    client: Client,
    /// The same, asking for metadata only: of lists, of objects.
    lists: Client,
    objects: Client,
    shared: Shared,
    /// Resources: group and plural.
    queue: Queue,
    migrations: Arc<Informer<Migration>>,
}

const COMPONENT: &str = "storage-version-migrator-controller";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "storage-version-migrator-controller",
    components: &[COMPONENT],
    service_account: Some("storage-version-migrator-controller"),
    workers: None,
    start: Start::Tasks(spawn),
};

/// Starts the controller.
fn spawn(tasks: &mut JoinSet<()>, context: ControllerContext<'_>) {
    let ControllerContext { informers, shared, config, stop } = context;
    if !config.loops.garbage_collector {
        // Upstream's, too.
        tracing::warn!("the storage version migrator does not run: it requires the garbage collector");
        return;
    }
    let client = shared.client.named(COMPONENT);
    let migrator = Arc::new(Migrator {
        lists: client.metadata_list(),
        objects: client.metadata_only(),
        client,
        shared: shared.clone(),
        queue: informers.queue("storage_version_migrator"),
        migrations: informers.get::<Migration>(),
    });
    let seen = Arc::downgrade(&migrator);
    migrator.migrations.handle(move |change| {
        if let Some(seen) = seen.upgrade() {
            seen.queue.add(key(change.any()));
        }
    });
    tasks.spawn(workers::run(migrator, WORKERS, std::future::pending(), stop));
}

fn key(migration: &Migration) -> Key {
    let resource = &migration.spec.resource;
    Key::new(resource.group.as_str(), resource.resource.as_str())
}

impl Works for Migrator {
    fn queue(&self) -> &Queue {
        &self.queue
    }

    async fn handle(&self, key: &Key) {
        match self.work(key).await {
            Ok(()) => self.queue.forget(key),
            Err(Stop::Again(reason)) => {
                tracing::debug!(resource = %key, reason, "a storage version migration is not complete; retrying");
                self.queue.retry(key.clone());
            }
            Err(Stop::Call(error)) => {
                tracing::debug!(resource = %key, %error, "a storage version migration is not complete; retrying");
                let wait = match &error {
                    Error::Api(status) => status.details.as_ref().map_or(0, |d| d.retry_after_seconds),
                    _ => 0,
                };
                match wait {
                    0 => self.queue.retry(key.clone()),
                    wait => self.queue.add_after(key.clone(), std::time::Duration::from_secs(wait.into())),
                }
            }
        }
    }
}

/// Why a step was not made: it will be.
#[derive(Debug)]
enum Stop {
    Again(String),
    Call(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Call(error)
    }
}

/// Why a migration fails for good.
type Failed = String;

/// Of the migrations of one resource, those that are over but still reported as running, and the next one to run.
fn choose(all: impl Iterator<Item = Arc<Migration>>) -> (Vec<Arc<Migration>>, Option<Arc<Migration>>) {
    let (over, mut open): (Vec<_>, Vec<_>) = all.partition(|m| m.over());
    let over = over.into_iter().filter(|m| m.is("Running")).collect();
    // Whichever runs goes on running; else the oldest begins.
    open.sort_by(|a, b| {
        let rank = |m: &Migration| (!m.is("Running"), m.metadata.creation_timestamp);
        rank(a).cmp(&rank(b)).then_with(|| a.metadata.name.cmp(&b.metadata.name))
    });
    (over, open.into_iter().next())
}

/// `apps/v1, Resource=deployments`, as users see it upstream.
fn printed(r: &Resource) -> String {
    format!("{}/{}, Resource={}", r.group, r.version, r.resource)
}

/// What discovery says of resources stored as this version.
fn storage_version_hash(group: &str, version: &str, kind: &str) -> String {
    STANDARD.encode(&Sha256::digest(format!("{group}/{version}/{kind}"))[..8])
}

/// A resource version as a number; a list has no other.
fn number(text: &str) -> Result<u64, Failed> {
    let good = !text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| good);
    number.ok_or_else(|| format!("resource version is not well formed: {text}"))
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct List {
    metadata: ListMeta,
    items: Option<Vec<Item>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    #[serde(rename = "continue")]
    next: String,
    resource_version: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Item {
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
}

/// Whether a failed apply is worth another try.
fn passing(error: &Error) -> bool {
    match error {
        Error::Api(status) => matches!(status.code, 429 | 500 | 503 | 504),
        Error::Transport(_) | Error::Timeout(_) => true,
        Error::Decode(_) => false,
    }
}

impl Migrator {
    /// One step of a resource's migrations. The next follows when this one is seen.
    async fn work(&self, key: &Key) -> Result<(), Stop> {
        let snapshot = self.migrations.snapshot();
        let ours = snapshot.iter().filter(|m| self::key(m) == *key).cloned();
        let (over, current) = choose(ours);
        for migration in over {
            self.clear(&migration).await?;
        }
        match current {
            Some(m) if !m.is("Running") => self.begin(&m).await,
            Some(m) if m.status.resource_version.is_empty() => self.mark(&m).await,
            Some(m) => self.migrate(&m).await,
            None => Ok(()),
        }
    }

    /// Says that a migration runs, in its definition too.
    async fn begin(&self, migration: &Migration) -> Result<(), Stop> {
        if let Some(definition) = self.definition(migration).await? {
            let message = format!("Migration {} is running", migration.metadata.name);
            self.note(&definition, ("True", "MigrationRunning", &message), None).await?;
        }
        let conditions = self.with(migration, "Running", "MigrationRunning", "The migration is running");
        self.write(migration, json!({"conditions": conditions})).await
    }

    /// Says up to which version objects are to be migrated.
    async fn mark(&self, migration: &Migration) -> Result<(), Stop> {
        let Some(Found { resource, storage_version_hash: hash }) = self.find(migration).await? else {
            if self.early(migration) {
                return Err(Stop::Again("the resource is not served yet".into()));
            }
            return self.fail(migration, "resource does not exist in discovery").await;
        };
        if !resource.supports(&VERBS) {
            let printed = kaji_meta::text::quote(&printed(&resource));
            let verbs = VERBS.join(" ");
            let message = format!("resource {printed} does not support discovery operations: [{verbs}]");
            return self.fail(migration, &message).await;
        }
        // A definition's change takes a moment to be served; what is written before that is stored as before.
        if let Some(definition) = self.definition(migration).await?
            && let Some(version) = stored_version(&definition)
            && hash != storage_version_hash(&resource.group, version, &resource.kind)
        {
            return Err(Stop::Again("the definition's storage version is not served yet".into()));
        }
        let page = format!("{}?limit=1", resource.target("", "").path());
        let list: List = self.lists.get(&page).await?;
        let latest = list.metadata.resource_version;
        if let Err(error) = number(&latest) {
            let message = format!("latest resourceVersion for {} is not valid: {error}", printed(&resource));
            return self.fail(migration, &message).await;
        }
        self.write(migration, json!({"resourceVersion": latest})).await
    }

    /// Migrates all objects.
    async fn migrate(&self, migration: &Migration) -> Result<(), Stop> {
        let unhandled = |text: &str| format!("migration encountered unhandled error: {text}");
        let Some(Found { resource, .. }) = self.find(migration).await? else {
            if self.early(migration) {
                return Err(Stop::Again("the resource is not served any more".into()));
            }
            return self.fail(migration, &unhandled("unable to obtain GVR from discovery")).await;
        };
        let outcome = match number(&migration.status.resource_version) {
            Ok(limit) => self.all(&resource, limit).await?,
            Err(error) => {
                Err(format!("error comparing resource versions between GC and SVM resource: {error}"))
            }
        };
        match outcome {
            Ok(()) => {
                let conditions = self.with(migration, "Succeeded", "StorageVersionMigrationSucceeded", "");
                self.write(migration, json!({"conditions": conditions})).await
            }
            Err(failed) => self.fail(migration, &unhandled(&failed)).await,
        }
    }

    /// Migrates the objects that are no newer than `limit`, page by page.
    async fn all(&self, resource: &Resource, limit: u64) -> Result<Result<(), Failed>, Stop> {
        let base = resource.target("", "").path();
        let mut next = String::new();
        loop {
            let token = if next.is_empty() { String::new() } else { format!("&continue={}", escape(&next)) };
            let list: List = self.lists.get(&format!("{base}?limit={PAGE}{token}")).await?;
            let mut old = vec![];
            for item in list.items.unwrap_or_default() {
                match number(&item.metadata.resource_version) {
                    Ok(version) if version > limit => {}
                    Ok(_) => old.push(item.metadata),
                    Err(failed) => return Ok(Err(failed)),
                }
            }
            let work = stream::iter(old).map(|object| self.one(resource, object)).buffer_unordered(PARALLEL);
            match work.try_collect::<()>().await {
                Ok(()) => {}
                Err(error) if passing(&error) => return Err(Stop::Call(error)),
                Err(error) => return Ok(Err(error.to_string())),
            }
            next = list.metadata.next;
            if next.is_empty() {
                return Ok(Ok(()));
            }
        }
    }

    /// Writes an object as it is, unless it was written or deleted meanwhile.
    async fn one(&self, resource: &Resource, object: Metadata) -> Result<(), Error> {
        let target = resource.target(&object.namespace, &object.name);
        let body = json!({
            "apiVersion": resource.api_version(),
            "kind": resource.kind,
            "metadata": {"uid": object.uid, "resourceVersion": object.resource_version},
        });
        let query = format!("fieldManager={COMPONENT}");
        match self.objects.patch(&target, PatchKind::Apply.content_type(), &query, &body).await {
            Err(error) if error.conflict() && error.reason() == "Conflict" => Ok(()),
            other => other.map(drop),
        }
    }

    /// Says that a migration that is over does not run any more, in its definition first.
    async fn clear(&self, migration: &Migration) -> Result<(), Stop> {
        if let Some(definition) = self.definition(migration).await? {
            self.finish(&definition, migration.is("Succeeded")).await?;
        }
        let mut conditions = migration.status.conditions.clone();
        for condition in conditions.iter_mut().filter(|c| c["type"] == "Running") {
            *condition = json!({
                "type": "Running", "status": "False", "lastTransitionTime": self.now(),
                "reason": "MigrationCompleted", "message": "Migration completed",
            });
            if migration.metadata.generation != 0 {
                condition["observedGeneration"] = migration.metadata.generation.into();
            }
        }
        self.write(migration, json!({"conditions": conditions})).await
    }

    /// Takes down the end of a migration in its definition.
    async fn finish(&self, definition: &Value, succeeded: bool) -> Result<(), Stop> {
        let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
        let running = conditions.and_then(|c| c.iter().find(|c| c["type"] == "StorageMigrating"));
        let same = running.is_some_and(|c| c["observedGeneration"] == definition["metadata"]["generation"]);
        let (reason, message) = match (succeeded, same) {
            (true, true) => (
                "MigrationSucceeded",
                "The migration has succeeded and the stored versions have been updated",
            ),
            (true, false) => (
                "MigrationSucceeded",
                "The migration has succeeded but the stored versions have not been updated due to a generation mismatch",
            ),
            (false, _) => ("MigrationFailed", "The migration has failed"),
        };
        // What could not be migrated is still stored.
        let stored = stored_version(definition).filter(|_| succeeded && same);
        self.note(definition, ("False", reason, message), stored).await
    }

    /// Sets a definition's condition, and if given the only version that it has stored. Else its versions are repeated:
    /// an apply without them would drop those that an earlier one set.
    async fn note(
        &self,
        definition: &Value,
        (status, reason, message): (&str, &str, &str),
        stored: Option<&str>,
    ) -> Result<(), Stop> {
        let meta = &definition["metadata"];
        let mut body = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": meta["name"], "resourceVersion": meta["resourceVersion"]},
            "status": {"conditions": [{
                "type": "StorageMigrating", "status": status, "reason": reason, "message": message,
                "lastTransitionTime": self.now(), "observedGeneration": meta["generation"],
            }]},
        });
        body["status"]["storedVersions"] = match stored {
            Some(version) => json!([version]),
            None => definition["status"]["storedVersions"].clone(),
        };
        let target = definition_target(meta["name"].as_str().unwrap_or_default()).subresource("status");
        let query = format!("fieldManager={RUNNER}&force=true");
        self.objects.patch(&target, PatchKind::Apply.content_type(), &query, &body).await?;
        Ok(())
    }

    /// The definition of a resource, if it is a custom one.
    async fn definition(&self, migration: &Migration) -> Result<Option<Value>, Error> {
        let resource = &migration.spec.resource;
        let name = format!("{}.{}", resource.resource, resource.group);
        match self.client.get(&definition_target(&name).path()).await {
            Ok(definition) => Ok(Some(definition)),
            Err(error) if error.not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn find(&self, migration: &Migration) -> Result<Option<Found>, Error> {
        let resource = &migration.spec.resource;
        find(&self.client, &resource.group, &resource.resource).await
    }

    /// Whether the migration is so young that its resource may still come.
    fn early(&self, migration: &Migration) -> bool {
        let now = self.shared.clock.now().as_second();
        migration
            .metadata
            .creation_timestamp
            .is_some_and(|t| t.as_second().saturating_add(RESOURCE_GRACE_SECONDS) > now)
    }

    async fn fail(&self, migration: &Migration, message: &str) -> Result<(), Stop> {
        let conditions = self.with(migration, "Failed", "StorageVersionMigrationFailed", message);
        self.write(migration, json!({"conditions": conditions})).await
    }

    fn now(&self) -> String {
        seconds(self.shared.clock.now()).to_string()
    }

    /// The conditions with one more.
    fn with(&self, migration: &Migration, kind: &str, reason: &str, message: &str) -> Vec<Value> {
        let mut conditions = migration.status.conditions.clone();
        if !conditions.iter().any(|c| c["type"] == kind && c["status"] != "Unknown") {
            conditions.push(json!({
                "type": kind, "status": "True", "lastTransitionTime": self.now(),
                "reason": reason, "message": message,
            }));
        }
        conditions
    }

    /// Writes a part of the status, if the migration is still as it was seen.
    async fn write(&self, migration: &Migration, status: Value) -> Result<(), Stop> {
        let meta = &migration.metadata;
        let body = json!({
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": status,
        });
        let target = Target::of::<Migration>("", &meta.name).subresource("status");
        match self.objects.patch(&target, PatchKind::Merge.content_type(), "", &body).await {
            Err(error) if error.not_found() => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }
}

fn definition_target(name: &str) -> Target {
    Target {
        group: "apiextensions.k8s.io".into(),
        version: "v1".into(),
        resource: "customresourcedefinitions".into(),
        name: name.into(),
        ..Target::default()
    }
}

/// The version that a definition's objects are stored in.
fn stored_version(definition: &Value) -> Option<&str> {
    let versions = definition.pointer("/spec/versions")?.as_array()?;
    versions.iter().find(|v| v["storage"] == true)?["name"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, object};

    fn migration(name: &str, age: i64, conditions: &[&str]) -> Arc<Migration> {
        let conditions: Vec<Value> =
            conditions.iter().map(|c| json!({"type": c, "status": "True"})).collect();
        Arc::new(object(json!({
            "metadata": {"name": name, "creationTimestamp": ago(age)},
            "spec": {"resource": {"resource": "secrets"}},
            "status": {"conditions": conditions},
        })))
    }

    #[test]
    fn runs_one_migration_per_resource_oldest_first() {
        let names = |all: &[Arc<Migration>]| {
            let (over, current) = choose(all.iter().cloned());
            let over: Vec<_> = over.iter().map(|m| m.metadata.name.clone()).collect();
            format!("{} | {}", over.join(","), current.map_or(String::new(), |m| m.metadata.name.clone()))
        };
        let (a, b) = (migration("a", 5, &[]), migration("b", 9, &[]));
        assert_eq!(names(&[a.clone(), b.clone()]), " | b");
        let c = migration("c", 9, &[]);
        assert_eq!(names(&[c, b.clone()]), " | b", "then by name");
        let running = migration("running", 1, &["Running"]);
        assert_eq!(names(&[a.clone(), running.clone(), b.clone()]), " | running");
        let over = migration("over", 20, &["Running", "Succeeded"]);
        let failed = migration("failed", 20, &["Failed"]);
        assert_eq!(names(&[a, over.clone(), failed.clone(), b]), "over | b");
        assert_eq!(names(&[over, failed]), "over | ");
    }

    #[test]
    fn accepts_numeric_resource_versions() {
        assert_eq!(number("17"), Ok(17));
        for bad in ["", "0", "017", "-1", "x"] {
            assert_eq!(number(bad), Err(format!("resource version is not well formed: {bad}")));
        }
    }

    #[test]
    fn retries_transient_errors() {
        let api = |code| {
            let mut status = kaji_meta::Status::internal("m");
            status.code = code;
            Error::Api(Box::new(status))
        };
        let codes: Vec<u16> = (400..520).filter(|code| passing(&api(*code))).collect();
        assert_eq!(codes, [429, 500, 503, 504]);
        assert!(passing(&Error::Transport(String::new())) && !passing(&Error::Decode(String::new())));
    }
}
