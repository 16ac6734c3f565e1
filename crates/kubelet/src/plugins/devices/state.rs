//! Devices of plug-ins and their allocations; pure.
//!
//! Invariant: a device is allocated to one container at a time, but for init containers: what they had, the containers
//! after them in the same pod get.

use super::messages::{ContainerAllocateResponse, HEALTHY, PluginDevice};
use std::collections::{BTreeMap, BTreeSet};

/// Identifiers of devices.
pub(super) type Ids = BTreeSet<String>;

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) pod: String,
    pub(super) container: String,
}

/// Devices of a container, and what its configuration gets because of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Allocation {
    pub(super) devices: Ids,
    pub(super) response: ContainerAllocateResponse,
}

/// Devices of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) healthy: Ids,
    pub(super) unhealthy: Ids,
    /// NUMA nodes by device.
    pub(super) numa: BTreeMap<String, Vec<i64>>,
}

impl Resource {
    pub(super) fn of(devices: Vec<PluginDevice>) -> Resource {
        let mut resource = Resource::default();
        for device in devices {
            let nodes = device.topology.map(|t| t.nodes.iter().map(|n| n.id).collect()).unwrap_or_default();
            resource.numa.insert(device.id.clone(), nodes);
            let list = if device.health == HEALTHY { &mut resource.healthy } else { &mut resource.unhealthy };
            list.insert(device.id);
        }
        resource
    }

    /// The plug-in is gone: none of its devices can be used.
    pub(super) fn disconnect(&mut self) {
        self.unhealthy.append(&mut self.healthy);
    }
}

/// What is to be chosen for a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// Chosen already: those of init containers.
    pub(super) chosen: Ids,
    /// What the rest is chosen of.
    pub(super) available: Ids,
    /// How many there are to be in all.
    pub(super) required: usize,
}

impl Choice {
    /// Completes the choice, with preferred devices first.
    pub(super) fn complete(mut self, preferred: &Ids) -> Ids {
        let first = self.available.intersection(preferred);
        let rest = self.available.difference(preferred);
        for id in first.chain(rest).cloned().collect::<Vec<_>>() {
            if self.chosen.len() >= self.required {
                break;
            }
            self.chosen.insert(id);
        }
        self.chosen
    }
}

/// All devices and allocations of a node.
#[derive(Debug, Default)]
pub(super) struct Devices {
    pub(super) resources: BTreeMap<String, Resource>,
    pub(super) allocations: BTreeMap<Owner, BTreeMap<String, Allocation>>,
}

impl Devices {
    /// Devices of a resource that containers have.
    pub(super) fn allocated(&self, resource: &str) -> Ids {
        let all = self.allocations.values().filter_map(|r| r.get(resource));
        all.flat_map(|a| a.devices.iter().cloned()).collect()
    }

    /// Whether a plug-in has, or had, devices of a resource.
    pub(super) fn is_known(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.allocations.values().any(|r| r.contains_key(resource))
    }

    /// Drops the allocations of pods that are not active.
    pub(super) fn keep_pods(&mut self, active: &BTreeSet<&str>) -> bool {
        let before = self.allocations.len();
        self.allocations.retain(|owner, _| active.contains(owner.pod.as_str()));
        before != self.allocations.len()
    }

    /// What a container's devices are chosen of; `None` if it has them.
    ///
    /// # Errors
    /// Upstream's text.
    pub(super) fn choice(
        &self,
        owner: &Owner,
        resource: &str,
        required: usize,
        reusable: &Ids,
    ) -> Result<Option<Choice>, String> {
        let has = self.allocations.get(owner).and_then(|r| r.get(resource)).map(|a| &a.devices);
        if let Some(has) = has.filter(|has| has.len() != required) {
            return Err(format!(
                "pod \"{}\" container \"{}\" changed request for resource \"{resource}\" from {} to {required}",
                owner.pod,
                owner.container,
                has.len()
            ));
        }
        let Some(known) = self.resources.get(resource) else {
            return Err(format!("cannot allocate unregistered device {resource}"));
        };
        if known.healthy.is_empty() {
            return Err(format!("no healthy devices present; cannot allocate unhealthy devices {resource}"));
        }
        if has.is_some_and(|has| !has.is_subset(&known.healthy)) {
            return Err(format!(
                "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            ));
        }
        if has.is_some() || required == 0 {
            return Ok(None);
        }
        let chosen: Ids = reusable.iter().take(required).cloned().collect();
        let in_use = self.allocated(resource);
        let available: Ids =
            known.healthy.difference(&in_use).filter(|id| !chosen.contains(*id)).cloned().collect();
        let needed = required - chosen.len();
        if available.len() < needed {
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {needed}, Available: {}",
                available.len()
            ));
        }
        Ok(Some(Choice { chosen, available, required }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> Ids {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    fn owner(pod: &str) -> Owner {
        Owner { pod: pod.into(), container: "c".into() }
    }

    fn devices() -> Devices {
        let device =
            |id: &str, health: &str| PluginDevice { id: id.into(), health: health.into(), topology: None };
        let all =
            vec![device("a", HEALTHY), device("b", HEALTHY), device("c", HEALTHY), device("x", "Unhealthy")];
        Devices { resources: BTreeMap::from([("r".to_owned(), Resource::of(all))]), ..Devices::default() }
    }

    fn take(devices: &mut Devices, pod: &str, count: usize, preferred: &[&str]) -> Result<Ids, String> {
        let choice = devices.choice(&owner(pod), "r", count, &Ids::new())?;
        let chosen = choice.map(|c| c.complete(&ids(preferred))).unwrap_or_default();
        let allocation = Allocation { devices: chosen.clone(), ..Allocation::default() };
        devices.allocations.entry(owner(pod)).or_default().insert("r".into(), allocation);
        Ok(chosen)
    }

    #[test]
    fn devices_are_handed_out_once() {
        let mut devices = devices();
        assert_eq!(take(&mut devices, "p", 1, &["b", "x"]), Ok(ids(&["b"])));
        assert_eq!(
            take(&mut devices, "q", 3, &[]).unwrap_err(),
            "requested number of devices unavailable for r. Requested: 3, Available: 2"
        );
        assert_eq!(take(&mut devices, "q", 2, &[]), Ok(ids(&["a", "c"])));
        assert_eq!(devices.choice(&owner("q"), "r", 2, &Ids::new()), Ok(None));
        assert_eq!(
            devices.choice(&owner("q"), "r", 1, &Ids::new()).unwrap_err(),
            "pod \"q\" container \"c\" changed request for resource \"r\" from 2 to 1"
        );
        assert!(devices.keep_pods(&BTreeSet::from(["p"])));
        assert_eq!(take(&mut devices, "s", 2, &["c"]), Ok(ids(&["a", "c"])));
        assert_eq!(
            devices.choice(&owner("t"), "other", 1, &Ids::new()).unwrap_err(),
            "cannot allocate unregistered device other"
        );
        devices.resources.get_mut("r").unwrap().disconnect();
        assert_eq!(
            devices.choice(&owner("t"), "r", 1, &Ids::new()).unwrap_err(),
            "no healthy devices present; cannot allocate unhealthy devices r"
        );
    }

    #[test]
    fn what_init_containers_had_is_used_first() {
        let devices = devices();
        let choice = devices.choice(&owner("p"), "r", 2, &ids(&["c"])).unwrap().unwrap();
        assert_eq!(choice.complete(&Ids::new()), ids(&["a", "c"]));
    }
}
