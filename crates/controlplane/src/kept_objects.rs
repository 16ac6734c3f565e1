//! The objects that every cluster has and that are made again when they are gone: the namespaces of the system, the default service
//! range, and the `kubernetes` service with its endpoints. Upstream: `systemnamespaces.Controller`, `defaultservicecidr.Controller`,
//! `kubernetesservice.Controller`.
//!
//! Invariants: objects that are there stay as their owners left them, except the endpoints of a server that is alone, which have
//! its address, and the default service range of a cluster that gets a second IP family.

use crate::{
    bootstrap::{ensure, object},
    rounds::Rounds,
    service_endpoints,
};
use futures_util::{future::try_join_all, join};
use kaji_engine::Engine;
use kaji_meta::{GroupResource, Status};
use kaji_options::Options;
use kaji_resource::{Api, FieldManagement, UpdateOptions};
use serde_json::{Value, json};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Weak,
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// Namespaces that always exist.
const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];

/// The service range that the flags name.
const DEFAULT_RANGE: &str = "kubernetes";

/// How often they are looked for, as upstream; it looks for namespaces once a minute.
const PERIOD: Duration = Duration::from_secs(10);

/// What they say about the cluster.
#[derive(Clone, Debug)]
pub struct KeptObjects {
    service_cidrs: Vec<String>,
    service_ip: IpAddr,
    advertise: SocketAddr,
    others: bool,
}

impl KeptObjects {
    /// `service_ip`, the first address of the primary service range, is that of the `kubernetes` service, and `advertise` the one
    /// in its endpoints, unless there may be `others`: the endpoints name all servers then.
    pub fn new(options: &Options, service_ip: IpAddr, advertise: SocketAddr, others: bool) -> Self {
        KeptObjects { service_cidrs: options.service_cidrs.clone(), service_ip, advertise, others }
    }

    /// Makes those again that are gone, until `stop` turns true.
    pub async fn run(self, engine: Weak<Engine>, stop: watch::Receiver<bool>) {
        // They were made at the start.
        let mut rounds = Rounds::new(Instant::now() + PERIOD, PERIOD, engine, stop);
        while let Some(engine) = rounds.next().await {
            let api: &dyn Api = &*engine;
            let (namespaces, range, service) =
                join!(self.namespaces(api), self.service_cidr(api), self.kubernetes_service(api));
            if let Err(error) = namespaces.and(range).and(service) {
                tracing::warn!(%error, "an object that every cluster has could not be made again");
            }
        }
    }

    pub(crate) async fn namespaces(&self, api: &dyn Api) -> Result<(), Status> {
        let resource = GroupResource::new("", "namespaces");
        let all = NAMESPACES.iter().map(|name| ensure(api, &resource, "", object("v1", "Namespace", name)));
        try_join_all(all).await.map(drop)
    }

    pub(crate) async fn service_cidr(&self, api: &dyn Api) -> Result<(), Status> {
        let resource = GroupResource::new("networking.k8s.io", "servicecidrs");
        let mut range = object("networking.k8s.io/v1", "ServiceCIDR", DEFAULT_RANGE);
        range["spec"] = json!({"cidrs": self.service_cidrs});
        ensure(api, &resource, "", range).await?;
        if !api
            .get(&resource, "", DEFAULT_RANGE)
            .is_some_and(|range| lacks_family(&range, &self.service_cidrs))
        {
            return Ok(());
        }
        let change = |range: &mut Value| {
            if lacks_family(range, &self.service_cidrs) {
                range["spec"]["cidrs"] = json!(self.service_cidrs);
            }
            Ok(())
        };
        let options = UpdateOptions::new("", FieldManagement::Record);
        // The cluster goes on with one family, as upstream's.
        if let Err(error) = api.update(&resource, "", DEFAULT_RANGE, options, &change).await {
            tracing::warn!(%error, "the default ServiceCIDR does not get its second IP family");
        }
        Ok(())
    }

    pub(crate) async fn kubernetes_service(&self, api: &dyn Api) -> Result<(), Status> {
        let labels = json!({"component": "apiserver", "provider": "kubernetes"});
        let mut service = object("v1", "Service", "kubernetes");
        service["metadata"]["labels"] = labels;
        service["spec"] = json!({
            "type": "ClusterIP",
            "clusterIP": self.service_ip.to_string(),
            "clusterIPs": [self.service_ip.to_string()],
            "sessionAffinity": "None",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": self.advertise.port()}],
        });
        let services = GroupResource::new("", "services");
        let endpoints = async {
            if self.others {
                return Ok(());
            }
            service_endpoints::write(api, &[self.advertise.ip()].into(), self.advertise.port()).await
        };
        let (service, endpoints) = join!(ensure(api, &services, "default", service), endpoints);
        service.and(endpoints).map(drop)
    }
}

/// Whether the default range is of the first of two IP families alone. Other differences are left to administrators.
fn lacks_family(range: &Value, wanted: &[String]) -> bool {
    let [primary, _] = wanted else { return false };
    range.pointer("/spec/cidrs").is_some_and(|cidrs| *cidrs == json!([primary]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_second_family_is_added_to_the_default_range() {
        let lacks = |cidrs: &[&str], wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|cidr| (*cidr).to_owned()).collect();
            lacks_family(&json!({"spec": {"cidrs": cidrs}}), &wanted)
        };
        let (four, six, other) = ("10.0.0.0/24", "2001:db8::/112", "10.1.0.0/24");
        assert!(lacks(&[four], &[four, six]));
        assert!(lacks(&[six], &[six, four]));
        assert!(!lacks(&[four, six], &[four, six]));
        assert!(!lacks(&[four], &[six, four]));
        assert!(!lacks(&[other], &[four, six]));
        assert!(!lacks(&[four], &[four]));
        assert!(!lacks(&[four, six], &[four]));
        assert!(!lacks_family(&json!({}), &[four.to_owned(), six.to_owned()]));
    }
}
