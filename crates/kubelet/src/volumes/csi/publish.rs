//! Publishing: what a driver does for each pod. Upstream's `csi_mounter.go`, `csi_block.go`.

use super::attach::{attaches, driver_spec, log, secrets};
use super::record::Record;
use super::volume::CsiVolume;
use super::{DIRECTORY, PLUGIN};
use crate::pods::context::NodeContext;
use crate::pods::core::{CSIPersistentVolumeSource, CSIVolumeSource, Pod};
use crate::pods::model;
use crate::pods::sources::TokenRequest;
use crate::volumes::claims::Claimed;
use crate::volumes::ownership::VolumeGroup;
use crate::volumes::persistent::{blocking, failed};
use crate::volumes::problem::Problem;
use crate::volumes::{SetUp, VolumeManager};
use k8s_openapi::api::storage::v1::CSIDriverSpec;
use kaji_csi::messages::NodePublishVolumeRequest;
use kaji_csi::{Driver, is_final};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

/// After this long a volume is published again, for drivers that ask for that.
pub(in crate::volumes) const REPUBLISH: Duration = Duration::from_secs(60);
/// Seconds that a token is valid for unless the driver asks for another time.
const TOKEN_SECONDS: i64 = 3600;

/// Where a volume is published, and where its record is.
struct Target {
    record: PathBuf,
    path: PathBuf,
}

impl VolumeManager {
    /// Sets up the volume of a claim.
    pub(in crate::volumes) async fn csi_of_claim(
        &self,
        cx: &NodeContext,
        pod: &Pod,
        claimed: &Claimed,
        source: &CSIPersistentVolumeSource,
    ) -> Result<SetUp, Problem> {
        let volume = CsiVolume::of_claim(claimed, source);
        let set_up = self.csi_set_up(cx, pod, &volume).await?;
        self.expand(cx, claimed, &volume, &set_up.path).await?;
        Ok(set_up)
    }

    /// Sets up a volume that a driver makes for a pod.
    pub(in crate::volumes) async fn csi_of_pod(
        &self,
        cx: &NodeContext,
        pod: &Pod,
        name: &str,
        source: &CSIVolumeSource,
    ) -> Result<SetUp, Problem> {
        self.csi_set_up(cx, pod, &CsiVolume::of_pod(pod, name, source)).await
    }

    fn target(&self, uid: &str, volume: &CsiVolume) -> Target {
        if volume.block {
            let of_pod = self.pod_dir(uid).join("volumeDevices").join(format!("kubernetes.io~{DIRECTORY}"));
            let published = self.root.join("plugins").join(PLUGIN).join("volumeDevices/publish");
            Target { record: of_pod.join(&volume.name), path: published.join(&volume.name).join(uid) }
        } else {
            let record = self.dir(uid, DIRECTORY, &volume.name);
            Target { path: record.join("mount"), record }
        }
    }

