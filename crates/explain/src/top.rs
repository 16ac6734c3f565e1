//! What nodes and pods use at present: the tables of `kaji top`.
//!
//! Source: `kubectl top`; metrics.k8s.io/v1beta1. Percentages are of what a node can allocate, rounded down.
//! Invariant: a figure is the server's, or a sum of its figures; what has none is shown as unknown, never as zero.

mod table;
#[cfg(test)]
mod tests;

pub use table::{node_table, pod_table, screen};

use crate::{Api, ExplainError, RequestError, discovery::Discovery, reader::Reader};
use kaji_meta::{
    object::{self, arr_at, at, str_at},
    quantity::Quantity,
};
use kaji_runtime::client::escape;
use serde::Serialize;
use serde_json::Value;
use std::collections::HashMap;

const GROUP: &str = "metrics.k8s.io";
const GROUP_VERSION: &str = "metrics.k8s.io/v1beta1";

/// By what rows are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Namespace and name.
    #[default]
    Name,
    /// The largest first.
    Cpu,
    /// The largest first.
    Memory,
}

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct UsageQuery {
    /// Of pods; empty for all namespaces.
    pub namespace: String,
    /// One object.
    pub name: Option<String>,
    /// A label selector.
    pub selector: Option<String>,
    /// The order.
    pub order: Order,
}

/// Processors and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Thousandths of a processor.
    pub cpu_millicores: i64,
    /// Bytes.
    pub memory_bytes: i64,
}

impl Usage {
    fn of(usage: Option<&Value>) -> Usage {
        let quantity = |name: &str| at(usage?, &[name]).and_then(|value| Quantity::from_value(value).ok());
        Usage {
            cpu_millicores: quantity("cpu").map_or(0, |quantity| quantity.milli_value()),
            memory_bytes: quantity("memory").map_or(0, |quantity| quantity.value()),
        }
    }

