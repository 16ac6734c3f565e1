//! The kind: what its users write and what they read. The definition in `manifests/webapp-crd.yaml` is made of this
//! (`example-webapp crd`).

#![allow(clippy::duplicated_attributes, reason = "each column has a type of its own")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt};
use serde::{Deserialize, Serialize};

/// A web application: so many copies of an image behind a service, reachable at a host.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(group = "apps.example.com", version = "v1", kind = "WebApp", namespaced, shortname = "wa")]
#[kube(doc = "A web application: so many copies of an image behind a service, reachable at a host.")]
#[kube(status = "WebAppStatus")]
#[kube(printcolumn(name = "Host", type_ = "string", json_path = ".spec.host"))]
#[kube(printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas"))]
#[kube(printcolumn(
    name = "Ready",
    type_ = "string",
    json_path = ".status.conditions[?(@.type==\"Ready\")].status"
))]
#[serde(rename_all = "camelCase")]
pub struct WebAppSpec {
    /// What runs; with a tag that is not `latest`, or a digest.
    #[schemars(length(min = 1))]
    pub image: String,
    /// How many copies run; 2 if it is left out.
    #[schemars(range(min = 0, max = 100))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The port that the application listens on; 80 if it is left out.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// The name that it is reachable by; name.namespace.example.com if it is left out.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("a host cannot be changed"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// How it goes.
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WebAppStatus {
    /// The generation of the spec that this is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// How many copies are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Where it is reachable, once it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// `Ready`: whether all copies run the image.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl WebApp {
    /// Fills in what the user left out. The webhook does it when the object is written; the controller as well, for
    /// objects from before there was a webhook.
    pub fn set_defaults(&mut self) {
        let host = format!("{}.{}.example.com", self.name_any(), self.namespace().unwrap_or_default());
        self.spec.replicas.get_or_insert(2);
        self.spec.port.get_or_insert(80);
        self.spec.host.get_or_insert(host);
    }
}
