//! `/etc/resolv.conf` (resolv.conf(5)): the resolvers of a node. Pure, but for [`read`].

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// A port for resolvers that name none.
const DNS_PORT: u16 = 53;
/// As many as glibc reads.
const MAX_NAME_SERVERS: usize = 3;

/// What a resolver configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// Resolvers, in order.
    pub name_servers: Vec<SocketAddr>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options, as written.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Reads a configuration; lines that cannot be read are left out, as glibc leaves them out.
    #[must_use]
    pub fn parse(text: &str) -> ResolvConf {
        let mut conf = ResolvConf::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    // The scope of a link-local address names an interface of the node.
                    let address = words.next().and_then(|w| w.split('%').next()?.parse::<IpAddr>().ok());
                    conf.name_servers.extend(address.map(|a| SocketAddr::new(a, DNS_PORT)));
                }
                // The last one counts.
                Some("search" | "domain") => conf.searches = words.map(str::to_owned).collect(),
                Some("options") => conf.options.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        conf.name_servers.truncate(MAX_NAME_SERVERS);
        conf
    }
}

/// Reads a file. Without it there are no resolvers.
///
/// # Errors
/// Those of reading a file that exists.
pub fn read(path: &Path) -> std::io::Result<ResolvConf> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(ResolvConf::parse(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(ResolvConf::default()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_servers_searches_and_options() {
        let conf = ResolvConf::parse(
            "# made by hand\nnameserver 192.0.2.1\nnameserver fe80::1%eth0 ; comment\nnameserver nonsense\nsearch a.example\n\
             search b.example c.example\noptions ndots:2 edns0\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n",
        );
        expect_test::expect![[r#"
            ResolvConf {
                name_servers: [
                    192.0.2.1:53,
                    [fe80::1]:53,
                    192.0.2.3:53,
                ],
                searches: [
                    "b.example",
                    "c.example",
                ],
                options: [
                    "ndots:2",
                    "edns0",
                ],
            }
        "#]]
        .assert_debug_eq(&conf);
    }
}
