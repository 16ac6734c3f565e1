//! Fixtures for tests: objects in, a plan as text out.

use kaji_meta::random::SeededRandom;
use kaji_runtime::{Cx, Failure, Moment, ObjectSnapshot, Plan, Projection, Sample, View, Write};
use serde_json::Value;
use std::fmt::Write as _;

/// The tests' time.
pub fn now() -> jiff::Timestamp {
    "2025-01-01T12:00:00Z".parse().unwrap()
}

/// So many seconds before [`now`], as JSON has it.
pub fn ago(seconds: i64) -> String {
    jiff::Timestamp::from_second(now().as_second() - seconds).unwrap().to_string()
}

/// A projected object.
pub fn object<T: Projection>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A snapshot of projected objects.
pub fn snapshot<T: Projection>(values: impl IntoIterator<Item = Value>) -> ObjectSnapshot<T> {
    ObjectSnapshot::of(values.into_iter().map(object::<T>))
}

/// Calls a reconciler with failures of the last plan.
pub fn reconcile(
    reconciler: &impl kaji_runtime::Reconciler,
    view: &View,
    namespace: &str,
    name: &str,
    failures: &[Failure],
) -> Plan {
    let random = SeededRandom::new(1);
    let cx = Cx { now: now(), random: &random, failures };
    reconciler.reconcile(view, &kaji_runtime::Key::new(namespace, name), &cx)
}

/// A client that receives no response.
pub fn silent_client() -> kaji_runtime::Client {
    type Answer = Result<http::Response<kube::client::Body>, std::convert::Infallible>;
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| std::future::pending::<Answer>());
    kaji_runtime::Client::new(kube::Client::new(silent, "default"), "test")
}

/// The same for a reconciler that prepares, without a server.
pub async fn prepared(
    reconciler: &impl kaji_runtime::Reconciler,
    view: &View,
    namespace: &str,
    name: &str,
) -> Plan {
    let key = kaji_runtime::Key::new(namespace, name);
    reconciler.prepare(view, &key, &silent_client()).await;
    reconcile(reconciler, view, namespace, name, &[])
}

/// A plan, one line a write; stages are apart by `--`, and by `-- independent` after one that is.
pub fn text(plan: &Plan) -> String {
    let mut out = String::new();
    for (i, stage) in plan.stages.iter().enumerate() {
        if let Some(before) = i.checked_sub(1).map(|before| &plan.stages[before]) {
            out.push_str(if before.independent { "-- independent\n" } else { "--\n" });
        }
        for step in &stage.steps {
            let (verb, body) = match &step.write {
                Write::Create { body, .. } => ("create".to_owned(), body),
                Write::Update { body, .. } => ("update".to_owned(), body),
                Write::Patch { kind, body, .. } => (format!("{kind:?}").to_lowercase(), body),
                Write::Delete { options, .. } => ("delete".to_owned(), options),
            };
            let _ = writeln!(out, "{verb} {} {body}", step.write.target().path());
            for (when, event) in [("ok", &step.on_success), ("failed", &step.on_failure)] {
                if let Some(event) = event {
                    let _ = writeln!(out, "    {when}: {:?} {}: {}", event.kind, event.reason, event.message);
                }
            }
        }
    }
    for event in &plan.events {
        let _ = writeln!(out, "event: {:?} {}: {}", event.kind, event.reason, event.message);
    }
    if let Some(wait) = plan.requeue_after {
        let _ = writeln!(out, "again after {wait:?}");
    }
    out
}

/// A sample: its metric, the values of its labels, and its value.
pub fn sample(sample: &Sample) -> String {
    let labels: String = sample.labels.iter().map(|label| format!(" {label:?}")).collect();
    format!("{}{labels} = {}", sample.metric.name, sample.value)
}

/// What a plan observes, one line an observation.
pub fn observed(plan: &Plan) -> String {
    let line = |observation: &kaji_runtime::metrics::Observation| {
        let moment = match &observation.moment {
            Moment::Decided => "decided".to_owned(),
            Moment::Succeeded => "succeeded".to_owned(),
            Moment::Failed => "failed".to_owned(),
            Moment::Written(target) => format!("written {}", target.path()),
            Moment::NotWritten(target) => format!("not written {}", target.path()),
        };
        let value = sample(&observation.sample);
        match observation.elapsed {
            true => format!("{moment}: {value} + elapsed\n"),
            false => format!("{moment}: {value}\n"),
        }
    };
    plan.observations.iter().map(line).collect()
}
