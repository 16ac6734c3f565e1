//! The phase `etcd`: creates and reads of a server with its objects in etcd, beside the same writes without a server, beside another API
//! server on the same etcd, and beside one with the embedded store.
//!
//! Invariants: all are measured in turns, in rounds of one run, and the median of the rounds counts, so that what else the machine does
//! concerns all of them; a write without a server is the transaction that a server sends, with a value that one stored, by as many
//! clients, under keys that are no resource's, in an etcd that no server watches if there is one; all that was written is removed.

use super::{
    Args, Bench, Error,
    client::{Call, Target},
    fixture::{self, collection},
    kubeconfig,
    load::{self, Each, Until},
    objects::{self, Template},
    process::{Server, own_cpu},
    stats::median,
};
use kaji_etcd::{Endpoints, EtcdOptions, EtcdStore, KeyMap, TlsFiles};
use kaji_store::{Op, Range, Store, StoreError, Txn, TxnOutcome};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

const ROUNDS: usize = 5;
/// How long a part of a round may take.
const LIMIT: Duration = Duration::from_secs(600);
/// For how long objects are read in a round.
const READING: Duration = Duration::from_secs(2);
/// Keys that are removed at once; etcd takes 128 operations a transaction.
const REMOVED: usize = 100;
/// Where upstream has objects.
const OBJECTS: &str = "/registry";

/// What is compared.
pub struct Settings<'a> {
    /// The etcd of the server.
    pub etcd: Option<&'a str>,
    /// Another one, for writes without a server.
    pub unwatched: Option<&'a str>,
    /// Processes of both.
    pub etcd_pids: &'a [u32],
    /// How many write and read.
    pub clients: usize,
    /// Processes of `beside`.
    pub beside_pids: &'a [u32],
    /// Another API server on it.
    pub beside: Option<&'a Path>,
    /// A server with the embedded store.
    pub embedded: Option<&'a Path>,
}

impl Settings<'_> {
    /// As the command line says.
    pub fn of(args: &Args) -> Settings<'_> {
        Settings {
            etcd: args.etcd.as_deref(),
            unwatched: args.etcd_unwatched.as_deref(),
            etcd_pids: &args.etcd_pid,
            clients: usize::from(args.etcd_clients),
            beside_pids: &args.beside_pid,
            beside: args.beside_kubeconfig.as_deref(),
            embedded: args.embedded_kubeconfig.as_deref(),
        }
    }
}

/// The servers, and etcd.
struct Sides {
    etcd: Arc<EtcdStore>,
    unwatched: Arc<EtcdStore>,
    clients: usize,
    /// Of etcd, of the server, and of the other one.
    processes: [Server; 3],
    server: Arc<Target>,
    beside: Option<Arc<Target>>,
    embedded: Option<Arc<Target>>,
}

fn store_error(error: StoreError) -> Error {
    Error::Answer(format!("etcd: {error}"))
}

/// Measures the phase.
pub async fn run(bench: &mut Bench, settings: &Settings<'_>) -> Result<(), Error> {
    let url = settings.etcd.ok_or_else(|| Error::Answer("the phase etcd needs --etcd".into()))?;
    let etcd = open(url).await?;
    let unwatched = match settings.unwatched {
        Some(url) => open(url).await?,
        None => etcd.clone(),
    };
    let load = |path: Option<&Path>| path.map(|path| kubeconfig::load(path).map(Arc::new)).transpose();
    let sides = Sides {
        etcd,
        unwatched,
        clients: settings.clients,
        processes: [
            Server::Given(settings.etcd_pids.to_vec()),
            bench.server.clone(),
            Server::Given(settings.beside_pids.to_vec()),
        ],
        server: bench.target.clone(),
        beside: load(settings.beside)?,
        embedded: load(settings.embedded)?,
    };
    let namespace = format!("bench-{}-etcd", bench.run);
    let outcome = compare(bench, &sides, &namespace).await;
    let bare = remove(&sides.unwatched, &bare_prefix(&namespace)).await;
    let cleared = clear(bench, &sides, &namespace).await;
    fixture::both(outcome, bare.and(cleared))
}

async fn open(urls: &str) -> Result<Arc<EtcdStore>, Error> {
    let endpoints = Endpoints::new(urls.split(','), TlsFiles::default());
    let endpoints = endpoints.map_err(|e| Error::Answer(format!("{urls}: {e}")))?;
    let options = EtcdOptions { compaction: None, ..EtcdOptions::new(endpoints, KeyMap::plain("")) };
    EtcdStore::open(options).await.map(Arc::new).map_err(store_error)
}

fn bare_prefix(namespace: &str) -> String {
    format!("/{namespace}/")
}

