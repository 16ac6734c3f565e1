//! Wires a cluster together out of its parts: store, engine, server, controllers, scheduler, nodes.
//!
//! The binary is a thin command line over this; tests start clusters with the same call.

mod access;
pub mod agent;
mod audit;
pub mod authn;
pub mod bootstrap;
pub mod cluster;
mod delegation;
mod encryption;
pub mod envtest;
mod fetch;
mod follow;
mod front_proxy;
mod identities;
mod joining;
pub mod kubeconfig;
mod kubelets;
mod nodes;
mod roles;
pub mod scrub;
pub mod serving;
pub mod token;
mod tracking;
mod trust;

pub use access::{AuthzError, AuthzOptions};
pub use audit::AuditFlags;
pub use authn::{AuthnError, AuthnOptions};
pub use cluster::{Cluster, Options, StartError, StoreKind};
pub use encryption::EncryptionFile;
pub use front_proxy::ProxyClient;
pub use kaji_controllers::Selection;
pub use kaji_meta::time::Clock;
pub use kaji_runtime::VirtualClock;
pub use nodes::{Nodes, RangeFlags};
pub use serving::Serving;
