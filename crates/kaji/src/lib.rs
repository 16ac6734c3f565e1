//! Starts a cluster from its parts: store, engine, server, controllers, scheduler, nodes.
//!
//! The binary is a thin command line over this; tests start clusters with the same call.

mod bootstrap;
mod cache_checks;
mod cache_feed;
pub mod cluster;
pub mod component;
mod default_storage_class;
mod encryption;
mod environment;
mod etcd_metrics;
pub mod etcd_transfer;
pub mod forks;
pub mod joined_node;
mod kubelet_root;
pub mod node_fleet;
pub mod node_network;
pub mod node_requirements;
pub mod node_reset;
mod server_identity;
mod service_endpoints;
mod shared_ports;
pub mod simulation;
pub mod snapshots;
mod start;
mod storage_keys;
mod storage_media;

pub use cache_feed::CacheFeed;
pub use cluster::{Cluster, StartError};
pub use environment::Environment;
pub use kaji_access::webhook_config;
pub use kaji_controllers::Selection;
pub use kaji_files::kubeconfig;
pub use kaji_kubelet::{agent, token};
pub use kaji_meta::time::Clock;
pub use kaji_options::{
    AuditFlags, AuthnError, AuthnOptions, AuthzError, AuthzOptions, EncryptionFile, EtcdConfig, Nodes,
    Options, ProxyClient, RangeFlags, Serving, StorageMediaType, StoreKind,
};
pub use kaji_runtime::VirtualClock;
