//! Projections shared by the loops of every part: one file a kind, only the fields that some loop reads.

mod node;
mod pod;

pub use node::{Node, Taint};
pub use pod::{ContainerStatus, Pod, PodCondition, Toleration};
