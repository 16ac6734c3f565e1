//! Many clients at once. Invariants: connections are made before the clock starts; work is handed out by one counter;
//! the first error ends the load; nothing outlives its time limit.

use super::{
    Error,
    client::{Call, Client, Target},
    stats::percentile,
};
use futures_util::future::try_join_all;
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{task::JoinSet, time::timeout};

/// What a client does, again and again.
pub trait Job: Send + Sync + 'static {
    /// Does the piece of work with this number.
    fn run(&self, client: &mut Client, index: usize) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The job of sending one request, made from its number.
pub struct Each<F>(pub F);

impl<F: Fn(usize) -> Call + Send + Sync + 'static> Job for Each<F> {
    async fn run(&self, client: &mut Client, index: usize) -> Result<(), Error> {
        client.call(&(self.0)(index)).await.map(drop)
    }
}

/// How much work.
#[derive(Clone, Debug)]
pub enum Until {
    /// So many pieces.
    Count(usize),
    /// As many as fit.
    Elapsed(Duration),
    /// Until this says so.
    Told(Arc<AtomicBool>),
}

/// How a load went.
#[derive(Debug)]
pub struct Tally {
    /// When the first request left.
    pub began: Instant,
    /// Pieces of work done.
    pub done: usize,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// How long each piece took, ascending.
    pub latencies: Vec<Duration>,
}

impl Tally {
    /// Pieces per second.
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// A percentile of the latencies.
    pub fn percentile(&self, percent: f64) -> Duration {
        percentile(&self.latencies, percent).unwrap_or_default()
    }
}

/// Runs a job with so many clients. `limit` bounds the whole.
pub async fn run(
    target: &Arc<Target>,
    clients: usize,
    until: Until,
    limit: Duration,
    job: impl Job,
) -> Result<Tally, Error> {
    let connected = try_join_all((0..clients).map(|_| async {
        let mut client = Client::new(target);
        client.connect().await.map(|()| client)
    }))
    .await?;
    let job = Arc::new(job);
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for client in connected {
        tasks.spawn(one(client, job.clone(), next.clone(), until.clone(), started));
    }
    let mut tally = Tally { began: started, done: 0, elapsed: Duration::ZERO, latencies: vec![] };
    let all = async {
        while let Some(outcome) = tasks.join_next().await {
            let (latencies, ended) = outcome.map_err(|e| Error::Task(e.to_string()))??;
            tally.done += latencies.len();
            tally.latencies.extend(latencies);
            tally.elapsed = tally.elapsed.max(ended - started);
        }
        Ok(())
    };
    match timeout(limit, all).await {
        Ok(outcome) => outcome?,
        Err(_) => {
            let started = next.load(Ordering::Relaxed);
            return Err(Error::Timeout(format!("{clients} clients (about {started} requests begun)"), limit));
        }
    }
    tally.latencies.sort_unstable();
    Ok(tally)
}

async fn one(
    mut client: Client,
    job: Arc<impl Job>,
    next: Arc<AtomicUsize>,
    until: Until,
    started: Instant,
) -> Result<(Vec<Duration>, Instant), Error> {
    let mut latencies = vec![];
    let mut before = Instant::now();
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let over = match &until {
            Until::Count(count) => index >= *count,
            Until::Elapsed(time) => before - started >= *time,
            Until::Told(told) => told.load(Ordering::Relaxed),
        };
        if over {
            return Ok((latencies, before));
        }
        job.run(&mut client, index).await?;
        let after = Instant::now();
        latencies.push(after - before);
        before = after;
    }
}

/// Runs on a thread and runtime of its own, so that the generator's other work does not delay it.
pub async fn apart<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let thread = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|e| Error::Task(e.to_string()))?.block_on(work)
    });
    thread.await.map_err(|e| Error::Task(e.to_string()))?
}
