//! A CSI driver on this node. Upstream's `csi_client.go`.

use crate::messages::{
    self as m, AccessMode, AccessType, BlockVolume, Empty, Mode, MountVolume, RpcType, VolumeCapability,
};
use kaji_grpc::{CallError, Client, Code};
use std::collections::BTreeMap;
use std::time::Duration;

/// A call's deadline: upstream's `csiTimeout`.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A driver's Node service.
pub struct Driver {
    name: String,
    client: Client,
}

/// What a driver says of the node that it runs on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node's id with this driver.
    pub id: String,
    /// Volumes that can be attached; 0 for no limit.
    pub most_volumes: i64,
    /// Labels of where the node is.
    pub topology: BTreeMap<String, String>,
}

/// What a driver's Node service can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Volumes are staged once a node before they are published to pods.
    pub stage: bool,
    /// Figures of volumes.
    pub stats: bool,
    /// File systems grow on the node.
    pub expand: bool,
    /// It tells one writing pod from several.
    pub single_node_multi_writer: bool,
    /// It gives volumes to a group itself.
    pub mount_group: bool,
}

/// How a volume is presented.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// As a device.
    Block,
    /// As a directory.
    Mount {
        /// `ext4` for example; empty for the driver's choice.
        fs_type: String,
        /// Mount options.
        flags: Vec<String>,
        /// The group that it is mounted for, of drivers with that capability.
        group: Option<i64>,
    },
}

/// The CSI mode of a volume's access mode (`ReadWriteOnce`, …).
#[must_use]
pub fn access_mode(mode: &str, capabilities: Capabilities) -> Mode {
    match (mode, capabilities.single_node_multi_writer) {
        ("ReadWriteOnce", false) | ("ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

/// A volume's capability as requests have it.
#[must_use]
pub fn capability(access: Access, mode: Mode) -> VolumeCapability {
    let access_type = match access {
        Access::Block => AccessType::Block(BlockVolume {}),
        Access::Mount { fs_type, flags, group } => AccessType::Mount(MountVolume {
            fs_type,
            mount_flags: flags,
            volume_mount_group: group.map(|g| g.to_string()).unwrap_or_default(),
        }),
    };
    VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }
}

/// Whether a failed call has certainly ended: of the others the driver may still be at work.
#[must_use]
pub fn is_final(error: &CallError) -> bool {
    !matches!(
        error.code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
    )
}

impl Driver {
    /// The driver of this name at an endpoint; `None` if that is no socket's path.
    #[must_use]
    pub fn new(name: &str, endpoint: &str) -> Option<Driver> {
        Some(Driver { name: name.to_owned(), client: Client::of_endpoint(endpoint)? })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it says of this node.
    ///
    /// # Errors
    /// The driver's, or the connection's.
    pub async fn info(&self) -> Result<NodeInfo, CallError> {
        let answer: m::NodeGetInfoResponse = self.client.unary(m::GET_INFO, Empty {}, TIMEOUT).await?;
        Ok(NodeInfo {
            id: answer.node_id,
            most_volumes: answer.max_volumes_per_node,
            topology: answer.accessible_topology.map(|t| t.segments).unwrap_or_default(),
        })
    }

    /// What it can do.
    ///
    /// # Errors
    /// The driver's, or the connection's.
    pub async fn capabilities(&self) -> Result<Capabilities, CallError> {
        let answer: m::NodeGetCapabilitiesResponse =
            self.client.unary(m::GET_CAPABILITIES, Empty {}, TIMEOUT).await?;
        let mut found = Capabilities::default();
        for rpc in answer.capabilities.iter().filter_map(|c| c.rpc.as_ref()) {
            match rpc.kind() {
                RpcType::StageUnstageVolume => found.stage = true,
                RpcType::GetVolumeStats => found.stats = true,
                RpcType::ExpandVolume => found.expand = true,
                RpcType::SingleNodeMultiWriter => found.single_node_multi_writer = true,
                RpcType::VolumeMountGroup => found.mount_group = true,
                RpcType::Unknown | RpcType::VolumeCondition => {}
            }
        }
        Ok(found)
    }

    /// Mounts a volume on the node, once for all its pods.
    ///
    /// # Errors
    /// The driver's, or the connection's.
    pub async fn stage(&self, request: m::NodeStageVolumeRequest) -> Result<(), CallError> {
        self.client.unary::<_, Empty>(m::STAGE, request, TIMEOUT).await.map(drop)
    }

    /// Undoes [`Driver::stage`].
    ///
    /// # Errors
    /// The driver's, or the connection's.
    pub async fn unstage(&self, volume: &str, path: &str) -> Result<(), CallError> {
        let request =
            m::NodeUnstageVolumeRequest { volume_id: volume.into(), staging_target_path: path.into() };
        self.client.unary::<_, Empty>(m::UNSTAGE, request, TIMEOUT).await.map(drop)
    }

    /// Presents a volume to a pod.
    ///
    /// # Errors
    /// The driver's, or the connection's.
    pub async fn publish(&self, request: m::NodePublishVolumeRequest) -> Result<(), CallError> {
        self.client.unary::<_, Empty>(m::PUBLISH, request, TIMEOUT).await.map(drop)
    }

    /// Undoes [`Driver::publish`].
    ///
    /// # Errors
    /// The driver's, or the connection's.
    pub async fn unpublish(&self, volume: &str, path: &str) -> Result<(), CallError> {
        let request = m::NodeUnpublishVolumeRequest { volume_id: volume.into(), target_path: path.into() };
        self.client.unary::<_, Empty>(m::UNPUBLISH, request, TIMEOUT).await.map(drop)
    }

    /// Lets a volume's file system fill a volume that has grown. Answers its bytes; 0 where the driver does not say.
    ///
    /// # Errors
    /// The driver's, or the connection's.
    pub async fn expand(&self, request: m::NodeExpandVolumeRequest) -> Result<i64, CallError> {
        let answer: m::NodeExpandVolumeResponse = self.client.unary(m::EXPAND, request, TIMEOUT).await?;
        Ok(answer.capacity_bytes)
    }

    /// Figures of a volume that is published at a path.
    ///
    /// # Errors
    /// The driver's, or the connection's.
    pub async fn stats(&self, volume: &str, path: &str) -> Result<Vec<m::VolumeUsage>, CallError> {
        let request = m::NodeGetVolumeStatsRequest {
            volume_id: volume.into(),
            volume_path: path.into(),
            ..Default::default()
        };
        let answer: m::NodeGetVolumeStatsResponse = self.client.unary(m::GET_STATS, request, TIMEOUT).await?;
        Ok(answer.usage)
    }
}
