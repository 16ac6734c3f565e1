//! The kinds of `metrics.k8s.io/v1beta1`: NodeMetrics and PodMetrics, computed at each request.
//!
//! Invariants: only objects that exist are shown, with their labels; what has no figures is left out of lists, and is not
//! found by name. Names and order of fields, units and columns are metrics-server's.

use crate::{
    collector::Collector,
    points::{Figures, Usage},
};
use jiff::Timestamp;
use kaji_meta::{
    GroupResource, Status, duration, labels::Selector, object, quantity, quantity::Quantity, time::Time,
};
use kaji_resource::{BoxFuture, CallHooks, CallRequest, Column, Ctx, Hooks, ResourceDef, Scope, Verb};
use kaji_schema::{SchemaRef, structural};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// The group.
pub const GROUP: &str = "metrics.k8s.io";
/// Its version.
pub const VERSION: &str = "v1beta1";
const API_VERSION: &str = "metrics.k8s.io/v1beta1";

const COLUMNS: &[Column] = &[
    formatted("Name", "name", "Name of the resource"),
    formatted("cpu", "quantity", ""),
    formatted("memory", "quantity", ""),
    formatted("Window", "duration", ""),
];

const fn formatted(name: &'static str, format: &'static str, description: &'static str) -> Column {
    use std::borrow::Cow::Borrowed;
    Column {
        name: Borrowed(name),
        ty: Borrowed("string"),
        format: Borrowed(format),
        description: Borrowed(description),
        priority: 0,
    }
}

/// The resources of the group.
pub fn defs(collector: &Arc<Collector>) -> Vec<ResourceDef> {
    let usage = json!({"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true}});
    let containers = json!({"type": "array", "items": {"type": "object",
        "properties": {"name": {"type": "string"}, "usage": usage}}});
    vec![
        def("NodeMetrics", "nodes", Scope::Cluster, ("usage", usage), NodeMetrics(collector.clone())),
        def(
            "PodMetrics",
            "pods",
            Scope::Namespaced,
            ("containers", containers),
            PodMetrics(collector.clone()),
        ),
    ]
}

fn def(
    kind: &'static str,
    plural: &'static str,
    scope: Scope,
    (field, shape): (&str, Value),
    hooks: impl Hooks,
) -> ResourceDef {
    let mut schema = json!({"type": "object", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "timestamp": {"type": "string", "format": "date-time"}, "window": {"type": "string"}}});
    schema["properties"][field] = shape;
    let schema = SchemaRef::owned(structural::build(&schema));
    ResourceDef {
        // As metrics-server names them: only the core group's are "node" and "pod".
        singular: "".into(),
        ..ResourceDef::computed((GROUP, VERSION, kind, plural), scope, schema, COLUMNS, hooks)
    }
}

struct NodeMetrics(Arc<Collector>);
struct PodMetrics(Arc<Collector>);

/// What is common to both kinds.
trait Shown: Send + Sync + 'static {
    /// Of the objects that are used.
    const RESOURCE: &'static str;
    const KIND: &'static str;

    fn collector(&self) -> &Collector;

    /// The fields besides the metadata, if there are figures.
    fn figures(&self, object: &Value) -> Option<Value>;
}

fn metrics<T: Shown>(shown: &T, of: &Value, now: Timestamp) -> Option<Value> {
    let mut value = shown.figures(of)?;
    let mut metadata = Map::new();
    metadata.insert("name".into(), object::name(of).into());
    if !object::namespace(of).is_empty() {
        metadata.insert("namespace".into(), object::namespace(of).into());
    }
    metadata.insert("creationTimestamp".into(), Time::new(now).to_string().into());
    if let Some(labels) = of.pointer("/metadata/labels").filter(|l| l.is_object()) {
        metadata.insert("labels".into(), labels.clone());
    }
    value["apiVersion"] = API_VERSION.into();
    value["kind"] = T::KIND.into();
    value["metadata"] = metadata.into();
    Some(value)
}