    async fn csi_set_up(&self, cx: &NodeContext, pod: &Pod, volume: &CsiVolume) -> Result<SetUp, Problem> {
        let operation = if volume.block { "MapVolume.SetUpDevice" } else { "MountVolume.SetUp" };
        let wrong = |text: String| failed(operation, &volume.name, text);
        let uid = model::uid(pod);
        let spec = driver_spec(cx, &volume.driver).await.map_err(|e| wrong(log(e)))?;
        Self::supports_lifecycle(volume, spec.as_ref())?;
        let attachable = !volume.ephemeral && attaches(spec.as_ref());
        let target = self.target(uid, volume);
        let republish = spec.as_ref().and_then(|s| s.requires_republish).unwrap_or(false);
        let set_up = SetUp {
            device: volume.block,
            // The driver sees to it that a volume is read-only; what mounts it says so too.
            read_only: volume.read_only,
            republish,
            since: Some(cx.clock.now()),
            ..SetUp::directory(target.path.clone())
        };
        if self.is_of_former_kubelet(uid, volume, &target).map_err(wrong)? {
            return Ok(set_up);
        }
        let context = if attachable { self.attached(cx, uid, volume).await? } else { BTreeMap::new() };
        let driver = self
            .csi
            .get(&volume.driver)
            .map_err(|e| wrong(log(format!("mounter.SetUpAt failed to get CSI client: {e}"))))?;
        let lock = self.csi.lock(&volume.driver, &volume.handle);
        let _one_at_a_time = lock.lock().await;
        let capabilities = driver.capabilities().await.map_err(|e| wrong(e.to_string()))?;
        let record = volume.record(&cx.config.node_name, attachable);
        let group = model::spec(pod).security_context.as_ref().and_then(|s| s.fs_group);
        let mut staged = None;
        if !volume.ephemeral {
            let path = self
                .stage(cx, volume, (&driver, capabilities), &context, (&record, group))
                .await
                .map_err(|e| failed("MountVolume.MountDevice", &volume.name, e))?;
            staged = Some(path).filter(|_| capabilities.stage);
        }
        self.csi.settle(uid, &record.unique_name());
        let request = NodePublishVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: context,
            staging_target_path: staged.map(|p| p.display().to_string()).unwrap_or_default(),
            target_path: target.path.display().to_string(),
            volume_capability: Some(volume.capability(capabilities, group)),
            readonly: volume.read_only,
            ..NodePublishVolumeRequest::default()
        };
        let request = self.with_pod(cx, pod, volume, spec.as_ref(), request).await.map_err(wrong)?;
        self.publish(&driver, request, &record, &target).await.map_err(wrong)?;
        if !capabilities.mount_group && gets_group(volume, spec.as_ref()).map_err(wrong)? {
            self.give_to_group(pod, &volume.handle, &target.path).await.map_err(wrong)?;
        }
        Record { complete: true, ..record }.write(&target.record).map_err(wrong)?;
        Ok(set_up)
    }

    /// Whether a kubelet before this one has published a volume to the pod, to the end, since the machine was started.
    fn is_of_former_kubelet(&self, uid: &str, volume: &CsiVolume, target: &Target) -> Result<bool, String> {
        let known = {
            let mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
            mounted.get(uid).is_some_and(|all| all.values().any(|v| v.path == target.path))
        };
        let record = Record::read(&target.record)?;
        let is_complete = record.is_some_and(|r| r.complete && r.handle == volume.handle);
        let is_there = self.mounter.is_mount_point(&target.path);
        Ok(!known && is_complete && is_there)
    }

    async fn publish(
        &self,
        driver: &Driver,
        request: NodePublishVolumeRequest,
        record: &Record,
        target: &Target,
    ) -> Result<(), String> {
        let again = Record::read(&target.record)?.is_some_and(|r| r.complete);
        let parent = target.path.parent().unwrap_or(&target.record);
        std::fs::create_dir_all(parent)
            .map_err(|e| log(format!("mounter.SetUpAt failed to create dir {parent:?}:  {e}")))?;
        if !again {
            record.write(&target.record)?;
        }
        let Err(error) = driver.publish(request).await else { return Ok(()) };
        // A pod that has the volume already keeps what it has.
        if is_final(&error) && !again && !self.mounter.is_mount_point(&target.path) {
            Record::remove(&target.record, &target.path)?;
        }
        Err(error.to_string())
    }

    /// A request with secrets, and with what the driver asks to know of the pod.
    async fn with_pod(
        &self,
        cx: &NodeContext,
        pod: &Pod,
        volume: &CsiVolume,
        spec: Option<&CSIDriverSpec>,
        mut request: NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeRequest, String> {
        request.secrets = secrets(cx, "NodePublishSecretRef", volume.publish_secret.as_ref()).await?;
        request.volume_context.clone_from(&volume.attributes);
        if spec.and_then(|s| s.pod_info_on_mount).unwrap_or(false) {
            request.volume_context.extend(pod_info(pod, volume.ephemeral));
        }
        let requests = spec.and_then(|s| s.token_requests.as_deref()).unwrap_or_default();
        if requests.is_empty() {
            return Ok(request);
        }
        let mut tokens = Map::new();
        for asked in requests {
            let audience = asked.audience.clone();
            let account = model::spec(pod).service_account_name.clone();
            let token = TokenRequest {
                namespace: model::namespace(pod).to_owned(),
                service_account: account.unwrap_or_else(|| "default".to_owned()),
                audience: audience.clone(),
                expiration: asked.expiration_seconds.unwrap_or(TOKEN_SECONDS),
                pod: model::name(pod).to_owned(),
                pod_uid: model::uid(pod).to_owned(),
            };
            let token = self.tokens.whole(&*cx.sources, &token, cx.clock.now()).await.map_err(|e| {
                log(format!("mounter.SetUpAt failed to get service accoount token attributes: {e}"))
            })?;
            let status = json!({"token": token.token, "expirationTimestamp": token.expires.to_string()});
            tokens.insert(audience, status);
        }
        let in_secrets = spec.and_then(|s| s.service_account_token_in_secrets).unwrap_or(false);
        let to = if in_secrets { &mut request.secrets } else { &mut request.volume_context };
        to.insert("csi.storage.k8s.io/serviceAccount.tokens".to_owned(), Value::Object(tokens).to_string());
        Ok(request)
    }

    async fn give_to_group(&self, pod: &Pod, handle: &str, path: &Path) -> Result<(), String> {
        let Some(group) = VolumeGroup::of(pod) else { return Ok(()) };
        let path = path.to_owned();
        blocking(move || group.apply(&path, false))
            .await
            .map_err(|e| format!("applyFSGroup failed for vol {handle}: {e}"))
    }
}