async fn compare(bench: &mut Bench, sides: &Sides, namespace: &str) -> Result<(), Error> {
    fixture::namespace(&mut bench.control, namespace).await?;
    let owner = fixture::owner(&mut bench.control, namespace, &objects::config_map()).await?;
    let count = bench.report.counts.creates / 4;
    let kinds = [
        ("configmaps", objects::config_map(), ["etcd_creates", "etcd_creates_bare", "etcd_creates_ratio"]),
        ("pods", objects::big_pod(&owner), ["etcd_pods", "etcd_pods_bare", "etcd_pods_ratio"]),
    ];
    for (plural, template, [server, bare, ratio]) in kinds {
        let creates = Creates { namespace, plural, template, count: count / ROUNDS };
        let [with, without, other] = creates.measure(bench, sides).await?;
        bench.report.set(server, with);
        bench.report.set(bare, without);
        bench.report.set(ratio, with / without.max(1e-9));
        if other > 0.0 {
            bench.report.set_beside(server, other);
            bench.report.set_beside(ratio, other / without.max(1e-9));
        }
    }
    reads(bench, sides, namespace, count / ROUNDS).await
}

/// Creates of one kind.
struct Creates<'a> {
    namespace: &'a str,
    plural: &'static str,
    template: Template,
    /// Of a round, for each.
    count: usize,
}

impl Creates<'_> {
    /// Rates with the server, without one, and with the other server (0 without one).
    async fn measure(&self, bench: &mut Bench, sides: &Sides) -> Result<[f64; 3], Error> {
        let path = collection(self.namespace, self.plural);
        bench.control.call(&self.template.create(&path, "value")).await?;
        let stored = Range::key(format!("{OBJECTS}/{}/{}/value", self.plural, self.namespace));
        let stored = sides.etcd.range(stored).await.map_err(store_error)?;
        let value = stored.kvs.first().map(|kv| kv.value.clone());
        let value = value.ok_or_else(|| Error::Answer("the server's objects are not in this etcd".into()))?;
        let (mut rates, mut shares) = ([vec![], vec![], vec![]], [const { vec![] }; 3]);
        for round in 0..ROUNDS {
            let prefix = format!("{}{}/{round}", bare_prefix(self.namespace), self.plural);
            let before = Processors::now(sides);
            rates[1].push(bare(&sides.unwatched, prefix, value.clone(), (self.count, sides.clients)).await?);
            shares[1].extend(before.since(sides, self.count));
            let before = Processors::now(sides);
            rates[0].push(self.create(&sides.server, sides.clients, &format!("a{round}")).await?);
            shares[0].extend(before.since(sides, self.count));
            if let Some(beside) = &sides.beside {
                let before = Processors::now(sides);
                rates[2].push(self.create(beside, sides.clients, &format!("b{round}")).await?);
                shares[2].extend(before.since(sides, self.count));
            }
        }
        for (what, shares) in ["with the server", "without one", "with the other server"].iter().zip(&shares)
        {
            if let Some(shown) = shown(shares) {
                bench
                    .report
                    .notes
                    .push(format!("processor time of a create of {}, {what}: {shown}", self.plural));
            }
        }
        Ok(rates.map(|mut rates| median(&mut rates).unwrap_or(0.0)))
    }

    async fn create(&self, target: &Arc<Target>, clients: usize, name: &str) -> Result<f64, Error> {
        let (path, template) = (collection(self.namespace, self.plural), self.template.clone());
        let name = name.to_owned();
        let create = Each(move |i: usize| template.create(&path, &format!("{name}-{i:06}")));
        Ok(load::run(target, clients, Until::Count(self.count), LIMIT, create).await?.rate())
    }
}

/// Processor time so far: of etcd, of the server, of the other one, and of this program.
struct Processors([Option<Duration>; 4]);

impl Processors {
    fn now(sides: &Sides) -> Processors {
        let [etcd, server, beside] = sides.processes.each_ref().map(Server::cpu);
        Processors([etcd, server, beside, own_cpu()])
    }

    /// Seconds since then of each for one of so many writes; `None` without the processes of etcd.
    fn since(&self, sides: &Sides, count: usize) -> Option<[f64; 4]> {
        self.0[0]?;
        let now = Processors::now(sides);
        let mut each = [0.0; 4];
        for (each, (before, after)) in each.iter_mut().zip(self.0.iter().zip(&now.0)) {
            let spent = after.unwrap_or_default().saturating_sub(before.unwrap_or_default());
            *each = spent.as_secs_f64() / count.max(1) as f64;
        }
        Some(each)
    }
}

/// The medians of rounds.
fn shown(rounds: &[[f64; 4]]) -> Option<String> {
    let mut sum = 0.0;
    let mut parts = vec![];
    for (at, name) in ["etcd", "the server", "the other server", "this program"].iter().enumerate() {
        let micros = median(&mut rounds.iter().map(|round| round[at] * 1e6).collect::<Vec<_>>())?;
        sum += micros;
        parts.push(format!("{name} {micros:.0} µs"));
    }
    Some(format!("{}; together {sum:.0} µs", parts.join(", ")))
}

