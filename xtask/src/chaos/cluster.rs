//! The processes of a run: API servers, members of etcd, and the network between them. Everything is below one directory and on the
//! loopback.
//!
//! Invariants: a process that was started here is ended here, by its own id, in whatever way the run ends; processes that are
//! started again have the same data, address and flags.

use super::{
    agreement,
    disks::Disk,
    leaders,
    network::{Network, Node},
    terms,
};
use crate::bench::{
    Error,
    client::{Call, Client, Target},
    kubeconfig,
};
use std::{
    fs::{self, File},
    io::Write,
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
    /// It reads orders from its standard input.
    obeys: bool,
}

impl Process {
    fn new(name: &str, program: &Path, args: Vec<String>, dir: &Path) -> Process {
        let log = dir.join(format!("{name}.log"));
        Process { name: name.into(), program: program.into(), args, log, child: None, obeys: false }
    }

    /// Starts it, with its output behind that of its former lives.
    pub fn start(&mut self) -> Result<(), Error> {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.map_err(|e| Error::file(&self.log, e))?;
        let errors = log.try_clone().map_err(|e| Error::file(&self.log, e))?;
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_remove("KUBECONFIG").stdout(log).stderr(errors);
        command.env("KAJI_LOG", leaders::LOG);
        command.stdin(if self.obeys { Stdio::piped() } else { Stdio::null() });
        self.child = Some(command.spawn().map_err(|e| Error::file(&self.program, e))?);
        Ok(())
    }

    /// Gives it an order, which is lost if it does not run.
    pub fn order(&mut self, order: &str) {
        if let Some(stdin) = self.child.as_mut().and_then(|child| child.stdin.as_mut()) {
            let _ended = stdin.write_all(format!("{order}\n").as_bytes());
        }
    }

    /// Waits until it has ended by itself, and kills it if it does not.
    pub async fn end(&mut self, time: Duration) {
        let begun = Instant::now();
        while !self.has_ended() && begun.elapsed() < time {
            sleep(PAUSE).await;
        }
        self.kill();
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

impl Store {
    /// As `--store` has it.
    pub fn name(self) -> &'static str {
        match self {
            Store::Embedded => "embedded",
            Store::Etcd => "etcd",
        }
    }
}

/// All processes.
pub struct Cluster {
    /// API servers.
    pub servers: Vec<Process>,
    /// Where clients reach each.
    pub targets: Vec<Arc<Target>>,
    /// Where each is reached without a network between.
    direct: Vec<Arc<Target>>,
    /// Members of etcd.
    pub members: Vec<Process>,
    /// Their disks, where they have disks of their own. After the members: those end first.
    pub disks: Vec<Disk>,
    /// Their URLs.
    urls: String,
    /// What lies between clients, servers and members.
    pub network: Network,
}

/// A port of the loopback that is free now.
fn port() -> Result<u16, Error> {
    // Below the range from which clients get theirs; runs that begin one after the other have a hundred each.
    let begin = 18_000 + u16::try_from(std::process::id() % 80).unwrap_or(0) * 100;
    static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    for _ in 0..1000 {
        let port = begin + NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::Server("no port is free".into()))
}

/// Members of etcd, which reach each other through the network, and the ports of their clients.
async fn members(
    etcd: &Path,
    dir: &Path,
    count: usize,
    network: &mut Network,
) -> Result<(Vec<Process>, Vec<u16>), Error> {
    let ports: Vec<[u16; 3]> =
        (0..count).map(|_| Ok([port()?, port()?, port()?])).collect::<Result<_, Error>>()?;
    let initial: Vec<String> =
        ports.iter().enumerate().map(|(i, [.., proxy])| format!("m{i}=http://127.0.0.1:{proxy}")).collect();
    let mut processes = vec![];
    for (i, [client, peer, proxy]) in ports.iter().enumerate() {
        network.proxy(*proxy, (None, Node::Member(i)), *peer).await?;
        let name = format!("m{i}");
        let data = dir.join(&name).join("data").display().to_string();
        let [client, peer, proxy] = [client, peer, proxy].map(|port| format!("http://127.0.0.1:{port}"));
        let args = [
            ["--name", &name],
            ["--data-dir", &data],
            ["--log-level", "warn"],
            ["--listen-client-urls", &client],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", &peer],
            ["--initial-advertise-peer-urls", &proxy],
            ["--initial-cluster", &initial.join(",")],
        ];
        processes.push(Process::new(
            &name,
            etcd,
            args.concat().into_iter().map(str::to_owned).collect(),
            dir,
        ));
    }
    Ok((processes, ports.iter().map(|[client, ..]| *client).collect()))
}

fn urls(ports: &[u16]) -> String {
    let urls: Vec<String> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
    urls.join(",")
}

/// What a run consists of.
pub struct Plan<'a> {
    /// The program of servers, etcd, and its client.
    pub programs: (&'a Path, &'a Path, &'a Path),
    /// Whether servers obey orders.
    pub obeys: bool,
    /// Whether members have disks of their own.
    pub member_disks: bool,
    /// Where everything is.
    pub dir: &'a Path,
    /// Which store the servers have.
    pub store: Store,
    /// Servers, and members of etcd.
    pub counts: (usize, usize),
}

impl Cluster {
    /// Starts everything, and waits until it answers.
    pub async fn start(plan: &Plan<'_>) -> Result<Cluster, Error> {
        let ((_, etcd, etcdctl), (servers, count)) = (plan.programs, plan.counts);
        let mut network = Network::new();
        let (mut etcds, ports) = match plan.store {
            Store::Embedded => (vec![], vec![]),
            Store::Etcd => members(etcd, plan.dir, count, &mut network).await?,
        };
        let made = etcds.iter().filter(|_| plan.member_disks).map(|etcd| Disk::make(plan.dir, &etcd.name));
        let disks = made.collect::<Result<Vec<_>, Error>>()?;
        etcds.iter_mut().try_for_each(Process::start)?;
        let (targets, direct) = (vec![], vec![]);
        let mut cluster =
            Cluster { servers: vec![], targets, direct, members: etcds, disks, urls: urls(&ports), network };
        for i in 0..servers {
            cluster.add_server(plan, i, &ports).await?;
        }
        if plan.store == Store::Etcd {
            cluster.name_members(etcdctl)?;
        }
        Ok(cluster)
    }

