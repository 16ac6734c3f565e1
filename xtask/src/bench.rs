//! `cargo xtask bench`: measures any conformant API server from outside, always with the same load.
//!
//! The load generator shares the machine with the server, so it is made to cost little: raw HTTP/1.1 connections, bodies
//! encoded beforehand, answers drained and not parsed. It says how much processor time it took itself.
//!
//! Invariants: everything goes through the public API; every wait is bounded; a phase removes what it made, and one that
//! fails does not keep the others from running; names carry a run's own suffix, so runs do not disturb each other.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::signal::unix::{SignalKind, signal};

mod bindings;
mod bound;
pub(crate) mod client;
mod crds;
mod creates;
mod etcd;
mod fanout;
mod fixture;
mod flood;
mod instructions;
pub(crate) mod kubeconfig;
mod load;
mod measures;
mod node;
mod node_services;
mod objects;
mod overhead;
mod pods;
mod process;
mod report;
mod restart;
mod scheduler;
mod settled;
pub mod start;
mod stats;
mod stream;

use client::{Call, Client, Target};
use process::Server;
use report::{Counts, Phase, Report};

/// How long memory may take to come to rest.
const SETTLE: Duration = Duration::from_secs(15);

/// Arguments of `bench`.
#[derive(clap::Args)]
#[command(
    after_help = "A server that keeps memory once it had it shows cleaner figures phase by phase: --only crds, \
                        --only pods,list and so on, each with a fresh --exec. Build with --release: the generator \
                        shares the processor with the server."
)]
pub struct Args {
    /// The server and the user to measure it as: a cluster administrator.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Starts the server with this command line, measures that, and stops it at the end.
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// A second server on the same machine, for the phase `flood`: what a user notices when the flood goes there is the
    /// load's, and not the server's to mend.
    #[arg(long, value_name = "KUBECONFIG")]
    beside: Option<PathBuf>,
    /// A server that has a node over another container runtime, started after the first has ended: what the phase `node`
    /// is compared with.
    #[arg(long, value_name = "CMD", requires = "exec")]
    beside_exec: Option<String>,
    /// The etcd in which the server has its objects, for the phase `etcd`: the same writes go there without a server.
    #[arg(long, value_name = "URLS")]
    etcd: Option<String>,
    /// Another etcd that no server watches, for the phase `etcd`: the writes without a server go there, since servers would get each of
    /// them as an event.
    #[arg(long, value_name = "URLS", requires = "etcd")]
    etcd_unwatched: Option<String>,
    /// A process of one of those etcds, for their processor time; may be repeated.
    #[arg(long, requires = "etcd")]
    etcd_pid: Vec<u32>,
    /// How many clients write and read in the phase `etcd`.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    etcd_clients: u16,
    /// Another API server on the same etcd, for the phase `etcd`.
    #[arg(long, value_name = "KUBECONFIG", requires = "etcd")]
    beside_kubeconfig: Option<PathBuf>,
    /// Its process, for its processor time.
    #[arg(long, requires = "beside_kubeconfig")]
    beside_pid: Vec<u32>,
    /// A server with the embedded store, for the phase `etcd`: what reads are compared with.
    #[arg(long, value_name = "KUBECONFIG", requires = "etcd")]
    embedded_kubeconfig: Option<PathBuf>,
    /// The directory of the cgroup in which the node and all that it starts run, for the phase `node`.
    #[arg(long, value_name = "DIR")]
    node_cgroup: Option<PathBuf>,
    /// An image on the node that has sh and httpd, for the phase `node`.
    #[arg(long, default_value = "example.com/busybox:1")]
    node_image: String,
    /// A process of the running server, for its memory; may be repeated.
    #[arg(long, conflicts_with = "exec")]
    pid: Vec<u32>,
    /// Phases to run instead of all.
    #[arg(long, value_delimiter = ',', value_name = "PHASE")]
    only: Vec<Step>,
    /// Multiplies all counts.
    #[arg(long, default_value_t = 1.0, value_parser = scale)]
    scale: f64,
    /// Writes the figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The figures of another run (its --json), of another server on this machine: they are compared with, in place of those
    /// that are known beforehand. Figures that depend on a count only if the counts are the same.
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Threads of the load generator.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
}

