//! Encryption at rest, through the API: what is on disk, restarts, rotation of keys, and keys that do not fit.

#[path = "../../../encryption/tests/it/plugin.rs"]
mod plugin;

use crate::common::until;

use k8s_openapi::api::core::v1::Secret;
use kaji::{Cluster, EncryptionFile, Nodes, Options, kubeconfig};
use kaji_encryption::scrub;
use kaji_storage::STORE;
use kaji_store::{
    Range, Store,
    disk::{DiskOptions, DiskStore},
};
use kube::{Api, api::PostParams};
use serde_json::json;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

const KEY: &str = "/registry/core/secrets/default/s";
const K1: &str = "{name: k1, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}";
const K2: &str = "{name: k2, secret: //79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=}";
const FORGED: &str = "{name: k2, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}";

fn config(dir: &Path, providers: &str) -> PathBuf {
    let path = dir.join("encryption.yaml");
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers: [{providers}]\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn options(dir: &Path, providers: Option<&str>) -> Options {
    Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        nodes: Nodes::None,
        controllers: false,
        encryption: providers.map(|p| EncryptionFile { path: config(dir, p), follow: false }),
        ..Options::new(dir)
    }
}

/// Does something with the secrets of a cluster over the directory.
async fn with<T>(dir: &Path, providers: &str, work: impl AsyncFnOnce(Api<Secret>) -> T) -> T {
    let (cluster, client) = started(dir, providers).await;
    let answer = work(Api::default_namespaced(client)).await;
    cluster.stop().await;
    answer
}

async fn started(dir: &Path, providers: &str) -> (Cluster, kube::Client) {
    started_with(dir, options(dir, Some(providers))).await
}

async fn started_with(dir: &Path, options: Options) -> (Cluster, kube::Client) {
    let cluster = Cluster::start(options).await.unwrap();
    let path = dir.join("kubeconfig");
    kubeconfig::write(
        &path,
        kubeconfig::NAME,
        &cluster.url(),
        &cluster.pki.ca.certificate,
        &cluster.pki.admin,
    )
    .unwrap();
    let config = kube::config::Kubeconfig::read_from(&path).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    (cluster, kube::Client::try_from(config).unwrap())
}

/// What the store below holds.
async fn raw(dir: &Path) -> Vec<u8> {
    let store = DiskStore::open(dir.join("store"), DiskOptions::default()).unwrap();
    let value = store.range(Range::key(KEY)).await.unwrap().kvs.remove(0).value.to_vec();
    store.close().await;
    value
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|w| w == text.as_bytes())
}

fn everything_on_disk(dir: &Path, text: &str) -> bool {
    std::fs::read_dir(dir.join("store"))
        .unwrap()
        .any(|file| holds(&std::fs::read(file.unwrap().path()).unwrap(), text))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_never_clear_on_disk_and_keys_rotate() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let secret: Secret = serde_json::from_value(
        json!({"metadata": {"name": "s"}, "stringData": {"password": "correct horse battery staple"}}),
    )
    .unwrap();
    // Base64 of the value, as JSON has it.
    let clear = "Y29ycmVjdCBob3JzZSBiYXR0ZXJ5IHN0YXBsZQ==";

    let one = format!("{{aesgcm: {{keys: [{K1}]}}}}, {{identity: {{}}}}");
    with(dir, &one, async |secrets| secrets.create(&PostParams::default(), &secret).await.unwrap()).await;
    let stored = raw(dir).await;
    assert!(stored.starts_with(b"k8s:enc:aesgcm:v1:k1:"), "{}", String::from_utf8_lossy(&stored));
    assert!(
        !holds(&stored, clear)
            && !everything_on_disk(dir, clear)
            && !everything_on_disk(dir, "correct horse")
    );

    // After a restart with a new first key: readable, and an update that changes nothing is written.
    let two = format!("{{aesgcm: {{keys: [{K2}, {K1}]}}}}");
    with(dir, &two, async |secrets| {
        let found = secrets.get("s").await.unwrap();
        assert_eq!(found.data.as_ref().unwrap()["password"].0, b"correct horse battery staple");
        let version = |s: &Secret| s.metadata.resource_version.clone().unwrap();
        let migrated = secrets.replace("s", &PostParams::default(), &found).await.unwrap();
        assert_ne!(version(&migrated), version(&found));
        let again = secrets.replace("s", &PostParams::default(), &migrated).await.unwrap();
        assert_eq!(version(&again), version(&migrated), "written once is enough");
    })
    .await;
    assert!(raw(dir).await.starts_with(b"k8s:enc:aesgcm:v1:k2:"));

    // The old key is not needed any more.
    with(dir, &format!("{{aesgcm: {{keys: [{K2}]}}}}"), async |secrets| secrets.get("s").await.unwrap())
        .await;

    for (providers, reason) in [
        (Some(format!("{{aesgcm: {{keys: [{FORGED}]}}}}")), "cipher: message authentication failed"),
        (
            Some(format!("{{aesgcm: {{keys: [{K1}]}}}}")),
            "no matching key was found for the provided AES transformer",
        ),
        (None, "identity transformer tried to read encrypted data"),
    ] {
        let Err(error) = Cluster::start(options(dir, providers.as_deref())).await else { panic!("started") };
        let error = error.to_string();
        assert!(error.contains(&format!("unable to transform key {KEY:?}: {reason}")), "{error}");
    }
    let invalid = options(dir, Some("{aesgcm: {keys: [{name: a, secret: eHg=}]}}"));
    let Err(error) = Cluster::start(invalid).await else { panic!("started") };
    assert_eq!(
        error.to_string(),
        "error while parsing file: resources[0].providers[0].aesgcm.keys[0].secret: Invalid value: \"REDACTED\": \
         secret is not of the expected length, got 2, expected one of [16 24 32]"
    );
}