    /// Starts a server that reaches each member, and is reached, through the network.
    async fn add_server(&mut self, plan: &Plan<'_>, i: usize, members: &[u16]) -> Result<(), Error> {
        let (kaji, ..) = plan.programs;
        let (name, data) = (format!("s{i}"), plan.dir.join(format!("d{i}")));
        let config = plan.dir.join(format!("{name}.kubeconfig"));
        let (data_text, config_text) = (data.display().to_string(), config.display().to_string());
        let (own, proxied, address) = (port()?, port()?, format!("10.9.0.{}", i + 1));
        let mut ways = vec![];
        for (member, target) in members.iter().enumerate() {
            let way = port()?;
            self.network.proxy(way, (Some(Node::Server(i)), Node::Member(member)), *target).await?;
            ways.push(way);
        }
        let (own_text, urls) = (own.to_string(), urls(&ways));
        let mut args =
            vec!["apiserver", "--data-dir", &data_text, "--port", &own_text, "--kubeconfig", &config_text];
        args.extend(["--controllers", "resourcequota-controller,disruption-controller"]);
        if plan.store == Store::Etcd {
            args.extend(["--etcd-servers", &urls, "--advertise-address", &address]);
        }
        if i > 0 {
            copy(&plan.dir.join("d0/pki"), &data.join("pki"))?;
        }
        let mut args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        if plan.store == Store::Etcd {
            args.extend(terms::flags(plan.dir, i)?);
        }
        let mut process = Process::new(&name, kaji, args, plan.dir);
        process.obeys = plan.obeys;
        process.start()?;
        let begun = Instant::now();
        while !config.exists() {
            if process.has_ended() || begun.elapsed() > START {
                let log = process.log.display();
                return Err(Error::Server(format!("{name} does not start; see {log}")));
            }
            sleep(PAUSE).await;
        }
        self.network.proxy(proxied, (Some(Node::Clients), Node::Server(i)), own).await?;
        let (direct, mut target) = (kubeconfig::load(&config)?, kubeconfig::load(&config)?);
        target.address = format!("127.0.0.1:{proxied}");
        self.servers.push(process);
        self.targets.push(Arc::new(target));
        self.direct.push(Arc::new(direct));
        self.ready(i).await
    }

    /// Tells the network the ids of the members of etcd.
    fn name_members(&self, etcdctl: &Path) -> Result<(), Error> {
        let listed = self.ctl(etcdctl, &["member", "list"])?;
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            // id, started, name, peer URLs, client URLs, learner
            let fields: Vec<&str> = line.split(", ").collect();
            if let [id, _, name, ..] = fields[..]
                && let Some(member) = self.members.iter().position(|member| member.name == name)
            {
                self.network.name_member(id, member);
            }
        }
        Ok(())
    }

    /// Runs etcd's client.
    fn ctl(&self, etcdctl: &Path, args: &[&str]) -> Result<std::process::Output, Error> {
        let mut command = Command::new(etcdctl);
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.urls, "--command-timeout", "3s"])
            .args(args);
        command.output().map_err(|e| Error::file(etcdctl, e))
    }

    /// Gives up the history of etcd, as a compaction would after a while. In vain while etcd is away.
    pub fn compact(&self, etcdctl: &Path) -> Result<(), Error> {
        let status = self.ctl(etcdctl, &["get", "/registry/health", "--write-out", "json"])?;
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        if let Some(revision) = status["header"]["revision"].as_u64() {
            self.ctl(etcdctl, &["compact", &revision.to_string()])?;
        }
        Ok(())
    }

    /// Compares what the members of etcd have. If they differ, etcd has broken its own promise, and what the servers answered says
    /// nothing about them.
    pub async fn compare_members(&self, etcdctl: &Path) -> Result<Option<String>, Error> {
        if self.members.is_empty() {
            return Ok(None);
        }
        let begun = Instant::now();
        loop {
            let status = self.ctl(etcdctl, &["endpoint", "status", "--write-out", "json"])?;
            let hashes = self.ctl(etcdctl, &["endpoint", "hashkv", "--write-out", "json"])?;
            let members = agreement::members(&status.stdout, &hashes.stdout);
            if members.len() == self.members.len() && agreement::agree(&members) {
                return Ok(None);
            }
            if begun.elapsed() > START {
                return Ok(Some(format!(
                    "the members of etcd differ, so that no other violation counts: {members:?}"
                )));
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits until a server is ready.
    pub async fn ready(&mut self, server: usize) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            let mut client = Client::new(&self.direct[server]).limited(Duration::from_secs(5));
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
