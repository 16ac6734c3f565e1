//! `cargo xtask chaos`: clients work against real processes that are killed, paused and started again, cut off from each other,
//! while disks fail and clocks step; what the clients saw is compared with one order of all writes.
//!
//! A seed decides what the clients ask for and what happens to the processes; when it happens depends on the machine. So a
//! violation is shown with its history, and the command that draws the same faults again.

mod actors;
mod agreement;
mod budgets;
mod check;
mod cluster;
mod disks;
mod faults;
mod history;
mod leaders;
mod network;
mod quotas;
mod random;
mod services;
mod terms;

use crate::bench::{
    Error,
    client::{Call, Client},
};
use actors::{Actor, PATH, Shared, Watcher};
use budgets::ReplicaMaintainer;
use check::{Verdict, check};
use cluster::{Cluster, Plan, Store};
use disks::DiskFaults;
use faults::Disturber;
use history::{History, Operation, Outcome, Recorder, Request};
use quotas::QuotaActor;
use random::Random;
use serde_json::json;
use services::ServiceActor;
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

/// Clients that write and read.
const ACTORS: u64 = 8;
/// Clients that make and delete services, and as many that fill a quota.
const SERVICE_ACTORS: u64 = 3;
/// Clients that evict pods.
const EVICTING_ACTORS: u64 = 2;
/// Watches of all objects; one more is about [`SENTINEL`].
const WATCHERS: u64 = 3;
/// The object that is written last, by which watches know that they are done.
const SENTINEL: &str = "k3";
/// Seconds of each store in a nightly run.
const NIGHTLY: u64 = 600;
/// How long watches may take to come to the end after everything runs again.
const SETTLE: Duration = Duration::from_secs(90);

/// What the command takes.
#[derive(clap::Args)]
pub struct Args {
    /// Where objects are kept.
    #[arg(long, value_enum, default_value = "embedded")]
    store: Store,
    /// How long clients work.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Decides about requests and faults. By default the time.
    #[arg(long)]
    seed: Option<u64>,
    /// The program; by default the one that `cargo build` makes.
    #[arg(long, value_name = "FILE")]
    kaji: Option<PathBuf>,
    /// A server with a disk that fails and a clock that steps, instead of that: what `cargo build -p kaji --features chaos --bin chaos-server` makes.
    #[arg(long, value_name = "FILE", conflicts_with = "kaji")]
    chaos_server: Option<PathBuf>,
    /// Ten minutes of each store.
    #[arg(long, conflicts_with_all = ["store", "seconds"])]
    nightly: bool,
    /// etcd; by default the one in the PATH.
    #[arg(long, value_name = "FILE", default_value = "etcd")]
    etcd: PathBuf,
    /// Its client, for compactions.
    #[arg(long, value_name = "FILE", default_value = "etcdctl")]
    etcdctl: PathBuf,
    /// API servers over etcd.
    #[arg(long, default_value_t = 2)]
    servers: usize,
    /// Members of etcd.
    #[arg(long, default_value_t = 3)]
    members: usize,
    /// Gives each member of etcd a disk of its own, with faults. Needs root, loop devices, e2fsprogs, util-linux and python3.
    #[arg(long, value_enum)]
    member_disks: Option<DiskFaults>,
}

/// What ends the command.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// The processes, or the files.
    #[error("{0}")]
    Run(#[from] Error),
    /// Something does not hold.
    #[error(
        "{count} violations; the history and the logs are in {dir}; draw the same faults with: {command}"
    )]
    Violations {
        /// How many.
        count: usize,
        /// Where everything is.
        dir: PathBuf,
        /// The command.
        command: String,
    },
}

/// Runs it.
///
/// # Errors
/// When something does not hold, or processes do not start.
pub fn run(root: &Path, args: &Args) -> Result<(), ChaosError> {
    if args.member_disks.is_some() {
        // Before there are other threads, which are to be in it too.
        disks::enter_namespace()?;
    }
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let seed = args.seed.unwrap_or_else(now);
    if !args.nightly {
        return run_on(root, args, args.store, args.seconds, seed);
    }
    // Both, whatever comes of the first.
    let embedded = run_on(root, args, Store::Embedded, NIGHTLY, seed);
    let etcd = run_on(root, args, Store::Etcd, NIGHTLY, seed);
    embedded.and(etcd)
}