fn secret(name: &str) -> Secret {
    serde_json::from_value(json!({"metadata": {"name": name}, "stringData": {"password": "open sesame"}}))
        .unwrap()
}

/// The code of a path.
async fn code(client: &kube::Client, path: &str) -> u16 {
    let request = http::Request::get(path).body(kube::client::Body::empty()).unwrap();
    client.send(request).await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_comes_goes_and_changes_its_key() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let mut plugin = plugin::Plugin::new(dir);
    let kms = format!("{{kms: {{apiVersion: v2, name: p, timeout: 1s, endpoint: '{}'}}}}", plugin.endpoint());
    let create =
        async |secrets: &Api<Secret>, name: &str| secrets.create(&PostParams::default(), &secret(name)).await;

    // The plugin is not there yet: the server starts, says that it is not ready, and writes no secret in the clear.
    let (cluster, client) = started(dir, &format!("{kms}, {{identity: {{}}}}")).await;
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let kube::Error::Api(status) = create(&secrets, "s").await.unwrap_err() else { panic!("no status") };
    assert_eq!(
        (status.code, status.message.as_str()),
        (500, "Internal error occurred: got unexpected nil transformer")
    );
    assert_eq!(secrets.list(&Default::default()).await.unwrap().items.len(), 0);
    for (path, expected) in [("/livez", 200), ("/readyz", 500), ("/healthz/kms-providers", 500)] {
        assert_eq!(code(&client, path).await, expected, "{path}");
    }
    plugin.start();
    while code(&client, "/readyz/kms-providers").await != 200 {
        tokio::task::yield_now().await;
    }
    create(&secrets, "s").await.unwrap();
    let page = client.request_text(http::Request::get("/metrics").body(vec![]).unwrap()).await.unwrap();
    assert!(
        page.lines().any(|l| l.starts_with("apiserver_envelope_encryption_key_id_hash_total{")
            && l.contains("transformation_type=\"to_storage\"")),
        "{page}"
    );
    // What is in use goes on without it.
    plugin.crash();
    create(&secrets, "t").await.unwrap();
    assert_eq!(secrets.list(&Default::default()).await.unwrap().items.len(), 2);
    cluster.stop().await;
    let stored = raw(dir).await;
    assert!(stored.starts_with(b"k8s:enc:kms:v2:p:") && !everything_on_disk(dir, "open sesame"));

    // A start that cannot read what is stored fails, in time, and harms nothing.
    let Err(error) = Cluster::start(options(dir, Some(&kms))).await else { panic!("started") };
    let error = error.to_string();
    assert!(error.contains("failed to decrypt DEK, error: rpc error: code = DeadlineExceeded"), "{error}");
    assert_eq!(raw(dir).await, stored);

    // The plugin's key has changed: what was is read, and written with the new key when it is written unchanged.
    plugin.state().key_id = "key-2".into();
    plugin.start();
    let password = |s: &Secret| s.data.as_ref().unwrap()["password"].0.clone();
    with(dir, &kms, async |secrets| {
        for name in ["s", "t"] {
            let found = secrets.get(name).await.unwrap();
            assert_eq!(password(&found), b"open sesame");
            secrets.replace(name, &PostParams::default(), &found).await.unwrap();
        }
    })
    .await;
    plugin.state().lost.push("key-1".into());

    // And out again.
    with(dir, &format!("{{aesgcm: {{keys: [{K1}]}}}}, {kms}"), async |secrets| {
        for name in ["s", "t"] {
            let found = secrets.get(name).await.unwrap();
            assert_eq!(password(&found), b"open sesame");
            secrets.replace(name, &PostParams::default(), &found).await.unwrap();
        }
    })
    .await;
    plugin.crash();
    with(dir, &format!("{{aesgcm: {{keys: [{K1}]}}}}"), async |secrets| {
        assert_eq!(password(&secrets.get("t").await.unwrap()), b"open sesame");
    })
    .await;
}

