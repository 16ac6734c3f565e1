//! What an administrator can set of how a kubelet keeps its node in order, with upstream's defaults.

use super::eviction::thresholds::EvictionSettings;
use super::image_gc::plan::Thresholds;
use crate::pods::log_rotation::LogLimits;

/// Limits of what a node's pods may leave on it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Housekeeping {
    /// Logs of containers.
    pub logs: LogLimits,
    /// Images that nothing uses.
    pub images: Thresholds,
    /// Pods, when the node runs short of something.
    pub eviction: EvictionSettings,
}
