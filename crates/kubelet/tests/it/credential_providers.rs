//! Plug-ins for credentials: programs that the test writes, with requests on standard input.

use crate::fake::Objects;
use expect_test::expect;
use jiff::SignedDuration;
use kaji_kubelet::credential_providers::CredentialProviders;
use kaji_kubelet::pods::core::Pod;
use kaji_meta::time::ManualClock;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

struct Node {
    dir: tempfile::TempDir,
    clock: Arc<ManualClock>,
    objects: Objects,
}

impl Node {
    fn new() -> Node {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        let clock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        Node { dir, clock, objects: Objects::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program that notes its requests and answers with the file `answer`. Another process writes it: a program that this one has
    /// open for writing could not be run while a thread of it forks.
    fn program(&self, name: &str) {
        let text = format!(
            "#!/bin/sh\n[ \"$1\" = --flag ] && [ \"$EXTRA\" = value ] || exit 3\n{{ cat; echo; }} >>{0}/requests\ncat {0}/answer\n",
            self.dir.path().display()
        );
        fs::write(self.path("text"), text).unwrap();
        let (text, program) = (self.path("text"), self.path("bin").join(name));
        let copied = Command::new("install").arg("-m755").args([text, program]).status();
        assert!(copied.unwrap().success());
    }

    fn answer(&self, rest: serde_json::Value) {
        let mut answer = json!({
            "kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "auth": {"*.example.com": {"username": "any", "password": "p"}, "a.example.com/team": {"username": "team", "password": "q"}},
        });
        answer.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        fs::write(self.path("answer"), answer.to_string()).unwrap();
    }

    fn open(&self, more: &str) -> Result<CredentialProviders, String> {
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: one\n  matchImages: ['*.example.com', 'b.example.com:5000']\n  defaultCacheDuration: 10m\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  args: [--flag]\n  env: [{{name: EXTRA, value: value}}]\n{more}"
        );
        let config = self.path("config.yaml");
        fs::write(&config, text).unwrap();
        CredentialProviders::open(&config, &self.path("bin"), self.clock.clone())
            .map_err(|e| self.shown(&e.to_string()))
    }

    fn shown(&self, text: &str) -> String {
        text.replace(&self.dir.path().display().to_string(), "DIR")
    }

    async fn users(&self, providers: &CredentialProviders, image: &str) -> Vec<String> {
        let found = providers.lookup(&self.objects, &pod("default"), image).await;
        found.into_iter().map(|credential| credential.auth.username).collect()
    }

    fn requests(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("requests")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn pod(account: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"serviceAccountName": account, "containers": [{"name": "c"}]},
    }))
    .unwrap()
}

