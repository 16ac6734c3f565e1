//! The other container runtime: one that is reached by a CRI socket, containerd or CRI-O, as a backend of the traits of
//! `kaji-containers`.
//!
//! [`CriRuntime`] and [`CriImages`] turn their calls into gRPC calls of `runtime.v1`. Exec, attach and port-forward go through the
//! runtime's streaming server: a SPDY client (`streams`) follows its URLs. Pods get their network from [`cni`]: a
//! plug-in of this program, which the runtime starts, hands a sandbox's network namespace to the node's own pod network.
//!
//! Invariants:
//! - The runtime is the truth about sandboxes and containers; a restart of it or of this process loses none. What it does not
//!   give back, the configuration of a sandbox that each of its containers is created with, is on disk before the sandbox is made.
//! - What a runtime lacks (events, pods' resources, its own configuration) is asked once and then done without.

#[macro_use]
mod numbers;
pub mod cni;
mod configurations;
mod connection;
mod convert;
mod images;
pub mod messages;
mod rates;
mod runtime;
mod streams;

pub use connection::{ConnectError, Endpoints};
pub use images::CriImages;
pub use runtime::{Connected, CriRuntime};
