//! What an API server keeps its objects in: the store that the options name, opened with encryption at rest and the media type of
//! its values; its health and metrics; snapshots of it, transfers between the embedded store and etcd, and forks.
//!
//! Invariant: whatever is below, the engine and the tools here read JSON in the clear under the engine's own keys.

pub mod backend;
pub mod checks;
mod crd_v1beta1;
pub mod encryption;
mod etcd_metrics;
pub mod forks;
mod former;
pub mod internal_keys;
mod media;
pub mod progress;
pub mod snapshots;
pub mod transfer;

/// The store's directory in the data directory.
pub const STORE: &str = "store";

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store.
    #[error("cannot open the store: {0}")]
    Store(#[from] kaji_store::StoreError),
    /// The layout of keys in etcd.
    #[error("cannot map keys to etcd's: {0}")]
    Keys(#[from] kaji_etcd::KeyMapError),
}
