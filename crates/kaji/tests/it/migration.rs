//! Storage version migration: what is stored in an old version, or under an old key, is written anew and stays as it is.
//!
//! The rows are those of upstream's `test/integration/storageversionmigrator`.

use crate::common::{TestCluster, api::Api};
use kaji::{Options, StoreKind};
use kaji_controllers::Selection;
use kaji_resource::Verb;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const CRDS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";
const NAME: &str = "widgets.example.com";
const WIDGETS: &str = "example.com/v1/widgets";
const MIGRATIONS: &str = "storagemigration.k8s.io/v1/storageversionmigrations";

fn controlled(options: &mut Options) {
    options.controllers = true;
    options.selection = Selection::new(["storage-version-migrator-controller"]).unwrap();
}

async fn define(api: &Api<'_>) {
    let version = |name: &str| {
        json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"a": {"type": "string"}}}}})
    };
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME}, "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "widgets", "kind": "Widget"}, "versions": [version("v1"), version("v2")]}});
    api.ok(Verb::Create, CRDS, definition).await;
    api.until(CRDS, NAME, |d| condition(d.unwrap(), "Established").is_some_and(|c| c["status"] == "True"))
        .await;
}

/// Has new objects stored as `v2`.
async fn move_storage(api: &Api<'_>) {
    let patch = json!([
        {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
    ]);
    let moved = api.ok(Verb::Patch, &format!("{CRDS}/{NAME}"), patch).await;
    assert_eq!(moved["status"]["storedVersions"], json!(["v1", "v2"]));
}

fn condition(object: &Value, kind: &str) -> Option<Value> {
    object["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind).cloned()
}

/// All conditions: type, status, reason, message.
fn conditions(object: &Value) -> Vec<String> {
    let text = |c: &Value, field: &str| c[field].as_str().unwrap_or_default().to_owned();
    let all = object["status"]["conditions"].as_array().unwrap();
    all.iter().map(|c| ["type", "status", "reason", "message"].map(|f| text(c, f)).join("|")).collect()
}

async fn widget(api: &Api<'_>, name: &str) {
    let object =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "a": name});
    api.ok(Verb::Create, WIDGETS, object).await;
}

async fn migration(api: &Api<'_>, name: &str, resource: Value) -> Value {
    let object = json!({"apiVersion": "storagemigration.k8s.io/v1", "kind": "StorageVersionMigration",
        "metadata": {"name": name}, "spec": {"resource": resource}});
    api.ok(Verb::Create, MIGRATIONS, object).await
}

fn widgets() -> Value {
    json!({"group": "example.com", "resource": "widgets"})
}

/// Waits until a migration is over and cleared away, or until it has failed.
async fn over(api: &Api<'_>, name: &str) -> Value {
    let mut seen = Value::Null;
    api.until(MIGRATIONS, name, |m| {
        seen = m.unwrap().clone();
        condition(&seen, "Running").is_some_and(|c| c["status"] == "False")
    })
    .await;
    seen
}