#[tokio::test]
async fn credentials_are_asked_for_and_kept_as_the_plug_in_says() {
    let node = Node::new();
    node.program("one");
    let providers = node.open("").unwrap();
    node.answer(json!({"cacheKeyType": "Image"}));
    assert_eq!(node.users(&providers, "other.io/x").await, [""; 0]);
    assert!(node.requests().is_empty());
    let (first, second) = ("a.example.com/team/app", "b.example.com/app");
    assert_eq!(node.users(&providers, first).await, ["team", "any"]);
    assert_eq!(node.users(&providers, first).await, ["team", "any"]);
    assert_eq!(node.users(&providers, second).await, ["any"]);
    expect![[r#"
        {"apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.example.com/team/app","kind":"CredentialProviderRequest"}
        {"apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"b.example.com/app","kind":"CredentialProviderRequest"}"#]]
    .assert_eq(&node.requests().join("\n"));
    // The default of the configuration, and then what the plug-in says: by registry, for everything, not at all.
    node.clock.advance(SignedDuration::from_secs(601));
    node.answer(json!({"cacheKeyType": "Registry", "cacheDuration": "1m"}));
    node.users(&providers, first).await;
    node.users(&providers, "a.example.com/other").await;
    assert_eq!(node.requests().len(), 3);
    node.clock.advance(SignedDuration::from_secs(61));
    node.answer(json!({"cacheKeyType": "Global", "cacheDuration": "1m"}));
    node.users(&providers, first).await;
    node.users(&providers, second).await;
    assert_eq!(node.requests().len(), 4);
    node.clock.advance(SignedDuration::from_secs(61));
    node.answer(json!({"cacheKeyType": "Image", "cacheDuration": "0s"}));
    node.users(&providers, first).await;
    node.users(&providers, first).await;
    assert_eq!(node.requests().len(), 6);
    let (name, failed, runs) = providers.runs().remove(0);
    assert_eq!((name.as_str(), failed, runs), ("one", 0, 6));
}

#[tokio::test]
async fn concurrent_requests_for_an_image_share_a_run_and_failures_are_not_kept() {
    let node = Node::new();
    node.program("one");
    let providers = node.open("").unwrap();
    node.answer(json!({"cacheKeyType": "Image", "cacheDuration": "0s"}));
    let image = "a.example.com/x";
    let all = (0..8).map(|_| node.users(&providers, image));
    for found in futures_util::future::join_all(all).await {
        assert_eq!(found, ["any"]);
    }
    assert_eq!(node.requests().len(), 1);
    node.answer(json!({"cacheKeyType": "Host"}));
    assert_eq!(node.users(&providers, image).await, [""; 0]);
    fs::write(node.path("bin/one"), "#!/bin/sh\nexit 1\n").unwrap();
    assert_eq!(node.users(&providers, image).await, [""; 0]);
    assert_eq!(providers.runs()[0].1, 1);
}

#[tokio::test]
async fn tokens_of_service_accounts_are_handed_over_and_never_come_back() {
    let node = Node::new();
    node.program("one");
    let attributes = "  tokenAttributes: {serviceAccountTokenAudience: registry, cacheType: ServiceAccount, requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [team], optionalServiceAccountAnnotationKeys: [size]}\n";
    let providers = node.open(attributes).unwrap();
    node.answer(json!({"cacheKeyType": "Registry"}));
    let account =
        |annotations: serde_json::Value| json!({"metadata": {"uid": "s", "annotations": annotations}});
    let put = |name: &str, value| {
        node.objects
            .objects
            .lock()
            .unwrap()
            .insert(format!("/api/v1/namespaces/n/serviceaccounts/{name}"), value);
    };
    put("with", account(json!({"team": "a", "size": "b", "other": "c"})));
    put("without", account(json!({"size": "b"})));
    let image = "a.example.com/x";
    let users = async |name: &str| providers.lookup(&node.objects, &pod(name), image).await.len();
    assert_eq!([users("").await, users("without").await, users("absent").await], [0, 0, 0]);
    assert_eq!(users("with").await, 1);
    expect![[r#"{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.example.com/x","kind":"CredentialProviderRequest","serviceAccountAnnotations":{"size":"b","team":"a"},"serviceAccountToken":"token of p for registry"}"#]]
        .assert_eq(&node.requests().join("\n"));
    assert_eq!(users("with").await, 1);
    assert_eq!(node.requests().len(), 1);
    // Another account's are its own.
    put("second", account(json!({"team": "a"})));
    node.answer(json!({"cacheKeyType": "Registry", "auth": {"a.example.com": {"username": "u", "password": "token of p for registry"}}}));
    assert_eq!(users("second").await, 0);
    assert_eq!(node.requests().len(), 2);
}

#[test]
fn configurations_are_refused_as_upstream_refuses_them() {
    let node = Node::new();
    let failed = |outcome: Result<CredentialProviders, String>| outcome.err().unwrap();
    let mut shown = vec![failed(node.open(""))];
    node.program("one");
    shown.push(failed(node.open("- name: one\n  apiVersion: x\n")));
    shown.push(failed(
        node.open("- name: ../a\n  apiVersion: x\n  matchImages: ['a b']\n  defaultCacheDuration: -1s\n"),
    ));
    shown.push(failed(node.open("  tokenAttributes: {requireServiceAccount: false, requiredServiceAccountAnnotationKeys: [a, a], cacheType: x}\n")));
    let open = |path: &Path| {
        let opened = CredentialProviders::open(path, &node.path("bin"), node.clock.clone());
        node.shown(&opened.err().unwrap().to_string())
    };
    fs::create_dir(node.path("several")).unwrap();
    shown.push(open(&node.path("several")));
    fs::write(node.path("several/a.yaml"), "kind: Pod\n").unwrap();
    shown.push(open(&node.path("several")));
    fs::write(
        node.path("several/a.yaml"),
        "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n",
    )
    .unwrap();
    shown.push(open(&node.path("several")));
    expect![[r#"
        plugin binary executable DIR/bin/one did not exist
        duplicate provider name "one" found in configuration file(s)
        failed to validate credential provider config: [providers.name: Invalid value: "../a": provider name cannot contain '/', providers.matchImages: Invalid value: "a b": match image is invalid: invalid character in host name, providers.defaultCacheDuration: Invalid value: "-1s": must be greater than or equal to 0, providers.apiVersion: Unsupported value: "x": supported values: "credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1"]
        failed to validate credential provider config: [providers.tokenAttributes.serviceAccountTokenAudience: Required value, providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set, providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Duplicate value: "a", providers.tokenAttributes.cacheType: Unsupported value: "x": supported values: "ServiceAccount", "Token"]
        no configuration files found in directory "DIR/several"
        error decoding config "DIR/several/a.yaml": failed to decode "Pod" (wrong Kind)
        failed to validate credential provider config: providers: Required value: at least 1 item in plugins is required"#]].assert_eq(&shown.join("\n"));
    let opened = node.open("").unwrap();
    assert!(opened.hash().starts_with("sha256:") && opened.hash().len() == 71);
}
