//! The traces of this server's requests: where the options say they go, under the name that its lease has.

use kaji_controlplane::server_identity;
use kaji_kubelet::hostname::node_name;
use kaji_meta::{random::Random, time::Clock};
use kaji_traces::{Config, Limits, Provider, Service};
use std::{net::SocketAddr, sync::Arc};

/// Begins to export traces of the server at an address.
pub(super) fn start(
    config: &Config,
    address: SocketAddr,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
) -> Arc<Provider> {
    let service = Service {
        name: "apiserver".to_owned(),
        instance: server_identity::name(&node_name(), address.port()),
        version: kaji_server::version(),
    };
    Arc::new(Provider::start(config, service, Limits::default(), clock, random))
}
