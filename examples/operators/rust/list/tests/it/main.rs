//! What its user sees: the objects, second by second.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kaji_testenv::TestEnv;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, PostParams},
};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

const MANIFEST: &str = include_str!("../../../../manifests/samples.yaml");

/// A running operator, killed at the end.
struct Operator(Child);

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prints_what_there_is() {
    let env = TestEnv::builder().listen().start().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::write(&kubeconfig, env.kubeconfig().unwrap()).unwrap();
    // Before there is such a kind: that it is missing is said, and no reason to end.
    let mut operator = Operator(
        Command::new(env!("CARGO_BIN_EXE_example-list"))
            .env("KUBECONFIG", &kubeconfig)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut errors = BufReader::new(operator.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    // They are kept: a process that writes to a closed pipe ends.
    let (_errors, said) = tokio::task::spawn_blocking(move || {
        let said = errors.next().unwrap();
        (errors, said)
    })
    .await
    .unwrap();
    assert!(said.starts_with("cannot list samples: "), "{said}");

    let documents: Vec<Value> = serde_saphyr::from_multiple(MANIFEST).unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(env.client());
    let definition = serde_json::from_value(documents[0].clone()).unwrap();
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    let sample: DynamicObject = serde_json::from_value(documents[1].clone()).unwrap();
    let kind = ApiResource::from_gvk(&sample.types.as_ref().unwrap().try_into().unwrap());
    let samples: Api<DynamicObject> = Api::default_namespaced_with(env.client(), &kind);
    for document in &documents[1..] {
        let sample = serde_json::from_value(document.clone()).unwrap();
        // The definition takes effect a moment after it is written.
        let mut tries = 0..1000;
        while let Err(error) = samples.create(&PostParams::default(), &sample).await {
            let early = matches!(&error, kube::Error::Api(status) if status.code == 404);
            assert!(early && tries.next().is_some(), "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let lines = BufReader::new(operator.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines = shows(
        lines,
        &[
            "2 samples",
            r#"  default/first: {"message":"good morning"}"#,
            r#"  default/second: {"message":"good night"}"#,
        ],
    )
    .await;
    samples.delete("first", &DeleteParams::default()).await.unwrap();
    drop(shows(lines, &["1 samples", r#"  default/second: {"message":"good night"}"#]).await);
    drop(operator);
    env.stop().await;
}

/// Reads on until these lines have come, one after another.
async fn shows<L>(mut lines: L, wanted: &'static [&'static str]) -> L
where
    L: Iterator<Item = String> + Send + 'static,
{
    tokio::task::spawn_blocking(move || {
        // Each second brings at least one.
        assert!(lines.by_ref().take(120).any(|line| line == wanted[0]), "it ended without {}", wanted[0]);
        for wanted in &wanted[1..] {
            assert_eq!(lines.next().as_deref(), Some(*wanted));
        }
        lines
    })
    .await
    .unwrap()
}
