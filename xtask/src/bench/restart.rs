//! The phase `restart`: how long a server takes to start again with many pods, and its memory then. With any store: in etcd or of
//! the server's own.
//!
//! Invariant: the pods are made by a server of the same command line, which has ended before the clock starts; they are removed.

use super::{
    Error,
    client::Client,
    fixture::{self, collection},
    load::{self, Each, Until},
    objects,
    report::Report,
    start,
};
use std::{path::Path, time::Duration};

const CLIENTS: usize = 64;
const LIMIT: Duration = Duration::from_secs(1_800);
const SETTLE: Duration = Duration::from_secs(15);
/// Times that it is started again.
const STARTS: usize = 3;

/// Measures the phase.
pub async fn run(report: &mut Report, run: &str, command: &str, kubeconfig: &Path) -> Result<(), Error> {
    let namespace = format!("bench-{run}-restart");
    let outcome = measure(report, &namespace, command, kubeconfig).await;
    let started = start::start(command, kubeconfig).await?;
    let mut control = Client::new(&started.target).limited(LIMIT);
    let cleared = fixture::clear(&mut control, &[namespace], &["pods", "configmaps"]).await;
    fixture::both(outcome, cleared)
}

async fn measure(
    report: &mut Report,
    namespace: &str,
    command: &str,
    kubeconfig: &Path,
) -> Result<(), Error> {
    let count = report.counts.restart;
    {
        let started = start::start(command, kubeconfig).await?;
        let mut control = Client::new(&started.target).limited(LIMIT);
        fixture::namespace(&mut control, namespace).await?;
        let owner = fixture::owner(&mut control, namespace, &objects::config_map()).await?;
        let (path, template) = (collection(namespace, "pods"), objects::big_pod(&owner));
        let create = Each(move |i: usize| template.create(&path, &format!("p-{i:06}")));
        load::run(&started.target, CLIENTS, Until::Count(count), LIMIT, create).await?;
    }
    let (mut times, mut memory) = (vec![], vec![]);
    for _ in 0..STARTS {
        let started = start::start(command, kubeconfig).await?;
        times.push(started.took.as_secs_f64());
        memory.extend(started.exec.server().settled(SETTLE).await.map(|bytes| bytes as f64));
    }
    for (id, values) in [("restart", &mut times), ("restart_memory", &mut memory)] {
        if let Some(value) = super::stats::median(values) {
            report.set(id, value);
        }
    }
    Ok(())
}
