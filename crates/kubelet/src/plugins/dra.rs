//! Dynamic resource allocation on the node: drivers prepare the claims of a pod before its containers are created, and unprepare them after
//! the last pod that uses them has ended. Upstream's `cm/dra`.
//!
//! Invariants: a pod runs only with claims that are reserved for it and that all their drivers have prepared; a claim is
//! prepared and unprepared by one pod at a time; the ResourceSlices of a driver that does not come back are removed.

pub mod claims;
pub mod drivers;
pub mod health;
pub mod messages;
mod run;

use crate::metrics::{KubeletMetrics, families};
use crate::pods::core::{Container, Pod, PodResourceClaim};
use crate::pods::model;
use crate::pods::sources::Sources;
use claims::{Claim, Claims, Device};
use drivers::{Driver, Drivers};
use futures_util::future::BoxFuture;
use health::HealthCache;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kaji_meta::Clock;
use kaji_runtime::Target;
use messages as m;
use run::Command;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, mpsc};

/// The file of claims, below the kubelet's directory.
const CHECKPOINT: &str = "dra_manager_state";
/// The file of devices' health, beside it.
const HEALTH: &str = "dra_health_state";
/// How long the ResourceSlices of a driver stay after it is gone: upstream's `defaultWipingDelay`.
pub const WIPING_DELAY: Duration = Duration::from_secs(30);
/// Registrations, and pods with devices of another health, that wait.
const WAITING: usize = 256;

/// Removes ResourceSlices of the node.
pub trait SliceApi: Send + Sync + 'static {
    /// Those of a driver, or of all drivers. An error is a text for the log; it is tried again.
    fn delete_slices<'a>(&'a self, driver: Option<&'a str>) -> BoxFuture<'a, Result<(), String>>;
}

/// Namespace and name of a claim.
type ClaimKey = (String, String);

