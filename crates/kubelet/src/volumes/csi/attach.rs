//! Waiting for the control plane to attach a volume, and the driver's object that says whether it has to.

use super::volume::{CsiVolume, SecretName};
use crate::pods::context::NodeContext;
use crate::pods::sources::KeyedKind;
use crate::volumes::VolumeManager;
use crate::volumes::claims::read;
use crate::volumes::persistent::failed;
use crate::volumes::problem::Problem;
use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec, VolumeAttachment, VolumeAttachmentStatus};
use kaji_grpc::Code;
use kaji_runtime::objects::{csi_attachment_name, csi_volume_name};
use std::collections::BTreeMap;

/// The texts' start.
pub(super) fn log(text: impl std::fmt::Display) -> String {
    format!("{}: {text}", super::PLUGIN)
}

/// The object of a driver, which need not be there.
pub(super) async fn driver_spec(cx: &NodeContext, driver: &str) -> Result<Option<CSIDriverSpec>, String> {
    let found: Option<CSIDriver> = read(cx, ("storage.k8s.io", "csidrivers"), "", driver).await?;
    Ok(found.map(|d| d.spec))
}

/// Whether the control plane attaches a driver's volumes: unless its object says otherwise.
pub(super) fn attaches(spec: Option<&CSIDriverSpec>) -> bool {
    spec.and_then(|s| s.attach_required).unwrap_or(true)
}

/// The values of a secret, as text.
pub(super) async fn secrets(
    cx: &NodeContext,
    what: &str,
    name: Option<&SecretName>,
) -> Result<BTreeMap<String, String>, String> {
    let Some((namespace, name)) = name else { return Ok(BTreeMap::new()) };
    let found = cx.sources.keyed(KeyedKind::Secret, namespace, name).await;
    let absent = || format!("secrets \"{name}\" not found");
    let found = found.and_then(|found| found.ok_or_else(absent)).map_err(|error| {
        let text =
            log(format!("failed to find the secret {name} in the namespace {namespace} with error: {error}"));
        format!("fetching {what} {namespace}/{name} failed: {text}")
    })?;
    let text = |(key, value): (&String, &Vec<u8>)| (key.clone(), String::from_utf8_lossy(value).into_owned());
    Ok(found.data.iter().map(text).collect())
}

/// Whether a volume was not attached because the node takes no more.
fn limit_reached(status: &VolumeAttachmentStatus) -> bool {
    let code = status.attach_error.as_ref().and_then(|error| error.error_code);
    code == Some(Code::ResourceExhausted as i32)
}

impl VolumeManager {
    /// The context of an attached volume, for the driver. The node first shows that it uses the volume.
    pub(super) async fn attached(
        &self,
        cx: &NodeContext,
        uid: &str,
        volume: &CsiVolume,
    ) -> Result<BTreeMap<String, String>, Problem> {
        let unique = csi_volume_name(&volume.driver, &volume.handle);
        self.csi.desire(uid, &unique);
        let shown = cx.facts.node().and_then(|n| n.status.as_ref()?.volumes_in_use.clone());
        if !shown.is_some_and(|names| names.contains(&unique)) {
            return Err(Problem::Waits(format!(
                "volume {} has not been added to the list of VolumesInUse in the node's volume status",
                volume.name
            )));
        }
        let node = &cx.config.node_name;
        let name = csi_attachment_name(&volume.driver, &volume.handle, node);
        let found: Result<Option<VolumeAttachment>, String> =
            read(cx, ("storage.k8s.io", "volumeattachments"), "", &name).await;
        // Until there is one, the node has no right to know that there is none.
        let status = match found {
            Ok(found) => found.and_then(|a| a.status),
            Err(error) => return Err(Problem::Waits(format!("volume attachment {name}: {error}"))),
        };
        match status {
            Some(status) if status.attached => Ok(status.attachment_metadata.unwrap_or_default()),
            Some(status) if limit_reached(&status) && self.limit_varies(cx, volume).await => {
                Err(Problem::Exhausted(volume.driver.clone()))
            }
            Some(status) => {
                let why = status.attach_error.and_then(|e| e.message).unwrap_or_default();
                Err(Problem::Waits(format!(
                    "volume {} is not attached for volume attachment {name} {why}",
                    volume.handle
                )))
            }
            None => Err(Problem::Waits(format!("volume {} has no volume attachment {name}", volume.handle))),
        }
    }

    /// Whether a driver's limit of volumes is asked for again while it is registered.
    async fn limit_varies(&self, cx: &NodeContext, volume: &CsiVolume) -> bool {
        let spec = driver_spec(cx, &volume.driver).await.ok().flatten();
        spec.is_some_and(|spec| spec.node_allocatable_update_period_seconds.is_some())
    }

    /// Whether a driver's volumes may be used in this way.
    pub(super) fn supports_lifecycle(
        volume: &CsiVolume,
        spec: Option<&CSIDriverSpec>,
    ) -> Result<(), Problem> {
        let mode = volume.lifecycle();
        let driver = &volume.driver;
        let wrong = match spec {
            None if !volume.ephemeral => return Ok(()),
            None => format!("volume mode \"{mode}\" not supported by driver {driver} (no CSIDriver object)"),
            Some(spec) => {
                let modes =
                    spec.volume_lifecycle_modes.clone().unwrap_or_else(|| vec!["Persistent".to_owned()]);
                if modes.iter().any(|m| m == mode) {
                    return Ok(());
                }
                let shown: Vec<String> = modes.iter().map(|m| format!("\"{m}\"")).collect();
                format!(
                    "volume mode \"{mode}\" not supported by driver {driver} (only supports [{}])",
                    shown.join(" ")
                )
            }
        };
        let text = log(format!("mounter.SetupAt failed to check volume lifecycle mode: {wrong}"));
        Err(failed("MountVolume.SetUp", &volume.name, text))
    }
}
