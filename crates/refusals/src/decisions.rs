//! The kind Decision of `kaji.dev/v1alpha1`: the last decisions about objects, computed at each request.
//!
//! Invariants: a decision is shown to users that may read the object that it is about; at most
//! [`crate::visibility::SHOWN`] are shown, the latest. Nothing is stored.

use crate::{GROUP, VERSION, visibility::visible};
use jiff::Timestamp;
use kaji_auth::Authorizer;
use kaji_decisions::{Decisions, Entry};
use kaji_meta::{GroupResource, Status, object, time::Time};
use kaji_resource::{BoxFuture, CallHooks, CallRequest, Column, Ctx, Hooks, ResourceDef, Scope, Verb};
use kaji_schema::{SchemaRef, structural};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The resource.
pub const RESOURCE: &str = "decisions";
const KIND: &str = "Decision";

const COLUMNS: &[Column] = &[
    Column::text("Name", "Name of the decision"),
    Column::text("Last", "Time of the last one"),
    Column::text("Count", "How often it was the same"),
    Column::text("Component", "What decided"),
    Column::text("Object", "The object"),
    Column::text("Reason", "In a word"),
    Column::text("Message", "In a sentence"),
];

/// The resource.
pub fn def(decisions: &Arc<Decisions>, authorizer: &Arc<dyn Authorizer>) -> ResourceDef {
    let schema = SchemaRef::owned(structural::build(&schema()));
    let shown = Shown { decisions: decisions.clone(), authorizer: authorizer.clone() };
    ResourceDef::computed((GROUP, VERSION, KIND, RESOURCE), Scope::Namespaced, schema, COLUMNS, shown)
}

fn schema() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let time = json!({"type": "string", "format": "date-time"});
    json!({"type": "object", "description": "The last decision of a component about an object.", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "firstTimestamp": time, "lastTimestamp": time,
        "count": {"type": "integer", "format": "int64", "description": "How often it was the same since firstTimestamp."},
        "component": text("What decided."),
        "object": {"type": "object", "properties": {
            "group": {"type": "string"}, "resource": {"type": "string"},
            "namespace": {"type": "string"}, "name": {"type": "string"}, "owner": {"type": "string"}}},
        "reason": text("In a word."),
        "message": text("In a sentence. None is kept of Secrets."),
        "rejections": {"type": "array", "description": "What nodes were rejected for.", "items": {
            "type": "object", "properties": {
                "plugin": text("The plugin of the scheduler."), "reason": text("Why it rejected them."),
                "count": {"type": "integer", "format": "int32", "description": "How many nodes."},
                "nodes": {"type": "array", "items": {"type": "string"}, "description": "The first of them by name."}}}},
    }})
}

struct Shown {
    decisions: Arc<Decisions>,
    authorizer: Arc<dyn Authorizer>,
}

impl Shown {
    async fn answer(&self, ctx: &Ctx<'_>, request: CallRequest<'_>) -> Result<(u16, Value), Status> {
        let own = GroupResource::new(GROUP, RESOURCE);
        let namespace = Some(ctx.namespace).filter(|namespace| !namespace.is_empty());
        let mut entries = self.decisions.entries(namespace);
        if request.verb == Verb::Get {
            entries.retain(|entry| name(entry) == ctx.name);
        }
        let describe = |entry: &Entry| (entry.decision.about.clone(), false);
        let visible = visible(&self.authorizer, ctx.user, entries, describe).await;
        match request.verb {
            Verb::Get => match visible.first() {
                Some(entry) => Ok((200, shown(entry))),
                None => Err(Status::not_found(&own, ctx.name)),
            },
            Verb::List => {
                let items: Vec<Value> = visible.iter().map(shown).collect();
                let api_version = format!("{GROUP}/{VERSION}");
                let list = json!({"kind": format!("{KIND}List"), "apiVersion": api_version, "metadata": {}, "items": items});
                Ok((200, list))
            }
            other => Err(Status::method_not_supported(&own, other.as_str())),
        }
    }
}

fn name(entry: &Entry) -> String {
    format!("{:016x}", entry.id)
}

fn shown(entry: &Entry) -> Value {
    let decision = &*entry.decision;
    let mut about = Map::new();
    let texts = [
        ("group", &decision.about.group),
        ("resource", &decision.about.resource),
        ("namespace", &decision.about.namespace),
        ("name", &decision.about.name),
        ("owner", &decision.owner),
    ];
    for (key, value) in texts {
        if !value.is_empty() {
            about.insert(key.into(), value.as_str().into());
        }
    }
    let mut all = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": KIND,
        "metadata": {
            "name": name(entry), "namespace": decision.about.shown_in(),
            "creationTimestamp": Time::new(entry.first).to_string(),
        },
        "firstTimestamp": Time::new(entry.first).to_string(),
        "lastTimestamp": Time::new(entry.last).to_string(),
        "count": entry.count,
        "component": decision.component,
        "object": about,
        "reason": decision.reason,
        "message": decision.message,
    });
    if !decision.rejections.is_empty() {
        let rejections = decision.rejections.iter().map(|rejection| {
            json!({"plugin": rejection.plugin, "reason": rejection.reason, "count": rejection.count, "nodes": rejection.nodes})
        });
        all["rejections"] = rejections.collect();
    }
    all
}

impl Hooks for Shown {
    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn row(&self, _version: &str, decision: &Value, _now: Timestamp) -> Vec<Value> {
        let text = |path: &[&str]| object::str_at(decision, path).to_owned();
        let about = format!("{}/{}", text(&["object", "resource"]), text(&["object", "name"]));
        let cells = [
            object::name(decision).to_owned(),
            text(&["lastTimestamp"]),
            decision["count"].as_u64().unwrap_or_default().to_string(),
            text(&["component"]),
            about,
            text(&["reason"]),
            text(&["message"]),
        ];
        cells.into_iter().map(Value::from).collect()
    }
}

impl CallHooks for Shown {
    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(self.answer(ctx, request))
    }
}
