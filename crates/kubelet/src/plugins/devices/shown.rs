//! What is shown of devices: to monitoring agents, and their health in the status of containers (KEP-4680).

use super::DeviceManager;
use super::state::{Owner, Resource};
use crate::pods::core::{Pod, PodStatus, ResourceHealth, ResourceStatus};
use crate::pods::model;

/// A device: its resource, its identifier, its NUMA nodes.
pub type ShownDevice = (String, String, Vec<i64>);

fn nodes(resource: Option<&Resource>, id: &str) -> Vec<i64> {
    resource.and_then(|resource| resource.numa.get(id)).cloned().unwrap_or_default()
}

impl DeviceManager {
    /// The devices that a container has.
    #[must_use]
    pub fn of_container(&self, pod_uid: &str, container: &str) -> Vec<ShownDevice> {
        let state = self.state();
        let owner = Owner { pod: pod_uid.to_owned(), container: container.to_owned() };
        let mut found = vec![];
        for (name, allocation) in state.devices.allocations.get(&owner).into_iter().flatten() {
            let resource = state.devices.resources.get(name);
            found.extend(allocation.devices.iter().map(|id| (name.clone(), id.clone(), nodes(resource, id))));
        }
        found
    }

    /// All devices that can be used.
    #[must_use]
    pub fn usable(&self) -> Vec<ShownDevice> {
        let state = self.state();
        let of = |(name, resource): (&String, &Resource)| {
            let of_resource = |id: &String| (name.clone(), id.clone(), nodes(Some(resource), id));
            resource.healthy.iter().map(of_resource).collect::<Vec<_>>()
        };
        state.devices.resources.iter().flat_map(of).collect()
    }

    /// Shows the health of a pod's devices in its status. Devices that no plug-in lists any more count as healthy, as upstream has it.
    pub fn show_health(&self, pod: &Pod, status: &mut PodStatus) {
        let state = self.state();
        if state.devices.allocations.is_empty() {
            return;
        }
        for shown in status.container_statuses.iter_mut().flatten() {
            let owner = Owner { pod: model::uid(pod).to_owned(), container: shown.name.clone() };
            for (name, allocation) in state.devices.allocations.get(&owner).into_iter().flatten() {
                let resource = state.devices.resources.get(name);
                let health = |id: &String| ResourceHealth {
                    resource_id: id.clone(),
                    health: Some(match resource.is_some_and(|r| r.unhealthy.contains(id)) {
                        true => "Unhealthy".to_owned(),
                        false => "Healthy".to_owned(),
                    }),
                    message: None,
                };
                let resources = Some(allocation.devices.iter().map(health).collect());
                let all = shown.allocated_resources_status.get_or_insert_default();
                all.push(ResourceStatus { name: name.clone(), resources });
            }
        }
    }
}
