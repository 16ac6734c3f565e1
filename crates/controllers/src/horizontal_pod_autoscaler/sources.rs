//! The values of metrics, from the three metrics APIs.
//!
//! Invariants: which server answers is the API server's business (it serves resource metrics itself, or forwards as
//! APIServices say); a call that fails says so in upstream's words.
//!
//! Source: upstream's `podautoscaler/metrics/client.go` and the clients of `k8s.io/metrics`.

use super::calculator::{PodMetric, PodMetrics};
use crate::shared::discovery;
use jiff::{SignedDuration, Timestamp};
use kaji_meta::quantity::Quantity;
use kaji_runtime::{
    Client, Error,
    client::escape,
    objects::{Milli, ObjectReference},
};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

const CUSTOM: &str = "custom.metrics.k8s.io";
/// Versions of the custom metrics API, best first.
const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
/// The window of custom metrics that name none.
const WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// Reads metrics.
#[derive(Clone)]
pub struct Sources {
    client: Client,
}

/// Go writes an empty list as null.
#[derive(Deserialize)]
struct List<T> {
    items: Option<Vec<T>>,
}

impl<T> List<T> {
    /// The items, unless there are none.
    fn any(self) -> Option<Vec<T>> {
        self.items.filter(|items| !items.is_empty())
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Usage {
    name: String,
    usage: BTreeMap<String, Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodUsage {
    metadata: Named,
    timestamp: Option<Timestamp>,
    window: String,
    containers: Vec<Usage>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct MetricValue {
    described_object: Named,
    timestamp: Option<Timestamp>,
    #[serde(alias = "window")]
    window_seconds: Option<i64>,
    value: Milli,
}

fn milli(quantity: &Value) -> Option<i64> {
    Some(Quantity::from_value(quantity).ok()?.milli_value())
}

impl PodUsage {
    /// Of all containers together, or of one. `None` if a value is missing.
    fn metric(&self, resource: &str, container: &str) -> Option<PodMetric> {
        let of = |usage: &Usage| usage.usage.get(resource).and_then(milli);
        let value = if container.is_empty() {
            let all: Option<Vec<i64>> = self.containers.iter().map(of).collect();
            all.filter(|values| !values.is_empty())?.iter().sum()
        } else {
            of(self.containers.iter().find(|c| c.name == container)?)?
        };
        let window = kaji_meta::duration::parse(&self.window).unwrap_or(0);
        let at = self.timestamp.unwrap_or(Timestamp::UNIX_EPOCH);
        Some(PodMetric { value, at, window: SignedDuration::from_nanos(window) })
    }
}

impl MetricValue {
    fn metric(&self) -> PodMetric {
        PodMetric {
            value: self.value.0,
            at: self.timestamp.unwrap_or(Timestamp::UNIX_EPOCH),
            window: self.window_seconds.map_or(WINDOW, SignedDuration::from_secs),
        }
    }
}

/// `a=b&c=d` of the parameters that are not empty, with the question mark before them.
fn query(parameters: &[(&str, &str)]) -> String {
    let pairs = parameters.iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={}", escape(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

impl Sources {
    /// Reads with the client's identity.
    pub fn new(client: Client) -> Sources {
        Sources { client }
    }

    /// The usage of a resource by the pods that a selector matches, or by one container of each.
    ///
    /// # Errors
    /// The API fails, or has no figures at all.
    pub async fn resource(
        &self,
        namespace: &str,
        selector: &str,
        resource: &str,
        container: &str,
    ) -> Result<PodMetrics, String> {
        let uri = format!(
            "/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods{}",
            escape(namespace),
            query(&[("labelSelector", selector)])
        );
        let list: Result<List<PodUsage>, Error> = self.client.get(&uri).await;
        let list = list.map_err(|e| format!("unable to fetch metrics from resource metrics API: {e}"))?;
        let items = list.any().ok_or("no metrics returned from resource metrics API")?;
        Ok(items
            .into_iter()
            .filter_map(|pod| Some((pod.metadata.name.clone(), pod.metric(resource, container)?)))
            .collect())
    }

    /// The values of a custom metric of the pods that a selector matches.
    ///
    /// # Errors
    /// The API fails, or has no values at all.
    pub async fn pods(
        &self,
        namespace: &str,
        selector: &str,
        metric: &str,
        metric_selector: &str,
    ) -> Result<PodMetrics, String> {
        let selection = [("labelSelector", selector), ("metricLabelSelector", metric_selector)];
        let path = format!("namespaces/{}/pods/*/{}{}", escape(namespace), escape(metric), query(&selection));
        let items = self.custom(&path).await?;
        if items.is_empty() {
            return Err("no metrics returned from custom metrics API".into());
        }
        Ok(items.into_iter().map(|item| (item.described_object.name.clone(), item.metric())).collect())
    }

    /// The value of a custom metric of an object, milli-units.
    ///
    /// # Errors
    /// The API fails, its answer is not one value, or the object's kind is not served.
    pub async fn object(
        &self,
        namespace: &str,
        object: &ObjectReference,
        metric: &str,
        metric_selector: &str,
    ) -> Result<i64, String> {
        let fetch = |error: String| format!("unable to fetch metrics from custom metrics API: {error}");
        let (group, _) = object.api_version.rsplit_once('/').unwrap_or(("", &object.api_version));
        let selection = query(&[("metricLabelSelector", metric_selector)]);
        let (namespace, metric) = (escape(namespace), escape(metric));
        // Names of other namespaces do not count: an autoscaler sees its own.
        let path = if object.kind == "Namespace" && group.is_empty() {
            format!("namespaces/{namespace}/metrics/{metric}{selection}")
        } else {
            let found = discovery::find_kind(&self.client, group, &object.kind).await;
            let found = found.map_err(|e| fetch(e.to_string()))?;
            let missing = || fetch(discovery::no_kind(group, &object.kind));
            let resource = found.ok_or_else(missing)?.group_resource();
            format!("namespaces/{namespace}/{resource}/{}/{metric}{selection}", escape(&object.name))
        };
        let items = self.custom(&path).await?;
        match items.as_slice() {
            [one] => Ok(one.value.0),
            many => Err(fetch(format!(
                "the custom metrics API server returned {} results when we asked for exactly one",
                many.len()
            ))),
        }
    }

    /// The values of an external metric, milli-units.
    ///
    /// # Errors
    /// The API fails, or has no values at all.
    pub async fn external(&self, namespace: &str, metric: &str, selector: &str) -> Result<Vec<i64>, String> {
        let uri = format!(
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/{}/{}{}",
            escape(namespace),
            escape(metric),
            query(&[("labelSelector", selector)])
        );
        let list: Result<List<MetricValue>, Error> = self.client.get(&uri).await;
        let list = list.map_err(|e| format!("unable to fetch metrics from external metrics API: {e}"))?;
        let items = list.any().ok_or("no metrics returned from external metrics API")?;
        Ok(items.iter().map(|item| item.value.0).collect())
    }

    /// Values from a path of the best version of the custom metrics API that is served.
    async fn custom(&self, path: &str) -> Result<Vec<MetricValue>, String> {
        let fetch = |error: &dyn std::fmt::Display| {
            format!("unable to fetch metrics from custom metrics API: {error}")
        };
        let served =
            discovery::versions(&self.client, CUSTOM).await.map_err(|e| fetch(&e))?.unwrap_or_default();
        let best = CUSTOM_VERSIONS.into_iter().find(|version| served.iter().any(|s| s == version));
        let version =
            best.ok_or_else(|| fetch(&"no custom metrics API (custom.metrics.k8s.io) registered"))?;
        let list: Result<List<MetricValue>, Error> =
            self.client.get(&format!("/apis/{CUSTOM}/{version}/{path}")).await;
        list.map(|list| list.any().unwrap_or_default()).map_err(|e| fetch(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_the_values_of_pods() {
        let pod = |containers: Value| -> PodUsage {
            serde_json::from_value(json!({"metadata": {"name": "p"}, "timestamp": "2026-01-01T00:00:00Z",
                "window": "15.5s", "containers": containers}))
            .unwrap()
        };
        let both = pod(
            json!([{"name": "a", "usage": {"cpu": "250m", "memory": "1Ki"}}, {"name": "b", "usage": {"cpu": "1000001n"}}]),
        );
        let seen = [
            both.metric("cpu", "").map(|m| m.value),
            both.metric("cpu", "a").map(|m| m.value),
            both.metric("memory", "").map(|m| m.value),
            both.metric("memory", "a").map(|m| m.value),
            both.metric("cpu", "c").map(|m| m.value),
            pod(json!([])).metric("cpu", "").map(|m| m.value),
        ];
        // Milli-units are rounded up, as everywhere.
        assert_eq!(seen, [Some(252), Some(250), None, Some(1_024_000), None, None]);
        assert_eq!(both.metric("cpu", "a").unwrap().window, SignedDuration::from_millis(15_500));
    }

    #[test]
    fn reads_values_of_both_versions() {
        let read = |value: Value| serde_json::from_value::<MetricValue>(value).unwrap().metric();
        let new = read(json!({"value": "1500m", "windowSeconds": 5, "timestamp": "2026-01-01T00:00:00Z"}));
        let old = read(json!({"value": "2", "window": 7}));
        let bare = read(json!({"value": 3}));
        let seconds = [new, old, bare].map(|m| (m.value, m.window.as_secs()));
        assert_eq!(seconds, [(1500, 5), (2000, 7), (3000, 60)]);
        let list: List<MetricValue> = serde_json::from_value(json!({"items": null})).unwrap();
        assert!(list.any().is_none());
        assert_eq!(query(&[("a", "x=y"), ("b", "")]), "?a=x%3Dy");
    }
}