/// Whether the kubelet gives a volume to the pod's group, by the policy of its driver.
fn gets_group(volume: &CsiVolume, spec: Option<&CSIDriverSpec>) -> Result<bool, String> {
    let policy = match spec {
        None => "ReadWriteOnceWithFSType",
        Some(spec) => spec.fs_group_policy.as_deref().filter(|p| !p.is_empty()).ok_or_else(|| {
            log("mounter.SetupAt failed to check fsGroup policy: expected valid fsGroupPolicy, received nil value or empty string")
        })?,
    };
    if volume.block || volume.read_only || policy == "None" {
        return Ok(false);
    }
    let once = volume.ephemeral
        || volume.access_modes.iter().any(|m| m == "ReadWriteOnce" || m == "ReadWriteOncePod");
    Ok(policy == "File" || !volume.fs_type.is_empty() && once)
}

fn pod_info(pod: &Pod, ephemeral: bool) -> BTreeMap<String, String> {
    let account = model::spec(pod).service_account_name.clone().unwrap_or_default();
    [
        ("pod.name", model::name(pod).to_owned()),
        ("pod.namespace", model::namespace(pod).to_owned()),
        ("pod.uid", model::uid(pod).to_owned()),
        ("serviceAccount.name", account),
        ("ephemeral", ephemeral.to_string()),
    ]
    .into_iter()
    .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_follow_the_drivers_policy() {
        let volume = CsiVolume {
            fs_type: "ext4".into(),
            access_modes: vec!["ReadWriteOnce".into()],
            ..CsiVolume::default()
        };
        let policy =
            |p: Option<&str>| CSIDriverSpec { fs_group_policy: p.map(str::to_owned), ..Default::default() };
        let of = |volume: &CsiVolume, p| gets_group(volume, Some(&policy(p)));
        assert_eq!(gets_group(&volume, None), Ok(true));
        assert_eq!(of(&volume, Some("ReadWriteOnceWithFSType")), Ok(true));
        assert_eq!(of(&volume, Some("None")), Ok(false));
        assert!(of(&volume, None).is_err());
        let plain = CsiVolume::default();
        assert_eq!((gets_group(&plain, None), of(&plain, Some("File"))), (Ok(false), Ok(true)));
        let read_only = CsiVolume { read_only: true, ..volume };
        assert_eq!(of(&read_only, Some("File")), Ok(false));
    }
}
