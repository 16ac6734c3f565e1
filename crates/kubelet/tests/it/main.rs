//! Pods on a node with a runtime in memory: how they are configured, what the worker of a pod does with the runtime, and
//! what it reports.

#![allow(clippy::unwrap_used)]

mod admission;
mod configuration;
mod credential_providers;
mod csi;
mod csi_driver;
mod devices;
mod dra;
mod eviction;
mod fake;
mod handlers;
mod lifecycle;
mod logind;
mod logs;
mod mounts;
mod pod_certificates;
mod pod_resize;
mod pods_api;
mod preemption;
mod pull_records;
mod registration;
mod restart_all;
mod restarts;
mod server;
mod shutdown;
mod sources;
mod termination;
mod volumes;
mod whole_node;
