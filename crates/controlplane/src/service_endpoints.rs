//! The endpoints of the `kubernetes` service: the API servers of the cluster.
//!
//! With one server they have its address. Servers over one etcd each keep a key with their address under a lease, as upstream's, and
//! set the endpoints to the addresses that have a key.
//!
//! Invariants: objects are changed in place, so that their uids stay; a server that is killed leaves the endpoints when its lease
//! has expired, one that stops at once; endpoints are never emptied while a server runs.
//!
//! Source: upstream's `controlplane/reconcilers/lease.go` and `endpointsadapter.go`.

use kaji_engine::Engine;
use kaji_meta::{GroupResource, Status};
use kaji_resource::{Api, DeleteOptions, FieldManagement, UpdateOptions, unless_exists};
use kaji_storage::internal_keys::SERVER_LEASES;
use kaji_store::{LeaseId, Op, Range, Store, StoreError, Txn};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

/// How long the key of a server outlives it. As upstream.
const LEASE: Duration = Duration::from_secs(15);
/// How often keys are renewed and endpoints compared. As upstream.
const PERIOD: Duration = Duration::from_secs(10);
/// The namespace and the name of the service.
const SERVICE: (&str, &str) = ("default", "kubernetes");

/// Creates or changes the endpoints, so that they have these addresses.
///
/// # Errors
/// The first write that is rejected.
pub(crate) async fn write(api: &dyn Api, addresses: &BTreeSet<IpAddr>, port: u16) -> Result<(), Status> {
    let listed: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let subsets = match listed.is_empty() {
        true => json!([]),
        false => {
            json!([{"addresses": listed, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}])
        }
    };
    let legacy = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": SERVICE.1,
        "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}, "subsets": subsets});
    let v6 = !addresses.is_empty() && addresses.iter().all(IpAddr::is_ipv6);
    let of_family = addresses.iter().filter(|ip| ip.is_ipv6() == v6);
    let endpoints: Vec<Value> =
        of_family.map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": SERVICE.1,
        "labels": {"kubernetes.io/service-name": SERVICE.1}},
        "addressType": if v6 { "IPv6" } else { "IPv4" }, "endpoints": endpoints,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}]});
    let slices = GroupResource::new("discovery.k8s.io", "endpointslices");
    let legacy_resource = GroupResource::new("", "endpoints");
    futures_util::try_join!(
        ensure(api, &legacy_resource, legacy, &["subsets"]),
        ensure(api, &slices, slice, &["endpoints", "ports"]),
    )
    .map(drop)
}