    fn add(self, other: Usage) -> Usage {
        Usage {
            cpu_millicores: self.cpu_millicores.saturating_add(other.cpu_millicores),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeUsage {
    /// Its name.
    pub name: String,
    /// `None`: there are no figures of it.
    pub usage: Option<Usage>,
    /// `None`: the caller may not read the node.
    pub allocatable: Option<Usage>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsage {
    /// Where it is.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The sum of its containers.
    pub usage: Usage,
    /// Each container.
    pub containers: Vec<ContainerUsage>,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerUsage {
    /// Its name.
    pub name: String,
    /// What it uses.
    pub usage: Usage,
}

/// What nodes use.
///
/// # Errors
/// When the API is not served, or the caller may not read it.
pub async fn nodes(api: &dyn Api, query: &UsageQuery) -> Result<Vec<NodeUsage>, ExplainError> {
    let metrics = metrics(api, query, "nodes", "").await?;
    let reader = Reader::new(api);
    let path = path("v1", "", "nodes", query);
    let known = match &query.name {
        Some(_) => reader.get(&path).await.object().map(|node| vec![node.clone()]),
        None => reader.list(&path).await.map(|nodes| nodes.to_vec()),
    };
    let mut used: HashMap<&str, Usage> =
        metrics.iter().map(|node| (object::name(node), Usage::of(at(node, &["usage"])))).collect();
    let mut rows = vec![];
    for node in known.iter().flatten() {
        let name = object::name(node);
        rows.push(NodeUsage {
            name: name.to_owned(),
            usage: used.remove(name),
            allocatable: Some(Usage::of(at(node, &["status", "allocatable"]))),
        });
    }
    let unread = used.into_iter().map(|(name, usage)| NodeUsage {
        name: name.to_owned(),
        usage: Some(usage),
        allocatable: None,
    });
    rows.extend(unread);
    rows.sort_by(|a, b| by(query.order, a.usage, b.usage).then_with(|| a.name.cmp(&b.name)));
    Ok(rows)
}

/// What pods use.
///
/// # Errors
/// When the API is not served, the caller may not read it, or there are pods and no figures yet.
pub async fn pods(api: &dyn Api, query: &UsageQuery) -> Result<Vec<PodUsage>, ExplainError> {
    let metrics = metrics(api, query, "pods", &query.namespace).await?;
    let mut rows: Vec<PodUsage> = metrics.iter().map(of_pod).collect();
    if rows.is_empty() {
        let pods =
            Reader::new(api).list(&path("v1", &query.namespace, "pods", query)).await.unwrap_or_default();
        let running = pods.iter().filter(|pod| str_at(pod, &["status", "phase"]) == "Running").count();
        if running > 0 {
            return Err(ExplainError::NotFound(format!(
                "there are no figures of running pods yet ({running}): they take two readings of the node, about half a minute from \
                 a container's start; try again"
            )));
        }
    }
    rows.sort_by(|a, b| {
        let name = |pod: &PodUsage| (pod.namespace.clone(), pod.name.clone());
        by(query.order, Some(a.usage), Some(b.usage)).then_with(|| name(a).cmp(&name(b)))
    });
    Ok(rows)
}

fn of_pod(pod: &Value) -> PodUsage {
    let mut containers: Vec<ContainerUsage> = arr_at(pod, &["containers"])
        .iter()
        .map(|container| ContainerUsage {
            name: str_at(container, &["name"]).to_owned(),
            usage: Usage::of(at(container, &["usage"])),
        })
        .collect();
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    PodUsage {
        namespace: object::namespace(pod).to_owned(),
        name: object::name(pod).to_owned(),
        usage: containers.iter().fold(Usage::default(), |sum, container| sum.add(container.usage)),
        containers,
    }
}

/// The largest first; those without figures last.
fn by(order: Order, a: Option<Usage>, b: Option<Usage>) -> std::cmp::Ordering {
    let key = |usage: Option<Usage>| match order {
        Order::Name => None,
        Order::Cpu => usage.map(|usage| usage.cpu_millicores),
        Order::Memory => usage.map(|usage| usage.memory_bytes),
    };
    key(b).cmp(&key(a))
}

fn path(group_version: &str, namespace: &str, plural: &str, query: &UsageQuery) -> String {
    let path =
        crate::paths::path(group_version, namespace, plural, query.name.as_deref().unwrap_or_default());
    match &query.selector {
        Some(selector) => format!("{path}?labelSelector={}", escape(selector)),
        None => path,
    }
}

async fn metrics(
    api: &dyn Api,
    query: &UsageQuery,
    plural: &str,
    namespace: &str,
) -> Result<Vec<Value>, ExplainError> {
    let discovery = Discovery::read(api).await?;
    if discovery.stale.iter().any(|version| version.starts_with(GROUP)) {
        return Err(ExplainError::Unreadable(unavailable("")));
    }
    if !discovery.has(GROUP, plural) {
        return Err(ExplainError::Unreadable(format!(
            "the server does not serve {GROUP}, where the figures come from: install metrics-server (kubectl apply -f \
             https://github.com/kubernetes-sigs/metrics-server/releases/latest/download/components.yaml); `kaji up` serves it by itself"
        )));
    }
    match api.get(&path(GROUP_VERSION, namespace, plural, query)).await {
        Ok(mut answer) if query.name.is_none() => match answer.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => Ok(items),
            _ => Ok(vec![]),
        },
        Ok(one) => Ok(vec![one]),
        Err(RequestError::NotFound(text)) => Err(ExplainError::NotFound(text)),
        Err(RequestError::Forbidden(text)) => Err(ExplainError::Unreadable(text)),
        Err(RequestError::Failed(text)) => Err(ExplainError::Unreadable(unavailable(&format!(": {text}")))),
    }
}

fn unavailable(text: &str) -> String {
    format!(
        "the server of {GROUP} does not answer{text}; `kaji why apiservice/v1beta1.{GROUP}` says why, if it is an extension server"
    )
}
