//! The health of devices as their drivers say it, and how the status of containers shows it (KEP-4680). Upstream's
//! `dra/healthinfo.go`.
//!
//! Invariant: what a driver has not said for long, or before it was lost, is unknown.

use super::claims::{Claim, Device};
use super::messages as m;
use super::{DraManager, claim_name, locked};
use crate::pods::core::{Container, Pod, PodStatus, ResourceHealth, ResourceStatus};
use crate::pods::model;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Seconds that a report holds, unless it says otherwise: upstream's `DefaultHealthTimeout`.
const TIMEOUT: i64 = 30;
/// Bytes of a message.
const MOST_MESSAGE: usize = 4096;

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
#[derive(Debug, Default)]
pub struct HealthCache(BTreeMap<String, BTreeMap<DeviceKey, Reported>>);

impl HealthCache {
    /// Takes a report. Answers the devices that are of another health, or with another message, than before.
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
                _ => "Unknown",
            };
            let seconds = device.health_check_timeout_seconds;
            let new = Reported {
                health,
                message: truncated(&device.message),
                at: now,
                timeout: if seconds > 0 { seconds } else { TIMEOUT },
            };
            let same =
                known.get(&key).is_some_and(|old| (old.health, &old.message) == (new.health, &new.message));
            if !same {
                changed.insert(key.clone());
            }
            known.insert(key.clone(), new);
            said.insert(key);
        }
        for (key, old) in known.iter_mut().filter(|(key, _)| !said.contains(*key)) {
            if old.health != "Unknown" && is_late(old, now) {
                old.health = "Unknown";
                changed.insert(key.clone());
            }
        }
        changed
    }

    fn get(&self, driver: &str, device: &Device, now: Timestamp) -> (&'static str, &str) {
        let key = (device.pool_name.clone(), device.device_name.clone());
        match self.0.get(driver).and_then(|devices| devices.get(&key)) {
            Some(reported) if is_late(reported, now) => ("Unknown", ""),
            Some(reported) => (reported.health, &reported.message),
            None => ("Unknown", ""),
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
        let changed = locked(&self.health).take(driver, report, self.clock.now());
        self.tell(driver, |device| changed.contains(&(device.pool_name.clone(), device.device_name.clone())));
    }

    pub(super) fn clear_health(&self, driver: &str) {
        if locked(&self.health).0.remove(driver).is_some() {
            self.tell(driver, |_| true);
        }
    }

    /// Names the pods that have such a device of a driver.
    fn tell(&self, driver: &str, has_changed: impl Fn(&Device) -> bool) {
        let claims = locked(&self.claims);
        let of = |claim: &&Claim| claim.devices().any(|(name, device)| name == driver && has_changed(device));
        let pods: BTreeSet<&String> = claims.all().filter(of).flat_map(Claim::pods).collect();
        for pod in pods {
            if self.changed_pods.try_send(pod.clone()).is_err() {
                // Its status is generated again in any case, later.
                tracing::warn!(pod, "a pod learns late of the health of its devices");
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
        assert_eq!(cache.take("d", &m::HealthReport::default(), at(40)).len(), 1);
        assert_eq!(truncated(&"é".repeat(3000)).len(), 4095);
    }
}
