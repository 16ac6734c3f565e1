//! Policies, pods and namespaces, as informers show them, become tables.
//!
//! Invariant: each change writes the whole table of a family, in one transaction, and only if its rules differ.

use super::{
    compile::{Compiled, PolicyObjects, compile, local_pods},
    local::LocalPods,
    object::NetworkPolicy,
    tables::table,
};
use crate::ProxyError;
use kaji_netfilter::{Batch, Family, Nftables, namespace};
use kaji_runtime::{
    Informers, Projection,
    objects::{Namespace, Pod},
};
use std::{fs::File, io, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{Notify, watch};

/// Before a change that failed is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// Changes that come close together are one.
const COALESCE: Duration = Duration::from_millis(10);

/// Where policies are enforced.
#[derive(Debug, Clone)]
pub struct PolicyConfig {
    /// Name of the Node object.
    pub node_name: String,
    /// Name of the nftables tables.
    pub table: String,
    /// The node's network namespace; `None` for that of the process.
    pub namespace: Option<PathBuf>,
    /// Destinations that every pod may reach, with their protocol's number: DNS that the node itself serves.
    pub exempt: Vec<(IpAddr, u8, u16)>,
}

impl PolicyConfig {
    /// The defaults for a node.
    #[must_use]
    pub fn new(node_name: &str) -> PolicyConfig {
        PolicyConfig {
            node_name: node_name.into(),
            table: "kaji-policy".into(),
            namespace: None,
            exempt: vec![],
        }
    }
}

/// Puts rules in force: the families that differ from `former`.
///
/// # Errors
/// The kernel's.
pub fn enforce(config: &PolicyConfig, former: Option<&Compiled>, rules: &Compiled) -> Result<(), ProxyError> {
    inside(config, || {
        let mut nft = Nftables::open().map_err(io::Error::other)?;
        let families =
            [(Family::V4, &rules.v4, former.map(|f| &f.v4)), (Family::V6, &rules.v6, former.map(|f| &f.v6))];
        for (family, rules, former) in families {
            if former == Some(rules) {
                continue;
            }
            let batch: Batch = table(family, &config.table, rules, &config.exempt);
            nft.apply(&batch).map_err(io::Error::other)?;
        }
        Ok(())
    })
}

/// Removes the tables: no connection is restricted any more.
///
/// # Errors
/// The kernel's.
pub fn remove(config: &PolicyConfig) -> Result<(), ProxyError> {
    inside(config, || {
        let mut nft = Nftables::open().map_err(io::Error::other)?;
        for family in [Family::V4, Family::V6] {
            let mut batch = Batch::new(family, &config.table);
            batch.add_table();
            batch.delete_table();
            nft.apply(&batch).map_err(io::Error::other)?;
        }
        Ok(())
    })
}

/// Runs `work` in the node's network namespace.
fn inside(config: &PolicyConfig, work: impl FnOnce() -> io::Result<()> + Send) -> Result<(), ProxyError> {
    let result = match &config.namespace {
        None => work(),
        Some(path) => namespace::inside(path, work),
    };
    result.map_err(|error| ProxyError::Io("network policies".into(), error))
}

fn follow<T: Projection>(informers: &Informers, changed: &Arc<Notify>, relevant: fn(&T, &T) -> bool) {
    let notify = changed.clone();
    informers.get::<T>().handle(move |change| {
        let same = match (&change.old, &change.new) {
            (Some(old), Some(new)) => !relevant(old, new),
            _ => false,
        };
        if !same {
            notify.notify_one();
        }
    });
}

/// Enforces the policies on this node's pods until `stop` turns true; the rules stay in force then. `local` has the pods' addresses
/// before the API shows them, and waits until their rules are in force.
///
/// # Errors
/// When the node's network namespace cannot be opened. Changes that the kernel refuses are repeated.
pub async fn run(
    config: PolicyConfig,
    informers: Arc<Informers>,
    local: LocalPods,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ProxyError> {
    if let Some(path) = &config.namespace {
        File::open(path).map_err(|error| ProxyError::Io(path.display().to_string(), error))?;
    }
    let changed = Arc::new(Notify::new());
    follow::<NetworkPolicy>(&informers, &changed, |old, new| old.spec != new.spec);
    follow::<Namespace>(&informers, &changed, |old, new| old.metadata.labels != new.metadata.labels);
    follow::<Pod>(&informers, &changed, |old, new| {
        let facts =
            |pod: &Pod| (pod.status.pod_ip.clone(), pod.status.pod_ips.clone(), pod.status.phase.clone());
        old.metadata.labels != new.metadata.labels
            || facts(old) != facts(new)
            || old.spec.node_name != new.spec.node_name
    });
    let (policies, pods, namespaces) =
        (informers.get::<NetworkPolicy>(), informers.get::<Pod>(), informers.get::<Namespace>());
    tokio::select! {
        () = async { policies.synced().await; pods.synced().await; namespaces.synced().await; } => {}
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    }
    let mut in_force: Option<Compiled> = None;
    loop {
        let objects = PolicyObjects {
            // First: policies are read after the address is known.
            local: local.table(),
            policies: policies.snapshot(),
            pods: pods.snapshot(),
            namespaces: namespaces.snapshot(),
        };
        let (former, settings) = (in_force.take(), config.clone());
        let write = move || {
            let rules = compile(&objects, &settings.node_name);
            let known =
                local_pods(&objects, &settings.node_name).map(|(sandbox, _)| sandbox.clone()).collect();
            enforce(&settings, former.as_ref(), &rules).map(|()| (rules, known))
        };
        let result = tokio::task::spawn_blocking(write).await.unwrap_or(Err(ProxyError::Stopped));
        match result {
            Ok((rules, known)) => {
                in_force = Some(rules);
                local.set_enforced(known);
            }
            Err(error) => tracing::error!(%error, "the network policies could not be applied"),
        }
        let more_may_come = tokio::select! {
            // A pod waits for it.
            () = local.changed() => false,
            () = changed.notified() => true,
            () = tokio::time::sleep(RETRY), if in_force.is_none() => false,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        if more_may_come {
            tokio::time::sleep(COALESCE).await;
        }
    }
}
