//! Pods' networks by CNI plug-ins: programs and a configuration that an administrator, or another pod network, has put on disk.
//!
//! Invariants: an attachment is on record, with the configuration that it is made with, before the first plug-in runs, and until the last one
//! has taken it back; so what a process leaves that was killed is found by [`CniNetwork::sweep`], and a change of the
//! configuration does not change how what is there is removed. One sandbox has one operation at a time, which the runtime sees to.
//!
//! Source: the CNI specification 1.1.0.

mod attachment;
mod config;
mod execute;
mod result;

use crate::{NetworkError, bring_up_loopback, records::Records};
use attachment::Attachment;
use config::NetworkList;
use execute::{Call, Caller};
use kaji_containers::{BoxFuture, NetworkSetup, PodAddresses, PodNetwork, RuntimeError};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The interface of a pod.
pub const INTERFACE: &str = "eth0";
/// An answer of plug-ins to whether they are ready counts for this long.
const STATUS_AGE: Duration = Duration::from_secs(5);

/// Where the configuration and the programs are.
#[derive(Debug, Clone)]
pub struct CniOptions {
    /// Configurations; the first one by name is used.
    pub configurations: PathBuf,
    /// Plug-ins, in the order in which they are looked for.
    pub programs: Vec<PathBuf>,
    /// Where attachments are recorded.
    pub state_dir: PathBuf,
}

/// The pod network that a CNI configuration describes.
#[derive(Clone)]
pub struct CniNetwork(Arc<Inner>);

struct Inner {
    options: CniOptions,
    attachments: Records<Attachment>,
    pod_cidrs: Mutex<Vec<String>>,
    /// What plug-ins said of themselves last.
    status: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
}

impl CniNetwork {
    /// Opens the records. There need not be a configuration yet.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(options: CniOptions) -> Result<CniNetwork, NetworkError> {
        let attachments = Records::open(options.state_dir.clone())?;
        let (pod_cidrs, status) = (Mutex::default(), tokio::sync::Mutex::default());
        Ok(CniNetwork(Arc::new(Inner { options, attachments, pod_cidrs, status })))
    }

    /// Whether a directory has records of attachments.
    #[must_use]
    pub fn has_attachments(state_dir: &std::path::Path) -> bool {
        std::fs::read_dir(state_dir).is_ok_and(|mut entries| entries.next().is_some())
    }
}

impl Inner {
    async fn list(&self) -> Result<Option<NetworkList>, NetworkError> {
        let directory = self.options.configurations.clone();
        blocking(move || config::load(&directory)).await
    }

    /// Why there is no network now: no configuration, or what a plug-in says.
    async fn unavailable(&self) -> Option<String> {
        let failed = |error: String| Some(format!("Network plugin returns error: {error}"));
        let list = match self.list().await {
            Ok(Some(list)) => list,
            Ok(None) => return failed(NetworkError::NotConfigured.to_string()),
            Err(error) => return failed(error.to_string()),
        };
        if !list.has_status() {
            return None;
        }
        let mut known = self.status.lock().await;
        if let Some((at, answer)) = &*known
            && at.elapsed() < STATUS_AGE
        {
            return answer.clone();
        }
        let caller = Caller { programs: &self.options.programs, setup: None };
        let mut answer = None;
        for plugin in &list.plugins {
            if let Err(error) = caller.call(plugin, Call::Status, list.request(plugin)).await {
                answer = failed(error.to_string());
                break;
            }
        }
        *known = Some((Instant::now(), answer.clone()));
        answer
    }

    async fn add(&self, setup: NetworkSetup) -> Result<PodAddresses, NetworkError> {
        if let Some(known) = self.attachments.read(&setup.sandbox_id)? {
            if let Some(addresses) = known.result.as_ref().and_then(|found| result::addresses(found).ok()) {
                return Ok(PodAddresses { addresses });
            }
            // A process before this one was killed half-way.
            self.remove(&known).await?;
        }
        let list = self.list().await?.ok_or(NetworkError::NotConfigured)?;
        let namespace = setup.namespace.clone();
        blocking(move || bring_up_loopback(&namespace)).await?;
        let cidrs = self.pod_cidrs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let arguments = execute::capability_arguments(&setup, &cidrs)?;
        let programs = self.options.programs.clone();
        let mut attachment = Attachment { setup, list, arguments, programs, result: None };
        self.attachments.write(&attachment)?;
        match self.run_all(&attachment).await {
            Ok((found, addresses)) => {
                attachment.result = Some(found);
                self.attachments.write(&attachment)?;
                Ok(PodAddresses { addresses })
            }
            Err(error) => {
                if let Err(left) = self.remove(&attachment).await {
                    tracing::warn!(sandbox = attachment.setup.sandbox_id, error = %left, "an attachment could not be removed; the next clean-up removes it");
                }
                Err(failed("setup network for", &attachment, &error))
            }
        }
    }

