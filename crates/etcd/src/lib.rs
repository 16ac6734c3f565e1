//! The store on etcd v3: a [`Store`](kaji_store::Store) with the key space of upstream's API server, so that
//! upstream's API server and this one can take over from each other, and several servers can share one etcd.
//!
//! - [`endpoints`]: where etcd is, and the certificates for it.
//! - [`client`]: calls with deadlines, on one of several endpoints.
//! - [`keys`]: keys of this program to upstream's and back.
//! - [`EtcdStore`]: transactions, ranges, watches, leases.
//! - [`compactor`]: upstream's compaction, on which several servers agree.
//! - [`version`]: which etcd reports the progress of watches correctly.
//!
//! Invariants:
//! - Revisions are etcd's: `mod_revision` of a key is the `resourceVersion` of its object, whichever server wrote it.
//! - A write has its effect once at most. If its answer is lost and it cannot be sent again, the caller gets `Uncertain`.
//! - Progress of a watch is reported only up to where all its events have been delivered.
//! - Everything waits for a bounded time, and messages have a bounded size.

pub mod client;
pub mod compactor;
pub mod endpoints;
mod error;
pub mod keys;
mod messages;
mod observer;
mod store;
pub mod version;

pub use endpoints::{EndpointError, Endpoints, TlsFiles};
pub use keys::{KeyMap, KeyMapError, ROOT};
pub use observer::{Observer, Unobserved};
pub use store::{EtcdOptions, EtcdStore};
