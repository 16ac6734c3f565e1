//! Images of one pod's secret on a node where other pods ask for them.

use crate::fake::Fake;
use crate::lifecycle::{Run, pod, ready, waiting};
use kaji_containers::RuntimeError;
use kaji_kubelet::pods::{sources::Keyed, worker::Ending};
use serde_json::{Value, json};
use std::sync::Arc;

const IMAGE: &str = "r.io/private";

/// A pod of this name that pulls with these secrets.
fn asking(name: &str, policy: &str, secrets: &[&str]) -> Value {
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
    let mut pod = pod(json!({
        "imagePullSecrets": secrets,
        "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": policy}],
    }));
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["uid"] = name.into();
    pod
}

fn with_secrets() -> Fake {
    let fake = Fake::new();
    for (name, password) in [("own", "right"), ("copy", "right"), ("other", "wrong")] {
        let config = json!({"auths": {"r.io": {"username": "u", "password": password}}});
        let data = [(".dockerconfigjson".to_owned(), config.to_string().into_bytes())].into();
        let keyed = Keyed { data, uid: format!("uid of {name}"), ..Keyed::default() };
        fake.objects.secrets.lock().unwrap().insert(name.to_owned(), Arc::new(keyed));
    }
    fake
}

/// The next pod on the same node.
fn then(run: Run, pod: &Value) -> Run {
    let fake = run.fake;
    *fake.api.status.lock().unwrap() = None;
    fake.api.events.lock().unwrap().clear();
    Run::start(fake, pod)
}

fn pulls(run: &Run) -> usize {
    run.calls().lines().filter(|call| call.starts_with("pull ")).count()
}

/// Waits until the status of the pod of this name shows this.
async fn until(run: &Run, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
    run.until(name, |status| *run.fake.api.uid.lock().unwrap() == name && holds(status)).await
}

#[tokio::test]
async fn an_image_that_was_pulled_with_a_secret_is_not_for_pods_without_it() {
    let mut run = Run::start(with_secrets(), &asking("own", "IfNotPresent", &["own"]));
    until(&run, "own", ready).await;
    assert_eq!(pulls(&run), 1);
    // Without the secret, or with another one, a pod needs a pull of its own.
    for (name, secrets) in [("none", vec![]), ("other", vec!["other"])] {
        let before = pulls(&run);
        let refused = RuntimeError::Internal("pull access denied".into());
        run.fake.runtime.state.lock().unwrap().failures.push(("pull", refused));
        run = then(run, &asking(name, "IfNotPresent", &secrets));
        let status = until(&run, name, |s| waiting(s)["reason"] == "ErrImagePull").await;
        assert_eq!(waiting(&status)["message"], "pull access denied");
        assert_eq!(pulls(&run), before + 1);
    }
    // Nor does it see that the image is here.
    run = then(run, &asking("never", "Never", &[]));
    let status = until(&run, "never", |s| waiting(s)["reason"] == "ErrImageNeverPull").await;
    let message = "Container image \"r.io/private\" is not present with pull policy of Never";
    assert_eq!(waiting(&status)["message"], message);
    run = then(run, &asking("copy", "Never", &["copy"]));
    until(&run, "copy", ready).await;
    let present =
        "Pulled: Container image \"r.io/private\" already present on machine and can be accessed by the pod";
    assert!(run.fake.api.events.lock().unwrap().iter().any(|event| event == present));
    assert_eq!(pulls(&run), 3);
    // The registry lets all pull it now.
    run = then(run, &asking("public", "IfNotPresent", &[]));
    until(&run, "public", ready).await;
    run = then(run, &asking("public-never", "Never", &[]));
    until(&run, "public-never", ready).await;
    assert_eq!(pulls(&run), 4);
}

/// The runtime pulls on when the pod has ended.
#[tokio::test]
async fn an_image_of_a_pull_that_was_given_up_is_not_for_all_pods() {
    let fake = with_secrets();
    fake.runtime.state.lock().unwrap().pulls_wait = Some(Arc::default());
    let mut run = Run::start(fake, &asking("own", "IfNotPresent", &["own"]));
    until(&run, "own", |_| pulls(&run) == 1).await;
    run.end(Ending { reason: "Evicted".to_owned(), ..Ending::default() });
    until(&run, "own", |status| status["phase"] == "Failed").await;
    run.fake.runtime.state.lock().unwrap().pulls_wait = None;
    assert!(!run.fake.runtime.state.lock().unwrap().images.is_empty());
    run = then(run, &asking("never", "Never", &[]));
    until(&run, "never", |s| waiting(s)["reason"] == "ErrImageNeverPull").await;
    run = then(run, &asking("again", "IfNotPresent", &["own"]));
    until(&run, "again", ready).await;
    assert_eq!(pulls(&run), 2);
}

#[tokio::test]
async fn an_image_that_was_loaded_is_for_all_pods() {
    let fake = with_secrets();
    fake.runtime.state.lock().unwrap().images = vec![format!("{IMAGE}:latest")];
    let run = Run::start(fake, &asking("never", "Never", &[]));
    until(&run, "never", ready).await;
    assert_eq!(pulls(&run), 0);
}
