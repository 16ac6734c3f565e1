//! The thread that writes the proxy's tables to the kernel's nftables, by netlink.

use crate::{
    NodeConfig,
    changes::{Changes, Ruleset},
    conntrack,
    service::{Compiled, Tracked},
    tables::TrafficPolicy,
};
use kaji_netfilter::{
    Batch, Element, ElementData, Family, NetlinkError, Nftables, conntrack::Conntrack, namespace,
};
use std::{
    collections::HashMap,
    fs::File,
    io,
    net::{SocketAddr, TcpListener},
};
use tokio::sync::{mpsc, oneshot};

/// Operations that wait.
const QUEUE: usize = 16;

/// Why rules are not in force.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The kernel.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A namespace, a thread, a listener.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// The thread has ended.
    #[error("the service proxy has been shut down")]
    Stopped,
}

type Job = Box<dyn FnOnce(&mut Kernel) + Send>;

/// A handle on the tables. The thread ends with the last handle; the rules stay in force.
#[derive(Clone, Debug)]
pub struct Dataplane {
    jobs: mpsc::Sender<Job>,
}

/// What the thread holds.
struct Kernel {
    node: NodeConfig,
    nft: Nftables,
    rulesets: [(Family, Ruleset); 2],
    tracked: HashMap<String, Tracked>,
    /// Whether the tables are as the rulesets say.
    in_force: bool,
}

impl Dataplane {
    /// Starts the thread. Tables are made by the first [`Dataplane::update`].
    ///
    /// # Errors
    /// Those of the system.
    pub async fn start(node: NodeConfig) -> Result<Dataplane, ProxyError> {
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE);
        let (ready, started) = oneshot::channel();
        let run = move || {
            let mut kernel = match Kernel::open(node) {
                Ok(kernel) => {
                    if ready.send(Ok(())).is_err() {
                        return;
                    }
                    kernel
                }
                Err(error) => {
                    // The caller may have given up.
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            while let Some(job) = queue.blocking_recv() {
                job(&mut kernel);
            }
        };
        let thread = std::thread::Builder::new().name("service-proxy".into()).spawn(run);
        thread.map_err(|error| ProxyError::Io("thread".into(), error))?;
        started.await.unwrap_or(Err(ProxyError::Stopped))?;
        Ok(Dataplane { jobs })
    }

    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Kernel) -> Result<T, ProxyError> + Send + 'static,
    ) -> Result<T, ProxyError> {
        let (done, result) = oneshot::channel();
        let job: Job = Box::new(move |kernel| {
            // A caller that gave up gets nothing.
            let _ = done.send(work(kernel));
        });
        self.jobs.send(job).await.map_err(|_| ProxyError::Stopped)?;
        result.await.unwrap_or(Err(ProxyError::Stopped))
    }

    /// Replaces what these services have in the kernel, by `namespace/name`. Answers how many elements changed.
    ///
    /// # Errors
    /// The kernel's. The next call writes the whole tables then.
    pub async fn update(&self, services: Vec<(String, Compiled)>) -> Result<usize, ProxyError> {
        self.call(move |kernel| kernel.update(services)).await
    }

    /// Writes the tables anew for another configuration of the node.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn reconfigure(&self, node: NodeConfig) -> Result<(), ProxyError> {
        self.call(move |kernel| {
            kernel.node = node;
            kernel.in_force = false;
            Ok(())
        })
        .await
    }

    /// A listener in the node's network namespace.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn listen(&self, address: SocketAddr) -> Result<TcpListener, ProxyError> {
        self.call(move |_| {
            let error = |error| ProxyError::Io(address.to_string(), error);
            let listener = TcpListener::bind(address).map_err(error)?;
            listener.set_nonblocking(true).map_err(error)?;
            Ok(listener)
        })
        .await
    }

    /// Removes the tables.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn remove(&self) -> Result<(), ProxyError> {
        self.call(|kernel| {
            kernel.in_force = false;
            for family in [Family::V4, Family::V6] {
                let mut batch = Batch::new(family, &kernel.node.table);
                batch.add_table();
                batch.delete_table();
                kernel.nft.apply(&batch)?;
            }
            Ok(())
        })
        .await
    }
}

