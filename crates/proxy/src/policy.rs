//! Network policies of a node: which connections its pods may make and take.
//!
//! Invariants:
//! - What policies become is a pure function of policies, pods and namespaces ([`compile::compile`]).
//! - A pod that no policy selects for a direction is not restricted in it. A pod always reaches itself, a node always its own pods.
//! - Answers of accepted connections are accepted.

pub mod compile;
mod feed;
mod local;
pub mod object;
mod tables;

pub use compile::{Compiled, compile};
pub use feed::{PolicyConfig, enforce, remove, run};
pub use local::{LocalPod, LocalPods, LocalTable};
pub use object::NetworkPolicy;
