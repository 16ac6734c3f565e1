//! `kaji snapshot save` that is killed half-way, by processes that are: what it leaves is no snapshot, a former one stays, and the next
//! save succeeds.

use super::filled;
use crate::common::{TestCluster, clients, https::Https, until};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use kaji_encryption::sealed::SealingKey;
use kaji_storage::{
    progress::silent,
    snapshots::{self, SnapshotFile},
};
use serde_json::json;
use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

/// How much of what is encrypted may wait in memory: a chunk, and a buffer.
const CHUNKS: usize = 80 << 10;

/// A server that sends a part of a snapshot, and then nothing more, or ends.
struct Stalling {
    kubeconfig: PathBuf,
    /// How much it sends.
    sends: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
}

impl Stalling {
    async fn start(dir: &Path, snapshot: Vec<u8>) -> Stalling {
        let https = Https::bind(dir).await;
        let (url, sends, ends) =
            (https.url.clone(), Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (whole, count, is_over) = (Bytes::from(snapshot), sends.clone(), ends.clone());
        let pki = https.serve_with(move |_, _| {
            let part = whole.slice(..count.load(Ordering::SeqCst));
            let sent = stream::iter([Ok(Frame::data(part))]);
            let body = match is_over.load(Ordering::SeqCst) {
                true => StreamBody::new(sent).boxed_unsync(),
                false => StreamBody::new(sent.chain(stream::pending())).boxed_unsync(),
            };
            std::future::ready(Response::new(body))
        });
        let config = clients::kubeconfig(&url, &pki.ca.certificate, json!({"token": "any"}));
        let kubeconfig = dir.join("stalling.kubeconfig");
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        Stalling { kubeconfig, sends, ends }
    }
}

/// `kaji snapshot save`, which runs.
fn save(kubeconfig: &Path, file: &Path, key: Option<&Path>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kaji"));
    command.args(["snapshot", "save"]).arg(file).arg("--kubeconfig").arg(kubeconfig);
    if let Some(key) = key {
        command.arg("--key-file").arg(key);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The same, to its end; what it says if it fails.
async fn saved(kubeconfig: &Path, file: &Path, key: Option<&Path>) -> Result<(), String> {
    let child = save(kubeconfig, file, key);
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stderr).unwrap()) }
}

/// A save that is killed when it has written at least so many bytes.
async fn killed(server: &Stalling, file: &Path, key: Option<&Path>, written: usize) {
    let partial = file.with_extension("partial");
    // So that what is looked at is this one's.
    let _missing = std::fs::remove_file(&partial);
    let mut child = save(&server.kubeconfig, file, key);
    until("the part is written", async || {
        assert!(child.try_wait().unwrap().is_none(), "it has ended by itself");
        std::fs::metadata(&partial).is_ok_and(|found| found.len() as usize >= written)
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Refuses a file, and makes nothing of it.
fn assert_refused(file: &SnapshotFile) {
    let dir = tempfile::tempdir().unwrap();
    assert!(snapshots::inspect(file).is_err());
    snapshots::restore_to_disk(file, dir.path(), 1, &silent).unwrap_err();
    assert!(!dir.path().join("store").exists());
}

async fn killed_saves(key: Option<&str>) {
    let dir = tempfile::tempdir().unwrap();
    let cluster = TestCluster::start(0).await;
    filled(&cluster.kube().await).await;
    let key = key.map(|text| {
        let path = dir.path().join("key");
        std::fs::write(&path, text).unwrap();
        path
    });
    let at = |path: &Path| SnapshotFile {
        path: path.to_owned(),
        key: key.as_deref().map(|path| SealingKey::read(path).unwrap()),
    };
    let plain = dir.path().join("plain");
    saved(&cluster.kubeconfig, &plain, None).await.unwrap();
    let bytes = std::fs::read(&plain).unwrap();
    let server = Stalling::start(dir.path(), bytes.clone()).await;

    let (file, partial) = (dir.path().join("s"), dir.path().join("s.partial"));
    for sends in [0, 100, bytes.len() / 2, bytes.len() - 1] {
        server.sends.store(sends, Ordering::SeqCst);
        // What is encrypted is written in chunks, of which the last one waits for more.
        let written = if key.is_some() { sends.saturating_sub(CHUNKS) } else { sends };
        killed(&server, &file, key.as_deref(), written).await;
        assert!(!file.exists());
        assert_refused(&at(&partial));
    }
    // While one is written, another is not begun; what is in the way need not be private.
    std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut running = save(&server.kubeconfig, &file, key.as_deref());
    until("the file is private", async || {
        std::fs::metadata(&partial).is_ok_and(|found| found.permissions().mode() & 0o777 == 0o600)
    })
    .await;
    let busy = saved(&cluster.kubeconfig, &file, key.as_deref()).await.unwrap_err();
    assert!(busy.contains("another snapshot is being written to it"), "{busy}");
    running.kill().unwrap();
    running.wait().unwrap();

    saved(&cluster.kubeconfig, &file, key.as_deref()).await.unwrap();
    let former = snapshots::inspect(&at(&file)).unwrap();
    assert!(!partial.exists() && former.resources["core/configmaps"].0 >= 30);
    // The next one that is killed leaves the former, and one that fails leaves nothing.
    killed(&server, &file, key.as_deref(), 0).await;
    assert_eq!(snapshots::inspect(&at(&file)).unwrap(), former);
    assert_refused(&at(&partial));
    server.ends.store(true, Ordering::SeqCst);
    saved(&server.kubeconfig, &file, key.as_deref()).await.unwrap_err();
    assert!(!partial.exists());
    assert_eq!(snapshots::inspect(&at(&file)).unwrap(), former);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_save_that_is_killed_leaves_no_snapshot() {
    killed_saves(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_save_that_is_killed_leaves_no_snapshot() {
    killed_saves(Some("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")).await;
}
