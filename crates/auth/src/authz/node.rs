//! The node authorizer: a kubelet may read what the pods of its node need, write what is its own, and nothing of
//! other nodes.
//!
//! Invariant: a node reaches an object only through something that is bound to it: a pod with its name in
//! `spec.nodeName`, a volume attachment, a resource slice, a request for a pod's certificate, a node-local volume.
//!
//! Source: Kubernetes, "Using Node Authorization"; upstream's `plugin/pkg/auth/authorizer/node`.

mod graph;

use super::{Attributes, Authorizer, Outcome, PolicyRule, Rules, feed::Feed};
use crate::names::{NODE_PREFIX, NODES};
use arc_swap::ArcSwap;
use graph::{Graph, Kind};
use kaji_meta::{fields, labels};
use kaji_resource::{BoxFuture, UserInfo};
use std::sync::{Arc, Mutex, PoisonError};

/// What the graph is made of.
pub struct Feeds {
    /// `pods`
    pub pods: Box<dyn Feed>,
    /// `persistentvolumes`
    pub volumes: Box<dyn Feed>,
    /// `volumeattachments`
    pub attachments: Box<dyn Feed>,
    /// `resourceslices`
    pub slices: Box<dyn Feed>,
    /// `podcertificaterequests`
    pub certificate_requests: Box<dyn Feed>,
}

impl Feeds {
    fn revisions(&self) -> [u64; 5] {
        [&self.pods, &self.volumes, &self.attachments, &self.slices, &self.certificate_requests]
            .map(|f| f.revision())
    }
}

/// The authorizer.
pub struct Node {
    feeds: Feeds,
    /// For what is the same for all nodes.
    rules: Vec<PolicyRule>,
    graph: ArcSwap<Graph>,
    refreshing: Mutex<()>,
}

/// No opinion, and why.
fn no(reason: impl Into<std::borrow::Cow<'static, str>>) -> Outcome {
    Outcome { reason: reason.into(), ..Outcome::default() }
}

fn yes() -> Outcome {
    Outcome::allow("")
}

/// The node that a user is, if it is one; `Some("")` if it does not say which.
pub fn node_of(user: &UserInfo) -> Option<&str> {
    let node = user.name.strip_prefix(NODE_PREFIX)?;
    user.groups.iter().any(|g| g == NODES).then_some(node)
}

/// Whether a field selector requires one value of a field.
fn selects(a: &Attributes<'_>, field: &str, value: &str) -> bool {
    a.field_selector.is_some_and(|s| {
        s.terms().iter().any(|t| t.op == fields::Operator::Equals && t.field == field && t.value == value)
    })
}

/// The label of node-local volumes, as their provisioner sets it (`kaji_runtime::local_path::NODE`).
const LOCAL_PATH_NODE: &str = "kaji.dev/local-path-node";

/// Whether a label selector requires one value of a label.
fn selects_label(a: &Attributes<'_>, label: &str, value: &str) -> bool {
    let one = |r: &labels::Requirement| {
        let equals = matches!(
            r.operator(),
            labels::Operator::Equals | labels::Operator::DoubleEquals | labels::Operator::In
        );
        equals && r.key() == label && r.values() == [value]
    };
    a.label_selector.is_some_and(|selector| selector.requirements().iter().any(one))
}

impl Node {
    /// One with rules for what is the same for all nodes.
    pub fn new(feeds: Feeds, rules: Vec<PolicyRule>) -> Self {
        Node { feeds, rules, graph: ArcSwap::default(), refreshing: Mutex::new(()) }
    }

    /// Brings the graph up to date, if it was ever used. Called now and then, so that not much of the
    /// past is held on to where nodes send few requests.
    pub fn tick(&self) {
        if self.graph.load().revisions.is_some() {
            self.refresh();
        }
    }

