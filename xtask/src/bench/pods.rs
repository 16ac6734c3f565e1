//! The phases that share tens of thousands of pods: `pods` (creating them, memory), `gets` and `list`.
//!
//! Invariants: the pods name a scheduler that does not run, so that nothing but the API server ever touches them; they are
//! spread over a few namespaces; they are removed at the end, whatever failed.

use super::{
    Bench, Error,
    client::{Call, Client, Target},
    fixture::{self, collection},
    load::{self, Each, Until},
    objects::{self, Template},
    stats,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

const NAMESPACES: usize = 5;
const CLIENTS: usize = 64;
/// How long creating all of them may take.
const LIMIT: Duration = Duration::from_secs(1_200);
/// For how long objects are read.
const READING: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_secs(15);
/// How long a LIST may take.
const LIST_LIMIT: Duration = Duration::from_secs(300);
/// LISTs in a row, of which the middle one counts.
const LISTS: usize = 3;
const AT_ONCE: usize = 8;

/// The namespaces with the pods.
pub struct Pods {
    namespaces: Vec<String>,
}

fn name(index: usize) -> String {
    format!("storefront-5d9f7c6b4-{index:05}")
}

impl Pods {
    /// The namespaces' names; nothing is made yet.
    pub fn new(bench: &Bench) -> Pods {
        Pods { namespaces: (0..NAMESPACES).map(|i| format!("bench-{}-pods-{i}", bench.run)).collect() }
    }

    /// Creates the pods, and looks at the memory.
    pub async fn create(&self, bench: &mut Bench) -> Result<(), Error> {
        let owner = objects::config_map();
        let mut places: Vec<(String, Template)> = vec![];
        for namespace in &self.namespaces {
            fixture::namespace(&mut bench.control, namespace).await?;
            let uid = fixture::owner(&mut bench.control, namespace, &owner).await?;
            places.push((collection(namespace, "pods"), objects::big_pod(&uid)));
        }
        let create = Each(move |i: usize| {
            let (path, template) = &places[i % NAMESPACES];
            template.create(path, &name(i))
        });
        let count = Until::Count(bench.report.counts.pods);
        let tally = load::run(&bench.target, CLIENTS, count, LIMIT, create).await?;
        bench.report.set("pod_creates", tally.rate());
        if let Some(memory) = bench.server.settled(SETTLE).await {
            bench.report.set("pods_memory", memory as f64);
        }
        Ok(())
    }

    /// Reads single pods for a while.
    pub async fn gets(&self, bench: &mut Bench) -> Result<(), Error> {
        let paths: Vec<String> = self.namespaces.iter().map(|n| collection(n, "pods")).collect();
        let pods = bench.report.counts.pods;
        let get = Each(move |i: usize| {
            // A prime stride: neighbours in time are no neighbours in the store.
            let pod = (i * 7_919) % pods;
            Call::get(format!("{}/{}", paths[pod % NAMESPACES], name(pod)))
        });
        let tally = load::run(&bench.target, CLIENTS, Until::Elapsed(READING), LIMIT, get).await?;
        bench.report.set("gets", tally.rate());
        Ok(())
    }

    /// Lists all pods of the cluster: alone, then eight times at once.
    pub async fn list(&self, bench: &mut Bench) -> Result<(), Error> {
        let target = bench.target.clone();
        let mut clients = vec![];
        for _ in 0..AT_ONCE {
            let mut client = Client::new(&target).limited(LIST_LIMIT);
            client.connect().await?;
            clients.push(client);
        }
        let (mut times, mut growth, mut length) = (vec![], None, 0);
        for _ in 0..LISTS {
            let peak = bench.server.watch_peak();
            let (bytes, took) = list(&mut clients[0]).await?;
            growth = growth.max(peak.map(|p| p.end()));
            times.push(took.as_secs_f64());
            length = bytes;
        }
        bench.report.set("list_bytes", length as f64);
        if let Some(time) = stats::median(&mut times) {
            bench.report.set("list", time);
        }
        if let Some(growth) = growth {
            bench.report.set("list_memory", growth.max(0) as f64);
        }
        bench.server.settled(SETTLE).await;
        let peak = bench.server.watch_peak();
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for mut client in clients {
            tasks.spawn(async move { list(&mut client).await });
        }
        while let Some(outcome) = tasks.join_next().await {
            let (bytes, _) = outcome.map_err(|e| Error::Task(e.to_string()))??;
            // Other pods of the cluster may come and go; a list cut short would show as much less.
            if bytes < length / 10 * 9 {
                return Err(Error::Answer(format!("a LIST of {length} bytes came back with {bytes}")));
            }
        }
        bench.report.time("lists", began.elapsed());
        if let Some(peak) = peak {
            bench.report.set("lists_memory", peak.end().max(0) as f64);
        }
        Ok(())
    }

    /// Removes pods and namespaces.
    pub async fn clear(&self, bench: &mut Bench) -> Result<(), Error> {
        let target: Arc<Target> = bench.target.clone();
        let mut client = Client::new(&target).limited(LIST_LIMIT);
        fixture::clear(&mut client, &self.namespaces, &["pods"]).await
    }
}

/// All pods: how many bytes, how long.
async fn list(client: &mut Client) -> Result<(u64, Duration), Error> {
    let began = Instant::now();
    let bytes = client.call(&Call::get("/api/v1/pods")).await?;
    Ok((bytes, began.elapsed()))
}
