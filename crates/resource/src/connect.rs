//! Subresources that connect the client to another server: which server, how it is trusted, and what is asked of it.
//!
//! Invariants:
//! - Paths and queries here come from what was authorized and admitted. Only the query of a proxied request, which nothing in
//!   this server reads, is passed on as the client sent it.
//! - Nothing is connected here: the HTTP edge does that, with its own certificates.

use serde_json::Value;
use std::net::IpAddr;

/// What such a subresource carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// The other server's body, read by GET (`log`). No admission.
    Body,
    /// A connection on which both sides agree on another protocol (`exec`). Always needs the right to create.
    Upgrade,
    /// Whole HTTP requests of any method (`proxy`), upgrades among them.
    Requests,
}

/// A request for such a subresource, past admission.
pub struct ConnectRequest<'a> {
    /// The options that the query, or the rest of the path, asks for, as plugins have left them; the query itself is in
    /// `query` where the subresource has no options kind.
    pub options: &'a Value,
    /// The parameters of the query.
    pub query: &'a kaji_meta::Query,
}

/// Where the other server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address.
    Address(String),
    /// One of the addresses of an object: their types (`InternalIP`, `Hostname`, …) and the addresses themselves, host
    /// names among them. The edge chooses by its configuration.
    AnyOf(Vec<(String, String)>),
}

/// How the other server is reached and trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// HTTP.
    Plain,
    /// HTTPS with any certificate, and none of this server.
    Unverified,
    /// HTTPS with this server's client certificate for the cluster's nodes.
    Mutual {
        /// The other server's certificate must be by the authority of the cluster's nodes.
        verify: bool,
    },
}

/// The query of what is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocationQuery {
    /// The client's own.
    AsReceived,
    /// These pairs.
    Pairs(Vec<(&'static str, String)>),
}

/// What to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Where.
    pub host: Host,
    /// The port there.
    pub port: u16,
    /// How.
    pub security: Security,
    /// The path, not escaped; empty only for the root of a proxy without a slash.
    pub path: String,
    /// The query.
    pub query: LocationQuery,
    /// Whether addresses that lead back to this machine or its link are refused: clients could choose them.
    pub global_only: bool,
}

/// What a connect hook has found: what its subresource carries, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// What is carried.
    pub carries: Carries,
    /// `None` when there is nothing to read yet.
    pub location: Option<Location>,
}

/// As Go's `IP.IsGlobalUnicast`: private addresses too, but neither the machine's own nor its link's, nor multicast.
pub fn is_global_unicast(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_broadcast()
                || ip.is_unspecified()
                || ip.is_loopback()
                || ip.is_multicast()
                || ip.is_link_local())
        }
        IpAddr::V6(ip) => {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_unicast_link_local())
        }
    }
}
