//! In which network namespace addresses are reached.
//!
//! Without root, pods and their node are in a network namespace that has no way out, and the server is in the machine's. A socket
//! belongs to the namespace of the thread that made it, so a connection is opened by a thread of the side that its address is on.
//!
//! Invariant: the address decides, not the caller: a node's part reaches registries, and the server reaches pods.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::OnceLock,
};
use tokio::{net::TcpStream, runtime::Handle};

/// Two sides of a process.
#[derive(Debug)]
pub struct Networks {
    /// Its threads are in the machine's network namespace.
    pub outside: Handle,
    /// Its threads are in the node's.
    pub inside: Handle,
    /// Network addresses and prefix lengths of what is inside.
    pub ranges: Vec<(IpAddr, u8)>,
}

static NETWORKS: OnceLock<Networks> = OnceLock::new();

impl Networks {
    /// Makes every connection of this process from now on choose its side. The first call counts: a process has one node.
    pub fn divide(self) {
        if NETWORKS.set(self).is_err() {
            tracing::debug!("the networks of this process are divided already");
        }
    }

    fn side(&self, address: IpAddr) -> &Handle {
        let inside = self.ranges.iter().any(|(network, length)| is_in(address, *network, *length));
        if inside { &self.inside } else { &self.outside }
    }
}

/// Whether the first `length` bits are those of the network's address.
fn is_in(address: IpAddr, network: IpAddr, length: u8) -> bool {
    let length = u32::from(length);
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let shift = 32_u32.saturating_sub(length);
            (u32::from(a) ^ u32::from(b)).checked_shr(shift).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let shift = 128_u32.saturating_sub(length);
            (u128::from(a) ^ u128::from(b)).checked_shr(shift).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// Opens a connection, from the network namespace in which the address is.
///
/// # Errors
/// Those of the system.
pub async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    match NETWORKS.get() {
        None => TcpStream::connect(address).await,
        Some(networks) => {
            let connecting = networks.side(address.ip()).spawn(TcpStream::connect(address));
            connecting.await.map_err(io::Error::other)?
        }
    }
}

/// The addresses of a host name, by the machine's resolver.
///
/// # Errors
/// Those of the resolver.
pub async fn lookup_host(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match NETWORKS.get() {
        None => Ok(tokio::net::lookup_host((host, port)).await?.collect()),
        Some(networks) => {
            let host = host.to_owned();
            let found = networks.outside.spawn(async move {
                tokio::net::lookup_host((host.as_str(), port)).await.map(Iterator::collect::<Vec<_>>)
            });
            found.await.map_err(io::Error::other)?
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_ranges() {
        let inside = |address: &str, network: &str, length| {
            is_in(address.parse().unwrap(), network.parse().unwrap(), length)
        };
        assert!(inside("10.224.3.4", "10.224.0.0", 11) && inside("10.255.255.255", "10.224.0.0", 11));
        assert!(!inside("10.223.255.255", "10.224.0.0", 11) && !inside("fd00::1", "10.224.0.0", 11));
        assert!(inside("fd00::1", "fd00::", 112) && !inside("fd00::1:1", "fd00::", 112));
        assert!(inside("192.0.2.1", "0.0.0.0", 0) && !inside("192.0.2.1", "192.0.2.2", 32));
    }

    #[tokio::test]
    async fn each_side_connects_with_its_own_threads() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("inside").enable_all().build().unwrap();
        let networks = Networks {
            outside: Handle::current(),
            inside: runtime.handle().clone(),
            ranges: vec![(address.ip(), 32)],
        };
        let thread = async |address| {
            let named = async { std::thread::current().name().map(str::to_owned) };
            networks.side(address).spawn(named).await.unwrap()
        };
        assert_eq!(thread(address.ip()).await.as_deref(), Some("inside"));
        assert_ne!(thread("192.0.2.1".parse().unwrap()).await.as_deref(), Some("inside"));
        let stream = networks.side(address.ip()).spawn(TcpStream::connect(address)).await.unwrap().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        drop(stream);
        runtime.shutdown_background();
    }
}
