//! What the plug-ins of a container's devices ask for.

use super::messages::ContainerAllocateResponse;
use kaji_containers::{Device, Mount};
use std::collections::BTreeMap;

/// Additions to a container's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Variables; what the container sets itself wins.
    pub envs: BTreeMap<String, String>,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// Devices.
    pub devices: Vec<Device>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Qualified names of CDI devices.
    pub cdi_devices: Vec<String>,
}

impl DeviceOptions {
    /// Of all resources; the first one wins where two say different things, as upstream has it.
    pub(super) fn of<'a>(responses: impl Iterator<Item = &'a ContainerAllocateResponse>) -> DeviceOptions {
        let mut options = DeviceOptions::default();
        for response in responses {
            for (name, value) in &response.envs {
                options.envs.entry(name.clone()).or_insert_with(|| value.clone());
            }
            for (name, value) in &response.annotations {
                options.annotations.entry(name.clone()).or_insert_with(|| value.clone());
            }
            for device in &response.devices {
                if !options.devices.iter().any(|d| d.container_path == device.container_path) {
                    options.devices.push(Device {
                        container_path: device.container_path.clone(),
                        host_path: device.host_path.clone(),
                        permissions: device.permissions.clone(),
                    });
                }
            }
            for mount in &response.mounts {
                if !options.mounts.iter().any(|m| m.container_path == mount.container_path) {
                    options.mounts.push(Mount {
                        container_path: mount.container_path.clone(),
                        host_path: mount.host_path.clone(),
                        readonly: mount.read_only,
                        ..Mount::default()
                    });
                }
            }
            for device in &response.cdi_devices {
                if !options.cdi_devices.contains(&device.name) {
                    options.cdi_devices.push(device.name.clone());
                }
            }
        }
        options
    }
}
