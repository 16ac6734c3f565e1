//! The phase `watch`: one namespace's ConfigMaps under the eyes of very many watchers.
//!
//! Invariants: every watcher has a connection of its own; events are counted as lines, nothing is parsed; the rate counts
//! from the first creation to the last event that reached a watcher; after the last expected event the watchers listen on for
//! a moment, so that events too many are seen as well as events too few.

use super::{
    Bench, Error,
    fixture::{self, collection},
    load::{self, Each, Until},
    objects, process,
    stats::newlines,
    stream::{Stream, reaches},
};
use futures_util::{StreamExt, stream};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{task::JoinSet, time::sleep};

const WRITERS: usize = 16;
/// Files that are open besides the watchers' sockets.
const OTHER_FILES: usize = 200;
/// Watches that are opened at the same time.
const OPENING: usize = 32;
/// How long the writers may take.
const LIMIT: Duration = Duration::from_secs(300);
/// How long no event at all may arrive before the rest counts as lost.
const QUIET: Duration = Duration::from_secs(15);
/// How long watchers listen on.
const AFTERMATH: Duration = Duration::from_millis(300);

/// Runs the phase.
pub async fn run(bench: &mut Bench) -> Result<(), Error> {
    limit_watchers(bench);
    let namespace = format!("bench-{}-watch", bench.run);
    let outcome = measure(bench, &namespace).await;
    let cleared = fixture::clear(&mut bench.control, &[namespace], &["configmaps"]).await;
    fixture::both(outcome, cleared)
}

/// The limit on open files cannot be raised from here; fewer watchers are better than none.
fn limit_watchers(bench: &mut Bench) {
    let Some(files) = process::open_files() else { return };
    let most = files.saturating_sub(OTHER_FILES).max(1);
    let wanted = bench.report.counts.watchers;
    if wanted > most {
        bench.report.counts.watchers = most;
        let note =
            format!("open files are limited to {files} (ulimit -n): {most} watchers instead of {wanted}");
        bench.report.notes.push(note);
    }
}

/// What all watchers report to.
struct Tally {
    began: Instant,
    /// Events of each watcher.
    events: Vec<AtomicU64>,
    /// When the last event arrived, in nanoseconds after `began`.
    last: AtomicU64,
    resumed: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Tally {
    fn total(&self) -> u64 {
        self.events.iter().map(|e| e.load(Ordering::Relaxed)).sum()
    }
}

async fn measure(bench: &mut Bench, namespace: &str) -> Result<(), Error> {
    fixture::namespace(&mut bench.control, namespace).await?;
    let path = collection(namespace, "configmaps");
    let revision = fixture::revision(&mut bench.control, &path).await?;
    let counts = bench.report.counts;
    let opening = (0..counts.watchers).map(|_| Stream::open(&bench.target, &path, &revision));
    let opened: Vec<Result<Stream, Error>> = stream::iter(opening).buffer_unordered(OPENING).collect().await;
    let streams = opened.into_iter().collect::<Result<Vec<Stream>, Error>>()?;
    let tally = Arc::new(Tally {
        began: Instant::now(),
        events: streams.iter().map(|_| AtomicU64::new(0)).collect(),
        last: AtomicU64::new(0),
        resumed: AtomicUsize::new(0),
        failures: Mutex::new(vec![]),
    });
    let mut watchers = JoinSet::new();
    for (i, stream) in streams.into_iter().enumerate() {
        watchers.spawn(follow(stream, i, tally.clone()));
    }
    let template = objects::small_config_map();
    let create = Each(move |i: usize| template.create(&path, &format!("w-{i:05}")));
    let written = load::run(&bench.target, WRITERS, Until::Count(counts.events), LIMIT, create).await?;
    let each = counts.events as u64;
    let expected = each * counts.watchers as u64;
    reaches(expected, || tally.total(), QUIET, LIMIT).await;
    sleep(AFTERMATH).await;
    watchers.abort_all();
    // The writers connected first, which is no part of the fan-out.
    conclude(bench, &tally, each, written.began - tally.began);
    Ok(())
}

async fn follow(mut stream: Stream, index: usize, tally: Arc<Tally>) {
    loop {
        match stream.next().await {
            Ok(piece) => {
                let lines = newlines(&piece) as u64;
                if lines > 0 {
                    tally.events[index].fetch_add(lines, Ordering::Relaxed);
                    let now = tally.began.elapsed().as_nanos() as u64;
                    tally.last.fetch_max(now, Ordering::Relaxed);
                }
                tally.resumed.fetch_add(std::mem::take(&mut stream.resumed), Ordering::Relaxed);
            }
            Err(error) => {
                if let Ok(mut failures) = tally.failures.lock() {
                    failures.push(error.to_string());
                }
                return;
            }
        }
    }
}

fn conclude(bench: &mut Bench, tally: &Tally, each: u64, prelude: Duration) {
    let counts: Vec<u64> = tally.events.iter().map(|e| e.load(Ordering::Relaxed)).collect();
    let lost: u64 = counts.iter().map(|c| each.saturating_sub(*c)).sum();
    let extra: u64 = counts.iter().map(|c| c.saturating_sub(each)).sum();
    let elapsed = Duration::from_nanos(tally.last.load(Ordering::Relaxed)).saturating_sub(prelude);
    let report = &mut bench.report;
    report.set("watch_events", tally.total() as f64 / elapsed.as_secs_f64().max(1e-9));
    report.set("watch_lost", lost as f64);
    if extra > 0 {
        report.notes.push(format!("watch: {extra} events more than expected"));
    }
    let resumed = tally.resumed.load(Ordering::Relaxed);
    if resumed > 0 {
        report.notes.push(format!("watch: the server ended watches {resumed} times; they were resumed"));
    }
    let failures = tally.failures.lock().map(|f| f.clone()).unwrap_or_default();
    if let Some(first) = failures.first() {
        report.notes.push(format!("watch: {} watchers failed, the first with: {first}", failures.len()));
    }
}
