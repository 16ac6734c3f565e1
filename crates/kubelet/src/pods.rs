//! Pods on one real node: what each pod's containers have to do next, and the status that the API is to show.
//!
//! The decisions are pure: [`compute::actions`] from what is desired and what the runtime shows, [`status::generate`] from
//! the same and the results of probes. [`worker`] carries them out, one task a pod.
//!
//! Invariants: a container of a name runs at most once in a pod; nothing is kept that the runtime's labels and the API do
//! not hold too, so that a restart of the kubelet touches no running container.

pub mod admission;
pub mod allocation;
pub mod apparmor;
pub mod backoff;
pub mod compute;
pub mod context;
pub mod downward;
pub mod env_file;
pub mod environment;
pub mod expansion;
pub mod hooks;
pub mod images;
pub mod kill;
pub mod labels;
pub mod log_record;
pub mod log_rotation;
pub mod memory_qos;
pub mod model;
pub mod network;
pub mod observed;
pub mod probes;
pub mod pull_records;
pub mod resize;
pub mod resources;
pub mod restart_backoff;
pub mod security;
pub mod sources;
pub mod start;
pub mod status;
pub mod sysctls;
pub mod user_namespaces;
pub mod worker;

/// Objects as the API has them.
pub use k8s_openapi::api::core::v1 as core;
