//! Watches and lists under random writes, compared with what was acknowledged.
//!
//! Writers change objects in namespaces with names that begin alike, so that they move in and out of selectors; readers list and
//! watch them in every representation, from revisions of the past, at different paces, in parts and across reconnects;
//! meanwhile history is compacted, or the server killed. From the acknowledged writes follows what each of them must have
//! been shown: nothing foreign, nothing missed, nothing twice, the right transitions, no bookmark ahead, and lists exact at
//! their revision.
//!
//! By default one short round runs from a fixed seed. `cargo xtask check-watches --seconds 600 --seed 7` runs longer ones.

mod actors;
mod model;
mod readers;
mod wire;

use crate::common::TestCluster;
use actors::{NAMESPACES, RESOURCES, Round};
use kaji_meta::{Random, SeededRandom};
use serde_json::{Value, json};
use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::sync::watch;
use wire::Failure;

const WRITERS: usize = 4;
const READERS: usize = 24;
/// A round takes seconds; one that takes longer than this waits for something that will not happen.
const DEADLINE: Duration = Duration::from_secs(600);

/// How long it runs, and from which seed.
struct Plan {
    seed: u64,
    /// Writes of each writer in a round.
    writes: usize,
    until: Option<Instant>,
}

impl Plan {
    fn new() -> Plan {
        let number = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>().unwrap());
        let seconds = number("KAJI_CHECK_WATCHES_SECONDS");
        Plan {
            seed: number("KAJI_CHECK_WATCHES_SEED").unwrap_or(1),
            writes: if seconds.is_some() { 1500 } else { 400 },
            until: seconds.map(|s| Instant::now() + Duration::from_secs(s)),
        }
    }
}

/// What happens to the server meanwhile.
trait Trouble {
    /// Called again and again; `latest` is the latest acknowledged revision.
    async fn make(&mut self, round: &Round, random: &SeededRandom);

    /// What the server has logged, for the report of a failure.
    fn log(&self) -> String {
        String::new()
    }
}

async fn make(client: &kube::Client, path: &str, body: &Value) {
    loop {
        match wire::send(client, "POST", path, body).await {
            Ok(_) | Err(Failure::Refused(409, _)) => return,
            Err(Failure::Refused(code, text)) if code != 503 => panic!("{path}: {code} {text}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Makes the namespaces and the definition.
async fn prepare(client: &kube::Client) {
    for namespace in NAMESPACES {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        make(client, "/api/v1/namespaces", &body).await;
    }
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "selectableFields": [{"jsonPath": ".spec.color"}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties":
                {"color": {"type": "string"}, "pad": {"type": "string"}}}}}}})
    };
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1", true), version("v2", false)]}});
    make(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    for version in ["v1", "v2"] {
        let path = format!("/apis/example.com/{version}/widgets");
        while wire::send(client, "GET", &path, &Value::Null).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Begins a round with what there is.
async fn begin(client: &kube::Client) -> Arc<Round> {
    let mut logs = vec![];
    for resource in &RESOURCES {
        logs.push(actors::beginning(actors::everything(client, resource).await));
    }
    let base = logs.iter().map(|l| l.revision).max().unwrap_or_default();
    let each = || RESOURCES.iter();
    Arc::new(Round {
        client: client.clone(),
        latest: base.into(),
        compacted: 0.into(),
        base,
        logs: logs.into_iter().map(Mutex::new).collect(),
        acknowledged: each().map(|_| Mutex::default()).collect(),
        segments: each().map(|_| Mutex::default()).collect(),
        lists: each().map(|_| Mutex::default()).collect(),
        violations: Mutex::default(),
        complete: watch::Sender::new(false),
    })
}

/// One round; what it checked, or what was wrong.
async fn round(
    round: &Arc<Round>,
    seed: u64,
    writes: usize,
    trouble: &mut impl Trouble,
) -> Result<String, Vec<String>> {
    let random = SeededRandom::new(seed);
    let (end, ended) = watch::channel(None);
    let recorders: Vec<_> =
        (0..RESOURCES.len()).map(|r| tokio::spawn(actors::record(round.clone(), r, ended.clone()))).collect();
    let readers: Vec<_> =
        (0..READERS).map(|_| tokio::spawn(readers::read(round.clone(), random.u64()))).collect();
    let writers =
        (0..WRITERS).map(|w| tokio::spawn(actors::write(round.clone(), random.u64(), w, WRITERS, writes)));
    let mut writers = futures_util::future::join_all(writers.collect::<Vec<_>>());
    let written = loop {
        tokio::select! {
            written = &mut writers => break written,
            () = tokio::time::sleep(Duration::from_millis(10)) => trouble.make(round, &random).await,
        }
    };
    written.into_iter().for_each(Result::unwrap);
    let fence = actors::fence(round).await;
    end.send_replace(Some(fence));
    in_time(round, "recorders", recorders).await;
    round.complete.send_replace(true);
    in_time(round, "readers", readers).await;
    check(round)
}

/// Waits for tasks, but not for ever.
async fn in_time(round: &Round, what: &str, tasks: Vec<tokio::task::JoinHandle<()>>) {
    let all = futures_util::future::join_all(tasks);
    match tokio::time::timeout(Duration::from_secs(120), all).await {
        Ok(all) => all.into_iter().for_each(Result::unwrap),
        Err(_) => round.violated(format!("the {what} never ended")),
    }
}

/// Compares everything that was shown with the logs.
fn check(round: &Round) -> Result<String, Vec<String>> {
    let mut wrong = std::mem::take(&mut *round.violations.lock().unwrap());
    let (mut events, mut watches, mut lists) = (0, 0, 0);
    for r in 0..RESOURCES.len() {
        let log = round.logs[r].lock().unwrap();
        wrong.extend(log.agrees(&round.acknowledged[r].lock().unwrap(), &NAMESPACES).err());
        for segment in round.segments[r].lock().unwrap().iter() {
            watches += 1;
            events += segment.told.len();
            wrong.extend(segment.check(&log).err());
        }
        for list in round.lists[r].lock().unwrap().iter() {
            lists += 1;
            wrong.extend(list.check(&log).err());
        }
    }
    if wrong.is_empty() {
        Ok(format!("{events} events of {watches} watches, {lists} lists"))
    } else {
        Err(wrong)
    }
}

async fn run(client: &kube::Client, mut trouble: impl Trouble) {
    let plan = Plan::new();
    let prepared = tokio::time::timeout(DEADLINE, prepare(client)).await;
    assert!(
        prepared.is_ok(),
        "the objects of the rounds could not be created; the server's log:\n{}",
        trouble.log()
    );
    for i in 0.. {
        let seed = plan.seed + i;
        let Ok(begun) = tokio::time::timeout(DEADLINE, begin(client)).await else {
            panic!("seed {seed}: nothing can be listed; the server's log:\n{}", trouble.log());
        };
        match tokio::time::timeout(DEADLINE, round(&begun, seed, plan.writes, &mut trouble)).await {
            Ok(Ok(summary)) => println!("seed {seed}: {summary}"),
            Ok(Err(wrong)) => {
                let some: Vec<&str> = wrong.iter().take(5).map(String::as_str).collect();
                panic!("seed {seed}: {} findings, of which\n{}", wrong.len(), some.join("\n"));
            }
            Err(_) => panic!(
                "seed {seed}: the round did not end{}\nthe server's log:\n{}",
                begun.progress(),
                trouble.log()
            ),
        }
        if plan.until.is_none_or(|until| Instant::now() >= until) {
            return;
        }
    }
}

/// Compacts history up to shortly before what the recorders have.
struct Compacts<'a>(&'a TestCluster);

impl Trouble for Compacts<'_> {
    async fn make(&mut self, round: &Round, random: &SeededRandom) {
        if !random.u64().is_multiple_of(16) {
            return;
        }
        let recorded = round.logs.iter().map(|log| log.lock().unwrap().revision).min().unwrap_or_default();
        let to = recorded.saturating_sub(random.u64() % 200);
        if to > round.compacted.load(Ordering::SeqCst) {
            round.compacted.store(to, Ordering::SeqCst);
            self.0.cluster.stack.engine.store().compact(to).await.unwrap();
        }
    }
}