/// A phase, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Step {
    /// Exec to /readyz; with --exec only.
    Start,
    /// Memory of an idle server.
    Idle,
    /// CustomResourceDefinitions.
    Crds,
    /// Many pods: creation and memory.
    Pods,
    /// Reading single pods.
    Gets,
    /// Listing all pods.
    List,
    /// Latency of creations.
    Serial,
    /// Creations by many clients.
    Creates,
    /// Fan-out of events.
    Watch,
    /// Scheduling.
    Bound,
    /// Scheduling with spreading and affinity on 1,000 and on 5,000 nodes; only when it is named.
    Scheduler,
    /// A Deployment made ready and rolled, on nodes that run pods; only when it is named.
    Deployment,
    /// Processor time of all loops while nothing happens, with the nodes that there are; only when it is named.
    Settled,
    /// A user's latency beside another's flood.
    Flood,
    /// What flow control and audit cost; with --exec only.
    Overhead,
    /// Machine instructions of a request, counted by callgrind; with --exec, and only when it is named.
    Instructions,
    /// Creates and reads with the objects in etcd; with --etcd, and only when it is named.
    Etcd,
    /// A start with many pods; with --exec, and only when it is named.
    Restart,
    /// Pods that run on a real node; with --exec and --node-cgroup, and only when it is named.
    Node,
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= 10.0 => Ok(scale),
        _ => Err("a number above 0, at most 10".into()),
    }
}

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file, a program, or the terminal.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    /// The kubeconfig is not one that can be used.
    #[error("kubeconfig: {0}")]
    Kubeconfig(String),
    /// Certificates do not fit.
    #[error("TLS: {0}")]
    Tls(tokio_rustls::rustls::Error),
    /// No connection.
    #[error("cannot connect to {0}: {1}")]
    Connect(String, io::Error),
    /// A request that is none.
    #[error("{0}: {1}")]
    Request(String, String),
    /// The connection failed.
    #[error("{0}: {1}")]
    Http(String, hyper::Error),
    /// The connection ended.
    #[error("{0}: the server closed the connection")]
    Closed(String),
    /// The server refused.
    #[error("{call}: {code}: {message}")]
    Status {
        /// Method and path.
        call: String,
        /// The HTTP status.
        code: u16,
        /// The message of the Status object.
        message: String,
    },
    /// The answer is no JSON.
    #[error("{0}: {1}")]
    Json(String, serde_json::Error),
    /// The answer makes no sense.
    #[error("{0}")]
    Answer(String),
    /// Something took too long.
    #[error("{0}: not done after {1:?}")]
    Timeout(String, Duration),
    /// The server that should be measured did not start.
    #[error("the server: {0}")]
    Server(String),
    /// A task panicked.
    #[error("{0}")]
    Task(String),
    /// The figures are good, but not everything that was made is gone.
    #[error("clearing up: {0}")]
    Clearing(Box<Error>),
    /// Ctrl-C, or asked to end.
    #[error("interrupted")]
    Interrupted,
    /// The figures were shown, but are not complete.
    #[error("some phases failed")]
    Incomplete,
}

impl Error {
    pub(crate) fn file(path: &Path, error: io::Error) -> Error {
        Error::Io(path.to_path_buf(), error)
    }
}

/// A run: the server, a client for preparations, the figures so far.
struct Bench {
    target: Arc<Target>,
    kubeconfig: PathBuf,
    /// The second server's.
    beside: Option<PathBuf>,
    /// For everything that is not measured.
    control: Client,
    server: Server,
    /// A suffix that no other run has.
    run: String,
    report: Report,
}

