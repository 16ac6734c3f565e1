//! The cluster of a run. How one is started is a parameter: this crate knows its server alone.

use crate::{api::Api, api::ApiError, api::text, scenario::ClusterSpec};
use futures_util::future::{BoxFuture, LocalBoxFuture};
use kaji_files::kubeconfig;
use kaji_resource::UserInfo;
use kaji_runtime::VirtualClock;
use kaji_server::{Certificates, LocalService, Stack};
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// A cluster that runs.
pub struct RunningCluster {
    /// Its server.
    pub stack: Arc<Stack>,
    /// Its certificates.
    pub certificates: Arc<Certificates>,
    /// Its URL.
    pub url: String,
    /// The clock of its objects and loops.
    pub clock: Arc<VirtualClock>,
    /// Whether a controller of it creates the service account `default` of each namespace.
    pub default_accounts: bool,
    /// Ends it; locked for a moment.
    pub stop: Mutex<BoxFuture<'static, ()>>,
}

/// Starts a cluster over a data directory, with a clock.
pub type StartCluster = Arc<
    dyn Fn(PathBuf, ClusterSpec, Arc<VirtualClock>) -> LocalBoxFuture<'static, Result<RunningCluster, String>>
        + Send
        + Sync,
>;

/// How long the token of an operator's account lasts: longer than a run with a jump of the clock.
const TOKEN_SECONDS: u32 = 86_400;
const CONTEXT: &str = "kaji-test";
/// How long the account that a controller creates in each namespace is waited for.
const DEFAULT_ACCOUNT: Duration = Duration::from_secs(30);

impl RunningCluster {
    /// Ends it; the first call does.
    pub async fn stop(&self) {
        let nothing = Box::pin(std::future::ready(()));
        let stop = std::mem::replace(&mut *self.stop.lock().unwrap_or_else(PoisonError::into_inner), nothing);
        stop.await;
    }

    /// An administrator's client, past the listeners.
    #[must_use]
    pub fn administrator(&self) -> kube::Client {
        let groups = ["system:masters", "system:authenticated"].map(str::to_owned).to_vec();
        let user = UserInfo { name: "kubernetes-admin".into(), groups, ..UserInfo::default() };
        kube::Client::new(LocalService::new(self.stack.clone(), user), "default")
    }

    /// The kubeconfig of an administrator or, by a token, of an account (`namespace/name`), at a URL. The account `default` of a
    /// namespace is waited for where a controller creates it.
    ///
    /// # Errors
    /// When there is no such account.
    pub async fn kubeconfig(&self, url: &str, account: Option<&str>) -> Result<String, ApiError> {
        let admin = &self.certificates.current().admin;
        let mut config = Value::Object(kubeconfig::single(CONTEXT, url, &self.certificates.trust(), admin));
        if let Some(account) = account {
            let (namespace, name) = account.split_once('/').unwrap_or(("default", account));
            let api = Api::new(self.administrator());
            if name == "default" && self.default_accounts {
                wait_for_default_account(&api, namespace).await?;
            }
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
            let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                "spec": {"expirationSeconds": TOKEN_SECONDS}});
            let issued = api.post(&path, &request).await?;
            config["users"][0]["user"] = json!({"token": text(&issued, "/status/token")});
        }
        // JSON is YAML.
        Ok(config.to_string())
    }
}

/// Waits for the account that a controller creates soon after its namespace. A namespace that does not exist has none to wait for.
async fn wait_for_default_account(api: &Api, namespace: &str) -> Result<(), ApiError> {
    let namespace = format!("/api/v1/namespaces/{namespace}");
    let account = format!("{namespace}/serviceaccounts/default");
    api.until(&format!("{account} exists"), DEFAULT_ACCOUNT, async || {
        Ok(api.find(&account).await?.is_some() || api.find(&namespace).await?.is_none())
    })
    .await
}
