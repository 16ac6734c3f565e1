//! `cargo xtask chaos`: clients work against real processes that are killed, paused and started again, and what they saw is
//! compared with one order of all writes.
//!
//! A seed decides what the clients ask for and what happens to the processes; when it happens depends on the machine. So a
//! violation is shown with its history, and the command that draws the same faults again.

mod actors;
mod check;
mod cluster;
mod history;
mod random;

use crate::bench::{
    Error,
    client::{Call, Client},
};
use actors::{Actor, PATH, Shared, Watcher};
use check::{Verdict, check};
use cluster::{Cluster, Store};
use history::{History, Operation, Outcome, Recorder, Request};
use random::Random;
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc,
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
/// Watches of all objects; one more is about [`SENTINEL`].
const WATCHERS: u64 = 3;
/// The object that is written last, by which watches know that they are done.
const SENTINEL: &str = "k3";
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
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let seed = args.seed.unwrap_or_else(now);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let dir = std::env::temp_dir().join(format!("kaji-chaos-{}", std::process::id()));
    let runtime = runtime.map_err(|e| Error::file(&dir, e))?;
    let (history, hung) = runtime.block_on(once(root, args, seed, &dir))?;
    let mut verdict = check(&history);
    verdict.violations.extend(hung);
    report(&history, &verdict, seed)?;
    if verdict.violations.is_empty() {
        return fs::remove_dir_all(&dir).map_err(|e| Error::file(&dir, e).into());
    }
    let file = dir.join("history.json");
    let text = serde_json::to_vec(&history).map_err(|e| Error::Json("the history".into(), e))?;
    fs::write(&file, text).map_err(|e| Error::file(&file, e))?;
    let store = if args.store == Store::Etcd { "etcd" } else { "embedded" };
    let command = format!("cargo xtask chaos --store {store} --seconds {} --seed {seed}", args.seconds);
    Err(ChaosError::Violations { count: verdict.violations.len(), dir, command })
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

/// One run. Answers with the history, and with watches that have not come to the end.
async fn once(root: &Path, args: &Args, seed: u64, dir: &Path) -> Result<(History, Vec<String>), Error> {
    fs::create_dir_all(dir).map_err(|e| Error::file(dir, e))?;
    let kaji = args.kaji.clone().unwrap_or_else(|| root.join("target/debug/kaji"));
    let servers = if args.store == Store::Etcd { args.servers } else { 1 };
    let mut cluster = Cluster::start((&kaji, &args.etcd), dir, args.store, (servers, args.members)).await?;
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
    let (mut actors, mut watchers) = (JoinSet::new(), JoinSet::new());
    for user in 1..=ACTORS {
        actors.spawn(Actor::new(&shared, Random::new(seed, user)).run());
    }
    for user in 0..=WATCHERS {
        let only = (user == WATCHERS).then(|| SENTINEL.to_owned());
        watchers.spawn(Watcher::new(&shared, Random::new(seed, 100 + user), only, from).run());
    }
    disturb(&mut cluster, &args.etcdctl, Random::new(seed, 0), Duration::from_secs(args.seconds)).await?;
    shared.stop.store(true, Ordering::Relaxed);
    while actors.join_next().await.is_some() {}
    let last = finish(&shared).await?;
    shared.until.store(last, Ordering::Relaxed);
    let ended = timeout(SETTLE, async { while watchers.join_next().await.is_some() {} }).await;
    let hung = match ended {
        Ok(()) => vec![],
        Err(_) => vec![format!("{} watches have not come to revision {last} in {SETTLE:?}", watchers.len())],
    };
    Ok((shared.recorder.take(), hung))
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

/// Kills, pauses and restarts processes, one at a time or all members at once. Afterwards everything runs.
async fn disturb(
    cluster: &mut Cluster,
    etcdctl: &Path,
    mut random: Random,
    time: Duration,
) -> Result<(), Error> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        let quiet = Duration::from_millis(random.between(300, 3000));
        sleep(quiet.min(time.saturating_sub(begun.elapsed()))).await;
        let members = cluster.members.len() as u64;
        let of_members = members > 0 && random.below(2) == 0;
        let count = if of_members { members } else { cluster.servers.len() as u64 };
        let at = random.below(count) as usize;
        let pause = Duration::from_millis(random.between(50, 6000));
        let gap = Duration::from_millis(random.below(1500));
        match (of_members, random.below(10)) {
            (_, 0..=3) => {
                let process = if of_members { &cluster.members[at] } else { &cluster.servers[at] };
                process.signal("-STOP");
                sleep(pause).await;
                process.signal("-CONT");
            }
            (false, 5 | 6) if members > 0 => {
                // Its watch of etcd breaks off, the others write, and what they have written is compacted.
                cluster.servers[at].signal("-STOP");
                cluster.members.iter_mut().for_each(|member| member.kill());
                cluster.members.iter_mut().try_for_each(|member| member.start())?;
                sleep(Duration::from_secs(2) + pause).await;
                cluster.compact(etcdctl)?;
                cluster.servers[at].signal("-CONT");
            }
            (true, 4) => {
                // All at once, as when the power fails.
                cluster.members.iter_mut().for_each(|member| member.kill());
                sleep(gap).await;
                cluster.members.iter_mut().try_for_each(|member| member.start())?;
            }
            (true, _) => {
                cluster.members[at].kill();
                sleep(gap).await;
                cluster.members[at].start()?;
            }
            (false, kind) => {
                if kind == 4 {
                    // With notice; it is killed if it does not end.
                    cluster.servers[at].signal("-TERM");
                    sleep(Duration::from_secs(2)).await;
                }
                cluster.servers[at].kill();
                sleep(gap).await;
                cluster.servers[at].start()?;
                // Sometimes it is killed while it starts.
                if random.below(4) > 0 {
                    cluster.ready(at).await?;
                }
            }
        }
    }
    for server in 0..cluster.servers.len() {
        cluster.ready(server).await?;
    }
    Ok(())
}
