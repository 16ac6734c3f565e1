//! The pages of metrics of a real node.
//!
//! `resource` and `cadvisor` show a reading of what is used, `kubelet` what the kubelet counts of itself.

pub(in crate::server) mod cadvisor;
pub(crate) mod kubelet;
pub(crate) mod resource;
