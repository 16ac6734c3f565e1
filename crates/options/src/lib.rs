//! Command-line options and configuration files: what `kaji up` and `kaji apiserver` accept, and what it amounts to.
//!
//! - `client_connection`: the flags of commands that are clients.
//! - `cluster_options`: everything that a cluster is started with, as a library's caller gives it.
//! - `component`: the command lines of components that run alone.
//! - `server_flags`: the command line of a server, which is turned into cluster options.
//! - One file for each group of flags: `authentication`, `authorization`, `audit`, `admission`, `encryption`, `etcd`, `history`, `serving`,
//!   `startup`, `shutdown`, `autoscaler`, `cloud`, `control_loops`, `nodes`, `proxy_client`, `kubelet_client`, `features`.
//! - `flag_values`: flags and their values, as they are shown.
//! - `logging`: the format of logs, for every command.
//! - `port_range`: how flags spell ranges of ports.
//! - `watched_files`: detects changes of files that flags name, for configuration that is reloaded.
//!
//! Invariant: flags have upstream's names, defaults and error texts; a combination that upstream rejects is rejected.

pub mod addresses;
pub mod admission;
pub mod audit;
pub mod authentication;
pub mod authorization;
mod autoscaler;
pub mod client_connection;
mod cloud;
pub mod cluster_options;
pub mod component;
pub mod container_runtime;
mod control_loops;
pub mod encryption;
pub mod etcd;
mod features;
mod flag_values;
pub mod history;
pub mod kubelet_client;
pub mod logging;
pub mod nodes;
mod port_range;
pub mod proxy_client;
pub mod server_flags;
pub mod serving;
mod shutdown;
mod startup;
pub mod traces;
pub mod watched_files;

pub use admission::AdmissionFlags;
pub use audit::AuditFlags;
pub use authentication::{AuthnError, AuthnOptions};
pub use authorization::{AuthzError, AuthzOptions};
pub use client_connection::ClientConnectionFlags;
pub use cloud::CloudProviderName;
pub use cluster_options::Options;
pub use component::{ControllerManagerFlags, SchedulerFlags};
pub use container_runtime::{BindAddress, ContainerRuntimeFlags};
pub use encryption::EncryptionFile;
pub use etcd::{EtcdConfig, StorageMediaType, StoreFlags, StoreKind};
pub use features::{FeatureFlags, RuntimeFlags};
pub use flag_values::flag_values;
pub use history::{HistoryConfig, HistoryFlags, SecretValues};
pub use kubelet_client::KubeletClient;
pub use nodes::{Nodes, RangeFlags};
pub use proxy_client::ProxyClient;
pub use server_flags::ServerFlags;
pub use serving::Serving;
pub use startup::StartupOptions;
pub use watched_files::WatchedFiles;

use kaji_meta::duration::parse_non_negative as duration;
