//! What ConfigMaps keep when a cluster's objects are moved or copied.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::ListParams};
use std::collections::BTreeMap;

/// The one that a controller makes in each namespace.
const ROOT_CA: &str = "kube-root-ca.crt";

/// uid and resourceVersion by name, of the ConfigMaps of the default namespace that are not a controller's.
pub async fn config_maps(client: &Client) -> BTreeMap<String, (String, String)> {
    let all = Api::<ConfigMap>::default_namespaced(client.clone());
    let list = all.list(&ListParams::default()).await.unwrap();
    let of = |map: ConfigMap| {
        let meta = map.metadata;
        (meta.name.unwrap(), (meta.uid.unwrap(), meta.resource_version.unwrap()))
    };
    list.items.into_iter().map(of).filter(|(name, _)| name != ROOT_CA).collect()
}
