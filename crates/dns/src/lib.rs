//! Cluster DNS: names of services, endpoints and pods as the Kubernetes DNS specification 1.1.0 has them; everything else is
//! forwarded to the node's resolvers.
//!
//! - [`records`] turns a Service and its EndpointSlices into [`records::ServiceRecords`]; pure.
//! - [`zone`] answers a question from all of them; pure.
//! - [`message`] turns the bytes of a query into the bytes of a response, or into a query to forward; pure.
//! - [`forward`] and [`cache`] ask other resolvers and keep their answers; [`resolv_conf`] says which resolvers there are.
//! - [`server`] has the sockets; [`feed`] keeps the zone as new as the API, and [`customization`] which resolvers are asked.
//!
//! Invariants:
//! - A query is answered from one [`zone::Zone`], which never changes; a change of the cluster publishes another one.
//! - A name below the cluster's domain is never forwarded.
//! - Queries under way, connections and cached answers are bounded; beyond the bound a query is refused, not queued.

pub mod cache;
pub mod customization;
pub mod feed;
pub mod forward;
pub mod message;
pub mod metrics;
pub mod records;
pub mod resolv_conf;
pub mod server;
pub mod zone;

/// Where cluster DNS listens on its nodes; the `kube-dns` service leads there. Port 53 of a machine is often taken.
pub const PORT: u16 = 10053;
/// The annotation by which a Node says that its machine serves cluster DNS; its value is `true`.
pub const SERVED_ANNOTATION: &str = "kaji.dev/cluster-dns";
