//! The claims that pods of the node use, and the devices that drivers have prepared for them; on disk in the form of upstream's
//! checkpoint.
//!
//! Invariant: a pod's use of a claim is on disk before a driver is called for it, and as long as the driver may have something
//! prepared.

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// Bytes of a checkpoint.
const MOST: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Present {}

/// A device that a driver has prepared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Device {
    /// Of the driver's.
    pub pool_name: String,
    /// In the pool.
    pub device_name: String,
    /// Of a device that several claims share.
    #[serde(rename = "ShareID")]
    pub share_id: Option<String>,
    /// The claim's requests that it is for; none for all of them.
    #[serde(deserialize_with = "list")]
    pub request_names: Vec<String>,
    /// Qualified names.
    #[serde(rename = "CDIDeviceIDs", deserialize_with = "list")]
    pub cdi_devices: Vec<String>,
}

/// Go writes a list without elements as `null`.
fn list<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Option::<Vec<T>>::deserialize(from).map(Option::unwrap_or_default)
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DriverState {
    #[serde(deserialize_with = "list")]
    devices: Vec<Device>,
}

/// A claim that is used on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Claim {
    /// `metadata.uid`
    #[serde(rename = "ClaimUID")]
    pub uid: String,
    /// `metadata.name`
    #[serde(rename = "ClaimName")]
    pub name: String,
    /// `metadata.namespace`
    pub namespace: String,
    #[serde(rename = "PodUIDs")]
    pods: BTreeMap<String, Present>,
    driver_state: BTreeMap<String, DriverState>,
    /// Whether its drivers have prepared it since the kubelet was started.
    #[serde(skip)]
    pub prepared: bool,
}

impl Claim {
    /// A claim of the API, which has to be allocated.
    ///
    /// # Errors
    /// Upstream's text.
    pub fn of(claim: &ResourceClaim) -> Result<Claim, String> {
        let meta = &claim.metadata;
        let allocation = claim.status.as_ref().and_then(|s| s.allocation.as_ref());
        let Some(allocation) = allocation else { return Err("not allocated".to_owned()) };
        let results = allocation.devices.as_ref().and_then(|d| d.results.as_deref()).unwrap_or_default();
        Ok(Claim {
            uid: meta.uid.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            driver_state: results.iter().map(|r| (r.driver.clone(), DriverState::default())).collect(),
            ..Claim::default()
        })
    }

    /// Its drivers.
    pub fn drivers(&self) -> impl Iterator<Item = &String> {
        self.driver_state.keys()
    }

    /// The pods that use it, by uid.
    pub fn pods(&self) -> impl Iterator<Item = &String> {
        self.pods.keys()
    }

    /// Its devices with their drivers.
    pub fn devices(&self) -> impl Iterator<Item = (&String, &Device)> {
        self.driver_state.iter().flat_map(|(driver, state)| state.devices.iter().map(move |d| (driver, d)))
    }

    /// The CDI devices for one of its requests; for all of them if it is empty.
    #[must_use]
    pub fn cdi_devices(&self, request: &str) -> Vec<String> {
        let of = |d: &&Device| {
            request.is_empty() || d.request_names.is_empty() || d.request_names.iter().any(|r| r == request)
        };
        let devices = self.devices().map(|(_, device)| device);
        devices.filter(of).flat_map(|d| d.cdi_devices.iter().cloned()).collect()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct Data {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList", deserialize_with = "list")]
    claims: Vec<Claim>,
}

/// The claims of a node, by namespace and name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Claims(BTreeMap<(String, String), Claim>);

impl Claims {
    /// Reads a checkpoint; there are no claims where there is none.
    ///
    /// # Errors
    /// A text, for a checkpoint that cannot be read.
    pub fn read(path: &Path) -> Result<Claims, String> {
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claims::default()),
            Err(error) => return Err(error.to_string()),
        };
        let file = io::BufReader::new(io::Read::take(file, MOST));
        let found: Checkpoint = serde_json::from_reader(file).map_err(|e| e.to_string())?;
        if crc32(found.data.as_bytes()) != found.checksum {
            return Err("checkpoint is corrupted".to_owned());
        }
        let data: Data = serde_json::from_str(&found.data).map_err(|e| e.to_string())?;
        Ok(Claims(data.claims.into_iter().map(|c| ((c.namespace.clone(), c.name.clone()), c)).collect()))
    }