/// Waits until the file was looked at so many times with this outcome, or more often.
async fn counted(cluster: &Cluster, status: &str, times: u32) {
    crate::common::reloaded(cluster, "encryption", status, times).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_followed_counts_while_the_cluster_runs() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let mut options = options(dir, Some(&format!("{{aesgcm: {{keys: [{K1}]}}}}")));
    let file = options.encryption.as_mut().unwrap();
    file.follow = true;
    let path = file.path.clone();
    let (cluster, client) = started_with(dir, options).await;
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    secrets.create(&PostParams::default(), &secret("s")).await.unwrap();
    // There may be plugins one day, so they have a check, which is well without any.
    assert_eq!(code(&client, "/healthz/kms-providers").await, 200);

    // A file that is none, and one with which what is stored cannot be read, change nothing. Both are tried again.
    let new = temp.path().join("new");
    let put = |text: &str| {
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &path).unwrap();
    };
    put("kind: Nonsense\n");
    counted(&cluster, "failure", 1).await;
    std::fs::create_dir(dir.join("other")).unwrap();
    let with = |providers: &str| std::fs::read_to_string(config(&dir.join("other"), providers)).unwrap();
    put(&with(&format!("{{aesgcm: {{keys: [{K2}]}}}}")));
    counted(&cluster, "failure", 2).await;
    let found = secrets.get("s").await.unwrap();
    assert_eq!(found.data.as_ref().unwrap()["password"].0, b"open sesame");
    secrets.create(&PostParams::default(), &secret("t")).await.unwrap();

    // A new first key writes, the old one reads; what is written as it is gets the new one.
    put(&with(&format!("{{aesgcm: {{keys: [{K2}, {K1}]}}}}")));
    counted(&cluster, "success", 1).await;
    for name in ["s", "t"] {
        let found = secrets.get(name).await.unwrap();
        let written = secrets.replace(name, &PostParams::default(), &found).await.unwrap();
        assert_ne!(written.metadata.resource_version, found.metadata.resource_version);
    }
    // So the old one may go.
    put(&with(&format!("{{aesgcm: {{keys: [{K2}]}}}}")));
    counted(&cluster, "success", 2).await;
    secrets.delete("t", &Default::default()).await.unwrap();
    cluster.stop().await;
    assert!(raw(dir).await.starts_with(b"k8s:enc:aesgcm:v1:k2:"));
}

/// Text of which nothing else in a cluster has any, as it is stored in the clear.
fn marked(n: usize) -> (Secret, String) {
    use base64::Engine;
    let text = format!("marker-{n:04}-{:08x}", n.wrapping_mul(0x9e37_79b9));
    let secret = json!({"metadata": {"name": format!("m{n}")}, "stringData": {"password": text}});
    (serde_json::from_value(secret).unwrap(), base64::engine::general_purpose::STANDARD.encode(text))
}

/// Which of so many markers some file of the store holds.
fn found(dir: &Path, of: std::ops::Range<usize>) -> Vec<usize> {
    let files = std::fs::read_dir(dir.join("store")).unwrap().map(|f| f.unwrap().path());
    // A file may go while the directory is read.
    let all: Vec<u8> = files.filter_map(|file| std::fs::read(file).ok()).flatten().collect();
    of.filter(|n| holds(&all, &marked(*n).1)).collect()
}

