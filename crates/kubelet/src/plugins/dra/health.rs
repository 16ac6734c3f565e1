//! The health of devices as their drivers say it, and how the status of containers shows it (KEP-4680). Upstream's
//! `dra/healthinfo.go`, and its file.
//!
//! Invariants: what a driver has not said for long, or before it was lost, is unknown; a kubelet that is started again knows what its
//! predecessor knew when it last changed. A file that cannot be read or written costs that alone.

use super::claims::{Claim, Device};
use super::messages as m;
use super::{DraManager, claim_name, locked};
use crate::pods::core::{Container, Pod, PodStatus, ResourceHealth, ResourceStatus};
use crate::pods::model;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// Seconds that a report holds, unless it says otherwise: upstream's `DefaultHealthTimeout`.
const TIMEOUT: i64 = 30;
/// Bytes of a message.
const MOST_MESSAGE: usize = 4096;
/// Bytes of the file.
const MOST: u64 = 64 << 20;
/// What states are called in statuses and in the file.
const STATES: [&str; 3] = ["Healthy", "Unhealthy", UNKNOWN];
const UNKNOWN: &str = "Unknown";

/// What a driver has said of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reported {
    health: &'static str,
    message: String,
    at: Timestamp,
    /// Seconds.
    timeout: i64,
}

/// Pool and name of a device.
type DeviceKey = (String, String);

/// What all drivers have said, by their names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HealthCache(BTreeMap<String, BTreeMap<DeviceKey, Reported>>);

/// A driver in the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct KeptDriver {
    /// By pool and device, with a slash between.
    devices: BTreeMap<String, KeptDevice>,
}

/// A device in the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct KeptDevice {
    pool_name: String,
    device_name: String,
    health: String,
    last_updated: Timestamp,
    /// Nanoseconds; 0 for [`TIMEOUT`].
    health_check_timeout: i64,
    message: String,
}

const NANOSECONDS: i64 = 1_000_000_000;

impl HealthCache {
    /// Reads the file of a kubelet before this one; nothing is known where there is none.
    ///
    /// # Errors
    /// A text, for a file that cannot be read.
    pub(super) fn read(path: &Path) -> Result<HealthCache, String> {
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HealthCache::default()),
            Err(error) => return Err(error.to_string()),
        };
        let file = io::BufReader::new(io::Read::take(file, MOST));
        let kept: BTreeMap<String, KeptDriver> = serde_json::from_reader(file).map_err(|e| e.to_string())?;
        let reported = |kept: KeptDevice| {
            let key = (kept.pool_name, kept.device_name);
            let health = STATES.into_iter().find(|state| *state == kept.health).unwrap_or(UNKNOWN);
            let seconds = kept.health_check_timeout / NANOSECONDS;
            let timeout = if seconds > 0 { seconds } else { TIMEOUT };
            (key, Reported { health, message: truncated(&kept.message), at: kept.last_updated, timeout })
        };
        let drivers = kept.into_iter();
        let devices = |kept: KeptDriver| kept.devices.into_values().map(reported).collect();
        Ok(HealthCache(drivers.map(|(driver, kept)| (driver, devices(kept))).collect()))
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let device = |((pool, device), reported): (&DeviceKey, &Reported)| {
            let kept = KeptDevice {
                pool_name: pool.clone(),
                device_name: device.clone(),
                health: reported.health.to_owned(),
                last_updated: reported.at,
                health_check_timeout: reported.timeout.saturating_mul(NANOSECONDS),
                message: reported.message.clone(),
            };
            (format!("{pool}/{device}"), kept)
        };
        let driver = |(name, devices): (&String, &BTreeMap<DeviceKey, Reported>)| {
            (name.clone(), KeptDriver { devices: devices.iter().map(device).collect() })
        };
        let kept: BTreeMap<String, KeptDriver> = self.0.iter().map(driver).collect();
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let new = path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec(&kept)?)?;
        std::fs::rename(&new, path)
    }

    /// Takes a report. Answers the devices of which it says something else than what was known.
    fn take(&mut self, driver: &str, report: &m::HealthReport, now: Timestamp) -> BTreeSet<DeviceKey> {
        let known = self.0.entry(driver.to_owned()).or_default();
        let mut changed = BTreeSet::new();
        let mut said = BTreeSet::new();
        for device in &report.devices {
            let id = device.device.clone().unwrap_or_default();
            let key = (id.pool_name, id.device_name);
            let health = match device.health {
                m::HEALTHY => "Healthy",
                m::UNHEALTHY => "Unhealthy",
                _ => UNKNOWN,
            };
            let seconds = device.health_check_timeout_seconds;
            let new = Reported {
                health,
                message: truncated(&device.message),
                at: now,
                timeout: if seconds > 0 { seconds } else { TIMEOUT },
            };
            let same = known.get(&key).is_some_and(|old| Reported { at: now, ..old.clone() } == new);
            if !same {
                changed.insert(key.clone());
            }
            known.insert(key.clone(), new);
            said.insert(key);
        }
        for (key, old) in known.iter_mut().filter(|(key, _)| !said.contains(*key)) {
            if old.health != UNKNOWN && is_late(old, now) {
                *old = Reported { health: UNKNOWN, message: String::new(), at: now, timeout: old.timeout };
                changed.insert(key.clone());
            }
        }
        changed
    }

    fn get(&self, driver: &str, device: &Device, now: Timestamp) -> (&'static str, &str) {
        let key = (device.pool_name.clone(), device.device_name.clone());
        match self.0.get(driver).and_then(|devices| devices.get(&key)) {
            Some(reported) if is_late(reported, now) => (UNKNOWN, ""),
            Some(reported) => (reported.health, &reported.message),
            None => (UNKNOWN, ""),
        }
    }
}

