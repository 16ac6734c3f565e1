//! Reads the pages of all nodes in turn, while there are readers.
//!
//! The first reader after a pause waits for two rounds in quick succession, so that it gets figures instead of none.
//!
//! Invariants:
//! - No node is asked when no reader came within [`KEEP`]; figures are dropped then, so that none is older than [`STALE`].
//! - At most [`PARALLEL`] nodes are asked at once, each for [`PAGE_TIMEOUT`] at most; a node that does not answer keeps its
//!   former figures for one round and loses them after it.

use crate::{
    page::NodePage,
    points::{Figures, Points, Usage},
};
use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream};
use jiff::SignedDuration;
use kaji_meta::Clock;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// The time between two rounds: metrics-server's `--metric-resolution`.
const RESOLUTION: Duration = Duration::from_secs(15);
/// The time between the first two.
const FIRST_RESOLUTION: Duration = Duration::from_secs(2);
/// How long after the last reader nodes are still asked.
const KEEP: Duration = Duration::from_secs(60);
/// How long the first reader waits.
const FIRST_READ_TIMEOUT: Duration = Duration::from_secs(8);
/// Nodes that are asked at once.
const PARALLEL: usize = 32;
/// How long a node may take to answer.
pub(crate) const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Rounds after which there are rates.
const ENOUGH: u64 = 2;
/// Failures in a row after which a node's points are dropped.
const FAILURES: u8 = 2;

/// The greatest age of figures.
pub const STALE: Duration = Duration::from_secs(KEEP.as_secs() + 2 * RESOLUTION.as_secs());

/// Why a node's page could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node's metrics cannot be read: {0}")]
pub struct PageError(pub String);

/// The nodes of the cluster and their pages.
pub trait NodePages: Send + Sync + 'static {
    /// The names of all nodes.
    fn nodes(&self) -> Vec<String>;

    /// What a node's kubelet answers on `/metrics/resource`, within `timeout`.
    fn page<'a>(&'a self, node: &'a str, timeout: Duration) -> BoxFuture<'a, Result<Bytes, PageError>>;
}

struct State {
    points: Points,
    /// Failures in a row, by node.
    failures: HashMap<String, u8>,
    last_reader: Option<Instant>,
}

/// Figures of all nodes and pods.
pub struct Collector {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Rounds since the last pause.
    rounds: watch::Sender<u64>,
    readers: tokio::sync::Notify,
}

impl Collector {
    /// A collector without figures; `clock` is for samples without a time of their own.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Collector> {
        let state = State { points: Points::default(), failures: HashMap::new(), last_reader: None };
        Arc::new(Collector {
            clock,
            state: Mutex::new(state),
            rounds: watch::Sender::new(0),
            readers: tokio::sync::Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces a reader, and waits until there are figures if there are none yet.
    pub async fn ready(&self) {
        self.state().last_reader = Some(Instant::now());
        self.readers.notify_one();
        let mut rounds = self.rounds.subscribe();
        // Too late is no error: the reader is shown what there is, as upstream's does.
        let _ = tokio::time::timeout(FIRST_READ_TIMEOUT, rounds.wait_for(|rounds| *rounds >= ENOUGH)).await;
    }

    /// What a node uses.
    pub fn node(&self, name: &str) -> Option<Figures<Usage>> {
        self.state().points.node(name)
    }

    /// What the containers of a pod use, by name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Figures<BTreeMap<String, Usage>>> {
        self.state().points.pod(namespace, name)
    }

    /// Asks nodes while there are readers, until `stop` turns true.
    pub async fn run(self: Arc<Self>, nodes: impl NodePages, mut stop: watch::Receiver<bool>) {
        let work = async {
            loop {
                if self.has_readers() {
                    self.round(&nodes).await;
                    let done = *self.rounds.borrow() + 1;
                    self.rounds.send_replace(done);
                    let pause = if done < ENOUGH { FIRST_RESOLUTION } else { RESOLUTION };
                    tokio::time::sleep(pause).await;
                } else {
                    self.readers.notified().await;
                }
            }
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|s| *s) => {}
            () = work => {}
        }
    }

    /// Whether a reader came lately. If not, what is known is dropped at once, so that the next reader waits for a new round.
    fn has_readers(&self) -> bool {
        let mut state = self.state();
        if state.last_reader.is_some_and(|at| at.elapsed() < KEEP) {
            return true;
        }
        state.points.clear();
        state.failures.clear();
        self.rounds.send_replace(0);
        false
    }

