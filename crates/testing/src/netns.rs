//! Network namespaces for tests: made by the `ip` program, entered by threads made for it, deleted when dropped.

use crate::skip::skipped;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network namespace with its loopback interface up. Deleted when dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// A new namespace; `None` where this process may not make one or there is no `ip`, and the test `name` counts as
    /// skipped then.
    pub fn new(name: &str) -> Option<Netns> {
        let unique = format!("kj{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        match Command::new("ip").args(["netns", "add", &unique]).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                skipped(name, String::from_utf8_lossy(&output.stderr).trim());
                return None;
            }
            Err(error) => {
                skipped(name, &format!("ip: {error}"));
                return None;
            }
        }
        let namespace = Netns { name: unique };
        namespace.ip("link set lo up");
        Some(namespace)
    }

    /// Its name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is pinned.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/var/run/netns").join(&self.name)
    }

    /// Runs `ip` with these arguments in it and returns the output; a failure is a panic.
    pub fn ip(&self, arguments: &str) -> String {
        let output = Command::new("ip").args(["-n", &self.name]).args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `work` in it, on a thread of its own. Sockets that it opens stay in the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(self.path()).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a TCP server in it that answers each connection with its name and the client's address, until the process ends.
    pub fn serve(&self, port: u16, name: &'static str) {
        let listener = self.run(|| TcpListener::bind(("::", port)).unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let Ok(client) = stream.peer_addr() else { continue };
                // A client that is gone is no failure of the server.
                let _ = write!(stream, "{name} {}", client.ip().to_canonical());
            }
        });
    }

    /// What the TCP server at an address says to a client in this namespace.
    pub fn ask(&self, address: IpAddr, port: u16) -> Result<String, ErrorKind> {
        self.run(|| {
            // Longer than the first retransmission.
            let timeout = Duration::from_millis(1500);
            let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), timeout)
                .map_err(|error| error.kind())?;
            stream.set_read_timeout(Some(timeout)).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).map_err(|error| error.kind())?;
            Ok(text)
        })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).output();
    }
}