/// A server of its own.
struct Server {
    child: Child,
    args: Vec<String>,
    log: std::path::PathBuf,
    /// Killed when so much has been written.
    next: u64,
}

impl Server {
    fn start(dir: &Path) -> Server {
        let port = kaji_testing::ports::outside_ephemeral_range();
        let of = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let (port, data, kubeconfig) = (port.to_string(), of("data"), of("kubeconfig"));
        let args = [
            "up",
            "--nodes",
            "none",
            "--controllers=-*",
            "--port",
            &port,
            "--data-dir",
            &data,
            "--kubeconfig",
            &kubeconfig,
        ];
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let log = dir.join("log");
        Server { child: Server::spawn(&args, &log), args, log, next: 0 }
    }

    fn spawn(args: &[String], log: &Path) -> Child {
        let log = File::options().create(true).append(true).open(log).unwrap();
        Command::new(env!("CARGO_BIN_EXE_kaji")).args(args).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }
}

impl Trouble for Server {
    async fn make(&mut self, round: &Round, random: &SeededRandom) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("the server ended by itself, {status}; its log:\n{}", self.log());
        }
        let latest = round.latest.load(Ordering::SeqCst);
        if self.next < round.base {
            self.next = round.base + 50 + random.u64() % 300;
        }
        if latest < self.next {
            return;
        }
        self.next = latest + 200 + random.u64() % 2000;
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Server::spawn(&self.args, &self.log);
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_and_lists_are_exact_while_history_is_compacted() {
    let cluster = TestCluster::start(0).await;
    run(&cluster.kube().await, Compacts(&cluster)).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_and_lists_are_exact_while_the_server_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let client = tokio::time::timeout(Duration::from_secs(120), client(&dir.path().join("kubeconfig"))).await;
    let Ok(client) = client else { panic!("the server wrote no kubeconfig; its log:\n{}", server.log()) };
    run(&client, server).await;
}

/// A client by the kubeconfig that the server writes once it serves.
async fn client(path: &Path) -> kube::Client {
    loop {
        let config = kube::config::Kubeconfig::read_from(path);
        if let Ok(config) = config
            && let Ok(config) = kube::Config::from_custom_kubeconfig(config, &Default::default()).await
        {
            return kube::Client::try_from(config).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
