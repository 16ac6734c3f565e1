//! The traces of an API server's requests: where the options say they go, under the name that the server's lease has.

use crate::server_identity;
use kaji_kubelet::hostname::node_name;
use kaji_meta::{Clock, Random};
use kaji_options::Options;
use kaji_traces::{Limits, Provider, Service};
use std::{net::SocketAddr, sync::Arc};

/// Begins to export traces of the server at an address, if the options say so.
pub fn start(
    options: &Options,
    address: SocketAddr,
    clock: &Arc<dyn Clock>,
    random: &Arc<dyn Random>,
) -> Option<Arc<Provider>> {
    let config = options.traces.as_ref()?;
    let service = Service {
        name: "apiserver".to_owned(),
        instance: server_identity::name(&node_name(), address.port()),
        version: kaji_server::version(),
    };
    Some(Arc::new(Provider::start(config, service, Limits::default(), clock.clone(), random.clone())))
}
