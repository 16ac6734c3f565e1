//! The phase `crds`: many CustomResourceDefinitions, created at once and awaited until each serves its resource.

use super::{
    Bench, Error,
    client::{Call, Client},
    fixture,
    load::{self, Each, Job, Until},
    objects::{self, KINDS_PER_GROUP},
};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CLIENTS: usize = 8;
/// How long all of them may take.
const LIMIT: Duration = Duration::from_secs(600);
const SETTLE: Duration = Duration::from_secs(15);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs the phase.
pub async fn run(bench: &mut Bench) -> Result<(), Error> {
    let outcome = measure(bench).await;
    let ours = format!("{DEFINITIONS}?labelSelector={}", bench.selector());
    let cleared = fixture::empty(&mut bench.control, &ours).await;
    fixture::both(outcome, cleared)
}

async fn measure(bench: &mut Bench) -> Result<(), Error> {
    let count = bench.report.counts.crds;
    let bodies: Vec<String> = (0..count).map(|i| objects::definition(&bench.run, i).to_string()).collect();
    let before = bench.server.settled(SETTLE).await;
    let began = Instant::now();
    let create = Each(move |i: usize| Call::post(DEFINITIONS, bodies[i].clone()));
    load::run(&bench.target, CLIENTS, Until::Count(count), LIMIT, create).await?;
    let served = Served { run: bench.run.clone() };
    load::run(&bench.target, CLIENTS, Until::Count(count), LIMIT, served).await?;
    let discovered = Discovered { run: bench.run.clone(), count };
    load::run(&bench.target, CLIENTS, Until::Count(count.div_ceil(KINDS_PER_GROUP)), LIMIT, discovered)
        .await?;
    bench.report.time("crds_served", began.elapsed());
    if let Some(memory) = bench.server.settled(SETTLE).await {
        bench.report.set("crds_memory", memory as f64);
        if let Some(before) = before {
            bench.report.set("crds_cost", memory.saturating_sub(before) as f64);
        }
    }
    Ok(())
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
