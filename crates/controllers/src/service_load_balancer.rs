//! Load balancers of services of type `LoadBalancer`: addresses from the cloud provider. Source: upstream's service controller of
//! `k8s.io/cloud-provider`.
//!
//! Invariant: services with a load balancer class belong to another controller.

mod derived;
mod metrics;
mod outside;

use crate::{
    Descriptor, Start, WorkersFlag,
    cloud_provider::{LoadBalancing, is_for_default_provider},
};
use kaji_runtime::{Projection, objects::Service};

const COMPONENT: &str = "service-controller";
const QUEUE: &str = "service";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "service-lb-controller",
    components: &[COMPONENT],
    service_account: Some("service-controller"),
    workers: Some(WorkersFlag { name: "concurrent-service-syncs", default: 1 }),
    start: Start::Reconcilers(|informers, config| {
        let Some(cloud) = &config.cloud else { return vec![] };
        match cloud.load_balancing() {
            None => vec![],
            Some(LoadBalancing::Derived(_)) => vec![derived::controller(informers, cloud.clone())],
            Some(LoadBalancing::Outside(_)) => {
                vec![outside::controller(informers, cloud.clone(), &config.loops.cloud)]
            }
        }
    }),
};

fn is_balanced(service: &Service) -> bool {
    is_for_default_provider(service) && !service.metadata.deleting()
}

fn reference(service: &Service) -> serde_json::Value {
    service.metadata.reference(&Service::api_version(), Service::KIND)
}
