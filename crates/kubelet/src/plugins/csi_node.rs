//! What the API shows of a node's CSI drivers: the CSINode object, the node's ids with drivers (an annotation), and where drivers say
//! that the node is (labels). Upstream's `nodeinfomanager`.

use crate::pods::context::NodeFacts;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use kaji_csi::NodeInfo;
use kaji_meta::Clock;
use kaji_runtime::{Client, Error, PatchKind, Target};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The node's ids by driver.
const IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// In-tree plug-ins that drivers have replaced.
const MIGRATED: (&str, &str) = (
    "storage.alpha.kubernetes.io/migrated-plugins",
    "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/vsphere-volume",
);
/// Attempts of a write, and the pause after the first; each pause is five times the one before.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(10);

/// Writes a node's CSINode and its Node.
pub struct CsiNode {
    client: Client,
    node: String,
    facts: Arc<dyn NodeFacts>,
    clock: Arc<dyn Clock>,
    /// One write at a time.
    writing: tokio::sync::Mutex<()>,
}

/// Whether a CSINode's drivers are as they should be already; else they are made so.
fn set_driver(drivers: &mut Vec<CSINodeDriver>, name: &str, info: Option<&NodeInfo>) -> bool {
    let wanted = info.map(|info| CSINodeDriver {
        name: name.to_owned(),
        node_id: info.id.clone(),
        topology_keys: Some(info.topology.keys().cloned().collect()),
        allocatable: (info.most_volumes > 0).then(|| VolumeNodeResources {
            count: Some(i32::try_from(info.most_volumes).unwrap_or(i32::MAX)),
        }),
    });
    let keys = |d: &CSINodeDriver| d.topology_keys.iter().flatten().cloned().collect::<BTreeSet<_>>();
    let same = |a: &CSINodeDriver, b: &CSINodeDriver| {
        a.node_id == b.node_id && keys(a) == keys(b) && a.allocatable == b.allocatable
    };
    let found = drivers.iter().find(|d| d.name == name);
    let is_so = match (found, &wanted) {
        (None, None) => true,
        (Some(found), Some(wanted)) => same(found, wanted),
        _ => false,
    };
    if !is_so {
        drivers.retain(|d| d.name != name);
        drivers.extend(wanted);
    }
    is_so
}

impl CsiNode {
    /// Of a node.
    #[must_use]
    pub fn new(client: Client, node: &str, facts: Arc<dyn NodeFacts>, clock: Arc<dyn Clock>) -> CsiNode {
        CsiNode { client, node: node.to_owned(), facts, clock, writing: tokio::sync::Mutex::default() }
    }

    fn target(&self, group: &str, resource: &str) -> Target {
        Target {
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            name: self.node.clone(),
            ..Target::default()
        }
    }

    fn uid(&self) -> Option<String> {
        self.facts.node().and_then(|n| n.metadata.uid.clone())
    }

    /// Sees to it that there is a CSINode, once the node is registered.
    pub async fn publish(&self) {
        let mut pause = PAUSE;
        loop {
            let done = match self.uid() {
                None => Err("the node is not registered yet".to_owned()),
                Some(_) => self.change(|_| true).await,
            };
            let Err(error) = done else { return };
            tracing::debug!(error, "the node's CSINode could not be written; retrying");
            kaji_runtime::time::sleep(&*self.clock, pause).await;
            pause = (pause * 2).min(Duration::from_secs(30));
        }
    }

    /// Shows a driver.
    ///
    /// # Errors
    /// Upstream's text.
    pub async fn install(&self, driver: &str, info: &NodeInfo) -> Result<(), String> {
        if info.id.is_empty() {
            return Err("error adding CSI driver node info: driverNodeID must not be empty".to_owned());
        }
        let ids = |ids: &mut Map<String, Value>| {
            ids.insert(driver.to_owned(), info.id.clone().into());
        };
        self.change_node(&info.topology, ids)
            .await
            .map_err(|e| format!("error updating Node object with CSI driver node info: {e}"))?;
        self.update(driver, info).await
    }

    /// Shows what a driver says that is registered.
    ///
    /// # Errors
    /// Upstream's text.
    pub async fn update(&self, driver: &str, info: &NodeInfo) -> Result<(), String> {
        self.change(|drivers| set_driver(drivers, driver, Some(info)))
            .await
            .map_err(|e| format!("error updating CSINode object with CSI driver node info: {e}"))
    }

    /// Shows a driver no longer.
    ///
    /// # Errors
    /// Upstream's text.
    pub async fn uninstall(&self, driver: &str) -> Result<(), String> {
        self.change(|drivers| set_driver(drivers, driver, None))
            .await
            .map_err(|e| format!("error uninstalling CSI driver from CSINode object {e}"))?;
        let ids = |ids: &mut Map<String, Value>| {
            ids.remove(driver);
        };
        self.change_node(&BTreeMap::new(), ids)
            .await
            .map_err(|e| format!("error removing CSI driver node info from Node object {e}"))
    }

