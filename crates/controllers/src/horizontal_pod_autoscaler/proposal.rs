//! What one metric of an autoscaler proposes: replicas, the name that events give it, and its part of the status.
//!
//! Invariant: a metric that cannot be computed says why in upstream's words, once for the condition and once, with what it
//! was needed for, for the error.

use super::{
    calculator::{Pods, Tolerances, Utilized, per_pod},
    metrics,
    sources::Sources,
};
use kaji_meta::{labels::Selector, quantity, quantity::Quantity};
use kaji_runtime::objects::{MetricIdentifier, MetricSource, MetricSpec, MetricTarget};
use serde_json::{Value, json};

/// What a metric proposes.
#[derive(Debug, PartialEq)]
pub struct Proposal {
    /// Replicas.
    pub replicas: i64,
    /// `cpu resource utilization (percentage of request)`
    pub metric: String,
    /// A `MetricStatus`.
    pub status: Value,
}

/// Why there is no proposal.
#[derive(Debug, PartialEq)]
pub struct NoProposal {
    /// The reason of the condition and of the event.
    pub reason: &'static str,
    /// What the condition says, and the event.
    pub cause: String,
    /// What the error as a whole says.
    pub error: String,
}

impl NoProposal {
    /// The reason where a metric's type is none.
    const INVALID_TYPE: &str = "InvalidMetricSourceType";

    /// The failure as metrics name it.
    pub fn label(&self) -> &'static str {
        if self.reason == Self::INVALID_TYPE { metrics::SPEC } else { metrics::INTERNAL }
    }
}

/// What proposals are computed for.
pub struct Scaled<'a> {
    /// Where.
    pub namespace: &'a str,
    /// The scale's selector, as sent.
    pub selector: &'a str,
    /// The pods that it matches.
    pub pods: Pods<'a>,
    /// The replicas that are wanted.
    pub spec_replicas: i64,
    /// The replicas that there are.
    pub status_replicas: i64,
    /// How far ratios may be from one.
    pub tolerances: Tolerances,
}

/// A quantity of milli-units.
fn decimal(milli: i64) -> String {
    Quantity::milli(milli, quantity::Format::DecimalSi).to_string()
}

/// A quantity of a resource; memory has binary suffixes, as metrics-server's.
fn of_resource(resource: &str, milli: i64) -> String {
    let format = if resource == "memory" { quantity::Format::BinarySi } else { quantity::Format::DecimalSi };
    Quantity::milli(milli, format).to_string()
}

fn identifier(metric: &MetricIdentifier) -> Value {
    match &metric.selector {
        Value::Null => json!({"name": metric.name}),
        selector => json!({"name": metric.name, "selector": selector}),
    }
}

/// A selector of series, as the metrics APIs take it.
fn series(metric: &MetricIdentifier) -> Result<String, String> {
    match &metric.selector {
        Value::Null => Ok(String::new()),
        selector => Selector::from_label_selector(selector).map(|s| s.to_string()),
    }
}

