//! `/etc/resolv.conf` (resolv.conf(5)): the resolvers of a node, read anew when the file has changed.
//!
//! Invariants: whatever asks gets what the file says at that moment, without a wait; a file that cannot be read changes nothing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The node's own resolvers.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The resolvers that systemd-resolved asks: where `/etc/resolv.conf` names only systemd-resolved itself, kubeadm gives kubelets this file.
pub const SYSTEMD_RESOLVED: &str = "/run/systemd/resolve/resolv.conf";
/// Where systemd-resolved listens, on the loopback of the machine: no pod reaches it.
const STUBS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 54))];

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

/// What distinguishes versions of a file without reading it: inode, modification time, length.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stamp(Option<(u64, Option<SystemTime>, u64)>);

impl Stamp {
    fn of(path: &Path) -> Stamp {
        use std::os::unix::fs::MetadataExt;
        // Of the file that a link leads to.
        Stamp(std::fs::metadata(path).ok().map(|found| (found.ino(), found.modified().ok(), found.len())))
    }
}

#[derive(Debug, Default)]
struct Known {
    stamps: Option<Vec<Stamp>>,
    conf: Arc<ResolvConf>,
}

/// The resolvers of a node.
#[derive(Debug, Default)]
pub struct NodeResolvers {
    /// The file, and the one that stands for it if it names only systemd-resolved.
    files: Vec<PathBuf>,
    known: Mutex<Known>,
}

impl NodeResolvers {
    /// Those of a file. `None` is the machine's own one, as kubeadm chooses it; an empty path is no file and no resolvers.
    #[must_use]
    pub fn new(file: Option<&Path>) -> NodeResolvers {
        match file {
            None => NodeResolvers::of(vec![RESOLV_CONF.into(), SYSTEMD_RESOLVED.into()]),
            Some(path) if path.as_os_str().is_empty() => NodeResolvers::default(),
            Some(path) => NodeResolvers::of(vec![path.to_owned()]),
        }
    }

    fn of(files: Vec<PathBuf>) -> NodeResolvers {
        NodeResolvers { files, known: Mutex::default() }
    }

    /// What the file says. It is read if it is another one than the last time; that costs a system call or two otherwise.
    pub fn present(&self) -> Arc<ResolvConf> {
        let stamps: Vec<Stamp> = self.files.iter().map(|path| Stamp::of(path)).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.stamps.as_ref() != Some(&stamps) {
            match self.read() {
                Ok(conf) => known.conf = Arc::new(conf),
                Err(error) => {
                    tracing::warn!(%error, files = ?self.files, "the node's resolvers cannot be read")
                }
            }
            known.stamps = Some(stamps);
        }
        known.conf.clone()
    }

    fn read(&self) -> std::io::Result<ResolvConf> {
        let mut files = self.files.iter();
        let Some(file) = files.next() else { return Ok(ResolvConf::default()) };
        let conf = read(file)?;
        let is_stub = |server: &SocketAddr| STUBS.contains(&server.ip());
        if let Some(systemd) = files.next()
            && conf.name_servers.iter().all(is_stub)
            && !conf.name_servers.is_empty()
        {
            let behind = read(systemd)?;
            if !behind.name_servers.is_empty() {
                return Ok(behind);
            }
        }
        Ok(conf)
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

    fn servers(resolvers: &NodeResolvers) -> Vec<String> {
        resolvers.present().name_servers.iter().map(|server| server.ip().to_string()).collect()
    }

    #[test]
    fn a_file_that_changed_is_read_anew_and_one_that_is_broken_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("resolv.conf");
        let resolvers = NodeResolvers::new(Some(&file));
        assert!(servers(&resolvers).is_empty());
        std::fs::write(&file, "nameserver 192.0.2.1\n").unwrap();
        assert_eq!(servers(&resolvers), ["192.0.2.1"]);
        // As resolvconf and NetworkManager replace it.
        let next = directory.path().join("next");
        std::fs::write(&next, "nameserver 192.0.2.2\n").unwrap();
        std::fs::rename(&next, &file).unwrap();
        assert_eq!(servers(&resolvers), ["192.0.2.2"]);
        std::fs::write(&file, b"nameserver \xff\n").unwrap();
        assert_eq!(servers(&resolvers), ["192.0.2.2"]);
        assert!(servers(&NodeResolvers::new(Some(Path::new("")))).is_empty());
    }

    #[test]
    fn systemd_resolved_itself_is_replaced_by_those_that_it_asks() {
        let directory = tempfile::tempdir().unwrap();
        let (file, systemd) = (directory.path().join("resolv.conf"), directory.path().join("systemd"));
        let resolvers = NodeResolvers::of(vec![file.clone(), systemd.clone()]);
        std::fs::write(&file, "nameserver 127.0.0.53\nsearch a.example\n").unwrap();
        assert_eq!(servers(&resolvers), ["127.0.0.53"], "there are no others yet");
        std::fs::write(&systemd, "nameserver 192.0.2.9\nsearch b.example\n").unwrap();
        assert_eq!(servers(&resolvers), ["192.0.2.9"]);
        assert_eq!(resolvers.present().searches, ["b.example"]);
        std::fs::write(&file, "nameserver 192.0.2.53\n").unwrap();
        assert_eq!(servers(&resolvers), ["192.0.2.53"]);
    }

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