    async fn change_node(
        &self,
        topology: &BTreeMap<String, String>,
        change: impl Fn(&mut Map<String, Value>),
    ) -> Result<(), String> {
        let _one_at_a_time = self.writing.lock().await;
        let target = self.target("", "nodes");
        let node: Value = self.client.get(&target.path()).await.map_err(|e| e.to_string())?;
        for (key, value) in topology {
            if let Some(other) = node["metadata"]["labels"][key].as_str().filter(|v| v != value) {
                return Err(format!(
                    "detected topology value collision: driver reported \"{key}\":\"{value}\" but existing label is \"{key}\":\"{other}\""
                ));
            }
        }
        let text = node["metadata"]["annotations"][IDS].as_str().unwrap_or("{}");
        let before: Map<String, Value> = serde_json::from_str(text)
            .map_err(|e| format!("failed to parse node's \"{IDS}\" annotation value ({text:?}) err={e}"))?;
        let mut after = before.clone();
        change(&mut after);
        let labelled = topology.iter().all(|(k, v)| node["metadata"]["labels"][k] == v.as_str());
        if before == after && labelled {
            return Ok(());
        }
        let ids = if after.is_empty() { Value::Null } else { Value::Object(after).to_string().into() };
        let patch = json!({"metadata": {"annotations": {IDS: ids}, "labels": topology}});
        let kind = PatchKind::Strategic.content_type();
        self.client.patch(&target, kind, "", &patch).await.map(drop).map_err(|e| e.to_string())
    }

    /// Changes the drivers of the node's CSINode, which is made if need be. `change` answers whether they are right already.
    async fn change(&self, change: impl Fn(&mut Vec<CSINodeDriver>) -> bool) -> Result<(), String> {
        let _one_at_a_time = self.writing.lock().await;
        let mut pause = PAUSE;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            match self.try_change(&change).await {
                Ok(true) => return Ok(()),
                Ok(false) => "the CSINode was another node's".clone_into(&mut last),
                Err(error) => last = error.to_string(),
            }
            kaji_runtime::time::sleep(&*self.clock, pause).await;
            pause *= 5;
        }
        Err(format!("error updating CSINode: {last}"))
    }

    /// Whether it was done; else a CSINode of a former node of the name was removed.
    async fn try_change(&self, change: &impl Fn(&mut Vec<CSINodeDriver>) -> bool) -> Result<bool, Error> {
        let target = self.target("storage.k8s.io", "csinodes");
        let uid = self.uid().unwrap_or_default();
        let found = match self.client.get::<CSINode>(&target.path()).await {
            Ok(found) => Some(found),
            Err(error) if error.not_found() => None,
            Err(error) => return Err(error),
        };
        let Some(mut object) = found else {
            let mut drivers = vec![];
            change(&mut drivers);
            let body = self.object(&uid, CSINodeSpec { drivers });
            let collection = Target { name: String::new(), ..target };
            return self.client.create(&collection, &body).await.map(|_| true);
        };
        let owners = object.metadata.owner_references.as_deref().unwrap_or_default();
        if !owners.iter().any(|o| o.kind == "Node" && o.name == self.node && o.uid == uid) {
            self.client.delete(&target, &json!({})).await?;
            return Ok(false);
        }
        let annotations = object.metadata.annotations.get_or_insert_default();
        let migrated = annotations.get(MIGRATED.0).map(String::as_str) == Some(MIGRATED.1);
        annotations.insert(MIGRATED.0.to_owned(), MIGRATED.1.to_owned());
        if change(&mut object.spec.drivers) && migrated {
            return Ok(true);
        }
        let body = serde_json::to_value(&object).map_err(|e| Error::Decode(e.to_string()))?;
        self.client.update(&target, &body).await.map(|_| true)
    }

    fn object(&self, uid: &str, spec: CSINodeSpec) -> Value {
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {
                "name": self.node,
                "annotations": {MIGRATED.0: MIGRATED.1},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid}],
            },
            "spec": spec,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_added_changed_and_removed() {
        let mut drivers = vec![];
        let topology = BTreeMap::from([("zone".to_owned(), "z".to_owned())]);
        let info = NodeInfo { id: "id".into(), most_volumes: 0, topology };
        assert!(!set_driver(&mut drivers, "d", Some(&info)));
        assert!(set_driver(&mut drivers, "d", Some(&info)));
        let limited = NodeInfo { most_volumes: 1 << 40, ..info };
        assert!(!set_driver(&mut drivers, "d", Some(&limited)));
        assert_eq!(drivers[0].allocatable.as_ref().unwrap().count, Some(i32::MAX));
        assert!(set_driver(&mut drivers, "other", None));
        assert!(!set_driver(&mut drivers, "d", None) && drivers.is_empty());
    }
}
