//! The node's side of the Container Storage Interface 1.x: calls of a driver's Node service, and the registration by which
//! plug-ins make themselves known to a kubelet. What to call when is the kubelet's.
//!
//! Invariants: every call has a deadline; what holds secrets is not printed.

mod driver;
pub mod messages;
pub mod registration;

pub use driver::{Access, Capabilities, Driver, NodeInfo, access_mode, capability, is_final};
pub use kaji_grpc::{CallError, Code};