/// A run on one of the stores.
fn run_on(root: &Path, args: &Args, store: Store, seconds: u64, seed: u64) -> Result<(), ChaosError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let dir = std::env::temp_dir().join(format!("kaji-chaos-{}-{}", store.name(), std::process::id()));
    let runtime = runtime.map_err(|e| Error::file(&dir, e))?;
    let (history, others) = runtime.block_on(once(root, args, (store, seconds, seed), &dir))?;
    let mut verdict = check(&history);
    verdict.violations.extend(others);
    report(&history, &verdict, seed)?;
    if verdict.violations.is_empty() {
        return fs::remove_dir_all(&dir).map_err(|e| Error::file(&dir, e).into());
    }
    let file = dir.join("history.json");
    let text = serde_json::to_vec(&history).map_err(|e| Error::Json("the history".into(), e))?;
    fs::write(&file, text).map_err(|e| Error::file(&file, e))?;
    let command = replay(args, store, seconds, seed);
    Err(ChaosError::Violations { count: verdict.violations.len(), dir, command })
}

/// The command that draws the same faults: they depend on the seed, on what can be disturbed, and on how many there are of it.
fn replay(args: &Args, store: Store, seconds: u64, seed: u64) -> String {
    let mut command = format!("cargo xtask chaos --store {} --seconds {seconds} --seed {seed}", store.name());
    let files = [("kaji", args.kaji.as_ref()), ("chaos-server", args.chaos_server.as_ref())];
    for (flag, file) in files.iter().filter_map(|(flag, file)| Some((flag, (*file)?))) {
        command += &format!(" --{flag} {}", file.display());
    }
    if store == Store::Etcd {
        let Args { etcd, etcdctl, servers, members, .. } = args;
        command += &format!(
            " --etcd {} --etcdctl {} --servers {servers} --members {members}",
            etcd.display(),
            etcdctl.display()
        );
        if let Some(disks) = args.member_disks {
            command += &format!(" --member-disks {}", disks.name());
        }
    }
    command
}

fn report(history: &History, verdict: &Verdict, seed: u64) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let mut counts = BTreeMap::<&str, usize>::new();
    for operation in &history.operations {
        *counts
            .entry(match operation.outcome {
                Outcome::Object(_) | Outcome::Deleted | Outcome::Listed(..) => "done",
                Outcome::Refused(_) => "refused",
                Outcome::Malformed(_) => "malformed",
                Outcome::Unsent => "unsent",
                Outcome::Unknown(_) => "uncertain",
            })
            .or_default() += 1;
    }
    let terminal = |e| Error::file(Path::new("stdout"), e);
    let Verdict { violations, events, checked, unchecked } = verdict;
    writeln!(
        out,
        "seed {seed}: operations {counts:?}, {events} events; {checked} operations checked, {unchecked} not"
    )
    .map_err(terminal)?;
    violations.iter().try_for_each(|violation| writeln!(out, "VIOLATION {violation}")).map_err(terminal)
}

/// One run. Answers with the history, and with what does not hold of services and watches.
async fn once(
    root: &Path,
    args: &Args,
    (store, seconds, seed): (Store, u64, u64),
    dir: &Path,
) -> Result<(History, Vec<String>), Error> {
    fs::create_dir_all(dir).map_err(|e| Error::file(dir, e))?;
    let usual = || args.kaji.clone().unwrap_or_else(|| root.join("target/debug/kaji"));
    let program = args.chaos_server.clone().unwrap_or_else(usual);
    let plan = Plan {
        programs: (&program, &args.etcd, &args.etcdctl),
        obeys: args.chaos_server.is_some(),
        member_disks: args.member_disks.is_some(),
        dir,
        store,
        counts: (if store == Store::Etcd { args.servers } else { 1 }, args.members),
    };
    let mut cluster = Cluster::start(&plan).await?;
    let mut client = Client::new(&cluster.targets[0]);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "chaos"}});
    client.call(&Call::post("/api/v1/namespaces", namespace.to_string())).await?;
    let list = client.json(&Call::get(PATH)).await?;
    let from = list["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
    let from = from.ok_or_else(|| Error::Answer("a list has no resourceVersion".into()))?;
    let shared = Arc::new(Shared {
        targets: cluster.targets.clone(),
        recorder: Recorder::new(from),
        numbers: AtomicU64::new(1),
        stop: AtomicBool::new(false),
        until: AtomicU64::new(0),
    });
    quotas::prepare(&cluster.targets[0]).await?;
    let maintainer = budgets::prepare(&shared).await?;
    let clients = Clients::start(&shared, maintainer, seed, from);
    let random = Random::new(seed, 0);
    let means = (plan.obeys, args.member_disks);
    let disturber = Disturber::new(&mut cluster, &args.etcdctl, random, means, dir)?;
    let signals = disturber.run(Duration::from_secs(seconds)).await?;
    shared.stop.store(true, Ordering::Relaxed);
    let mut complaints = clients.end(&shared).await?;
    complaints.extend(cluster.compare_members(&args.etcdctl).await?);
    let (terms, others) = leaders::check(dir, plan.counts.0, &signals)?;
    complaints.extend(others);
    let mut written = terms::Terms::default();
    if store == Store::Etcd {
        written = terms::check(dir, plan.counts.0, &signals)?;
        complaints.append(&mut written.violations);
    }
    let terms::Terms { writes, late, .. } = written;
    writeln!(
        std::io::stdout(),
        "{terms} terms of leaders, {writes} writes of their loops, {late} of them late"
    )
    .map_err(|e| Error::file(Path::new("stdout"), e))?;
    Ok((shared.recorder.take(), complaints))
}