    /// Runs the plug-ins in order, each with the result of the one before.
    async fn run_all(&self, attachment: &Attachment) -> Result<(Value, Vec<std::net::IpAddr>), NetworkError> {
        let mut result = Value::Null;
        for plugin in &attachment.list.plugins {
            let request = attachment.request(plugin, &result);
            result = attachment.caller().call(plugin, Call::Add, request).await?;
        }
        let addresses = result::addresses(&result)?;
        Ok((result, addresses))
    }

    async fn check(&self, attachment: &Attachment) -> Result<(), NetworkError> {
        if !attachment.list.has_check() {
            return Ok(());
        }
        let result = attachment.result.clone().unwrap_or_default();
        for plugin in &attachment.list.plugins {
            let request = attachment.request(plugin, &result);
            attachment.caller().call(plugin, Call::Check, request).await?;
        }
        Ok(())
    }

    /// Runs the plug-ins in the other order, and forgets the attachment when all of them have succeeded.
    async fn remove(&self, attachment: &Attachment) -> Result<(), NetworkError> {
        let result =
            attachment.result.clone().filter(|_| attachment.list.passes_result()).unwrap_or_default();
        for plugin in attachment.list.plugins.iter().rev() {
            let request = attachment.request(plugin, &result);
            let done = attachment.caller().call(plugin, Call::Delete, request).await;
            done.map_err(|error| failed("destroy network for", attachment, &error))?;
        }
        self.attachments.remove(&attachment.setup.sandbox_id)
    }

    async fn sweep(&self, sandboxes: &[String]) -> Result<(), NetworkError> {
        let mut valid = vec![];
        for attachment in self.attachments.all()? {
            let id = &attachment.setup.sandbox_id;
            if sandboxes.contains(id) {
                valid.push(json!({"containerID": id, "ifname": INTERFACE}));
            } else if let Err(error) = self.remove(&attachment).await {
                // A plug-in that cannot work now does not keep the node from starting.
                tracing::warn!(sandbox = id, %error, "an attachment without a sandbox could not be removed");
            }
        }
        let Some(list) = self.list().await?.filter(NetworkList::has_collection) else { return Ok(()) };
        let caller = Caller { programs: &self.options.programs, setup: None };
        for plugin in &list.plugins {
            let mut request = list.request(plugin);
            request.insert("cni.dev/valid-attachments".to_owned(), valid.clone().into());
            if let Err(error) = caller.call(plugin, Call::Collect, request).await {
                tracing::warn!(%error, "a network plug-in could not collect stale attachments");
            }
        }
        Ok(())
    }
}

/// containerd's words, which administrators look for.
fn failed(what: &str, attachment: &Attachment, error: &NetworkError) -> NetworkError {
    NetworkError::Plugin(format!("failed to {what} sandbox {:?}: {error}", attachment.setup.sandbox_id))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NetworkError> + Send + 'static,
) -> Result<T, NetworkError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(NetworkError::Stopped))
}

impl PodNetwork for CniNetwork {
    fn unavailable_reason(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(self.0.unavailable())
    }

    fn update_pod_cidrs(&self, cidrs: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
        *self.0.pod_cidrs.lock().unwrap_or_else(PoisonError::into_inner) = cidrs;
        Box::pin(async { Ok(()) })
    }

    fn set_up(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>> {
        Box::pin(async { Ok(self.0.add(setup).await?) })
    }

    fn adopt(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<PodAddresses, RuntimeError>> {
        Box::pin(async move {
            let lost = || NetworkError::NotAsSetUp(format!("no attachment of sandbox {}", setup.sandbox_id));
            let attachment = self.0.attachments.read(&setup.sandbox_id)?.ok_or_else(lost)?;
            let result = attachment.result.as_ref().ok_or_else(lost)?;
            let addresses = result::addresses(result)?;
            // A plug-in that cannot check at the moment, as when its own agent is not up yet, is no proof that the pod has lost its network.
            if let Err(error) = self.0.check(&attachment).await {
                tracing::warn!(sandbox = setup.sandbox_id, %error, "a network plug-in's check of a pod's network failed");
            }
            Ok(PodAddresses { addresses })
        })
    }

    fn tear_down(&self, setup: NetworkSetup) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async move {
            match self.0.attachments.read(&setup.sandbox_id)? {
                Some(attachment) => Ok(self.0.remove(&attachment).await?),
                None => Ok(()),
            }
        })
    }

    fn sweep(&self, sandboxes: Vec<String>) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async move { Ok(self.0.sweep(&sandboxes).await?) })
    }
}
