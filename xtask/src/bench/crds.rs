//! The phase `crds`: many CustomResourceDefinitions, created at once and awaited until each serves its resource. Then all of
//! that again while one client goes on reading something else.

use super::{
    Bench, Error,
    client::{Call, Client},
    fixture,
    load::{self, Each, Job, Tally, Until},
    objects::{self, KINDS_PER_GROUP},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::time::sleep;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CLIENTS: usize = 8;
/// How long all of them may take.
const LIMIT: Duration = Duration::from_secs(600);
const SETTLE: Duration = Duration::from_secs(15);
/// How long the reader reads before anything is created.
const QUIET: Duration = Duration::from_secs(2);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs the phase.
pub async fn run(bench: &mut Bench) -> Result<(), Error> {
    let outcome = measure(bench).await;
    fixture::both(outcome, clear(bench).await)?;
    let outcome = beside_a_reader(bench).await;
    fixture::both(outcome, clear(bench).await)
}

async fn clear(bench: &mut Bench) -> Result<(), Error> {
    let ours = format!("{DEFINITIONS}?labelSelector={}", bench.selector());
    fixture::empty(&mut bench.control, &ours).await
}

async fn measure(bench: &mut Bench) -> Result<(), Error> {
    let before = bench.server.settled(SETTLE).await;
    let took = create(bench).await?;
    bench.report.time("crds_served", took);
    if let Some(memory) = bench.server.settled(SETTLE).await {
        bench.report.set("crds_memory", memory as f64);
        if let Some(before) = before {
            bench.report.set("crds_cost", memory.saturating_sub(before) as f64);
        }
    }
    Ok(())
}

async fn beside_a_reader(bench: &mut Bench) -> Result<(), Error> {
    let quiet = read(bench, Until::Elapsed(QUIET)).await?;
    let done = Arc::new(AtomicBool::new(false));
    let reading = read(bench, Until::Told(done.clone()));
    let creating = async {
        let outcome = create(bench).await;
        done.store(true, Ordering::Relaxed);
        outcome
    };
    let (reader, created) = tokio::join!(reading, creating);
    created?;
    let reader = reader?;
    for (id, tally, percent) in [
        ("crds_read_quiet_p50", &quiet, 50.0),
        ("crds_read_p50", &reader, 50.0),
        ("crds_read_quiet", &quiet, 99.0),
        ("crds_read", &reader, 99.0),
        ("crds_read_most", &reader, 100.0),
    ] {
        bench.report.time(id, tally.percentile(percent));
    }
    Ok(())
}

/// Creates them and waits for all that follows. Says how long that took.
async fn create(bench: &Bench) -> Result<Duration, Error> {
    let count = bench.report.counts.crds;
    let bodies: Vec<String> = (0..count).map(|i| objects::definition(&bench.run, i).to_string()).collect();
    let began = Instant::now();
    let create = Each(move |i: usize| Call::post(DEFINITIONS, bodies[i].clone()));
    load::run(&bench.target, CLIENTS, Until::Count(count), LIMIT, create).await?;
    let served = Served { run: bench.run.clone() };
    load::run(&bench.target, CLIENTS, Until::Count(count), LIMIT, served).await?;
    let discovered = Discovered { run: bench.run.clone(), count };
    load::run(&bench.target, CLIENTS, Until::Count(count.div_ceil(KINDS_PER_GROUP)), LIMIT, discovered)
        .await?;
    Ok(began.elapsed())
}

/// One client that reads one object again and again.
async fn read(bench: &Bench, until: Until) -> Result<Tally, Error> {
    let target = bench.target.clone();
    let get = Each(|_| Call::get("/api/v1/namespaces/default"));
    load::apart(async move { load::run(&target, 1, until, LIMIT, get).await }).await
}

/// Waits until a definition's resource can be listed.
struct Served {
    run: String,
}

impl Job for Served {
    async fn run(&self, client: &mut Client, index: usize) -> Result<(), Error> {
        let (group, plural) = objects::custom(&self.run, index);
        let list = Call::get(format!("/apis/{group}/v1/{plural}?limit=1"));
        let deadline = Instant::now() + LIMIT;
        loop {
            match client.call(&list).await {
                Ok(_) => return Ok(()),
                Err(Error::Status { code: 404 | 429 | 500.., .. }) if Instant::now() < deadline => {
                    sleep(PAUSE).await
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Waits until a group's discovery document names all its resources.
struct Discovered {
    run: String,
    count: usize,
}

impl Job for Discovered {
    async fn run(&self, client: &mut Client, index: usize) -> Result<(), Error> {
        let first = index * KINDS_PER_GROUP;
        let expected: Vec<String> = (first..self.count.min(first + KINDS_PER_GROUP))
            .map(|i| objects::custom(&self.run, i).1)
            .collect();
        let (group, _) = objects::custom(&self.run, first);
        let document = Call::get(format!("/apis/{group}/v1"));
        let deadline = Instant::now() + LIMIT;
        loop {
            let found = client.find(&document).await?.unwrap_or_default();
            let resources = found["resources"].as_array();
            let has = |name: &String| resources.is_some_and(|r| r.iter().any(|r| r["name"] == *name));
            if expected.iter().all(has) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::Timeout(format!("discovery of {group}"), LIMIT));
            }
            sleep(PAUSE).await;
        }
    }
}