fn is_late(reported: &Reported, now: Timestamp) -> bool {
    now.duration_since(reported.at).as_secs() > reported.timeout
}

fn truncated(message: &str) -> String {
    if message.len() <= MOST_MESSAGE {
        return message.to_owned();
    }
    let end = (0..=MOST_MESSAGE - 3).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &message[..end])
}

impl DraManager {
    pub(super) fn take_health(&self, driver: &str, report: &m::HealthReport) {
        let changed = {
            let mut health = locked(&self.health);
            let changed = health.take(driver, report, self.clock.now());
            if !changed.is_empty() {
                self.keep_health(&health);
            }
            changed
        };
        self.notify_pods(driver, |device| {
            changed.contains(&(device.pool_name.clone(), device.device_name.clone()))
        });
    }

    pub(super) fn clear_health(&self, driver: &str) {
        let was_known = {
            let mut health = locked(&self.health);
            let was_known = health.0.remove(driver).is_some();
            if was_known {
                self.keep_health(&health);
            }
            was_known
        };
        if was_known {
            self.notify_pods(driver, |_| true);
        }
    }

    fn keep_health(&self, health: &HealthCache) {
        if let Err(error) = health.write(&self.health_file) {
            let file = self.health_file.display();
            tracing::warn!(%file, %error, "the checkpoint of device health cannot be written");
        }
    }

    /// Notifies the workers of the pods that have such a device of a driver.
    fn notify_pods(&self, driver: &str, has_changed: impl Fn(&Device) -> bool) {
        let claims = locked(&self.claims);
        let of = |claim: &&Claim| claim.devices().any(|(name, device)| name == driver && has_changed(device));
        let pods: BTreeSet<&String> = claims.all().filter(of).flat_map(Claim::pods).collect();
        for pod in pods {
            if self.changed_pods.try_send(pod.clone()).is_err() {
                // Its status is generated again in any case, later.
                tracing::warn!(
                    pod,
                    "the queue of pods with changed device health is full; the pod's status is updated later"
                );
            }
        }
    }

