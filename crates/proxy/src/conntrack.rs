//! Connections of UDP and SCTP that lead to endpoints which do not serve any more.

use crate::service::Tracked;
use kaji_netfilter::{
    Family, NetlinkError,
    conntrack::{Conntrack, Flow},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Whether a connection goes to a tracked destination, and was not translated to an endpoint that serves. A service without
/// endpoints keeps its connections, as upstream's does.
pub fn stale(flow: &Flow, tracked: &Tracked) -> bool {
    let to = flow.original.destination;
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let find = |ip| tracked.destinations.get(&(flow.original.protocol, SocketAddr::new(ip, to.port())));
    let endpoints = find(to.ip()).or_else(|| find(any));
    endpoints.is_some_and(|serving| !serving.is_empty() && !serving.contains(&flow.reply.source))
}

/// Forgets them.
pub fn clean(conntrack: &mut Conntrack, tracked: &Tracked) -> Result<usize, NetlinkError> {
    let mut count = 0;
    for family in [Family::V4, Family::V6] {
        if tracked.destinations.keys().any(|(_, to)| Family::of(to.ip()) == family) {
            let flows = conntrack.flows(family, |flow| stale(flow, tracked))?;
            conntrack.delete(&flows)?;
            count += flows.len();
        }
    }
    Ok(count)
}
