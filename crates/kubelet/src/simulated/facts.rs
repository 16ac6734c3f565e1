//! What simulated pods refer to: configuration maps, secrets and claims that their volumes and variables need.
//!
//! Invariant: an object is looked up only for a pod that is about to start containers and refers to it.

use crate::pods::core::{PersistentVolumeClaim, Pod, Volume};
use crate::pods::model;
use crate::pods::sources::{self, Keyed, KeyedKind, KeyedRef, Sources, Token, TokenRequest};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use kaji_runtime::{Client, Target};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;

type Found<T> = Result<Option<T>, String>;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Configuration maps and secrets.
    pub keyed: BTreeMap<KeyedRef, Found<Arc<Keyed>>>,
    /// Claims by name.
    pub claims: BTreeMap<String, Found<Arc<PersistentVolumeClaim>>>,
}

/// The claim of a volume.
fn claim(pod: &Pod, volume: &Volume) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", model::name(pod), volume.name)),
        (None, None) => None,
    }
}

/// Whether the pod's volumes refer to anything.
#[must_use]
pub fn volumes_refer(pod: &Pod) -> bool {
    model::spec(pod).volumes.iter().flatten().any(|volume| {
        let keyed = volume.config_map.is_some() || volume.secret.is_some() || volume.projected.is_some();
        keyed || claim(pod, volume).is_some()
    })
}

/// Whether a container's variables refer to anything.
#[must_use]
pub fn variables_refer(container: &crate::pods::core::Container) -> bool {
    let sources = container.env.iter().flatten().filter_map(|v| v.value_from.as_ref());
    let keyed =
        |s: &crate::pods::core::EnvVarSource| s.config_map_key_ref.is_some() || s.secret_key_ref.is_some();
    container.env_from.as_ref().is_some_and(|f| !f.is_empty()) || sources.into_iter().any(keyed)
}

/// Looks up all that a pod refers to, as its node. `known` has what another pod was found to refer to a moment ago.
pub async fn gather(
    client: &Client,
    pod: &Pod,
    known: &(dyn Fn(&KeyedRef) -> Option<Arc<Keyed>> + Sync),
) -> Facts {
    let mut facts = Facts::default();
    for name in sources::of_pod(pod) {
        let found = match known(&name) {
            Some(found) => Ok(Some(found)),
            None => read(client, name.kind.resource(), &name.namespace, &name.name).await.and_then(|found| {
                let parse = |value: Value| name.kind.parse(value.to_string().as_bytes()).map(Arc::new);
                found.map(parse).transpose().map_err(|e| e.to_string())
            }),
        };
        facts.keyed.insert(name, found);
    }
    for name in model::spec(pod).volumes.iter().flatten().filter_map(|volume| claim(pod, volume)) {
        let found = read(client, "persistentvolumeclaims", model::namespace(pod), &name).await;
        let found = found.and_then(|found| {
            found
                .map(|value| serde_json::from_value(value).map(Arc::new))
                .transpose()
                .map_err(|e| e.to_string())
        });
        facts.claims.insert(name, found);
    }
    facts
}