/// The claims of a node's pods.
pub struct DraManager {
    file: PathBuf,
    claims: Mutex<Claims>,
    /// Why the claims of a kubelet before this one are not known.
    unreadable: Option<String>,
    locks: Mutex<BTreeMap<ClaimKey, Arc<tokio::sync::Mutex<()>>>>,
    drivers: Mutex<Drivers>,
    health: Mutex<HealthCache>,
    health_file: PathBuf,
    commands: mpsc::Sender<Command>,
    queue: tokio::sync::Mutex<mpsc::Receiver<Command>>,
    changed_pods: mpsc::Sender<String>,
    changes: Mutex<Option<mpsc::Receiver<String>>>,
    slices: Arc<dyn SliceApi>,
    clock: Arc<dyn Clock>,
    metrics: Arc<KubeletMetrics>,
    wiping_delay: Duration,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DraManager {
    /// Below the kubelet's directory; claims of a kubelet before this one are kept.
    #[must_use]
    pub fn new(
        root: &Path,
        slices: Arc<dyn SliceApi>,
        clock: Arc<dyn Clock>,
        metrics: Arc<KubeletMetrics>,
        wiping_delay: Duration,
    ) -> DraManager {
        let file = root.join(CHECKPOINT);
        let (claims, unreadable) = match Claims::read(&file) {
            Ok(claims) => (claims, None),
            Err(error) => {
                let text = format!(
                    "could not initialize checkpoint manager, please drain node and remove DRA state file {}, err: {error}",
                    file.display()
                );
                tracing::error!(error = text, "the checkpoint of prepared claims cannot be read");
                (Claims::default(), Some(text))
            }
        };
        let health_file = root.join(HEALTH);
        let health = HealthCache::read(&health_file).unwrap_or_else(|error| {
            let file = health_file.display();
            tracing::error!(%file, error, "the checkpoint of device health cannot be read; health is unknown until the drivers report it");
            HealthCache::default()
        });
        let (commands, queue) = mpsc::channel(WAITING);
        let (changed_pods, changes) = mpsc::channel(WAITING);
        DraManager {
            file,
            claims: Mutex::new(claims),
            unreadable,
            locks: Mutex::default(),
            drivers: Mutex::default(),
            health: Mutex::new(health),
            health_file,
            commands,
            queue: tokio::sync::Mutex::new(queue),
            changed_pods,
            changes: Mutex::new(Some(changes)),
            slices,
            clock,
            metrics,
            wiping_delay,
        }
    }

    /// Uids of pods that have a device of another health now; once.
    pub fn changed_pods(&self) -> Option<mpsc::Receiver<String>> {
        locked(&self.changes).take()
    }

    /// How many prepared claims each driver has, and how many there are.
    #[must_use]
    pub fn claims_in_use(&self) -> (BTreeMap<String, usize>, usize) {
        locked(&self.claims).in_use()
    }

    fn save(&self, claims: &Claims) -> Result<(), String> {
        claims.write(&self.file).map_err(|error| format!("checkpoint ResourceClaim cache: {error}"))
    }

    /// Holds claims, so that only one pod prepares or unprepares each of them.
    async fn hold(&self, keys: BTreeSet<ClaimKey>) -> Vec<OwnedMutexGuard<()>> {
        let mut held = vec![];
        for key in keys {
            let lock = {
                let mut locks = locked(&self.locks);
                locks.retain(|_, lock| Arc::strong_count(lock) > 1);
                locks.entry(key).or_default().clone()
            };
            held.push(lock.lock_owned().await);
        }
        held
    }

    /// Prepares the claims of a pod that is about to run.
    ///
    /// # Errors
    /// The text of an event `FailedPrepareDynamicResources`, in upstream's words.
    pub async fn prepare(&self, sources: &dyn Sources, pod: &Pod) -> Result<(), String> {
        let began = tokio::time::Instant::now();
        let outcome = self.prepare_claims(sources, pod).await;
        self.observe("PrepareResources", began, outcome.is_err());
        outcome.map_err(|error| format!("prepare dynamic resources: {error}"))
    }

    fn observe(&self, operation: &str, began: tokio::time::Instant, failed: bool) {
        let failed = if failed { "true" } else { "false" };
        let labels = [("operation_name", operation), ("is_error", failed)];
        self.metrics.observe(&families::DRA_OPERATIONS, &labels, began.elapsed());
    }

    async fn prepare_claims(&self, sources: &dyn Sources, pod: &Pod) -> Result<(), String> {
        let names: Vec<(String, bool)> = claim_names(pod).collect::<Result<_, String>>()?;
        if names.is_empty() {
            return Ok(());
        }
        if let Some(error) = &self.unreadable {
            return Err(error.clone());
        }
        // Nothing is noted before all of it is known to be in order: a pod that fails here can be deleted without its drivers.
        let mut wanted = vec![];
        for (name, own) in names {
            let claim = usable_claim(sources, pod, &name, own).await?;
            for driver in claim.drivers() {
                locked(&self.drivers).get(driver)?;
            }
            wanted.push(claim);
        }
        let keys = wanted.iter().map(|claim| (claim.namespace.clone(), claim.name.clone()));
        let _held = self.hold(keys.collect()).await;
        let mut calls: BTreeMap<String, Vec<m::Claim>> = BTreeMap::new();
        let mut preparing = vec![];
        {
            let mut claims = locked(&self.claims);
            for claim in wanted {
                let needed = claims.add(claim.clone(), model::uid(pod));
                self.save(&claims)?;
                if !needed? {
                    continue;
                }
                for driver in claim.drivers() {
                    calls.entry(driver.clone()).or_default().push(message(&claim));
                }
                preparing.push(claim);
            }
        }
        for (name, asked) in calls {
            let driver = locked(&self.drivers).get(&name)?;
            self.prepare_with(&driver, asked).await?;
        }
        let mut claims = locked(&self.claims);
        for claim in &preparing {
            claims.set_prepared(&claim.namespace, &claim.name);
        }
        if preparing.is_empty() { Ok(()) } else { self.save(&claims) }
    }

    async fn prepare_with(&self, driver: &Driver, asked: Vec<m::Claim>) -> Result<(), String> {
        let request = m::ClaimsRequest { claims: asked.clone() };
        let response = driver.prepare(request, &self.metrics).await;
        let response = response.map_err(|error| format!("NodePrepareResources: {error}"))?;
        let answered = response.claims.len();
        for (uid, result) in response.claims {
            let Some(claim) = asked.iter().find(|claim| claim.uid == uid) else {
                return Err(format!("NodePrepareResources returned result for unknown claim UID {uid}"));
            };
            if !result.error.is_empty() {
                let name = &claim.name;
                return Err(format!(
                    "NodePrepareResources failed for ResourceClaim {name}: {}",
                    result.error
                ));
            }
            let devices = result.devices.into_iter().map(|device| Device {
                pool_name: device.pool_name,
                device_name: device.device_name,
                share_id: device.share_id,
                request_names: device.request_names,
                cdi_devices: device.cdi_device_ids,
            });
            let mut claims = locked(&self.claims);
            claims.set_devices(&claim.namespace, &claim.name, driver.name(), devices.collect());
        }
        match asked.len().saturating_sub(answered) {
            0 => Ok(()),
            left => Err(format!("NodePrepareResources skipped {left} ResourceClaims")),
        }
    }

    /// Unprepares the claims of a pod that no container runs of any more, and that no other pod uses.
    ///
    /// # Errors
    /// Upstream's text; it has to be tried again.
    pub async fn unprepare(&self, pod: &Pod) -> Result<(), String> {
        let began = tokio::time::Instant::now();
        let names = claim_names(pod).filter_map(Result::ok).map(|(name, _)| name).collect();
        let outcome = self.unprepare_claims(model::uid(pod), model::namespace(pod), names).await;
        self.observe("UnprepareResources", began, outcome.is_err());
        outcome.map_err(|error| format!("unprepare dynamic resources: {error}"))
    }

    async fn unprepare_claims(&self, pod: &str, namespace: &str, names: Vec<String>) -> Result<(), String> {
        let known = |name: &String| locked(&self.claims).get(namespace, name).is_some();
        let names: BTreeSet<String> = names.into_iter().filter(known).collect();
        if names.is_empty() {
            return Ok(());
        }
        let _held = self.hold(names.iter().map(|name| (namespace.to_owned(), name.clone())).collect()).await;
        let mut calls: BTreeMap<String, Vec<m::Claim>> = BTreeMap::new();
        let mut last = vec![];
        for name in &names {
            let Some(claim) = locked(&self.claims).release(namespace, name, pod) else { continue };
            for driver in claim.drivers() {
                calls.entry(driver.clone()).or_default().push(message(&claim));
            }
            last.push(claim);
        }
        for (name, asked) in calls {
            let driver = locked(&self.drivers).get(&name)?;
            self.unprepare_with(&driver, asked).await?;
        }
        let mut claims = locked(&self.claims);
        for claim in &last {
            claims.remove(&claim.namespace, &claim.name, pod);
        }
        self.save(&claims)
    }

    async fn unprepare_with(&self, driver: &Driver, asked: Vec<m::Claim>) -> Result<(), String> {
        let request = m::ClaimsRequest { claims: asked.clone() };
        let response = driver.unprepare(request, &self.metrics).await;
        let response = response.map_err(|error| format!("NodeUnprepareResources: {error}"))?;
        for (uid, result) in &response.claims {
            let Some(claim) = asked.iter().find(|claim| claim.uid == *uid) else {
                return Err(format!("NodeUnprepareResources returned result for unknown claim UID {uid}"));
            };
            if !result.error.is_empty() {
                let name = &claim.name;
                return Err(format!(
                    "NodeUnprepareResources failed for ResourceClaim {name}: {}",
                    result.error
                ));
            }
        }
        match asked.len().saturating_sub(response.claims.len()) {
            0 => Ok(()),
            left => Err(format!("NodeUnprepareResources skipped {left} ResourceClaims")),
        }
    }

    /// Unprepares claims of pods that are not among these: of pods that were removed while no kubelet ran.
    pub async fn reconcile(&self, active: &BTreeSet<String>) {
        let unused = locked(&self.claims).unused(active);
        for (pod, (namespace, names)) in unused {
            if let Err(error) = self.unprepare_claims(&pod, &namespace, names).await {
                tracing::info!(pod, error, "claims of a deleted pod could not be unprepared yet");
            }
        }
    }

    /// The CDI devices of a container, by their qualified names.
    ///
    /// # Errors
    /// Upstream's text.
    pub fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, String> {
        let mut found = vec![];
        let claims = locked(&self.claims);
        for (name, request) in container_requests(pod, container)? {
            let namespace = model::namespace(pod);
            let claim = claims.get(namespace, &name).ok_or_else(|| {
                format!(
                    "internal error: unable to get claim info for ResourceClaim {name} in namespace {namespace}"
                )
            })?;
            found.extend(claim.cdi_devices(&request));
        }
        Ok(found)
    }

    /// The claims that a container uses.
    #[must_use]
    pub fn claims_of(&self, pod: &Pod, container: &Container) -> Vec<Claim> {
        let claims = locked(&self.claims);
        let names: BTreeSet<String> = container_requests(pod, container)
            .unwrap_or_default()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        names.iter().filter_map(|name| claims.get(model::namespace(pod), name).cloned()).collect()
    }
}

fn message(claim: &Claim) -> m::Claim {
    m::Claim { namespace: claim.namespace.clone(), uid: claim.uid.clone(), name: claim.name.clone() }
}

/// The name of the object that a pod's claim stands for, and whether that was made for the pod. `None` where none is needed.
fn claim_name(pod: &Pod, claim: &PodResourceClaim) -> Result<Option<(String, bool)>, String> {
    if let Some(name) = &claim.resource_claim_name {
        return Ok(Some((name.clone(), false)));
    }
    let (namespace, pod_name) = (model::namespace(pod), model::name(pod));
    if claim.resource_claim_template_name.is_none() {
        return Err(format!(
            "pod \"{namespace}/{pod_name}\", spec.resourceClaim {:?}: none of the supported fields are set",
            claim.name
        ));
    }
    let statuses = pod.status.as_ref().and_then(|s| s.resource_claim_statuses.as_deref());
    let made = statuses.unwrap_or_default().iter().find(|status| status.name == claim.name);
    match made {
        None => Err(format!("pod \"{namespace}/{pod_name}\": ResourceClaim not created yet")),
        Some(status) => Ok(status.resource_claim_name.clone().map(|name| (name, true))),
    }
}

/// The claims of a pod, with the one that the scheduler made for its extended resources.
fn claim_names(pod: &Pod) -> impl Iterator<Item = Result<(String, bool), String>> {
    let own = model::spec(pod).resource_claims.as_deref().unwrap_or_default();
    let extended = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref());
    let extended = extended.map(|status| Ok((status.resource_claim_name.clone(), false)));
    own.iter().filter_map(|claim| claim_name(pod, claim).transpose()).chain(extended)
}

