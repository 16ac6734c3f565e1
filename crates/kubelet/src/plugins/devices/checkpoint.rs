//! Allocations on disk, in the form of upstream's checkpoint, which monitoring agents read too.

use super::messages::ContainerAllocateResponse;
use super::state::{Allocation, Owner};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// Bytes of a checkpoint.
const MOST: u64 = 64 << 20;
/// Devices that are on no NUMA node.
const NOWHERE: &str = "-1";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    devices: BTreeMap<String, BTreeSet<String>>,
    alloc_resp: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: Option<BTreeMap<String, Vec<String>>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
    /// Of upstream's own encoding in memory; it is not checked here.
    checksum: u64,
}

/// What is allocated, and the healthy devices of each resource.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Kept {
    pub(super) allocations: BTreeMap<Owner, BTreeMap<String, Allocation>>,
    pub(super) registered: BTreeMap<String, Vec<String>>,
}

/// Reads a checkpoint; nothing is kept where there is none.
pub(super) fn read(path: &Path) -> Result<Kept, String> {
    let shown = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kept::default()),
        Err(error) => return Err(shown(&error)),
    };
    let found: Checkpoint =
        serde_json::from_reader(io::BufReader::new(io::Read::take(file, MOST))).map_err(|e| shown(&e))?;
    let mut kept = Kept { registered: found.data.registered_devices.unwrap_or_default(), ..Kept::default() };
    for entry in found.data.pod_device_entries.unwrap_or_default() {
        let response = STANDARD.decode(&entry.alloc_resp).map_err(|e| shown(&e))?;
        let response = ContainerAllocateResponse::decode(&*response).map_err(|e| shown(&e))?;
        let devices = entry.devices.into_values().flatten().collect();
        let owner = Owner { pod: entry.pod_uid, container: entry.container_name };
        let of_owner = kept.allocations.entry(owner).or_default();
        of_owner.insert(entry.resource_name, Allocation { devices, response });
    }
    Ok(kept)
}

/// Writes a checkpoint, whole or not at all.
pub(super) fn write(path: &Path, kept: &Kept, numa: impl Fn(&str, &str) -> Vec<i64>) -> io::Result<()> {
    let mut entries = vec![];
    for (owner, resources) in &kept.allocations {
        for (resource, allocation) in resources {
            let mut devices: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for id in &allocation.devices {
                let nodes = numa(resource, id);
                let names = nodes.iter().map(i64::to_string);
                let names: Vec<String> =
                    if nodes.is_empty() { vec![NOWHERE.to_owned()] } else { names.collect() };
                for name in names {
                    devices.entry(name).or_default().insert(id.clone());
                }
            }
            entries.push(Entry {
                pod_uid: owner.pod.clone(),
                container_name: owner.container.clone(),
                resource_name: resource.clone(),
                devices,
                alloc_resp: STANDARD.encode(allocation.response.encode_to_vec()),
            });
        }
    }
    let data = Data { pod_device_entries: Some(entries), registered_devices: Some(kept.registered.clone()) };
    let text = serde_json::to_vec(&Checkpoint { data, checksum: 0 })?;
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}
