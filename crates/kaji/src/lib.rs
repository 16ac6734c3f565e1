//! Starts a cluster from its parts: store, engine, server, controllers, scheduler, nodes.
//!
//! The binary is a thin command line over this; tests start clusters with the same call. Nothing here decides, parses a format or
//! implements a part: what does has a crate of its own, and tidy bounds what is here (`xtask/src/tidy/wiring.rs`).

pub mod cluster;
mod environment;
pub mod operator_tests;
pub mod simulation;
mod start;

pub use cluster::{Cluster, StartError};
pub use environment::Environment;
pub use kaji_access::kubeconfig_file;
pub use kaji_controllers::Selection;
pub use kaji_files::kubeconfig;
pub use kaji_kubelet::{agent, token};
pub use kaji_meta::time::Clock;
pub use kaji_options::{
    AuditFlags, AuthnError, AuthnOptions, AuthzError, AuthzOptions, EncryptionFile, EtcdConfig, Nodes,
    Options, ProxyClient, RangeFlags, Serving, StorageMediaType, StoreKind,
};
pub use kaji_runtime::VirtualClock;