/// The rate of the same writes without a server.
async fn bare(
    etcd: &Arc<EtcdStore>,
    prefix: String,
    value: bytes::Bytes,
    (count, clients): (usize, usize),
) -> Result<f64, Error> {
    let (prefix, next) = (Arc::new(prefix), Arc::new(AtomicUsize::new(0)));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let (etcd, prefix, next, value) = (etcd.clone(), prefix.clone(), next.clone(), value.clone());
        tasks.spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return Ok(());
                }
                match etcd.txn(Txn::create(format!("{prefix}-{index:06}"), value.clone())).await {
                    Ok(TxnOutcome::Committed { .. }) => {}
                    Ok(TxnOutcome::Conflict { .. }) => {
                        return Err(Error::Answer("etcd has a key of this run".into()));
                    }
                    Err(error) => return Err(store_error(error)),
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|e| Error::Task(e.to_string()))??;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64().max(1e-9))
}

async fn remove(etcd: &EtcdStore, prefix: &str) -> Result<(), Error> {
    loop {
        let found = etcd.range(Range::prefix(prefix).limit(REMOVED)).await.map_err(store_error)?;
        if found.kvs.is_empty() {
            return Ok(());
        }
        let ops = found.kvs.iter().map(|kv| Op::Delete { key: kv.key.to_string() }).collect();
        etcd.txn(Txn { compare: vec![], ops }).await.map_err(store_error)?;
    }
}

/// GETs of pods that the creates have left, and LISTs of all of them.
async fn reads(bench: &mut Bench, sides: &Sides, namespace: &str, count: usize) -> Result<(), Error> {
    let mut readers = vec![(sides.server.clone(), "a0", vec![], vec![])];
    if let Some(beside) = &sides.beside {
        readers.push((beside.clone(), "a0", vec![], vec![]));
    }
    let others = readers.len();
    if let Some(embedded) = &sides.embedded {
        prepare(embedded, sides.clients, namespace, count * ROUNDS * others).await?;
        readers.push((embedded.clone(), "a0", vec![], vec![]));
    }
    let path = collection(namespace, "pods");
    for _ in 0..ROUNDS {
        for (target, name, gets, lists) in &mut readers {
            let (path, name) = (path.clone(), (*name).to_owned());
            let get = Each(move |i: usize| Call::get(format!("{path}/{name}-{:06}", (i * 7_919) % count)));
            gets.push(load::run(target, sides.clients, Until::Elapsed(READING), LIMIT, get).await?.rate());
            let path = collection(namespace, "pods");
            let list = Each(move |_| Call::get(path.clone()));
            lists.push(
                load::run(target, 1, Until::Count(3), LIMIT, list).await?.percentile(50.0).as_secs_f64(),
            );
        }
    }
    let mut figures = readers
        .iter_mut()
        .map(|(.., gets, lists)| (median(gets).unwrap_or(0.0), median(lists).unwrap_or(0.0)));
    let report = &mut bench.report;
    let server = figures.next().unwrap_or_default();
    report.set("etcd_gets", server.0);
    report.set("etcd_list", server.1);
    if sides.beside.is_some()
        && let Some((gets, list)) = figures.next()
    {
        report.set_beside("etcd_gets", gets);
        report.set_beside("etcd_list", list);
    }
    if let Some((gets, list)) = figures.next() {
        report.set("etcd_gets_embedded", gets);
        report.set("etcd_list_embedded", list);
        report.set("etcd_gets_ratio", server.0 / gets.max(1e-9));
        report.set("etcd_list_ratio", list / server.1.max(1e-9));
    }
    Ok(())
}

/// Makes the same pods in a server of other objects.
async fn prepare(target: &Arc<Target>, clients: usize, namespace: &str, count: usize) -> Result<(), Error> {
    let mut control = super::client::Client::new(target).limited(LIMIT);
    fixture::namespace(&mut control, namespace).await?;
    let owner = fixture::owner(&mut control, namespace, &objects::config_map()).await?;
    let (path, template) = (collection(namespace, "pods"), objects::big_pod(&owner));
    let create = Each(move |i: usize| template.create(&path, &format!("a0-{i:06}")));
    load::run(target, clients, Until::Count(count), LIMIT, create).await.map(drop)
}

async fn clear(bench: &mut Bench, sides: &Sides, namespace: &str) -> Result<(), Error> {
    let names = [namespace.to_owned()];
    fixture::clear(&mut bench.control, &names, &["pods", "configmaps"]).await?;
    if let Some(embedded) = &sides.embedded {
        let mut control = super::client::Client::new(embedded).limited(LIMIT);
        fixture::clear(&mut control, &names, &["pods", "configmaps"]).await?;
    }
    Ok(())
}
