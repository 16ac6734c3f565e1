//! Devices of plug-ins and their allocations; pure.
//!
//! Invariant: a device is allocated to one container at a time, but for init containers: what they had, the containers
//! after them in the same pod get.

use super::messages::{ContainerAllocateResponse, HEALTHY, PluginDevice};
use crate::resource_managers::hints::{Hint, NumaMask, ResourceHints};
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

    /// Whether a device is on one of some NUMA nodes; `None` if it is on none in particular.
    fn is_on(&self, id: &str, nodes: NumaMask) -> Option<bool> {
        let own = self.numa.get(id).filter(|own| !own.is_empty())?;
        Some(own.iter().any(|node| u32::try_from(*node).is_ok_and(|node| nodes.has(node))))
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
    /// Leaves the devices of some NUMA nodes, if there are enough of them; otherwise chooses these first.
    pub(super) fn near(mut self, known: Option<&Resource>, nodes: Option<NumaMask>) -> Choice {
        let (Some(known), Some(nodes)) = (known, nodes) else { return self };
        let near: Ids =
            self.available.iter().filter(|id| known.is_on(id, nodes) == Some(true)).cloned().collect();
        if near.len() + self.chosen.len() >= self.required {
            self.available = near;
        } else {
            self.available.retain(|id| !near.contains(id));
            self.chosen.extend(near);
        }
        self
    }

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

    /// Of which of the machine's NUMA nodes so many devices can be taken, or those that a container has.
    pub(super) fn hints(
        &self,
        resource: &str,
        count: usize,
        has: Option<&Ids>,
        nodes: &[u32],
    ) -> ResourceHints {
        let known = self.resources.get(resource)?;
        // No preference where no device is anywhere in particular.
        known.numa.values().find(|own| !own.is_empty())?;
        let in_use = self.allocated(resource);
        let free: Ids = known.healthy.difference(&in_use).cloned().collect();
        let usable = match has {
            Some(has) if has.len() != count => return Some(vec![]),
            Some(has) => has,
            None if free.len() < count => return Some(vec![]),
            None => &free,
        };
        let on = |set: &mut dyn Iterator<Item = &String>, mask: NumaMask| {
            set.filter(|id| known.is_on(id, mask) == Some(true)).count()
        };
        let masks = NumaMask::subsets(nodes);
        let all: Ids = known.healthy.union(&known.unhealthy).cloned().collect();
        let least =
            masks.iter().filter(|mask| on(&mut all.iter(), **mask) >= count).map(|mask| mask.count()).min();
        let least = least.unwrap_or(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
        let fitting = masks.into_iter().filter(|mask| on(&mut usable.iter(), *mask) >= count);
        Some(fitting.map(|mask| Hint { nodes: Some(mask), preferred: mask.count() == least }).collect())
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
    #[test]
    fn devices_near_to_processors_are_taken_first() {
        use crate::plugins::devices::messages::{NumaNode, TopologyInfo};
        let device = |id: &str, node: i64| {
            let topology = Some(TopologyInfo { nodes: vec![NumaNode { id: node }] });
            PluginDevice { id: id.into(), health: HEALTHY.into(), topology }
        };
        let all = vec![device("a", 0), device("b", 1), device("c", 1)];
        let resources = BTreeMap::from([("r".to_owned(), Resource::of(all))]);
        let mut devices = Devices { resources, ..Devices::default() };
        let shown = |hints: ResourceHints| -> Vec<(u64, bool)> {
            hints.unwrap().iter().map(|h| (h.nodes.unwrap().0, h.preferred)).collect()
        };
        assert_eq!(shown(devices.hints("r", 1, None, &[0, 1])), [(1, true), (2, true), (3, false)]);
        assert_eq!(shown(devices.hints("r", 2, None, &[0, 1])), [(2, true), (3, false)]);
        assert_eq!(devices.hints("r", 4, None, &[0, 1]), Some(vec![]));
        assert_eq!(devices.hints("other", 1, None, &[0, 1]), None);
        assert_eq!(self::devices().hints("r", 1, None, &[0, 1]), None);
        let on = |devices: &Devices, count: usize, node: u32| {
            let choice = devices.choice(&owner("p"), "r", count, &Ids::new()).unwrap().unwrap();
            choice.near(devices.resources.get("r"), Some(NumaMask::of([node]))).complete(&Ids::new())
        };
        assert_eq!(on(&devices, 1, 1), ids(&["b"]));
        assert_eq!(on(&devices, 2, 0), ids(&["a", "b"]));
        take(&mut devices, "q", 1, &["b"]).unwrap();
        assert_eq!(shown(devices.hints("r", 2, None, &[0, 1])), [(3, false)]);
        assert_eq!(shown(devices.hints("r", 1, Some(&ids(&["b"])), &[0, 1])), [(2, true), (3, false)]);
    }
}