    /// Shows the health of the claims' devices in a pod's status, beside what is shown there of other resources.
    pub fn show_health(&self, pod: &Pod, status: &mut PodStatus) {
        let claims = locked(&self.claims);
        let health = locked(&self.health);
        let now = self.clock.now();
        for shown in status.container_statuses.iter_mut().flatten() {
            let Some(container) = model::containers(pod).iter().find(|c| c.name == shown.name) else {
                continue;
            };
            let found = of_container(pod, container, &claims, |driver, device| {
                let (state, message) = health.get(driver, device, now);
                let id = device.cdi_devices.first().cloned();
                ResourceHealth {
                    health: Some(state.to_owned()),
                    message: (!message.is_empty()).then(|| message.to_owned()),
                    resource_id: id
                        .unwrap_or_else(|| format!("{driver}/{}/{}", device.pool_name, device.device_name)),
                }
            });
            if !found.is_empty() {
                shown.allocated_resources_status.get_or_insert_default().extend(found);
            }
        }
    }
}

fn of_container(
    pod: &Pod,
    container: &Container,
    claims: &super::Claims,
    of_device: impl Fn(&str, &Device) -> ResourceHealth,
) -> Vec<ResourceStatus> {
    let mut found: Vec<ResourceStatus> = vec![];
    let own = container.resources.as_ref().and_then(|r| r.claims.as_deref()).unwrap_or_default();
    for used in own {
        let of_pod = model::spec(pod).resource_claims.as_deref().unwrap_or_default();
        let named = of_pod.iter().find(|claim| claim.name == used.name).map(|claim| claim_name(pod, claim));
        let Some(Ok(Some((name, _)))) = named else { continue };
        let Some(claim) = claims.get(model::namespace(pod), &name) else { continue };
        let request = used.request.as_deref().unwrap_or_default();
        // Devices of a subrequest are named by the request that it is of.
        let base = request.split('/').next().unwrap_or_default();
        let mut resources: Vec<ResourceHealth> = vec![];
        for (driver, device) in claim.devices() {
            let listed = device.request_names.iter().any(|name| name == base);
            if !request.is_empty() && !device.request_names.is_empty() && !listed {
                continue;
            }
            let health = of_device(driver, device);
            if !resources.iter().any(|other| other.resource_id == health.resource_id) {
                resources.push(health);
            }
        }
        let name = match request {
            "" => format!("claim:{}", used.name),
            request => format!("claim:{}/{request}", used.name),
        };
        if !resources.is_empty() && !found.iter().any(|status| status.name == name) {
            found.push(ResourceStatus { name, resources: Some(resources) });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_change_what_is_known_until_they_are_old() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let report = |health, message: &str| m::HealthReport {
            devices: vec![m::DeviceHealth {
                device: Some(m::DeviceIdentifier { pool_name: "p".into(), device_name: "x".into() }),
                health,
                message: message.into(),
                ..Default::default()
            }],
        };
        let device = Device { pool_name: "p".into(), device_name: "x".into(), ..Device::default() };
        let mut cache = HealthCache::default();
        assert_eq!(cache.get("d", &device, at(0)), ("Unknown", ""));
        assert_eq!(cache.take("d", &report(m::HEALTHY, ""), at(0)).len(), 1);
        assert_eq!(cache.take("d", &report(m::HEALTHY, ""), at(5)).len(), 0);
        assert_eq!(cache.take("d", &report(m::UNHEALTHY, "hot"), at(6)).len(), 1);
        assert_eq!(cache.get("d", &device, at(36)), ("Unhealthy", "hot"));
        assert_eq!(cache.get("d", &device, at(37)), ("Unknown", ""));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("below/dra_health_state");
        assert_eq!(HealthCache::read(&file).unwrap(), HealthCache::default());
        cache.write(&file).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        expect_test::expect![[r#"{"d":{"Devices":{"p/x":{"PoolName":"p","DeviceName":"x","Health":"Unhealthy","LastUpdated":"1970-01-01T00:00:06Z","HealthCheckTimeout":30000000000,"Message":"hot"}}}}"#]].assert_eq(&text);
        assert_eq!(HealthCache::read(&file).unwrap(), cache);
        std::fs::write(&file, &text[1..]).unwrap();
        assert!(HealthCache::read(&file).is_err());
        assert_eq!(cache.take("d", &m::HealthReport::default(), at(40)).len(), 1);
        assert_eq!(cache.take("d", &m::HealthReport::default(), at(41)).len(), 0);
        assert_eq!(truncated(&"é".repeat(3000)).len(), 4095);
    }
}