async fn answer<T: Shown>(
    shown: &T,
    ctx: &Ctx<'_>,
    request: CallRequest<'_>,
) -> Result<(u16, Value), Status> {
    let objects = GroupResource::new("", T::RESOURCE);
    let own = GroupResource::new(GROUP, T::RESOURCE);
    match request.verb {
        Verb::Get => {
            ctx.api.sync().await?;
            let object = ctx.api.get(&objects, ctx.namespace, ctx.name);
            let object = object.ok_or_else(|| Status::not_found(&objects, ctx.name))?;
            shown.collector().ready().await;
            let found = metrics(shown, &object, ctx.now);
            Ok((200, found.ok_or_else(|| Status::not_found(&own, ctx.name))?))
        }
        Verb::List => {
            shown.collector().ready().await;
            ctx.api.sync().await?;
            let namespace = Some(ctx.namespace).filter(|n| !n.is_empty());
            // The rest of the selection is the engine's.
            let everything = Selector::everything();
            let labels = request.query.label_selector().ok().flatten().unwrap_or(&everything);
            let all = ctx.api.selected(&objects, namespace, labels);
            let items: Vec<Value> = all.iter().filter_map(|o| metrics(shown, o, ctx.now)).collect();
            let kind = format!("{}List", T::KIND);
            Ok((200, json!({"kind": kind, "apiVersion": API_VERSION, "metadata": {}, "items": items})))
        }
        other => Err(Status::method_not_supported(&own, other.as_str())),
    }
}

/// Time and window of figures.
fn taken<T>(figures: &Figures<T>) -> Value {
    json!({"timestamp": Time::new(figures.at).to_string(), "window": duration::format_nanoseconds(figures.window.as_nanos())})
}

fn amounts(usage: &Usage) -> Value {
    let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    json!({
        "cpu": Quantity::scaled(whole(usage.cpu), -9, quantity::Format::DecimalSi).to_string(),
        "memory": Quantity::new(whole(usage.memory), quantity::Format::BinarySi).to_string(),
    })
}

impl Shown for NodeMetrics {
    const RESOURCE: &'static str = "nodes";
    const KIND: &'static str = "NodeMetrics";

    fn collector(&self) -> &Collector {
        &self.0
    }

    fn figures(&self, node: &Value) -> Option<Value> {
        let figures = self.0.node(object::name(node))?;
        let mut value = taken(&figures);
        value["usage"] = amounts(&figures.usage);
        Some(value)
    }
}

impl Shown for PodMetrics {
    const RESOURCE: &'static str = "pods";
    const KIND: &'static str = "PodMetrics";

    fn collector(&self) -> &Collector {
        &self.0
    }

    fn figures(&self, pod: &Value) -> Option<Value> {
        let figures: Figures<BTreeMap<String, Usage>> =
            self.0.pod(object::namespace(pod), object::name(pod))?;
        let mut value = taken(&figures);
        let container = |(name, usage): (&String, &Usage)| json!({"name": name, "usage": amounts(usage)});
        value["containers"] = figures.usage.iter().map(container).collect();
        Some(value)
    }
}

/// The sum of an amount over the object's usage.
fn sum(object: &Value, name: &str) -> String {
    let containers = object.get("containers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let usages = object.get("usage").into_iter().chain(containers.iter().filter_map(|c| c.get("usage")));
    let amounts = usages.filter_map(|usage| Quantity::from_value(usage.get(name)?).ok());
    amounts.reduce(|sum, more| sum.add(&more)).unwrap_or_default().to_string()
}

fn row(object: &Value) -> Vec<Value> {
    let window = object.get("window").cloned().unwrap_or_else(|| "".into());
    vec![object::name(object).into(), sum(object, "cpu").into(), sum(object, "memory").into(), window]
}

macro_rules! computed {
    ($($kind:ty),*) => {$(
        impl Hooks for $kind {
            fn calls(&self) -> &dyn CallHooks {
                self
            }

            fn row(&self, _version: &str, object: &Value, _now: Timestamp) -> Vec<Value> {
                row(object)
            }
        }

        impl CallHooks for $kind {
            fn call<'a>(
                &'a self,
                ctx: &'a Ctx<'a>,
                request: CallRequest<'a>,
            ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
                Box::pin(answer(self, ctx, request))
            }
        }
    )*};
}

computed!(NodeMetrics, PodMetrics);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_amounts_and_rows() {
        let usage = |cpu, memory| amounts(&Usage { cpu, memory });
        expect_test::expect![[r#"{"cpu":"1234567n","memory":"2Ki"} {"cpu":"1500m","memory":"1001"}"#]]
            .assert_eq(&format!("{} {}", usage(1_234_567, 2048), usage(1_500_000_000, 1001)));
        let pod = json!({"metadata": {"name": "p"}, "window": "15s", "containers": [
            {"name": "a", "usage": usage(250_000_000, 1024)}, {"name": "b", "usage": usage(250_000_000, 1024)}]});
        assert_eq!(row(&pod), [json!("p"), json!("500m"), json!("2Ki"), json!("15s")]);
        let node = json!({"metadata": {"name": "n"}, "window": "15s", "usage": usage(1_000_000, 1024)});
        assert_eq!(row(&node), [json!("n"), json!("1m"), json!("1Ki"), json!("15s")]);
    }
}
