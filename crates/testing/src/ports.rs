//! A port for a server that is killed and started again on the same one.
//!
//! Invariant: the port is not one that the kernel gives to outgoing connections. While the server is down, clients that
//! reconnect could otherwise be given the server's port as their source, even connect to themselves, and the next start would
//! find it in use. No port is given twice by a process: one that is given is bound only later.

use std::{
    collections::HashSet,
    net::TcpListener,
    sync::{LazyLock, Mutex, PoisonError},
};

static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A free port of the loopback below the range of ephemeral ports.
pub fn outside_ephemeral_range() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|first| first.parse::<u16>().ok()).unwrap_or(32768);
    let candidates = first.saturating_sub(10_000).max(1_000);
    loop {
        let port = 10_000 + rand::random_range(0..candidates);
        let is_new = GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port);
        if is_new && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_port_is_given_twice() {
        let ports: std::collections::HashSet<u16> =
            (0..2000).map(|_| super::outside_ephemeral_range()).collect();
        assert_eq!(ports.len(), 2000);
    }
}
