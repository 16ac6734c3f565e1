//! What a cluster takes from outside: clocks, randomness, the store, and what stands between its loops and its server. A process
//! has those of the machine; a simulation gives its own.
//!
//! Invariant: nothing that decides the order or the content of writes reads a clock or randomness but from here.

use kaji_controllers::cloud_provider::CloudProvider;
use kaji_meta::{
    random::{Random, SystemRandom},
    time::{Clock, SystemClock},
};
use kaji_node::network::NodeNetwork;
use kaji_options::Options;
use kaji_runtime::Interception;
use kaji_store::Store;
use std::sync::Arc;

/// See the module.
#[derive(Clone)]
pub struct Environment {
    /// Certificates, deadlines of requests, flow control.
    pub clock: Arc<dyn Clock>,
    /// The clock of objects and control loops.
    pub object_clock: Arc<dyn Clock>,
    /// Names, uids, jitter.
    pub random: Arc<dyn Random>,
    /// The store, if it is not opened as the options say. It is closed with the cluster.
    pub store: Option<Arc<dyn Store>>,
    /// Stands between the control loops and the server.
    pub interception: Option<Arc<dyn Interception>>,
    /// The network of a real node that is not that of this process.
    pub node_network: Option<NodeNetwork>,
    /// The cloud that the machines are of, if it is one; the control loops ask it.
    pub cloud: Option<Arc<dyn CloudProvider>>,
}

impl Environment {
    /// That of the machine, with the clock of the options.
    pub fn machine(options: &Options) -> Environment {
        Environment {
            clock: Arc::new(SystemClock),
            object_clock: options.object_clock(),
            random: Arc::new(SystemRandom),
            store: None,
            interception: None,
            node_network: None,
            cloud: None,
        }
    }
}
