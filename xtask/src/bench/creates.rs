//! The phases `serial` (one client, one create after the other) and `creates` (64 clients at once).

use super::{
    Bench, Error,
    fixture::{self, collection},
    load::{self, Each, Tally, Until},
    objects,
};
use std::time::Duration;

const CLIENTS: usize = 64;
/// How long either may take.
const LIMIT: Duration = Duration::from_secs(600);
/// Creations before the clock runs.
const WARM: usize = 20;

/// Latency of single creations.
pub async fn serial(bench: &mut Bench) -> Result<(), Error> {
    let namespace = format!("bench-{}-serial", bench.run);
    let outcome = serially(bench, &namespace).await;
    let cleared = fixture::clear(&mut bench.control, &[namespace], &["configmaps", "pods"]).await;
    fixture::both(outcome, cleared)
}

async fn serially(bench: &mut Bench, namespace: &str) -> Result<(), Error> {
    fixture::namespace(&mut bench.control, namespace).await?;
    let owner = fixture::owner(&mut bench.control, namespace, &objects::config_map()).await?;
    let count = bench.report.counts.serial;
    for (plural, template, ids) in [
        ("configmaps", objects::config_map(), ["serial_p50", "serial_p99"]),
        ("pods", objects::big_pod(&owner), ["serial_pod_p50", "serial_pod_p99"]),
    ] {
        let path = collection(namespace, plural);
        for i in 0..WARM {
            bench.control.call(&template.create(&path, &format!("warm-{i}"))).await?;
        }
        let create = Each(move |i: usize| template.create(&path, &format!("serial-{i:05}")));
        let tally = load::run(&bench.target, 1, Until::Count(count), LIMIT, create).await?;
        bench.report.time(ids[0], tally.percentile(50.0));
        bench.report.time(ids[1], tally.percentile(99.0));
    }
    Ok(())
}

/// Rate of creations by many clients.
pub async fn parallel(bench: &mut Bench) -> Result<(), Error> {
    let namespace = format!("bench-{}-creates", bench.run);
    let outcome = rate(bench, &namespace).await;
    if let Ok(tally) = &outcome {
        bench.report.set("creates", tally.rate());
    }
    let cleared = fixture::clear(&mut bench.control, &[namespace], &["configmaps"]).await;
    fixture::both(outcome.map(drop), cleared)
}

async fn rate(bench: &mut Bench, namespace: &str) -> Result<Tally, Error> {
    fixture::namespace(&mut bench.control, namespace).await?;
    let template = objects::config_map();
    let path = collection(namespace, "configmaps");
    let create = Each(move |i: usize| template.create(&path, &format!("c-{i:06}")));
    load::run(&bench.target, CLIENTS, Until::Count(bench.report.counts.creates), LIMIT, create).await
}