/// Creates an object, or changes its labels and these fields.
async fn ensure(
    api: &dyn Api,
    resource: &GroupResource,
    object: Value,
    fields: &[&str],
) -> Result<(), Status> {
    let (namespace, name) = SERVICE;
    let found = api.get(resource, namespace, name);
    // The type of addresses cannot be changed.
    let other_type =
        found.as_ref().is_some_and(|found| found.get("addressType") != object.get("addressType"));
    let found = match other_type {
        false => found,
        true => {
            api.delete(resource, namespace, name, DeleteOptions::default()).await?;
            None
        }
    };
    let Some(found) = found else {
        // Where another server was faster, the next round compares.
        return unless_exists(api.create(resource, namespace, object, false).await);
    };
    if is_as(&found, &object, fields) {
        return Ok(());
    }
    let change = |stored: &mut Value| {
        for field in fields {
            stored[*field] = object[*field].clone();
        }
        if let Some(labels) = object["metadata"]["labels"].as_object() {
            for (label, value) in labels {
                stored["metadata"]["labels"][label] = value.clone();
            }
        }
        Ok(())
    };
    let options = UpdateOptions::new("", FieldManagement::Record);
    match api.update(resource, namespace, name, options, &change).await {
        Err(status) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

fn is_as(found: &Value, object: &Value, fields: &[&str]) -> bool {
    let absent_is_empty = |value: &Value| if value.is_null() { json!([]) } else { value.clone() };
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    fields.iter().all(|field| absent_is_empty(&found[*field]) == absent_is_empty(&object[*field]))
        && labels.into_iter().all(|(label, value)| found["metadata"]["labels"][label] == *value)
}

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
pub enum EndpointsError {
    /// The store.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The API.
    #[error("{0}")]
    Api(String),
}

impl From<Status> for EndpointsError {
    fn from(status: Status) -> EndpointsError {
        EndpointsError::Api(status.message)
    }
}

/// This server among those of an etcd.
pub struct ServerEndpoints {
    store: Arc<dyn Store>,
    address: SocketAddr,
    lease: Option<LeaseId>,
}

impl ServerEndpoints {
    /// A server that is reached at an address.
    pub fn new(store: Arc<dyn Store>, address: SocketAddr) -> ServerEndpoints {
        ServerEndpoints { store, address, lease: None }
    }

    fn key(&self) -> String {
        format!("{SERVER_LEASES}{}", self.address.ip())
    }

    /// Renews the key of this server.
    async fn renew(&mut self) -> Result<(), StoreError> {
        let kept = match self.lease {
            None => None,
            Some(lease) => match self.store.keep_alive(lease).await {
                Ok(_) => Some(lease),
                Err(StoreError::LeaseNotFound) => None,
                Err(error) => return Err(error),
            },
        };
        let found = self.store.range(Range::key(self.key())).await?.kvs.into_iter().next();
        if kept.is_some() && found.is_some_and(|kv| kv.lease == kept) {
            return Ok(());
        }
        let lease = match kept {
            Some(lease) => lease,
            None => self.store.grant_lease(LEASE).await?,
        };
        self.lease = Some(lease);
        let value = json!({"kind": "Endpoints", "apiVersion": "v1", "metadata": {"generation": 1},
            "subsets": [{"addresses": [{"ip": self.address.ip()}]}]});
        let put = Op::Put { key: self.key(), value: value.to_string().into(), lease: Some(lease) };
        self.store.txn(Txn { compare: vec![], ops: vec![put] }).await.map(drop)
    }

    /// The servers that have a key.
    async fn servers(&self) -> Result<BTreeSet<IpAddr>, StoreError> {
        let found = self.store.range(Range::prefix(SERVER_LEASES)).await?;
        let names = found.kvs.iter().filter_map(|kv| kv.key.strip_prefix(SERVER_LEASES));
        Ok(names.filter_map(|name| name.parse().ok()).collect())
    }

    /// Renews the key, and compares the endpoints with the servers.
    ///
    /// # Errors
    /// When the store or the API refuses.
    pub async fn round(&mut self, api: &dyn Api) -> Result<(), EndpointsError> {
        self.renew().await?;
        let mut servers = self.servers().await?;
        servers.insert(self.address.ip());
        Ok(write(api, &servers, self.address.port()).await?)
    }

    /// Takes this server out of the endpoints.
    async fn leave(&mut self, api: &dyn Api) -> Result<(), EndpointsError> {
        if let Some(lease) = self.lease.take() {
            match self.store.revoke(lease).await {
                Ok(()) | Err(StoreError::LeaseNotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let servers = self.servers().await?;
        Ok(write(api, &servers, self.address.port()).await?)
    }

    /// Goes on until `stop` turns true, and leaves then.
    pub async fn run(mut self, engine: Weak<Engine>, mut stop: watch::Receiver<bool>) {
        let mut rounds = interval(PERIOD);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let stopped = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => true,
                _ = rounds.tick() => false,
            };
            let Some(engine) = engine.upgrade() else { return };
            let done = match stopped {
                true => tokio::time::timeout(PERIOD, self.leave(&*engine)).await,
                false => Ok(self.round(&*engine).await),
            };
            if let Ok(Err(error)) = done {
                tracing::warn!(%error, "the endpoints of the service kubernetes are not up to date");
            }
            if stopped {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_store::memory::MemoryStore;

    #[tokio::test]
    async fn servers_come_and_go() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
        let server = |ip: &str| ServerEndpoints::new(store.clone(), format!("{ip}:6443").parse().unwrap());
        let (mut one, mut two) = (server("10.0.0.1"), server("10.0.0.2"));
        one.renew().await.unwrap();
        two.renew().await.unwrap();
        let all: BTreeSet<IpAddr> = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap()).into();
        assert_eq!(one.servers().await.unwrap(), all);
        let revision = store.revision().await.unwrap();
        one.renew().await.unwrap();
        // Renewing writes nothing.
        assert_eq!(store.revision().await.unwrap(), revision);
        // The lease of a process that was paused for long is gone, and with it the key.
        store.revoke(one.lease.unwrap()).await.unwrap();
        assert_eq!(two.servers().await.unwrap().len(), 1);
        one.renew().await.unwrap();
        assert_eq!(two.servers().await.unwrap(), all);
    }
}
