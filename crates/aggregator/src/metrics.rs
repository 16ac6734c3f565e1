//! What is counted, by upstream's names.

use crate::service::Condition;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

type Named = [(&'static str, String); 1];
type Reasoned = [(&'static str, String); 2];

/// The availability of APIServices.
#[derive(Clone, Default)]
pub(crate) struct Metrics {
    unavailable: Family<Named, Gauge>,
    times: Family<Reasoned, Counter>,
}

impl Metrics {
    /// Makes them part of a page.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "aggregator_unavailable_apiservice",
            "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.",
            self.unavailable.clone(),
        );
        registry.register(
            "aggregator_unavailable_apiservice_total",
            "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
            self.times.clone(),
        );
    }

    /// How an APIService is.
    pub fn is(&self, name: &str, available: bool) {
        self.unavailable.get_or_create(&[("name", name.to_owned())]).set(i64::from(!available));
    }

    /// It was available and is not any more.
    pub fn lost(&self, name: &str, condition: &Condition) {
        let labels = [("name", name.to_owned()), ("reason", condition.reason.clone())];
        self.times.get_or_create(&labels).inc();
    }

    /// It is gone.
    pub fn forget(&self, name: &str) {
        self.unavailable.remove(&[("name", name.to_owned())]);
    }
}
