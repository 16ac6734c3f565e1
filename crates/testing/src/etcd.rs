//! An etcd of a test: a process on the loopback with a directory of its own, which ends with the test.

use crate::{ports, skip};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Names the program, if it is not the one in the PATH.
const VARIABLE: &str = "KAJI_ETCD";

/// A running etcd, of one member.
pub struct Etcd {
    program: PathBuf,
    flags: Vec<String>,
    scheme: &'static str,
    child: Option<Child>,
    port: u16,
    peer_port: u16,
    dir: tempfile::TempDir,
}

impl Etcd {
    /// Starts one. `None`, with a note under the name `etcd`, where the program is missing.
    pub fn start(test: &str) -> Option<Etcd> {
        Etcd::with(test, "http", vec![])
    }

    /// Starts one with further flags, for clients that use `http` or `https`.
    pub fn with(test: &str, scheme: &'static str, flags: Vec<String>) -> Option<Etcd> {
        let named = std::env::var_os(VARIABLE).map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let in_path = || std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|file| file.is_file());
        let Some(program) = named.or_else(in_path) else {
            skip::skipped("etcd", &format!("{test}: there is no etcd in the PATH"));
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let (port, peer_port) = (ports::outside_ephemeral_range(), ports::outside_ephemeral_range());
        let mut etcd = Etcd { program, flags, scheme, child: None, port, peer_port, dir };
        etcd.run();
        Some(etcd)
    }

    /// Starts the process, after a kill on the same data.
    pub fn run(&mut self) {
        let client = self.url();
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new(&self.program);
        command
            .args(["--name", "m", "--log-level", "error", "--unsafe-no-fsync"])
            .args(["--heartbeat-interval", "5", "--election-timeout", "50", "--max-txn-ops", "2048"])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .arg("--initial-cluster")
            .arg(format!("m={peer}"))
            .arg("--data-dir")
            .arg(self.dir.path().join("data"))
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "etcd does not listen");
            std::thread::yield_now();
        }
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Where clients connect to.
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// The directory, which ends with this.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
