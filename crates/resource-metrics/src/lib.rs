//! The resource metrics API, `metrics.k8s.io/v1beta1`: what nodes and pods use at present.
//!
//! Kubelets show counters on `/metrics/resource`; a [`Collector`] reads them while there are readers, makes rates of two
//! readings, and the two kinds of the group ([`defs`]) answer from it. The parts that know how a node is reached implement
//! [`NodePages`].
//!
//! Invariants:
//! - Nothing is stored; figures are of two readings of the same container run, never older than [`STALE`].
//! - Without readers no node is asked.
//! - The definitions give way: an APIService of the same group version routes requests to its server before they come here.
//!
//! Source: metrics-server, its storage and its API.

mod collector;
mod page;
mod points;
mod resources;

pub use collector::{Collector, NodePages, PageError, STALE};
pub use page::{NodePage, Point};
pub use points::{Figures, Usage};
pub use resources::{GROUP, VERSION, defs};
