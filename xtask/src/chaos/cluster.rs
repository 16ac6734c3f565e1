//! The processes of a run: API servers, and members of etcd. Everything is below one directory and on the loopback.
//!
//! Invariants: a process that was started here is ended here, by its own id, in whatever way the run ends; processes that are
//! started again have the same data, address and flags.

use crate::bench::{
    Error,
    client::{Call, Client, Target},
    kubeconfig,
};
use std::{
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// How long a process may take until it answers.
const START: Duration = Duration::from_secs(60);
/// How often that is tried.
const PAUSE: Duration = Duration::from_millis(50);

/// A process that can be ended and started again.
pub struct Process {
    /// For messages.
    pub name: String,
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    fn new(name: &str, program: &Path, args: Vec<String>, dir: &Path) -> Process {
        let log = dir.join(format!("{name}.log"));
        Process { name: name.into(), program: program.into(), args, log, child: None }
    }

    /// Starts it, with its output behind that of its former lives.
    pub fn start(&mut self) -> Result<(), Error> {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.map_err(|e| Error::file(&self.log, e))?;
        let errors = log.try_clone().map_err(|e| Error::file(&self.log, e))?;
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_remove("KUBECONFIG").stdin(Stdio::null()).stdout(log).stderr(errors);
        self.child = Some(command.spawn().map_err(|e| Error::file(&self.program, e))?);
        Ok(())
    }

    /// Ends it without notice.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // One that has ended by itself cannot be killed.
            let _ended = child.kill();
            let _collected = child.wait();
        }
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    /// Stops it where it is, or lets it go on.
    pub fn signal(&self, signal: &str) {
        if let Some(child) = &self.child {
            let _ended = Command::new("kill").args([signal, &child.id().to_string()]).status();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Which store the servers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Store {
    /// In the data directory of one server.
    Embedded,
    /// In etcd, for several servers.
    Etcd,
}

/// All processes.
pub struct Cluster {
    /// API servers.
    pub servers: Vec<Process>,
    /// Where each is reached.
    pub targets: Vec<Arc<Target>>,
    /// Members of etcd.
    pub members: Vec<Process>,
    /// Their URLs.
    urls: String,
}

/// A port of the loopback that is free now.
fn port() -> Result<u16, Error> {
    // Below the range from which clients get theirs.
    let begin = 18_000 + u16::try_from(std::process::id() % 8_000).unwrap_or(0);
    static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    for _ in 0..1000 {
        let port = begin + NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::Server("no port is free".into()))
}

fn members(etcd: &Path, dir: &Path, count: usize) -> Result<(Vec<Process>, String), Error> {
    let ports: Vec<(u16, u16)> = (0..count).map(|_| Ok((port()?, port()?))).collect::<Result<_, Error>>()?;
    let initial: Vec<String> =
        ports.iter().enumerate().map(|(i, (_, peer))| format!("m{i}=http://127.0.0.1:{peer}")).collect();
    let urls: Vec<String> = ports.iter().map(|(client, _)| format!("http://127.0.0.1:{client}")).collect();
    let processes = ports.iter().enumerate().map(|(i, (client, peer))| {
        let name = format!("m{i}");
        let data = dir.join(&name).display().to_string();
        let client = format!("http://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        let args = [
            ["--name", &name],
            ["--data-dir", &data],
            ["--log-level", "warn"],
            ["--listen-client-urls", &client],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", &peer],
            ["--initial-advertise-peer-urls", &peer],
            ["--initial-cluster", &initial.join(",")],
        ];
        Process::new(&name, etcd, args.concat().into_iter().map(str::to_owned).collect(), dir)
    });
    Ok((processes.collect(), urls.join(",")))
}

impl Cluster {
    /// Starts everything, and waits until it answers.
    pub async fn start(
        (kaji, etcd): (&Path, &Path),
        dir: &Path,
        store: Store,
        (servers, member_count): (usize, usize),
    ) -> Result<Cluster, Error> {
        let (mut etcds, urls) = match store {
            Store::Embedded => (vec![], String::new()),
            Store::Etcd => members(etcd, dir, member_count)?,
        };
        etcds.iter_mut().try_for_each(Process::start)?;
        let mut cluster = Cluster { servers: vec![], targets: vec![], members: etcds, urls: urls.clone() };
        for i in 0..servers {
            let (name, data) = (format!("s{i}"), dir.join(format!("d{i}")));
            let config = dir.join(format!("{name}.kubeconfig"));
            let (data_text, config_text) = (data.display().to_string(), config.display().to_string());
            let (port, address) = (port()?.to_string(), format!("10.9.0.{}", i + 1));
            let mut args =
                vec!["apiserver", "--data-dir", &data_text, "--port", &port, "--kubeconfig", &config_text];
            if store == Store::Etcd {
                args.extend(["--etcd-servers", &urls, "--advertise-address", &address]);
            }
            if i > 0 {
                copy(&dir.join("d0/pki"), &data.join("pki"))?;
            }
            let mut process = Process::new(&name, kaji, args.into_iter().map(str::to_owned).collect(), dir);
            process.start()?;
            let begun = Instant::now();
            while !config.exists() {
                if process.has_ended() || begun.elapsed() > START {
                    return Err(Error::Server(format!(
                        "{name} does not start; see {}",
                        process.log.display()
                    )));
                }
                sleep(PAUSE).await;
            }
            let target = Arc::new(kubeconfig::load(&config)?);
            cluster.servers.push(process);
            cluster.targets.push(target);
            cluster.ready(i).await?;
        }
        Ok(cluster)
    }

    /// Gives up the history of etcd, as a compaction would after a while. In vain while etcd is away.
    pub fn compact(&self, etcdctl: &Path) -> Result<(), Error> {
        let run = |args: &[&str]| {
            let mut command = Command::new(etcdctl);
            command
                .env("ETCDCTL_API", "3")
                .args(["--endpoints", &self.urls, "--command-timeout", "3s"])
                .args(args);
            command.output().map_err(|e| Error::file(etcdctl, e))
        };
        let status = run(&["get", "/registry/health", "--write-out", "json"])?;
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        if let Some(revision) = status["header"]["revision"].as_u64() {
            run(&["compact", &revision.to_string()])?;
        }
        Ok(())
    }

    /// Waits until a server is ready.
    pub async fn ready(&mut self, server: usize) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            let mut client = Client::new(&self.targets[server]).limited(Duration::from_secs(5));
            match client.call(&Call::get("/readyz")).await {
                Ok(_) => return Ok(()),
                Err(error) if begun.elapsed() > START => {
                    let name = &self.servers[server].name;
                    return Err(Error::Server(format!("{name} is not ready after {START:?}: {error}")));
                }
                Err(_) => sleep(PAUSE).await,
            }
            if self.servers[server].has_ended() {
                let process = &self.servers[server];
                return Err(Error::Server(format!(
                    "{} has ended by itself; see {}",
                    process.name,
                    process.log.display()
                )));
            }
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(|e| Error::file(to, e))?;
    for entry in fs::read_dir(from).map_err(|e| Error::file(from, e))? {
        let entry = entry.map_err(|e| Error::file(from, e))?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).map_err(|e| Error::file(&target, e))?;
        }
    }
    Ok(())
}