/// The claims of a container and the request of each that it uses; an empty one stands for all.
fn container_requests(pod: &Pod, container: &Container) -> Result<Vec<(String, String)>, String> {
    let mut found = vec![];
    let own = container.resources.as_ref().and_then(|r| r.claims.as_deref()).unwrap_or_default();
    for claim in model::spec(pod).resource_claims.as_deref().unwrap_or_default() {
        for of_container in own.iter().filter(|c| c.name == claim.name) {
            if let Some((name, _)) = claim_name(pod, claim)? {
                found.push((name, of_container.request.clone().unwrap_or_default()));
            }
        }
    }
    if let Some(status) = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref()) {
        let requests = model::requests(container.resources.as_ref());
        for mapping in status.request_mappings.iter().filter(|m| m.container_name == container.name) {
            if model::whole(requests, &mapping.resource_name).is_some_and(|amount| amount > 0) {
                found.push((status.resource_claim_name.clone(), mapping.request_name.clone()));
            }
        }
    }
    Ok(found)
}

/// Reads a claim, and checks that the pod may use it.
async fn usable_claim(sources: &dyn Sources, pod: &Pod, name: &str, own: bool) -> Result<Claim, String> {
    let target = Target {
        group: "resource.k8s.io".into(),
        version: "v1".into(),
        resource: "resourceclaims".into(),
        namespace: model::namespace(pod).into(),
        name: name.to_owned(),
        ..Target::default()
    };
    let read =
        sources.object(&target).await.map_err(|error| format!("fetch ResourceClaim {name}: {error}"))?;
    let object = read.ok_or_else(|| {
        format!("fetch ResourceClaim {name}: resourceclaims.resource.k8s.io \"{name}\" not found")
    })?;
    let claim: ResourceClaim =
        serde_json::from_value(object).map_err(|error| format!("fetch ResourceClaim {name}: {error}"))?;
    let (namespace, pod_name, uid) = (model::namespace(pod), model::name(pod), model::uid(pod));
    let mut owners = claim.metadata.owner_references.iter().flatten();
    if own && !owners.any(|owner| owner.controller == Some(true) && owner.uid == uid) {
        return Err(format!(
            "ResourceClaim {namespace}/{name} was not created for Pod {namespace}/{pod_name} (Pod is not owner)"
        ));
    }
    let mut reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    if !reserved.any(|user| user.uid == uid) {
        let claim_uid = claim.metadata.uid.as_deref().unwrap_or_default();
        return Err(format!(
            "pod {pod_name} ({uid}) is not allowed to use ResourceClaim {name} ({claim_uid})"
        ));
    }
    Claim::of(&claim).map_err(|error| format!("ResourceClaim {name}: {error}"))
}
