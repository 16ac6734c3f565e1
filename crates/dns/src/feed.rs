//! Keeps the zone as new as the API's Services, EndpointSlices and Namespaces.
//!
//! Invariants: a zone is published after every batch of changes and before the next is read; services that did not change are
//! not looked at. Nothing is published before all three informers have listed, so that no name is denied for being unknown yet.

use crate::records::ServiceRecords;
use crate::server::Service as DnsService;
use crate::zone::ServiceKey;
use kaji_runtime::objects::{EndpointSlice, Namespace, SERVICE_NAME_LABEL, Service};
use kaji_runtime::{Informer, Informers};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, watch};

/// What has changed since the last zone.
#[derive(Debug, Default)]
struct Pending {
    services: Mutex<BTreeSet<ServiceKey>>,
    namespaces: Mutex<BTreeSet<String>>,
    changed: Notify,
}

impl Pending {
    fn service(&self, namespace: &str, name: &str) {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        services.insert(ServiceKey::new(namespace, name));
        drop(services);
        self.changed.notify_one();
    }

    fn namespace(&self, name: &str) {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        namespaces.insert(name.to_owned());
        drop(namespaces);
        self.changed.notify_one();
    }

    fn take(&self) -> (BTreeSet<ServiceKey>, BTreeSet<String>) {
        let services = std::mem::take(&mut *self.services.lock().unwrap_or_else(PoisonError::into_inner));
        let namespaces = std::mem::take(&mut *self.namespaces.lock().unwrap_or_else(PoisonError::into_inner));
        (services, namespaces)
    }
}

/// The informers that the zone is made of.
pub struct Feed {
    services: Arc<Informer<Service>>,
    slices: Arc<Informer<EndpointSlice>>,
    namespaces: Arc<Informer<Namespace>>,
    pending: Arc<Pending>,
}

impl Feed {
    /// Subscribes to the changes.
    #[must_use]
    pub fn new(informers: &Arc<Informers>) -> Feed {
        let pending = Arc::new(Pending::default());
        let (services, slices, namespaces) =
            (informers.get::<Service>(), informers.get::<EndpointSlice>(), informers.get::<Namespace>());
        let of_service = pending.clone();
        services.handle(move |change| {
            let meta = &change.any().metadata;
            of_service.service(&meta.namespace, &meta.name);
        });
        let of_slice = pending.clone();
        slices.handle(move |change| {
            for slice in [&change.old, &change.new].into_iter().flatten() {
                if let Some(service) = slice.metadata.labels.get(SERVICE_NAME_LABEL) {
                    of_slice.service(&slice.metadata.namespace, service);
                }
            }
        });
        let of_namespace = pending.clone();
        namespaces.handle(move |change| of_namespace.namespace(&change.any().metadata.name));
        Feed { services, slices, namespaces, pending }
    }

    /// Publishes zones until the future is dropped. `ready` becomes true with the first one.
    pub async fn run(self, service: Arc<DnsService>, ready: watch::Sender<bool>) {
        tokio::join!(self.services.synced(), self.slices.synced(), self.namespaces.synced());
        loop {
            self.update(&service);
            ready.send_replace(true);
            self.pending.changed.notified().await;
        }
    }

    fn update(&self, service: &DnsService) {
        let (changed_services, changed_namespaces) = self.pending.take();
        let (services, slices, namespaces) =
            (self.services.snapshot(), self.slices.snapshot(), self.namespaces.snapshot());
        let mut zone = (*service.zone()).clone();
        for name in &changed_namespaces {
            zone.set_namespace(name, namespaces.get("", name).is_some());
        }
        for key in &changed_services {
            let records = services.get(&key.namespace, &key.name).and_then(|service| {
                let slices = slices.indexed("service", &format!("{}/{}", key.namespace, key.name));
                ServiceRecords::of(service, slices.map(|slice| &**slice))
            });
            zone.set_service(key, records);
        }
        service.publish(zone);
    }
}