async fn read(client: &Client, resource: &str, namespace: &str, name: &str) -> Found<Value> {
    let target = Target {
        version: "v1".into(),
        resource: resource.into(),
        namespace: namespace.into(),
        name: name.into(),
        ..Target::default()
    };
    match client.get::<Value>(&target.path()).await {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.not_found() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

impl Facts {
    /// Whether all volumes of the pod can be mounted.
    ///
    /// # Errors
    /// The text of a `FailedMount` event.
    pub fn volumes(&self, pod: &Pod) -> Result<(), String> {
        for volume in model::spec(pod).volumes.iter().flatten() {
            let name = &volume.name;
            self.files(pod, volume)
                .map_err(|error| format!("MountVolume.SetUp failed for volume \"{name}\" : {error}"))?;
            if let Some(claim) = claim(pod, volume) {
                self.bound(model::namespace(pod), &claim).map_err(|error| {
                    let namespace = model::namespace(pod);
                    format!(
                        "Unable to attach or mount volumes: unmounted volumes=[{name}], unattached volumes=[], failed to process volumes=[{name}]: error processing PVC {namespace}/{claim}: {error}"
                    )
                })?;
            }
        }
        Ok(())
    }

    fn files(&self, pod: &Pod, volume: &Volume) -> Result<(), String> {
        type Items<'a> = Option<&'a [crate::pods::core::KeyToPath]>;
        let mut parts: Vec<(KeyedKind, &str, Items<'_>, Option<bool>)> = vec![];
        if let Some(s) = &volume.config_map {
            parts.push((KeyedKind::ConfigMap, &s.name, s.items.as_deref(), s.optional));
        }
        if let Some(s) = &volume.secret {
            let name = s.secret_name.as_deref().unwrap_or_default();
            parts.push((KeyedKind::Secret, name, s.items.as_deref(), s.optional));
        }
        for part in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            if let Some(s) = &part.config_map {
                parts.push((KeyedKind::ConfigMap, &s.name, s.items.as_deref(), s.optional));
            }
            if let Some(s) = &part.secret {
                parts.push((KeyedKind::Secret, &s.name, s.items.as_deref(), s.optional));
            }
        }
        for (kind, name, items, optional) in parts {
            let optional = optional.unwrap_or(false);
            let found = sources::required(self, kind, model::namespace(pod), name, optional).now_or_never();
            let Some(found) = found.transpose()?.flatten() else { continue };
            for item in items.unwrap_or_default() {
                let there = found.data.contains_key(&item.key) || found.binary.contains_key(&item.key);
                if !there && !optional {
                    let word = kind.word();
                    let short = word.trim_end_matches("map");
                    return Err(format!("{word} references non-existent {short} key: {}", item.key));
                }
            }
        }
        Ok(())
    }

    fn bound(&self, namespace: &str, name: &str) -> Result<(), String> {
        let found = match self.claims.get(name) {
            Some(Ok(Some(found))) => found,
            Some(Err(error)) => return Err(format!("failed to fetch PVC from API server: {error}")),
            Some(Ok(None)) | None => {
                return Err(format!(
                    "failed to fetch PVC from API server: persistentvolumeclaims \"{name}\" not found"
                ));
            }
        };
        let finalizers = found.metadata.finalizers.as_deref().unwrap_or_default();
        if found.metadata.deletion_timestamp.is_some()
            && !finalizers.iter().any(|f| f == "kubernetes.io/pvc-protection")
        {
            return Err("PVC is being deleted".into());
        }
        if found.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound") {
            return Err("PVC is not bound".into());
        }
        let volume = found.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
        if volume.is_empty() {
            return Err("PVC has empty pvc.Spec.VolumeName".into());
        }
        tracing::trace!(namespace, name, volume, "a claim of a simulated pod is bound");
        Ok(())
    }
}

/// Answers at once, from what was gathered.
impl Sources for Facts {
    fn follow(&self, _pod: &Pod, _wake: &Arc<Notify>) {}

    fn forget(&self, _pod_uid: &str) {}

    fn keyed<'a>(
        &'a self,
        kind: KeyedKind,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Keyed>>, String>> {
        let name = KeyedRef { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let found = self.keyed.get(&name).cloned().unwrap_or(Ok(None));
        Box::pin(std::future::ready(found))
    }

    fn object<'a>(&'a self, _target: &'a Target) -> BoxFuture<'a, Result<Option<serde_json::Value>, String>> {
        Box::pin(std::future::ready(Err("volumes of simulated pods are not mounted".to_owned())))
    }

    fn create<'a>(
        &'a self,
        _collection: &'a Target,
        _object: &'a serde_json::Value,
    ) -> BoxFuture<'a, Result<serde_json::Value, String>> {
        Box::pin(std::future::ready(Err("simulated pods ask for no certificates".to_owned())))
    }

    fn token<'a>(&'a self, _request: &'a TokenRequest) -> BoxFuture<'a, Result<Token, String>> {
        Box::pin(std::future::ready(Err("simulated containers get no tokens".to_owned())))
    }

    fn trust_bundles<'a>(
        &'a self,
        _name: Option<&'a str>,
        _signer: Option<&'a str>,
        _selector: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(std::future::ready(Err("simulated containers get no trust bundles".to_owned())))
    }

    fn runtime_handler<'a>(&'a self, _class: &'a str) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(std::future::ready(Err("simulated sandboxes have no runtime handlers".to_owned())))
    }
}