/// A label selector as Go prints it in texts.
pub fn go_text(selector: &Value) -> String {
    let Some(selector) = selector.as_object() else { return "nil".into() };
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let labels: String = labels.map(|(k, v)| format!("{k}: {},", text(v))).collect();
    let expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    let expressions: String = expressions
        .map(|e| {
            let values = e["values"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(" ");
            let (key, operator) = (text(&e["key"]), text(&e["operator"]));
            format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

/// The outcome of a source: replicas, name and status, or the cause, what the error prepends to it, and the reason.
type Outcome = Result<(i64, String, Value), (String, String)>;

/// A cause that the error repeats as it is.
fn plain(cause: String) -> (String, String) {
    (cause.clone(), cause)
}

impl Scaled<'_> {
    /// Computes the proposal of a metric.
    ///
    /// # Errors
    /// There is no value of the metric, or none that counts.
    pub async fn propose(&self, spec: &MetricSpec, sources: &Sources) -> Result<Proposal, NoProposal> {
        let (kind, reason, source): (_, _, &Option<MetricSource>) = match spec.kind.as_str() {
            "Resource" => ("resource", "FailedGetResourceMetric", &spec.resource),
            "ContainerResource" => {
                ("containerResource", "FailedGetContainerResourceMetric", &spec.container_resource)
            }
            "Pods" => ("pods", "FailedGetPodsMetric", &spec.pods),
            "Object" => ("object", "FailedGetObjectMetric", &spec.object),
            "External" => ("external", "FailedGetExternalMetric", &spec.external),
            other => {
                let cause = format!("unknown metric source type {}", kaji_meta::text::quote(other));
                return Err(NoProposal { reason: NoProposal::INVALID_TYPE, error: cause.clone(), cause });
            }
        };
        // Validation requires the source of the type.
        let empty = MetricSource::default();
        let source = source.as_ref().unwrap_or(&empty);
        let (outcome, needed_for) = match kind {
            "resource" => {
                (self.resource(source, "", sources).await, format!("{} resource metric", source.name))
            }
            "containerResource" => (
                self.resource(source, &source.container, sources).await,
                format!("{} container metric", source.container),
            ),
            "pods" => (self.of_pods(source, sources).await, "pods metric".to_owned()),
            "object" => (self.object(source, sources).await, "object metric".to_owned()),
            _ => (self.external(source, sources).await, format!("{} external metric", source.metric.name)),
        };
        match outcome {
            Ok((replicas, metric, status)) => {
                let mut whole = json!({"type": spec.kind});
                whole[kind] = status;
                Ok(Proposal { replicas, metric, status: whole })
            }
            Err((cause, error)) => {
                let error = format!("failed to get {needed_for} value: {error}");
                Err(NoProposal { reason, cause, error })
            }
        }
    }

    async fn resource(&self, source: &MetricSource, container: &str, sources: &Sources) -> Outcome {
        let MetricSource { name, target, .. } = source;
        let metrics = async {
            let found = sources.resource(self.namespace, self.selector, name, container).await;
            found.map_err(|e| format!("unable to get metrics for resource {name}: {e}"))
        };
        let (replicas, metric, current) = if let Some(average) = target.average_value {
            let failed = |e: String| plain(format!("failed to get {name} usage: {e}"));
            let values = metrics.await.map_err(failed)?;
            let counted = self.pods.by_value(values, self.spec_replicas, average.0, name, self.tolerances);
            let (replicas, usage) = counted.map_err(failed)?;
            (replicas, format!("{name} resource"), json!({"averageValue": of_resource(name, usage)}))
        } else if let Some(percent) = target.average_utilization {
            let failed = |e: String| plain(format!("failed to get {name} utilization: {e}"));
            let values = metrics.await.map_err(failed)?;
            let of = (name.as_str(), container);
            let counted = self.pods.by_utilization(values, self.spec_replicas, percent, of, self.tolerances);
            let Utilized { replicas, utilization, average } = counted.map_err(failed)?;
            let kind = if container.is_empty() { "resource" } else { "container resource" };
            let current =
                json!({"averageUtilization": utilization, "averageValue": of_resource(name, average)});
            (replicas, format!("{name} {kind} utilization (percentage of request)"), current)
        } else {
            return Err(plain(
                "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set".into(),
            ));
        };
        let mut status = json!({"name": name, "current": current});
        if !container.is_empty() {
            status["container"] = container.into();
        }
        Ok((replicas, metric, status))
    }

    async fn of_pods(&self, source: &MetricSource, sources: &Sources) -> Outcome {
        let metric = &source.metric;
        let target = source.target.average_value.unwrap_or_default().0;
        let selector = series(metric).map_err(plain)?;
        let values = sources.pods(self.namespace, self.selector, &metric.name, &selector).await;
        let values = values.map_err(|e| plain(format!("unable to get metric {}: {e}", metric.name)))?;
        let counted = self.pods.by_value(values, self.spec_replicas, target, "", self.tolerances);
        let (replicas, usage) = counted.map_err(plain)?;
        let status = json!({"metric": identifier(metric), "current": {"averageValue": decimal(usage)}});
        Ok((replicas, format!("pods metric {}", metric.name), status))
    }

    async fn object(&self, source: &MetricSource, sources: &Sources) -> Outcome {
        let MetricSource { metric, described_object: object, target, .. } = source;
        let (namespace, name) = (self.namespace, &metric.name);
        let selector = series(metric).map_err(plain)?;
        let value = async {
            let found = sources.object(namespace, object, name, &selector).await;
            found.map_err(|e| {
                format!("unable to get metric {name} on {} {namespace}/{}: {e}", object.kind, object.name)
            })
        };
        let (replicas, text, current) = match wanted(target) {
            Some(Wanted::Whole(wanted)) => {
                let usage = value.await.map_err(plain)?;
                let ratio = usage as f64 / wanted as f64;
                let replicas = self.pods.by_ratio(self.spec_replicas, ratio, self.tolerances);
                let text = format!("{} metric {name}", object.kind);
                (replicas.map_err(plain)?, text, json!({"value": decimal(usage)}))
            }
            Some(Wanted::PerPod(wanted)) => {
                let failed = |cause: String| {
                    let error = format!("failed to get {name} object metric: {cause}");
                    (cause, error)
                };
                let usage = value.await.map_err(failed)?;
                let (replicas, average) = per_pod(self.status_replicas, usage, wanted, self.tolerances);
                let text = format!("external metric {name}({})", go_text(&metric.selector));
                (replicas, text, json!({"averageValue": decimal(average)}))
            }
            None => {
                return Err(plain(
                    "invalid object metric source: neither a value target nor an average value target was set"
                        .into(),
                ));
            }
        };
        let mut described = json!({"kind": object.kind, "name": object.name});
        if !object.api_version.is_empty() {
            described["apiVersion"] = object.api_version.as_str().into();
        }
        let status = json!({"metric": identifier(metric), "current": current, "describedObject": described});
        Ok((replicas, text, status))
    }

    async fn external(&self, source: &MetricSource, sources: &Sources) -> Outcome {
        let MetricSource { metric, target, .. } = source;
        let (namespace, name) = (self.namespace, &metric.name);
        let printed = go_text(&metric.selector);
        let value = async {
            let values = sources
                .external(namespace, name, &series(metric)?)
                .await
                .map_err(|e| format!("unable to get external metric {namespace}/{name}/{printed}: {e}"))?;
            Ok(values.iter().fold(0_i64, |sum, value| sum.saturating_add(*value)))
        };
        let (replicas, current) = if let Some(wanted) = target.average_value {
            let failed = |cause: String| {
                let error = format!("failed to get {name} external metric: {cause}");
                (cause, error)
            };
            let usage = value.await.map_err(failed)?;
            let (replicas, average) = per_pod(self.status_replicas, usage, wanted.0, self.tolerances);
            (replicas, json!({"averageValue": decimal(average)}))
        } else if let Some(wanted) = target.value {
            let failed = |cause: String| {
                let error = format!("failed to get external metric {name}: {cause}");
                (cause, error)
            };
            let usage = value.await.map_err(failed)?;
            let ratio = usage as f64 / wanted.0 as f64;
            let replicas = self.pods.by_ratio(self.spec_replicas, ratio, self.tolerances);
            (replicas.map_err(failed)?, json!({"value": decimal(usage)}))
        } else {
            return Err(plain(
                "invalid external metric source: neither a value target nor an average value target was set"
                    .into(),
            ));
        };
        let status = json!({"metric": identifier(metric), "current": current});
        Ok((replicas, format!("external metric {name}({printed})"), status))
    }
}

/// What an object's metric should be, milli-units.
enum Wanted {
    Whole(i64),
    PerPod(i64),
}

fn wanted(target: &MetricTarget) -> Option<Wanted> {
    match target.kind.as_str() {
        "Value" => target.value.map(|v| Wanted::Whole(v.0)),
        "AverageValue" => target.average_value.map(|v| Wanted::PerPod(v.0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_printed_as_go_does() {
        let selector = json!({"matchLabels": {"a": "b", "c": "d"},
            "matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}]});
        assert_eq!(go_text(&Value::Null), "nil");
        assert_eq!(
            go_text(&selector),
            "&LabelSelector{MatchLabels:map[string]string{a: b,c: d,},MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:k,Operator:In,Values:[x y],},},}"
        );
    }

    #[test]
    fn prints_amounts_as_quantities() {
        assert_eq!(
            [decimal(1500), decimal(2000), of_resource("memory", 1_024_000), of_resource("cpu", 250)],
            ["1500m", "2", "1Ki", "250m"]
        );
    }
}