impl Kernel {
    fn open(node: NodeConfig) -> Result<Kernel, ProxyError> {
        if let Some(path) = &node.namespace {
            let entered = File::open(path).and_then(|namespace| namespace::enter(&namespace));
            entered.map_err(|error| ProxyError::Io(path.display().to_string(), error))?;
        }
        let rulesets = [(Family::V4, Ruleset::default()), (Family::V6, Ruleset::default())];
        Ok(Kernel { node, nft: Nftables::open()?, rulesets, tracked: HashMap::new(), in_force: false })
    }

    fn update(&mut self, services: Vec<(String, Compiled)>) -> Result<usize, ProxyError> {
        let mut changed = Tracked::default();
        let mut changes = [Changes::default(), Changes::default()];
        for (name, compiled) in services {
            for (elements, index) in [(compiled.v4, 0), (compiled.v6, 1)] {
                let own = self.rulesets[index].1.update(&name, elements);
                Ruleset::merge(&mut changes[index], own);
            }
            if self.tracked.get(&name) != Some(&compiled.tracked) {
                changed.destinations.extend(compiled.tracked.destinations.clone());
            }
            if compiled.tracked.destinations.is_empty() {
                self.tracked.remove(&name);
            } else {
                self.tracked.insert(name, compiled.tracked);
            }
        }
        let count = changes.iter().map(Changes::len).sum();
        let whole = !self.in_force || !self.apply(&changes);
        if whole {
            self.write()?;
        }
        for policy in TrafficPolicy::ALL {
            let touches = |changes: &Changes| whole || changes.touches(policy.affinity_endpoints());
            self.forget_clients(policy, changes.each_ref().map(touches))?;
        }
        if !changed.destinations.is_empty() {
            let forgotten = conntrack::clean(&mut Conntrack::open()?, &changed)?;
            tracing::debug!(forgotten, "removed connection tracking entries of deleted endpoints");
        }
        Ok(count)
    }

    /// Applies changes; answers false when the tables are not what they were.
    fn apply(&mut self, changes: &[Changes; 2]) -> bool {
        for ((family, _), changes) in self.rulesets.iter().zip(changes) {
            if changes.is_empty() {
                continue;
            }
            if let Err(error) = self.nft.apply(&changes.batch(*family, &self.node)) {
                tracing::warn!(%error, ?family, "the service rules could not be changed; rewriting all of them");
                return false;
            }
        }
        true
    }

    /// Writes the whole tables. Clients keep their affinity.
    fn write(&mut self) -> Result<(), ProxyError> {
        self.in_force = false;
        for (family, ruleset) in &mut self.rulesets {
            let mut kept = vec![];
            for policy in TrafficPolicy::ALL {
                let spec = policy.affinity_spec(*family);
                let mut clients = self.nft.elements(*family, &self.node.table, &spec)?;
                clients.retain(|client| client.timeout.is_some());
                kept.push((spec, clients));
            }
            let mut batch = ruleset.table(*family, &self.node);
            for (spec, clients) in &kept {
                batch.add_elements(spec, clients);
            }
            self.nft.apply(&batch)?;
        }
        self.in_force = true;
        Ok(())
    }

    /// Forgets the affinity of clients to endpoints that the policy does not have any more, in the families where they changed: the rule that remembers a client does
    /// not replace what is remembered of it.
    fn forget_clients(&mut self, policy: TrafficPolicy, changed: [bool; 2]) -> Result<(), ProxyError> {
        for ((family, ruleset), _) in self.rulesets.iter().zip(changed).filter(|(_, changed)| *changed) {
            let spec = policy.affinity_spec(*family);
            let clients = self.nft.elements(*family, &self.node.table, &spec)?;
            let address = family.address_len() as usize;
            let gone: Vec<Element> = clients
                .into_iter()
                .filter(|client| {
                    let ElementData::Value(endpoint) = &client.data else { return false };
                    let service_port = client.key.get(address..).unwrap_or_default();
                    let pair = [service_port, endpoint.as_slice()].concat();
                    !ruleset.contains(&(policy.affinity_endpoints(), pair))
                })
                .map(|client| Element::new(client.key, ElementData::None))
                .collect();
            let mut batch = Batch::new(*family, &self.node.table);
            batch.delete_elements(&spec, &gone);
            match self.nft.apply(&batch) {
                // One of them timed out meanwhile; the others are found by the next change.
                Err(error) if error.errno() == Some(2) => {}
                result => result?,
            }
        }
        Ok(())
    }
}