/// The objects: name to stored version and revision.
async fn stored(cluster: &TestCluster) -> BTreeMap<String, (String, u64)> {
    let store = cluster.cluster.stack.engine.store();
    let found = store.range(kaji_store::Range::prefix("/registry/example.com/widgets/")).await.unwrap();
    let of = |kv: &kaji_store::KeyValue| {
        let object: Value = serde_json::from_slice(&kv.value).unwrap();
        let version = object["apiVersion"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        (object["metadata"]["name"].as_str().unwrap().to_owned(), (version, kv.mod_revision))
    };
    found.kvs.iter().map(of).collect()
}

const SUCCEEDED: [&str; 2] = [
    "Running|False|MigrationCompleted|Migration completed",
    "Succeeded|True|StorageVersionMigrationSucceeded|",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_move_to_the_storage_version() {
    let cluster = TestCluster::start_with(controlled).await;
    let api = Api(&cluster);
    define(&api).await;
    widget(&api, "a").await;
    widget(&api, "b").await;
    let before = api.ok(Verb::Get, &format!("{WIDGETS}/a"), Value::Null).await;
    // At once: the migration waits until the change is served.
    move_storage(&api).await;
    migration(&api, "m", widgets()).await;
    let done = over(&api, "m").await;
    assert_eq!(conditions(&done), SUCCEEDED);
    let checkpoint: u64 = done["status"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let moved = stored(&cluster).await;
    assert!(moved.values().all(|(version, revision)| version == "v2" && *revision > checkpoint), "{moved:?}");
    // Nothing but the version changed, and no field manager owns anything by it.
    let mut after = api.ok(Verb::Get, &format!("{WIDGETS}/a"), Value::Null).await;
    assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    assert_eq!(after, before);
    let definition = api.ok(Verb::Get, &format!("{CRDS}/{NAME}"), Value::Null).await;
    assert_eq!(definition["status"]["storedVersions"], json!(["v2"]));
    let noted = condition(&definition, "StorageMigrating").unwrap();
    assert_eq!((&noted["status"], &noted["observedGeneration"]), (&json!("False"), &json!(2)));
    assert_eq!(
        (noted["reason"].as_str().unwrap(), noted["message"].as_str().unwrap()),
        ("MigrationSucceeded", "The migration has succeeded and the stored versions have been updated")
    );
    assert!(condition(&definition, "Established").is_some_and(|c| c["status"] == "True"));

    // Several at once, one after the other, and none has anything to do.
    for name in ["x", "y", "z"] {
        migration(&api, name, widgets()).await;
    }
    for name in ["x", "y", "z"] {
        assert_eq!(conditions(&over(&api, name).await), SUCCEEDED);
    }
    assert_eq!(stored(&cluster).await, moved);
    // The old version may go now.
    let patch = json!([{"op": "remove", "path": "/spec/versions/0"}]);
    api.ok(Verb::Patch, &format!("{CRDS}/{NAME}"), patch).await;
    while api.raw(Verb::List, WIDGETS, "", &Value::Null).await.code != 404 {
        tokio::task::yield_now().await;
    }
    let list = api.ok(Verb::List, "example.com/v2/widgets", Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 2);

    // What cannot be listed and patched cannot be migrated.
    let reviews = json!({"group": "authorization.k8s.io", "resource": "selfsubjectaccessreviews"});
    migration(&api, "reviews", reviews).await;
    assert_eq!(
        conditions(&over(&api, "reviews").await),
        [
            "Running|False|MigrationCompleted|Migration completed",
            "Failed|True|StorageVersionMigrationFailed|resource \"authorization.k8s.io/v1, Resource=selfsubjectaccessreviews\" does not support discovery operations: [update patch list]",
        ]
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_goes_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = TestCluster::start_over(dir, 0, StoreKind::Disk, |_| {}).await;
    let api = Api(&cluster);
    define(&api).await;
    widget(&api, "early").await;
    let list = api.ok(Verb::List, WIDGETS, Value::Null).await;
    widget(&api, "late").await;
    move_storage(&api).await;
    let now = "2026-01-01T00:00:00Z";
    let running = json!([{"type": "Running", "status": "True", "reason": "MigrationRunning",
        "message": "The migration is running", "lastTransitionTime": now}]);
    for (name, resource, version) in [
        ("half", widgets(), list["metadata"]["resourceVersion"].as_str().unwrap()),
        ("broken", json!({"resource": "configmaps"}), "017"),
    ] {
        let mut object = migration(&api, name, resource).await;
        object["status"] = json!({"conditions": running, "resourceVersion": version});
        api.ok(Verb::Update, &format!("{MIGRATIONS}/{name}/status"), object).await;
    }
    let dir = cluster.stop().await;

    let cluster = TestCluster::start_over(dir, 0, StoreKind::Disk, controlled).await;
    let api = Api(&cluster);
    assert_eq!(conditions(&over(&api, "half").await), SUCCEEDED);
    let moved = stored(&cluster).await;
    let versions: Vec<_> =
        moved.iter().map(|(name, (version, _))| (name.as_str(), version.as_str())).collect();
    // Upstream, too, leaves alone what was written after the migration's checkpoint.
    assert_eq!(versions, [("early", "v2"), ("late", "v1")]);
    // This definition was never marked as migrating, so anything may have been written meanwhile.
    let definition = api.ok(Verb::Get, &format!("{CRDS}/{NAME}"), Value::Null).await;
    assert_eq!(definition["status"]["storedVersions"], json!(["v1", "v2"]));
    assert_eq!(
        condition(&definition, "StorageMigrating").unwrap()["message"],
        "The migration has succeeded but the stored versions have not been updated due to a generation mismatch"
    );
    assert_eq!(
        conditions(&over(&api, "broken").await)[1],
        "Failed|True|StorageVersionMigrationFailed|migration encountered unhandled error: error comparing resource versions between GC and SVM resource: resource version is not well formed: 017"
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_move_to_the_new_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("encryption.yaml");
    let config = |keys: &str| {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
             providers: [{{aesgcm: {{keys: [{keys}]}}}}, {{identity: {{}}}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        let path = path.clone();
        move |options: &mut Options| {
            options.encryption = Some(kaji::EncryptionFile { path, follow: false });
            controlled(options);
        }
    };
    let one = "{name: k1, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}";
    let two = "{name: k2, secret: //79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=}";
    let cluster = TestCluster::start_over(dir, 0, StoreKind::Disk, config(one)).await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "p"}});
    Api(&cluster).ok(Verb::Create, "/v1/secrets?namespace=default", secret).await;
    let dir = cluster.stop().await;

    let cluster = TestCluster::start_over(dir, 0, StoreKind::Disk, config(&format!("{two}, {one}"))).await;
    let (api, key) = (Api(&cluster), "/registry/core/secrets/default/s");
    let revision = async || {
        let secret = api.ok(Verb::Get, "/v1/secrets/s?namespace=default", Value::Null).await;
        secret["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    };
    let before = revision().await;
    assert!(cluster.cluster.stack.engine.store().stale(key).await.unwrap());
    migration(&api, "first", json!({"resource": "secrets"})).await;
    assert_eq!(conditions(&over(&api, "first").await), SUCCEEDED);
    assert!(!cluster.cluster.stack.engine.store().stale(key).await.unwrap());
    let after = revision().await;
    assert_ne!(after, before);
    migration(&api, "second", json!({"resource": "secrets"})).await;
    assert_eq!(conditions(&over(&api, "second").await), SUCCEEDED);
    assert_eq!(revision().await, after, "written once is enough");
    cluster.stop().await;
}