async fn create_marked(secrets: &Api<Secret>, of: std::ops::Range<usize>) {
    for n in of {
        secrets.create(&PostParams::default(), &marked(n).0).await.unwrap();
    }
}

/// Writes secrets as they are, as a storage migration does.
async fn rewrite(secrets: &Api<Secret>) {
    for secret in secrets.list(&Default::default()).await.unwrap().items {
        let name = secret.metadata.name.clone().unwrap();
        secrets.replace(&name, &PostParams::default(), &secret).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_clear_before_it_was_rewritten_is_nowhere_on_disk() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let (cluster, client) = started_with(dir, options(dir, None)).await;
    let secrets: Api<Secret> = Api::default_namespaced(client);
    create_marked(&secrets, 0..10).await;
    for n in 0..3 {
        secrets.delete(&format!("m{n}"), &Default::default()).await.unwrap();
    }
    cluster.stop().await;
    assert_eq!(found(dir, 0..10).len(), 10, "the test looks in the wrong place");

    // Enabled: half rewritten is not the end, all of it is.
    let one = format!("{{aesgcm: {{keys: [{K1}]}}}}, {{identity: {{}}}}");
    let (cluster, client) = started(dir, &one).await;
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let version = secrets.list(&Default::default()).await.unwrap().metadata.resource_version.unwrap();
    rewrite(&secrets).await;
    until("the store is scrubbed", async || found(dir, 0..10).is_empty()).await;
    assert_eq!(secrets.list(&Default::default()).await.unwrap().items.len(), 7);
    assert!(dir.join("store/SCRUBBED").exists());
    // What the history held is gone for lists at old revisions, as after any compaction.
    let exact = kube::api::ListParams::default().matching(kube::api::VersionMatch::Exact).at(&version);
    let answer = secrets.list(&exact).await;
    assert!(answer.is_ok() || matches!(&answer, Err(kube::Error::Api(s)) if s.code == 410), "{answer:?}");
    cluster.stop().await;
    assert_eq!(found(dir, 0..10), Vec::<usize>::new());

    // A server without the configuration writes in the clear, and one that is killed after rewriting scrubs nothing; the
    // next start does.
    let none = format!("{{identity: {{}}}}, {{aesgcm: {{keys: [{K1}]}}}}");
    with(dir, &none, async |secrets| create_marked(&secrets, 10..15).await).await;
    let two = format!("{{aesgcm: {{keys: [{K2}, {K1}]}}}}, {{identity: {{}}}}");
    with(dir, &two, async |secrets| rewrite(&secrets).await).await;
    assert_eq!(found(dir, 10..15).len(), 5);
    let (cluster, _) = started(dir, &two).await;
    until("the next start scrubs the store", async || found(dir, 10..15).is_empty()).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_scrubbed_by_hand() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let (cluster, client) = started_with(dir, options(dir, None)).await;
    let secrets: Api<Secret> = Api::default_namespaced(client);
    create_marked(&secrets, 0..8).await;
    for n in 0..4 {
        secrets.delete(&format!("m{n}"), &Default::default()).await.unwrap();
    }
    let running = scrub(&dir.join(STORE), None).await.unwrap_err().to_string();
    assert!(running.ends_with("is in use by another process"), "{running}");
    cluster.stop().await;
    assert_eq!(found(dir, 0..8).len(), 8);
    assert_eq!(scrub(&dir.join(STORE), None).await.unwrap(), 0);
    assert_eq!(found(dir, 0..8), [4, 5, 6, 7]);
    let path = config(dir, &format!("{{aesgcm: {{keys: [{K1}]}}}}, {{identity: {{}}}}"));
    assert_eq!(scrub(&dir.join(STORE), Some(&path)).await.unwrap(), 4);
    assert_eq!(found(dir, 0..8), Vec::<usize>::new());
    assert_eq!(scrub(&dir.join(STORE), Some(&path)).await.unwrap(), 0);
    with(dir, &format!("{{aesgcm: {{keys: [{K1}]}}}}"), async |secrets| {
        assert_eq!(secrets.list(&Default::default()).await.unwrap().items.len(), 4);
    })
    .await;
    let missing = scrub(&dir.join("other"), None).await.unwrap_err().to_string();
    assert!(missing.starts_with("there is no store in ") && !dir.join("other").exists(), "{missing}");
}