/// All clients of a run.
struct Clients {
    actors: JoinSet<()>,
    watchers: JoinSet<()>,
    services: JoinSet<Vec<services::Life>>,
    in_quota: JoinSet<Vec<quotas::Life>>,
    evicting: JoinSet<()>,
    pods: budgets::Pods,
}

impl Clients {
    fn start(shared: &Arc<Shared>, maintainer: ReplicaMaintainer, seed: u64, from: u64) -> Clients {
        let (mut actors, mut watchers) = (JoinSet::new(), JoinSet::new());
        let (mut services, mut in_quota) = (JoinSet::new(), JoinSet::new());
        let (mut evicting, pods) = (JoinSet::new(), maintainer.pods.clone());
        evicting.spawn(maintainer.run());
        for user in 0..EVICTING_ACTORS {
            evicting.spawn(budgets::evict(shared.clone(), pods.clone(), Random::new(seed, 400 + user)));
        }
        for user in 1..=ACTORS {
            actors.spawn(Actor::new(shared, Random::new(seed, user)).run());
        }
        for user in 0..=WATCHERS {
            let only = (user == WATCHERS).then(|| SENTINEL.to_owned());
            watchers.spawn(Watcher::new(shared, Random::new(seed, 100 + user), only, from).run());
        }
        for user in 0..SERVICE_ACTORS {
            services.spawn(ServiceActor::new(shared, user, Random::new(seed, 200 + user)).run());
            in_quota.spawn(QuotaActor::new(shared, user, Random::new(seed, 300 + user)).run());
        }
        Clients { actors, watchers, services, in_quota, evicting, pods }
    }

    /// Waits until all have ended, once `stop` is set. Answers with what does not hold, besides the history.
    async fn end(self, shared: &Arc<Shared>) -> Result<Vec<String>, Error> {
        let Clients { actors, mut watchers, services, in_quota, evicting, pods } = self;
        actors.join_all().await;
        evicting.join_all().await;
        let lives: Vec<_> = services.join_all().await.into_iter().flatten().collect();
        let counted: Vec<_> = in_quota.join_all().await.into_iter().flatten().collect();
        let mut complaints = services::check(&lives);
        complaints.extend(services::check_rest(&lives, &shared.targets).await?);
        complaints.extend(quotas::check(&counted));
        complaints.extend(quotas::check_rest(&shared.targets[0]).await?);
        complaints.extend(budgets::check(pods.lock().unwrap_or_else(PoisonError::into_inner).values()));
        complaints.extend(budgets::check_rest(&shared.targets[0]).await?);
        let last = finish(shared).await?;
        shared.until.store(last, Ordering::Relaxed);
        let ended = timeout(SETTLE, async { while watchers.join_next().await.is_some() {} }).await;
        if ended.is_err() {
            let left = watchers.len();
            complaints.push(format!("{left} watches have not come to revision {last} in {SETTLE:?}"));
        }
        Ok(complaints)
    }
}

/// Writes the sentinel, which is recorded as any other operation.
async fn finish(shared: &Arc<Shared>) -> Result<u64, Error> {
    let begun = Instant::now();
    loop {
        let mut client = Client::new(&shared.targets[0]).limited(Duration::from_secs(20));
        let number = shared.numbers.fetch_add(1, Ordering::Relaxed);
        let data = json!({"value": number.to_string()});
        let patch = Call::merge(format!("{PATH}/{SENTINEL}"), &json!({"data": data}));
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": SENTINEL}, "data": data});
        let begin = shared.recorder.now();
        let (request, answer) = match client.json(&patch).await {
            Err(Error::Status { code: 404, .. }) => {
                (Request::Create, client.json(&Call::post(PATH, object.to_string())).await)
            }
            other => (Request::Patch, other),
        };
        let end = shared.recorder.now();
        let outcome = match &answer {
            Ok(value) => actors::version(value).map(Outcome::Object),
            Err(_) => None,
        };
        let revision = match &outcome {
            Some(Outcome::Object(version)) => Some(version.revision),
            _ => None,
        };
        let outcome = outcome.unwrap_or_else(|| Outcome::Unknown("the last write".into()));
        let name = SENTINEL.to_owned();
        shared.recorder.operation(Operation { number, server: 0, name, request, begin, end, outcome });
        match (revision, answer) {
            (Some(revision), _) => return Ok(revision),
            (None, Err(error)) if begun.elapsed() > SETTLE => return Err(error),
            _ => sleep(Duration::from_millis(100)).await,
        }
    }
}