    /// Writes a checkpoint, whole or not at all.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let data = Data {
            kind: "DRACheckpoint".to_owned(),
            api_version: "checkpoint.dra.kubelet.k8s.io/v1".to_owned(),
            claims: self.0.values().cloned().collect(),
        };
        let data = serde_json::to_string(&data)?;
        let checksum = crc32(data.as_bytes());
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let new = path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec(&Checkpoint { data, checksum })?)?;
        std::fs::rename(&new, path)
    }

    /// A claim.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }

    fn get_mut(&mut self, namespace: &str, name: &str) -> Option<&mut Claim> {
        self.0.get_mut(&(namespace.to_owned(), name.to_owned()))
    }

    /// All claims.
    pub fn all(&self) -> impl Iterator<Item = &Claim> {
        self.0.values()
    }

    /// Notes that a pod uses a claim. Whether the claim's drivers have to prepare it.
    ///
    /// # Errors
    /// Upstream's text, when another claim of the name is in use still.
    pub fn add(&mut self, claim: Claim, pod: &str) -> Result<bool, String> {
        let key = (claim.namespace.clone(), claim.name.clone());
        let kept = self.0.entry(key).or_insert_with(|| claim.clone());
        if kept.uid != claim.uid {
            return Err(format!(
                "old ResourceClaim with same name {} and different UID {} still exists (previous pod force-deleted?!)",
                claim.name, kept.uid
            ));
        }
        kept.pods.insert(pod.to_owned(), Present {});
        Ok(!kept.prepared)
    }

    /// Notes what a driver has prepared for a claim, in place of what it had prepared before.
    pub fn set_devices(&mut self, namespace: &str, name: &str, driver: &str, devices: Vec<Device>) {
        if let Some(claim) = self.get_mut(namespace, name) {
            claim.driver_state.entry(driver.to_owned()).or_default().devices = devices;
        }
    }

    /// Notes that all drivers of a claim have prepared it.
    pub fn set_prepared(&mut self, namespace: &str, name: &str) {
        if let Some(claim) = self.get_mut(namespace, name) {
            claim.prepared = true;
        }
    }

    /// Notes that a pod uses a claim no longer. Answers the claim if no other pod uses it: its drivers have to unprepare it, and it
    /// is to be removed then.
    pub fn release(&mut self, namespace: &str, name: &str, pod: &str) -> Option<Claim> {
        let claim = self.get_mut(namespace, name)?;
        if claim.pods.keys().any(|user| user != pod) {
            claim.pods.remove(pod);
            return None;
        }
        Some(claim.clone())
    }

    /// Forgets a claim that was unprepared, unless another pod has come to use it meanwhile.
    pub fn remove(&mut self, namespace: &str, name: &str, pod: &str) {
        let Some(claim) = self.get_mut(namespace, name) else { return };
        claim.pods.remove(pod);
        if claim.pods.is_empty() {
            self.0.remove(&(namespace.to_owned(), name.to_owned()));
        } else {
            claim.prepared = false;
        }
    }

    /// Pods that use claims and are not among these, with the claims' namespace and names.
    #[must_use]
    pub fn unused(&self, active: &BTreeSet<String>) -> BTreeMap<String, (String, Vec<String>)> {
        let mut found: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
        for claim in self.0.values() {
            for pod in claim.pods.keys().filter(|pod| !active.contains(*pod)) {
                let of_pod = found.entry(pod.clone()).or_insert_with(|| (claim.namespace.clone(), vec![]));
                of_pod.1.push(claim.name.clone());
            }
        }
        found
    }

    /// How many prepared claims each driver has, and how many there are.
    #[must_use]
    pub fn in_use(&self) -> (BTreeMap<String, usize>, usize) {
        let (mut by_driver, mut all) = (BTreeMap::new(), 0);
        for claim in self.0.values().filter(|claim| claim.prepared) {
            all += 1;
            for driver in claim.drivers() {
                *by_driver.entry(driver.clone()).or_default() += 1;
            }
        }
        (by_driver, all)
    }
}

/// IEEE 802.3's checksum.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(uid: &str) -> Claim {
        let results = json!([{"driver": "d", "pool": "p", "device": "x", "request": "r"}]);
        let claim = json!({
            "metadata": {"name": "c", "namespace": "n", "uid": uid},
            "spec": {},
            "status": {"allocation": {"devices": {"results": results}}},
        });
        Claim::of(&serde_json::from_value(claim).unwrap()).unwrap()
    }

    #[test]
    fn a_claim_is_unprepared_after_the_last_of_its_pods() {
        let mut claims = Claims::default();
        assert_eq!(claims.add(claim("1"), "a"), Ok(true));
        claims.set_prepared("n", "c");
        assert_eq!(claims.add(claim("1"), "b"), Ok(false));
        assert!(claims.add(claim("2"), "c").unwrap_err().contains("different UID 1 still exists"));
        assert_eq!(claims.in_use(), (BTreeMap::from([("d".to_owned(), 1)]), 1));
        assert_eq!(claims.release("n", "c", "never"), None, "a pod that has not got it releases nothing");
        assert_eq!(claims.release("n", "c", "a"), None);
        assert_eq!(claims.release("n", "c", "b").map(|c| c.uid), Some("1".to_owned()));
        claims.remove("n", "c", "b");
        assert_eq!(claims, Claims::default());
    }

    #[test]
    fn a_checkpoint_is_upstreams() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state/dra_manager_state");
        assert_eq!(Claims::read(&file), Ok(Claims::default()));
        let mut claims = Claims::default();
        claims.add(claim("1"), "a").unwrap();
        let device = Device {
            pool_name: "p".into(),
            device_name: "x".into(),
            request_names: vec!["r".into()],
            cdi_devices: vec!["v/c=x".into()],
            share_id: None,
        };
        claims.set_devices("n", "c", "d", vec![device]);
        claims.write(&file).unwrap();
        let found: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        expect_test::expect![[r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":"1","ClaimName":"c","Namespace":"n","PodUIDs":{"a":{}},"DriverState":{"d":{"Devices":[{"PoolName":"p","DeviceName":"x","ShareID":null,"RequestNames":["r"],"CDIDeviceIDs":["v/c=x"]}]}}}]}"#]]
            .assert_eq(found["Data"].as_str().unwrap());
        assert_eq!(Claims::read(&file).as_ref(), Ok(&claims));
        let read = claims.get("n", "c").unwrap();
        assert_eq!((read.cdi_devices("r"), read.cdi_devices("other")), (vec!["v/c=x".to_owned()], vec![]));
        std::fs::write(&file, r#"{"Data":"{}","Checksum":1}"#).unwrap();
        assert_eq!(Claims::read(&file), Err("checkpoint is corrupted".to_owned()));
    }
}
