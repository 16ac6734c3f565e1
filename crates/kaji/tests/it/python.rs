//! The official Python client against a cluster. Needs a Python with the package `kubernetes`: `KAJI_TEST_PYTHON` names
//! the interpreter, else `python3` is tried; without it the test says that it was skipped.

use crate::common::TestCluster;
use std::{path::Path, process::Command};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_client_uses_every_verb() {
    let python = std::env::var("KAJI_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python).args(["-c", "import kubernetes"]).output();
    if !has.is_ok_and(|o| o.status.success()) {
        return crate::common::skipped("python-client", "no Python with the package kubernetes");
    }
    let cluster = TestCluster::start(0).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/python_client.py");
    let kubeconfig = cluster.kubeconfig.clone();
    let run = move || Command::new(&python).arg(script).arg(kubeconfig).output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    cluster.stop().await;
}