    fn refresh(&self) {
        let _one_at_a_time = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.graph.load_full();
        if old.revisions == Some(self.feeds.revisions()) {
            return;
        }
        let mut graph = Graph::clone(&old);
        let pods = self.feeds.pods.take(&mut |c| graph.pod(c));
        let volumes = self.feeds.volumes.take(&mut |c| graph.volume(c));
        let mut direct = |feed: &dyn Feed, kind| feed.take(&mut |c| graph.direct(kind, c));
        let attachments = direct(&*self.feeds.attachments, Kind::Attachment);
        let slices = direct(&*self.feeds.slices, Kind::Slice);
        let requests = direct(&*self.feeds.certificate_requests, Kind::CertificateRequest);
        graph.revisions = Some([pods, volumes, attachments, slices, requests]);
        self.graph.store(Arc::new(graph));
    }

    /// Whether something of the node leads to the object in question.
    fn related(&self, node: &str, kind: Kind, a: &Attributes<'_>) -> Outcome {
        if a.name.is_empty() {
            return no("No Object name found");
        }
        let mut graph = self.graph.load();
        if graph.revisions != Some(self.feeds.revisions()) {
            drop(graph);
            self.refresh();
            graph = self.graph.load();
        }
        match graph.leads_to(kind, a.namespace, a.name, node) {
            true => yes(),
            false => no(format!("no relationship found between node '{node}' and this object")),
        }
    }

    fn get(&self, node: &str, kind: Kind, a: &Attributes<'_>) -> Outcome {
        match (a.verb, a.subresource) {
            ("get", "") => self.related(node, kind, a),
            ("get", _) => no("cannot get subresource"),
            _ => no("can only get individual resources of this type"),
        }
    }

    fn read(&self, node: &str, kind: Kind, a: &Attributes<'_>) -> Outcome {
        if !a.is_read_only() {
            return no("can only read resources of this type");
        }
        if !a.subresource.is_empty() {
            return no("cannot read subresource");
        }
        if a.namespace.is_empty() {
            return no("can only read namespaced object of this type");
        }
        self.related(node, kind, a)
    }

    fn claim(&self, node: &str, a: &Attributes<'_>) -> Outcome {
        match (a.subresource, a.verb) {
            ("status", "update" | "patch") => self.related(node, Kind::Claim, a),
            ("status", _) => no("can only get/update/patch this type"),
            _ => self.get(node, Kind::Claim, a),
        }
    }

    /// Upstream's kubelets only get the volumes of their pods. Kaji's also make and remove the directories of node-local volumes.
    fn volume(&self, node: &str, a: &Attributes<'_>) -> Outcome {
        match (a.subresource, a.verb) {
            ("", "list" | "watch") if a.name.is_empty() && selects_label(a, LOCAL_PATH_NODE, node) => yes(),
            _ => self.get(node, Kind::Volume, a),
        }
    }

    fn service_account(&self, node: &str, a: &Attributes<'_>) -> Outcome {
        match (a.verb, a.subresource) {
            ("get", "") => self.read(node, Kind::ServiceAccount, a),
            ("create", "token") if !a.name.is_empty() => self.related(node, Kind::ServiceAccount, a),
            ("create", _) if !a.name.is_empty() => no("can only create token subresource of serviceaccount"),
            _ => no("can only create tokens for individual service accounts"),
        }
    }

