//! Addresses and names of a server: where clients reach it, and what its certificate covers.

use crate::Options;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Reserved for documentation (TEST-NET-1): no host has it.
const UNREACHABLE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A range of services that is none.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no service range")]
pub struct InvalidServiceRange(pub String);

/// The first host address of the primary service range, which is the `kubernetes` service's.
pub fn kubernetes_service_ip(cidrs: &[String]) -> Result<IpAddr, InvalidServiceRange> {
    service_ip(cidrs, 1)
}

/// The tenth address of the primary service range, which is that of cluster DNS as kubeadm has it.
pub fn dns_service_ip(cidrs: &[String]) -> Result<IpAddr, InvalidServiceRange> {
    service_ip(cidrs, 10)
}

fn service_ip(cidrs: &[String], offset: u8) -> Result<IpAddr, InvalidServiceRange> {
    let first = cidrs.first().map(String::as_str).unwrap_or_default();
    let bad = || InvalidServiceRange(first.to_owned());
    let base: IpAddr = first.split('/').next().unwrap_or_default().parse().map_err(|_| bad())?;
    Ok(match base {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) + u32::from(offset)).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) + u128::from(offset)).into()),
    })
}

/// The names in the serving certificate: kubeadm's, the listen address, and those of `--tls-san`.
pub fn serving_names(options: &Options, service_ip: IpAddr) -> Vec<String> {
    let domain = options.container_runtime.cluster_domain.as_deref().unwrap_or("cluster.local");
    let mut names: Vec<String> = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        &format!("kubernetes.default.svc.{domain}"),
        "localhost",
        "127.0.0.1",
        "::1",
    ]
    .map(String::from)
    .to_vec();
    names.push(service_ip.to_string());
    // Nodes that join connect to the machine's address.
    let reached = match options.listen {
        listen if listen.ip().is_unspecified() => endpoint_address(options, listen).ip(),
        listen => listen.ip(),
    };
    let reached = [Some(reached), options.advertise_address].into_iter().flatten();
    names.extend(reached.filter(|address| *address != UNREACHABLE).map(|address| address.to_string()));
    names.extend(options.names.iter().cloned());
    names.dedup();
    names
}

/// An address that local clients can connect to: the loopback where the server listens on all addresses.
pub fn client_address(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()))
    } else {
        address
    }
}

/// The address at which other machines and pods find the keys of tokens: upstream's external host. A server on the loopback has
/// no other clients than those on it.
pub fn external_address(options: &Options, address: SocketAddr) -> SocketAddr {
    if options.advertise_address.is_none() && address.ip().is_loopback() {
        return address;
    }
    endpoint_address(options, address)
}

/// The address in the endpoints of the `kubernetes` service. The API allows no loopback address there: a server on the
/// loopback names the machine's address, found by routing a datagram that is never sent, or without one an address that is
/// reserved for documentation, since simulated pods do not connect.
pub fn endpoint_address(options: &Options, address: SocketAddr) -> SocketAddr {
    if let Some(advertised) = options.advertise_address {
        return SocketAddr::new(advertised, address.port());
    }
    if !address.ip().is_loopback() && !address.ip().is_unspecified() {
        return address;
    }
    let routed = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect((UNREACHABLE, 9)).and_then(|()| socket.local_addr()))
        .map(|local| local.ip())
        .ok()
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified());
    SocketAddr::new(routed.unwrap_or(UNREACHABLE), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_tokens_are_found_where_clients_can_connect() {
        let external = |listen: &str, advertised: Option<&str>| {
            let options = Options {
                advertise_address: advertised.map(|ip| ip.parse().unwrap()),
                ..Options::new(std::path::PathBuf::new())
            };
            external_address(&options, listen.parse().unwrap()).to_string()
        };
        assert_eq!(external("127.0.0.1:6443", None), "127.0.0.1:6443");
        assert_eq!(external("192.0.2.7:6443", None), "192.0.2.7:6443");
        assert_eq!(external("0.0.0.0:6443", Some("192.0.2.9")), "192.0.2.9:6443");
        assert!(!external("0.0.0.0:6443", None).starts_with("127."));
    }
}
