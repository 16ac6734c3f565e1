//! What an API server maintains beside answering requests: the objects that every cluster has, its own entry among the servers of
//! an etcd, the record of node ports that servers share, the service of cluster DNS, the history of objects, explanations; and what connects the server to the parts in
//! its process: the feed and the batches of the control loops, and the pages of the kubelets.
//!
//! Source: `pkg/controlplane` of upstream.

pub mod bootstrap;
pub mod cache_checks;
mod cache_feed;
pub mod cluster_dns;
mod default_storage_class;
mod explanations;
pub mod history;
pub mod kept_objects;
mod kubelet_pages;
mod local_batches;
mod rounds;
pub mod server_identity;
pub mod service_endpoints;
pub mod shared_ports;
pub mod traces;

pub use cache_feed::CacheFeed;
pub use explanations::explanations;
pub use kubelet_pages::Kubelets;
pub use local_batches::LocalBatches;