    fn slice(&self, node: &str, a: &Attributes<'_>) -> Outcome {
        if !a.subresource.is_empty() {
            return no("cannot authorize ResourceSlice subresources");
        }
        match a.verb {
            "create" => yes(),
            "get" | "update" | "patch" | "delete" => self.related(node, Kind::Slice, a),
            "watch" | "list" | "deletecollection" if selects(a, "spec.nodeName", node) => yes(),
            "watch" | "list" | "deletecollection" => {
                no("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => no(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
            ),
        }
    }

    fn certificate_request(&self, node: &str, a: &Attributes<'_>) -> Outcome {
        if !a.subresource.is_empty() {
            return no("nodes may not access the status subresource of PodCertificateRequests");
        }
        match a.verb {
            "create" => yes(),
            "get" => self.related(node, Kind::CertificateRequest, a),
            "list" | "watch" if selects(a, "spec.nodeName", node) => yes(),
            "list" | "watch" => no("can only list/watch podcertificaterequests with nodeName field selector"),
            verb => no(format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn pod(&self, node: &str, a: &Attributes<'_>) -> Outcome {
        match (a.subresource, a.verb) {
            ("", "get") => self.get(node, Kind::Pod, a),
            ("", "list" | "watch") if selects(a, "spec.nodeName", node) => yes(),
            ("", "list" | "watch") if !a.name.is_empty() => self.related(node, Kind::Pod, a),
            ("", "list" | "watch") => no("can only list/watch pods with spec.nodeName field selector"),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => yes(),
            _ => no(""),
        }
    }

    fn decide(&self, a: &Attributes<'_>) -> Outcome {
        let Some(node) = node_of(a.user) else { return no("") };
        if node.is_empty() {
            return no(format!("unknown node for user {:?}", a.user.name));
        }
        match (a.group, a.resource) {
            ("", "secrets") => self.read(node, Kind::Secret, a),
            ("", "configmaps") => self.read(node, Kind::ConfigMap, a),
            ("", "persistentvolumeclaims") => self.claim(node, a),
            ("", "persistentvolumes") => self.volume(node, a),
            ("resource.k8s.io", "resourceclaims") => self.get(node, Kind::ResourceClaim, a),
            ("storage.k8s.io", "volumeattachments") => self.get(node, Kind::Attachment, a),
            ("", "serviceaccounts") => self.service_account(node, a),
            ("coordination.k8s.io", "leases") => lease(node, a),
            ("storage.k8s.io", "csinodes") => csi_node(node, a),
            ("resource.k8s.io", "resourceslices") => self.slice(node, a),
            ("", "nodes") => own_node(node, a),
            ("", "pods") => self.pod(node, a),
            ("certificates.k8s.io", "podcertificaterequests") => self.certificate_request(node, a),
            _ if self.rules.iter().any(|rule| rule.allows(a)) => yes(),
            _ => no(""),
        }
    }
}

fn lease(node: &str, a: &Attributes<'_>) -> Outcome {
    if !matches!(a.verb, "get" | "create" | "update" | "patch" | "delete") {
        return no("can only get, create, update, patch, or delete a node lease");
    }
    if a.namespace != "kube-node-lease" {
        return no(r#"can only access leases in the "kube-node-lease" system namespace"#);
    }
    // A create's name is not known here; admission looks at it.
    if a.verb != "create" && a.name != node {
        return no("can only access node lease with the same name as the requesting node");
    }
    yes()
}

fn csi_node(node: &str, a: &Attributes<'_>) -> Outcome {
    if !matches!(a.verb, "get" | "create" | "update" | "patch" | "delete") {
        return no("can only get, create, update, patch, or delete a CSINode");
    }
    if !a.subresource.is_empty() {
        return no("cannot authorize CSINode subresources");
    }
    if a.verb != "create" && a.name != node {
        return no("can only access CSINode with the same name as the requesting node");
    }
    yes()
}

fn own_node(node: &str, a: &Attributes<'_>) -> Outcome {
    match (a.subresource, a.verb) {
        // Which node is written, admission looks at.
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => yes(),
        ("", "get" | "list" | "watch") => match a.name {
            name if name == node => yes(),
            "" => no(format!("node '{node}' cannot read all nodes, only its own Node object")),
            other => no(format!("node '{node}' cannot read '{other}', only its own Node object")),
        },
        _ => no(""),
    }
}

impl Authorizer for Node {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(std::future::ready(self.decide(attributes)))
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Rules> {
        let mut rules = Rules::default();
        if node_of(user).is_some() {
            rules.incomplete = true;
            rules.error = Some("node authorizer does not support user rule resolution".into());
        }
        Box::pin(std::future::ready(rules))
    }
}

#[cfg(test)]
mod tests;
