//! A cluster with the operator's manifests, and the operator's program.

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::{
    api::{authentication::v1::TokenRequest, core::v1::ServiceAccount},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kaji_testenv::TestEnv;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
    discovery,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The operator.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_example-webapp");
/// The sample of the README.
pub const SAMPLE: &str = include_str!("../../../../manifests/webapp.yaml");
const DEFINITION: &str = include_str!("../../../../manifests/webapp-crd.yaml");
const RIGHTS: &str = include_str!("../../../../manifests/webapp-rbac.yaml");
const WEBHOOKS: &str = include_str!("../../../../manifests/webapp-webhooks.yaml");

/// One object out of YAML.
pub fn object<K: DeserializeOwned>(yaml: &str) -> K {
    serde_json::from_value(serde_saphyr::from_str::<Value>(yaml).unwrap()).unwrap()
}

fn documents(yaml: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(yaml).unwrap()
}

/// Whatever takes longer than this does not happen.
async fn soon<T>(what: &str, f: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(90), f).await.unwrap_or_else(|_| panic!("never {what}"))
}

/// A cluster with the kind, the operator's rights and a simulated node.
pub struct Cluster {
    env: TestEnv,
    dir: tempfile::TempDir,
    trust: String,
}

impl Cluster {
    pub async fn start() -> Cluster {
        let env = TestEnv::builder().controllers(["*"]).nodes(1).listen().start().await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let trust = certificates(dir.path());
        let cluster = Cluster { env, dir, trust };
        let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
        definitions.create(&PostParams::default(), &object(DEFINITION)).await.unwrap();
        cluster
            .until(&definitions, "webapps.apps.example.com", "established", |definition| {
                let conditions = definition.status.iter().flat_map(|s| s.conditions.iter().flatten());
                conditions.into_iter().any(|c| c.type_ == "Established" && c.status == "True")
            })
            .await;
        for document in documents(RIGHTS) {
            cluster.create(document).await;
        }
        cluster.write_kubeconfig().await;
        cluster
    }

    pub fn client(&self) -> Client {
        self.env.client()
    }

    pub fn apps(&self) -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("apps.example.com", "v1", "WebApp"));
        Api::default_namespaced_with(self.client(), &kind)
    }

    pub fn app(&self, name: &str, spec: Value) -> DynamicObject {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("apps.example.com", "v1", "WebApp"));
        DynamicObject::new(name, &kind).data(json!({"spec": spec}))
    }

    /// Creates an object of any kind.
    async fn create(&self, document: Value) {
        let object: DynamicObject = serde_json::from_value(document).unwrap();
        let kind = object.types.as_ref().unwrap().try_into().unwrap();
        let (resource, capabilities) = discovery::pinned_kind(&self.client(), &kind).await.unwrap();
        let api: Api<DynamicObject> = match capabilities.scope {
            discovery::Scope::Cluster => Api::all_with(self.client(), &resource),
            discovery::Scope::Namespaced => Api::default_namespaced_with(self.client(), &resource),
        };
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// The kubeconfig of the operator's account, which may do what its roles say.
    async fn write_kubeconfig(&self) {
        let accounts: Api<ServiceAccount> = Api::default_namespaced(self.client());
        let request = TokenRequest::default();
        let issued = accounts.create_token_request("webapp-operator", &PostParams::default(), &request).await;
        let mut config: Value = serde_saphyr::from_str(&self.env.kubeconfig().unwrap()).unwrap();
        config["users"][0]["user"] = json!({"token": issued.unwrap().status.unwrap().token});
        std::fs::write(self.kubeconfig(), config.to_string()).unwrap();
    }

    fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// Registers the webhooks of an operator outside of the cluster, as `local-webhooks.sh` does.
    pub async fn call_webhooks_of(&self, operator: &Operator) {
        for mut document in documents(WEBHOOKS) {
            let call = &mut document["webhooks"][0]["clientConfig"];
            let path = call["service"]["path"].as_str().unwrap();
            let url = format!("https://{}{path}", operator.webhooks.as_deref().unwrap());
            *call = json!({"url": url, "caBundle": self.trust});
            self.create(document).await;
        }
    }

    /// Waits until an object is as wanted.
    pub async fn until<K>(&self, api: &Api<K>, name: &str, what: &str, done: impl Fn(&K) -> bool) -> K
    where
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        let looks = async {
            loop {
                match api.get_opt(name).await.unwrap().filter(&done) {
                    Some(object) => return object,
                    None => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        soon(&format!("{name} {what}"), looks).await
    }

    pub async fn until_gone<K>(&self, api: &Api<K>, name: &str)
    where
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        self.eventually(&format!("{name} gone"), async || api.get_opt(name).await.unwrap().is_none()).await;
    }

    pub async fn eventually(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let looks = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        soon(what, looks).await;
    }

    pub async fn stop(self) {
        self.env.stop().await;
    }
}

/// The operator's program at work; killed at the end.
pub struct Operator {
    child: Child,
    log: UnboundedReceiver<String>,
    /// Where it serves webhooks.
    webhooks: Option<String>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Operator {
    pub async fn start(cluster: &Cluster, identity: &str, lease_seconds: u32, webhooks: bool) -> Operator {
        let mut command = Command::new(PROGRAM);
        command
            .env("KUBECONFIG", cluster.kubeconfig())
            .args(["--identity", identity, "--lease-seconds", &lease_seconds.to_string()])
            .stderr(Stdio::piped());
        if webhooks {
            command
                .args(["--webhook-bind-address", "127.0.0.1:0", "--webhook-cert-dir"])
                .arg(cluster.dir.path());
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, log) = unbounded_channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                println!("{line}");
                let _ = sender.send(line);
            }
        });
        let mut operator = Operator { child, log, webhooks: None };
        if webhooks {
            let said = operator.says("webhooks are served on ").await;
            operator.webhooks = said.rsplit(' ').next().map(ToOwned::to_owned);
        }
        operator
    }

    /// Waits for a line of its log.
    pub async fn says(&mut self, words: &str) -> String {
        let reads = async {
            loop {
                let line = self.log.recv().await.unwrap_or_else(|| panic!("it ended without {words:?}"));
                if line.contains(words) {
                    return line;
                }
            }
        };
        soon(words, reads).await
    }

    /// Ends it as a cluster would.
    pub async fn stop(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        // Its log ends when it does.
        soon("the operator's end", async { while self.log.recv().await.is_some() {} }).await;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    /// Ends it without a word.
    pub fn kill(self) {
        drop(self);
    }
}

/// Writes tls.crt and tls.key for 127.0.0.1 and returns what to trust.
fn certificates(dir: &Path) -> String {
    let (authority, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut params = CertificateParams::new(vec!["webapp-operator-ca".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let trust = params.self_signed(&authority).unwrap().pem();
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &Issuer::new(params, authority)).unwrap();
    std::fs::write(dir.join("tls.crt"), leaf.pem()).unwrap();
    std::fs::write(dir.join("tls.key"), key.serialize_pem()).unwrap();
    STANDARD.encode(trust)
}