    async fn round(&self, nodes: &impl NodePages) {
        let names = nodes.nodes();
        {
            let known: HashSet<&str> = names.iter().map(String::as_str).collect();
            let mut state = self.state();
            state.points.retain(|name| known.contains(name));
            state.failures.retain(|name, _| known.contains(name.as_str()));
        }
        let ask = |name: String| async move {
            let page = tokio::time::timeout(PAGE_TIMEOUT, nodes.page(&name, PAGE_TIMEOUT)).await;
            (name, page.unwrap_or_else(|_| Err(PageError("no answer in time".into()))))
        };
        let mut pages = stream::iter(names).map(ask).buffer_unordered(PARALLEL);
        while let Some((name, page)) = pages.next().await {
            self.take(&name, page);
        }
    }

    fn take(&self, name: &str, page: Result<Bytes, PageError>) {
        match page {
            Ok(page) => {
                let page = NodePage::parse(&String::from_utf8_lossy(&page), self.clock.now());
                let resolution = SignedDuration::try_from(RESOLUTION).unwrap_or_default();
                let mut state = self.state();
                state.failures.remove(name);
                state.points.add(name, page, resolution);
            }
            Err(error) => {
                tracing::debug!(node = name, %error, "the metrics of a node cannot be read");
                let mut state = self.state();
                let failures = state.failures.entry(name.to_owned()).or_default();
                *failures = failures.saturating_add(1);
                if *failures >= FAILURES {
                    state.points.retain(|node| node != name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::ManualClock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A node that uses half a core; it fails from the given second on.
    #[derive(Clone)]
    struct HalfCore {
        asked: Arc<AtomicU64>,
        began: Instant,
        fails_after: Duration,
    }

    impl NodePages for HalfCore {
        fn nodes(&self) -> Vec<String> {
            vec!["a".into()]
        }

        fn page<'a>(&'a self, _: &'a str, _: Duration) -> BoxFuture<'a, Result<Bytes, PageError>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let passed = self.began.elapsed();
            Box::pin(async move {
                if passed >= self.fails_after {
                    return Err(PageError("down".into()));
                }
                let (cpu, at) = (100.0 + passed.as_secs_f64() / 2.0, 1_000_000 + passed.as_millis());
                let page = format!(
                    "node_cpu_usage_seconds_total {cpu} {at}\nnode_memory_working_set_bytes 5 {at}\n"
                );
                Ok(Bytes::from(page))
            })
        }
    }

    fn start(fails_after: Duration) -> (Arc<Collector>, Arc<AtomicU64>, watch::Sender<bool>) {
        let collector = Collector::new(Arc::new(ManualClock::new(jiff::Timestamp::UNIX_EPOCH)));
        let asked = Arc::new(AtomicU64::new(0));
        let nodes = HalfCore { asked: asked.clone(), began: Instant::now(), fails_after };
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(collector.clone().run(nodes, stopped));
        (collector, asked, stop)
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_are_asked_while_there_are_readers() {
        let (collector, asked, _stop) = start(Duration::MAX);
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        let began = Instant::now();
        collector.ready().await;
        assert!(began.elapsed() <= FIRST_RESOLUTION + Duration::from_millis(10));
        let figures = collector.node("a").unwrap();
        assert_eq!((figures.usage.cpu, figures.usage.memory, figures.window.as_secs()), (500_000_000, 5, 2));
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(collector.node("a").unwrap().window.as_secs(), 15);
        tokio::time::sleep(STALE).await;
        assert_eq!(collector.node("a"), None);
        let so_far = asked.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert_eq!(asked.load(Ordering::Relaxed), so_far);
        collector.ready().await;
        assert_eq!(collector.node("a").unwrap().usage.cpu, 500_000_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_fails_loses_its_figures() {
        let (collector, _, _stop) = start(Duration::from_secs(10));
        collector.ready().await;
        assert!(collector.node("a").is_some());
        // The first failure is forgiven.
        tokio::time::sleep(Duration::from_secs(17)).await;
        assert!(collector.node("a").is_some());
        tokio::time::sleep(Duration::from_secs(16)).await;
        assert_eq!(collector.node("a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_without_figures_waits_no_longer_than_its_patience() {
        let collector = Collector::new(Arc::new(ManualClock::new(jiff::Timestamp::UNIX_EPOCH)));
        let began = Instant::now();
        collector.ready().await;
        assert_eq!(began.elapsed(), FIRST_READ_TIMEOUT);
    }
}
