//! Volumes that have grown: the driver lets the file system fill the volume, and the claim shows its new size. Upstream's
//! `NodeExpander`.

use super::attach::secrets;
use super::volume::CsiVolume;
use crate::pods::context::NodeContext;
use crate::volumes::claims::Claimed;
use crate::volumes::persistent::failed;
use crate::volumes::problem::Problem;
use crate::volumes::{SetUp, VolumeManager};
use kaji_csi::messages::{CapacityRange, NodeExpandVolumeRequest};
use kaji_meta::quantity::Quantity;
use kaji_runtime::EventRecord;
use serde_json::{Value, json};
use std::path::Path;

fn bytes(
    amounts: Option<
        &std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    >,
) -> Option<i64> {
    amounts?.get("storage").and_then(|q| Quantity::parse(&q.0).ok()).map(|q| q.value())
}

/// How large a claim's volume is, if the claim does not show that yet: in bytes, and as the volume says it.
pub(super) fn grown(claimed: &Claimed) -> Option<(i64, String)> {
    let capacity = claimed.volume.spec.as_ref()?.capacity.as_ref()?;
    let is = bytes(Some(capacity))?;
    let shown = bytes(claimed.claim.status.as_ref()?.capacity.as_ref())?;
    let text = capacity.get("storage").map(|q| q.0.clone())?;
    (is > shown && !claimed.read_only).then_some((is, text))
}

impl VolumeManager {
    /// Looks after a volume that is set up: it may have grown.
    pub(in crate::volumes) async fn grow(
        &self,
        cx: &NodeContext,
        claimed: &Claimed,
        known: SetUp,
    ) -> Result<SetUp, Problem> {
        if let Some(source) = claimed.volume.spec.as_ref().and_then(|s| s.csi.as_ref()) {
            self.expand(cx, claimed, &CsiVolume::of_claim(claimed, source), &known.path).await?;
        }
        Ok(SetUp { since: Some(cx.clock.now()), ..known })
    }

    /// Expands the volume at a path if it has grown.
    pub(super) async fn expand(
        &self,
        cx: &NodeContext,
        claimed: &Claimed,
        volume: &CsiVolume,
        path: &Path,
    ) -> Result<(), Problem> {
        let Some((required_bytes, size)) = grown(claimed) else { return Ok(()) };
        let wrong =
            |text: String| failed("MountVolume.Setup failed while expanding volume", &volume.name, text);
        let driver = self.csi.get(&volume.driver).map_err(wrong)?;
        let lock = self.csi.lock(&volume.driver, &volume.handle);
        let _one_at_a_time = lock.lock().await;
        let capabilities = driver.capabilities().await.map_err(|e| wrong(e.to_string()))?;
        // Otherwise the control plane expanded all that there is to expand, and shows it.
        if !capabilities.expand {
            return Ok(());
        }
        let record = volume.record(&cx.config.node_name, false);
        let staged = if capabilities.stage {
            self.csi.staging_path(&record).display().to_string()
        } else {
            String::new()
        };
        let request = NodeExpandVolumeRequest {
            volume_id: volume.handle.clone(),
            volume_path: path.display().to_string(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
            staging_target_path: staged,
            volume_capability: Some(volume.capability(capabilities, None)),
            secrets: secrets(cx, "NodeExpandSecretRef", volume.expand_secret.as_ref())
                .await
                .map_err(wrong)?,
        };
        driver.expand(request).await.map_err(|e| wrong(e.to_string()))?;
        let claim = &claimed.claim.metadata;
        let (namespace, name) =
            (claim.namespace.clone().unwrap_or_default(), claim.name.clone().unwrap_or_default());
        cx.api
            .patch_claim_status(&namespace, &name, &resized(&size))
            .await
            .map_err(|e| wrong(e.to_string()))?;
        let reference = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": namespace,
            "name": name,
            "uid": claim.uid.clone().unwrap_or_default(),
        });
        let text = format!(
            "MountVolume.NodeExpandVolume succeeded for volume \"{}\" {}",
            volume.name, cx.config.node_name
        );
        cx.api.record(EventRecord::normal(reference, "FileSystemResizeSuccessful", text));
        Ok(())
    }
}

/// The patch of a claim's status after its volume was expanded.
fn resized(size: &str) -> Value {
    let gone = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];
    let conditions: Vec<Value> = gone.iter().map(|kind| json!({"$patch": "delete", "type": kind})).collect();
    json!({"status": {
        "capacity": {"storage": size},
        "conditions": conditions,
        "allocatedResourceStatuses": {"storage": null},
    }})
}
