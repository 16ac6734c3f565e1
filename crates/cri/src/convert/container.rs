//! Containers: their configuration, and how they are listed.

use super::{image, labels, security, signals};
use crate::messages as cri;
use kaji_containers::{
    ContainerConfig, ContainerFilter, ContainerInfo, ContainerMetadata, ContainerState, ContainerStatus,
    ContainerUser, Mount, MountPropagation, RuntimeError,
};

numbers!(
    state, state_of, ContainerState,
    [0 => ContainerState::Created, 1 => ContainerState::Running, 2 => ContainerState::Exited, 3 => ContainerState::Unknown],
    else ContainerState::Unknown
);
numbers!(
    propagation, propagation_of, MountPropagation,
    [0 => MountPropagation::Private, 1 => MountPropagation::HostToContainer, 2 => MountPropagation::Bidirectional],
    else MountPropagation::Private
);

fn mount(mount: &Mount) -> cri::Mount {
    cri::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.readonly,
        selinux_relabel: mount.selinux_relabel,
        propagation: propagation(mount.propagation),
        uid_mappings: security::id_mappings(&mount.uid_mappings),
        gid_mappings: security::id_mappings(&mount.gid_mappings),
        recursive_read_only: mount.recursive_read_only,
        image: mount.image.as_ref().map(image::spec),
        image_sub_path: mount.image_sub_path.clone(),
    }
}

fn mount_of(mount: cri::Mount) -> Mount {
    Mount {
        container_path: mount.container_path,
        host_path: mount.host_path,
        readonly: mount.readonly,
        recursive_read_only: mount.recursive_read_only,
        propagation: propagation_of(mount.propagation),
        selinux_relabel: mount.selinux_relabel,
        uid_mappings: security::id_mappings_of(&mount.uid_mappings),
        gid_mappings: security::id_mappings_of(&mount.gid_mappings),
        image: mount.image.map(image::spec_of),
        image_sub_path: mount.image_sub_path,
    }
}

/// What a container is to be.
///
/// # Errors
/// A stop signal that does not exist.
pub fn config(config: &ContainerConfig) -> Result<cri::ContainerConfig, RuntimeError> {
    let stop_signal = match &config.stop_signal {
        None => 0,
        Some(name) => signals::number(name)
            .ok_or_else(|| RuntimeError::InvalidArgument(format!("unknown stop signal {name:?}")))?,
    };
    let device = |d: &kaji_containers::Device| cri::Device {
        container_path: d.container_path.clone(),
        host_path: d.host_path.clone(),
        permissions: d.permissions.clone(),
    };
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: config.metadata.name.clone(),
            attempt: config.metadata.attempt,
        }),
        image: Some(image::spec(&config.image)),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: config.working_dir.clone(),
        envs: config
            .envs
            .iter()
            .map(|(key, value)| cri::KeyValue { key: key.clone(), value: value.clone().into_bytes() })
            .collect(),
        mounts: config.mounts.iter().map(mount).collect(),
        devices: config.devices.iter().map(device).collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        log_path: config.log_path.clone(),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(security::resources(&config.resources)),
            security_context: Some(security::of_container(&config.security)),
        }),
        cdi_devices: config.cdi_devices.iter().map(|name| cri::CdiDevice { name: name.clone() }).collect(),
        stop_signal,
    })
}

/// Which containers to list.
#[must_use]
pub fn filter(filter: &ContainerFilter) -> cri::ContainerFilter {
    cri::ContainerFilter {
        id: filter.id.clone().unwrap_or_default(),
        state: filter.state.map(|s| cri::ContainerStateValue { state: state(s) }),
        pod_sandbox_id: filter.sandbox_id.clone().unwrap_or_default(),
        label_selector: labels(&filter.labels),
    }
}

fn metadata_of(metadata: Option<cri::ContainerMetadata>) -> ContainerMetadata {
    let metadata = metadata.unwrap_or_default();
    ContainerMetadata { name: metadata.name, attempt: metadata.attempt }
}

/// Older runtimes name the image's id by the reference alone.
fn image_id(id: String, reference: &str) -> String {
    if id.is_empty() { reference.to_owned() } else { id }
}

/// A container in a list.
#[must_use]
pub fn info(container: cri::Container) -> ContainerInfo {
    ContainerInfo {
        id: container.id,
        sandbox_id: container.pod_sandbox_id,
        metadata: metadata_of(container.metadata),
        image: container.image.map(image::spec_of).unwrap_or_default(),
        image_id: image_id(container.image_id, &container.image_ref),
        state: state_of(container.state),
        created_at_nanos: container.created_at,
        labels: container.labels,
        annotations: container.annotations,
    }
}

/// A container's status. The sandbox's id is not in the message.
#[must_use]
pub fn status(status: cri::ContainerStatus, sandbox_id: String, pid: u32) -> ContainerStatus {
    let user = status.user.and_then(|user| user.linux).map(|user| ContainerUser {
        uid: user.uid,
        gid: user.gid,
        supplemental_groups: user.supplemental_groups,
    });
    let resources = status.resources.and_then(|resources| resources.linux);
    ContainerStatus {
        info: ContainerInfo {
            id: status.id,
            sandbox_id,
            metadata: metadata_of(status.metadata),
            image: status.image.map(image::spec_of).unwrap_or_default(),
            image_id: image_id(status.image_id, &status.image_ref),
            state: state_of(status.state),
            created_at_nanos: status.created_at,
            labels: status.labels,
            annotations: status.annotations,
        },
        started_at_nanos: status.started_at,
        finished_at_nanos: status.finished_at,
        exit_code: status.exit_code,
        image_ref: status.image_ref,
        reason: status.reason,
        message: status.message,
        mounts: status.mounts.into_iter().map(mount_of).collect(),
        log_path: status.log_path,
        resources: resources.as_ref().map(security::resources_of).unwrap_or_default(),
        user,
        stop_signal: signals::name(status.stop_signal),
        pid,
    }
}