impl Bench {
    /// Selects what this run made in the cluster's scope.
    fn selector(&self) -> String {
        format!("{}%3D{}", objects::LABEL, self.run)
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(usize::from(args.threads))
        .enable_all()
        .build()
        .map_err(|e| Error::file(Path::new("runtime"), e))?;
    runtime.block_on(async {
        let mut terminated =
            signal(SignalKind::terminate()).map_err(|e| Error::file(Path::new("signals"), e))?;
        // Whichever ends first: dropping the run stops a server that it started.
        tokio::select! {
            outcome = measure(args) => outcome,
            _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
            _ = terminated.recv() => Err(Error::Interrupted),
        }
    })
}

async fn measure(args: &Args) -> Result<(), Error> {
    let counts = Counts::scaled(args.scale);
    let mut report = Report::new(counts);
    if let Some(path) = &args.reference {
        let text = std::fs::read(path).map_err(|e| Error::file(path, e))?;
        let figures =
            serde_json::from_slice(&text).map_err(|e| Error::Json(path.display().to_string(), e))?;
        report.compare_with(&figures);
    }
    if cfg!(debug_assertions) {
        report
            .notes
            .push("the load generator was built without --release and takes more of the processor".into());
    }
    let wanted = |step: Step| args.only.is_empty() || args.only.contains(&step);
    let (target, server, exec) = match &args.exec {
        Some(command) => {
            let began = Instant::now();
            let started = start::start(command, &args.kubeconfig).await?;
            let server = started.exec.server();
            if wanted(Step::Start) {
                report.time("start", started.took);
                report.phases.push(Phase {
                    name: "start",
                    took: began.elapsed(),
                    generator: None,
                    server: server.cpu(),
                    error: None,
                });
            }
            (started.target, server, Some(started.exec))
        }
        None => {
            let server = if args.pid.is_empty() { Server::Unknown } else { Server::Given(args.pid.clone()) };
            (Arc::new(kubeconfig::load(&args.kubeconfig)?), server, None)
        }
    };
    if matches!(server, Server::Unknown) {
        report.notes.push("memory is unknown: give --pid, or start the server with --exec".into());
    }
    let mut control = Client::new(&target).limited(Duration::from_secs(180));
    let version = control.json(&Call::get("/version")).await?;
    report.version = version["gitVersion"].as_str().unwrap_or("unknown").to_owned();
    let kubeconfig = args.kubeconfig.clone();
    let beside = args.beside.clone();
    let mut bench = Bench { target, kubeconfig, beside, control, server, run: suffix(), report };
    progress(&format!("{} ({})", bench.target.address, bench.report.version));
    phases(&mut bench, &wanted, &args.only).await;
    if args.only.contains(&Step::Etcd) {
        let settings = etcd::Settings::of(args);
        phase(&mut bench, "etcd", async |b| etcd::run(b, &settings).await).await;
    }
    match fixture::namespaces_left(&mut bench.control, &format!("bench-{}-", bench.run)).await {
        Ok(0) => {}
        Ok(left) => bench.report.notes.push(format!("{left} namespaces of this run, empty, are still there")),
        Err(error) => bench.report.notes.push(format!("looking for what is left: {error}")),
    }
    drop(exec);
    if let Some(command) = &args.exec {
        apart(&mut bench, args, command, &wanted).await;
    }
    conclude(&bench.report, args.json.as_deref())
}

/// The phases that start servers of their own.
async fn apart(bench: &mut Bench, args: &Args, command: &str, wanted: &impl Fn(Step) -> bool) {
    bench.server = Server::Unknown;
    if wanted(Step::Overhead) {
        phase(bench, "overhead", async |b| overhead::run(&mut b.report, command, &args.kubeconfig).await)
            .await;
    }
    if args.only.contains(&Step::Instructions) {
        phase(bench, "instructions", async |b| instructions::run(b, command, &args.kubeconfig).await).await;
    }
    if args.only.contains(&Step::Restart) {
        let run = bench.run.clone();
        phase(bench, "restart", async |b| restart::run(&mut b.report, &run, command, &args.kubeconfig).await)
            .await;
    }
    if args.only.contains(&Step::Node) {
        let node = node::Settings {
            command,
            beside: args.beside_exec.as_deref(),
            cgroup: args.node_cgroup.as_deref(),
            image: &args.node_image,
            kubeconfig: &args.kubeconfig,
        };
        phase(bench, "node", async |b| node::run(&mut b.report, &node).await).await;
    }
}

async fn phases(bench: &mut Bench, wanted: &impl Fn(Step) -> bool, only: &[Step]) {
    if wanted(Step::Idle) {
        phase(bench, "idle", async |b| {
            if let Some(memory) = b.server.settled(SETTLE).await {
                b.report.set("idle_memory", memory as f64);
            }
            Ok(())
        })
        .await;
    }
    if wanted(Step::Crds) {
        phase(bench, "crds", crds::run).await;
    }
    if wanted(Step::Pods) || wanted(Step::Gets) || wanted(Step::List) {
        let pods = pods::Pods::new(bench);
        if phase(bench, "pods", async |b| pods.create(b).await).await {
            if wanted(Step::Gets) {
                phase(bench, "gets", async |b| pods.gets(b).await).await;
            }
            if wanted(Step::List) {
                phase(bench, "list", async |b| pods.list(b).await).await;
            }
        }
        phase(bench, "clear pods", async |b| pods.clear(b).await).await;
    }
    if wanted(Step::Serial) {
        phase(bench, "serial", creates::serial).await;
    }
    if wanted(Step::Creates) {
        phase(bench, "creates", creates::parallel).await;
    }
    if wanted(Step::Watch) {
        phase(bench, "watch", fanout::run).await;
    }
    if wanted(Step::Bound) {
        phase(bench, "bound", bound::run).await;
    }
    if only.contains(&Step::Scheduler) {
        phase(bench, "scheduler", scheduler::run).await;
    }
    if only.contains(&Step::Deployment) {
        phase(bench, "deployment", settled::deployment).await;
    }
    if only.contains(&Step::Settled) {
        phase(bench, "settled", settled::settled).await;
    }
    if wanted(Step::Flood) {
        phase(bench, "flood", flood::run).await;
    }
}

/// Runs a phase and records how it went; says whether it went well.
async fn phase(
    bench: &mut Bench,
    name: &'static str,
    run: impl AsyncFnOnce(&mut Bench) -> Result<(), Error>,
) -> bool {
    progress(name);
    let began = Instant::now();
    let (generator, server) = (process::own_cpu(), bench.server.cpu());
    let outcome = run(bench).await;
    let since = |before: Option<Duration>, after: Option<Duration>| Some(after?.saturating_sub(before?));
    bench.report.phases.push(Phase {
        name,
        took: began.elapsed(),
        generator: since(generator, process::own_cpu()),
        server: since(server, bench.server.cpu()),
        error: outcome.as_ref().err().map(Error::to_string),
    });
    outcome.is_ok()
}

/// Tells a waiting person what is going on; a closed standard error is no reason to stop.
fn progress(text: &str) {
    let _ = writeln!(io::stderr(), "bench: {text}");
}

/// The time, so that names of two runs differ, in letters that every name may hold.
fn suffix() -> String {
    let millis = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    format!("r{:x}", millis & 0xffff_ffff)
}

fn conclude(report: &Report, json: Option<&Path>) -> Result<(), Error> {
    let terminal = |e| Error::file(Path::new("standard output"), e);
    io::stdout().write_all(report.table().as_bytes()).map_err(terminal)?;
    if let Some(path) = json {
        let text = format!("{:#}\n", report.json());
        std::fs::write(path, text).map_err(|e| Error::file(path, e))?;
    }
    if report.failed() { Err(Error::Incomplete) } else { Ok(()) }
}
