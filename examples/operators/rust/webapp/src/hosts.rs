//! The owners of hosts. A config map in the operator's namespace stands for what a real operator would ask a DNS server:
//! something outside, which garbage collection knows nothing of. That is why a `WebApp` has a finalizer.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};

const NAME: &str = "webapp-hosts";

/// The list of hosts.
#[derive(Clone)]
pub struct Hosts(Api<ConfigMap>);

impl Hosts {
    /// The list in the operator's namespace.
    pub fn new(client: Client, namespace: &str) -> Hosts {
        Hosts(Api::namespaced(client, namespace))
    }

    /// The owner of this host, as namespace/name.
    pub async fn holder(&self, host: &str) -> kube::Result<Option<String>> {
        let map = self.0.get_opt(NAME).await?;
        Ok(map.and_then(|map| map.data?.remove(host)))
    }

    /// Takes the host, unless another object has it: then returns that owner.
    pub async fn claim(&self, host: &str, owner: &str) -> kube::Result<Result<(), String>> {
        let mut map = self.read().await?;
        let holder = map.data.get_or_insert_default().entry(host.into()).or_insert_with(|| owner.into());
        if holder != owner {
            return Ok(Err(holder.clone()));
        }
        self.write(&map).await.map(Ok)
    }

    /// Gives the host back, if it is theirs.
    pub async fn release(&self, host: &str, owner: &str) -> kube::Result<()> {
        let mut map = self.read().await?;
        let data = map.data.get_or_insert_default();
        if data.get(host).is_none_or(|holder| holder != owner) {
            return Ok(());
        }
        data.remove(host);
        self.write(&map).await
    }

    async fn read(&self) -> kube::Result<ConfigMap> {
        let mut new = ConfigMap::default();
        new.metadata.name = Some(NAME.into());
        Ok(self.0.get_opt(NAME).await?.unwrap_or(new))
    }

    /// Writes what was read, unless another writer wrote in between: then it is a conflict, and tried again later.
    async fn write(&self, map: &ConfigMap) -> kube::Result<()> {
        let params = PostParams::default();
        match map.metadata.resource_version {
            Some(_) => self.0.replace(NAME, &params, map).await?,
            None => self.0.create(&params, map).await?,
        };
        Ok(())
    }
}
