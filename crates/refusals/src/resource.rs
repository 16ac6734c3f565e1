//! The kind Refusal of `kaji.dev/v1alpha1`: refused writes, computed at each request.
//!
//! Invariants: a refusal is shown to its own user, and to users that may `get` the object it is about (`list` the resource, for
//! an object without a name); at most [`crate::visibility::SHOWN`] are shown, the latest. Nothing is stored.

use crate::{Refusals, ring::Entry, visibility::visible};
use jiff::Timestamp;
use kaji_auth::Authorizer;
use kaji_meta::{GroupResource, Status, object, time::Time};
use kaji_resource::{
    BoxFuture, CallHooks, CallRequest, Column, Ctx, Hooks, ResourceDef, Scope, UserInfo, Verb,
};
use kaji_schema::{SchemaRef, structural};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The group.
pub const GROUP: &str = "kaji.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";
/// The resource.
pub const RESOURCE: &str = "refusals";
const KIND: &str = "Refusal";

const COLUMNS: &[Column] = &[
    Column::text("Name", "Name of the refusal"),
    Column::text("Last", "Time of the last one"),
    Column::text("Count", "How often it was refused"),
    Column::text("User", "The user that was refused"),
    Column::text("Verb", "What was asked"),
    Column::text("Object", "The object"),
    Column::text("Rule", "What refused it"),
    Column::text("Message", "The answer"),
];

/// The resource.
pub fn def(refusals: &Arc<Refusals>, authorizer: &Arc<dyn Authorizer>) -> ResourceDef {
    let schema = SchemaRef::owned(structural::build(&schema()));
    let shown = Shown { refusals: refusals.clone(), authorizer: authorizer.clone() };
    ResourceDef::computed((GROUP, VERSION, KIND, RESOURCE), Scope::Namespaced, schema, COLUMNS, shown)
}

fn schema() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let time = json!({"type": "string", "format": "date-time"});
    json!({"type": "object", "description": "A write that was refused.", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "firstTimestamp": time, "lastTimestamp": time,
        "count": {"type": "integer", "format": "int64"},
        "user": text("The user that was refused."),
        "userAgent": text("The user agent of the request."),
        "fieldManager": text("The field manager, if the request named one."),
        "verb": text("What was asked."),
        "object": {"type": "object", "properties": {
            "group": {"type": "string"}, "resource": {"type": "string"}, "subresource": {"type": "string"},
            "namespace": {"type": "string"}, "name": {"type": "string"}, "owner": {"type": "string"}}},
        "code": {"type": "integer", "format": "int32"},
        "reason": text("The reason of the answer."),
        "rule": {"type": "object", "properties": {"kind": {"type": "string"}, "name": {"type": "string"}}},
        "message": text("The message of the answer. None is kept of Secrets."),
    }})
}

struct Shown {
    refusals: Arc<Refusals>,
    authorizer: Arc<dyn Authorizer>,
}

impl Shown {
    /// The refusals that a user may see, the latest first.
    async fn visible(&self, user: &UserInfo, namespace: Option<&str>) -> Vec<Entry> {
        let describe = |entry: &Entry| (entry.refusal.about(), entry.refusal.user == user.name);
        visible(&self.authorizer, user, self.refusals.entries(namespace), describe).await
    }

    async fn answer(&self, ctx: &Ctx<'_>, request: CallRequest<'_>) -> Result<(u16, Value), Status> {
        let own = GroupResource::new(GROUP, RESOURCE);
        let namespace = Some(ctx.namespace).filter(|namespace| !namespace.is_empty());
        let visible = self.visible(ctx.user, namespace).await;
        match request.verb {
            Verb::Get => {
                let found = visible.iter().find(|entry| name(entry) == ctx.name);
                Ok((200, shown(found.ok_or_else(|| Status::not_found(&own, ctx.name))?)))
            }
            Verb::List => {
                let items: Vec<Value> = visible.iter().map(shown).collect();
                let api_version = format!("{GROUP}/{VERSION}");
                Ok((
                    200,
                    json!({"kind": format!("{KIND}List"), "apiVersion": api_version, "metadata": {}, "items": items}),
                ))
            }
            other => Err(Status::method_not_supported(&own, other.as_str())),
        }
    }
}

/// Names of entries are the hashes of what they say.
fn name(entry: &Entry) -> String {
    format!("{:016x}", entry.id)
}

fn shown(entry: &Entry) -> Value {
    let refusal = &*entry.refusal;
    let mut object = Map::new();
    let about = [
        ("group", &refusal.group),
        ("resource", &refusal.resource),
        ("subresource", &refusal.subresource),
        ("namespace", &refusal.namespace),
        ("name", &refusal.name),
        ("owner", &refusal.owner),
    ];
    for (key, value) in about {
        if !value.is_empty() {
            object.insert(key.into(), value.as_str().into());
        }
    }
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": KIND,
        "metadata": {
            "name": name(entry), "namespace": refusal.shown_in(),
            "creationTimestamp": Time::new(entry.first).to_string(),
        },
        "firstTimestamp": Time::new(entry.first).to_string(),
        "lastTimestamp": Time::new(entry.last).to_string(),
        "count": entry.count,
        "user": refusal.user,
        "userAgent": refusal.user_agent,
        "fieldManager": refusal.field_manager,
        "verb": refusal.verb,
        "object": object,
        "code": refusal.code,
        "reason": refusal.reason,
        "rule": {"kind": entry.rule.kind, "name": entry.rule.name},
        "message": refusal.message,
    })
}

impl Hooks for Shown {
    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn row(&self, _version: &str, refusal: &Value, _now: Timestamp) -> Vec<Value> {
        let text = |path: &[&str]| object::str_at(refusal, path).to_owned();
        let about = format!("{}/{}", text(&["object", "resource"]), text(&["object", "name"]));
        let rule = format!("{} {}", text(&["rule", "kind"]), text(&["rule", "name"]));
        let count = refusal["count"].as_u64().unwrap_or_default().to_string();
        let cells = [
            object::name(refusal).to_owned(),
            text(&["lastTimestamp"]),
            count,
            text(&["user"]),
            text(&["verb"]),
            about,
            rule.trim_end().to_owned(),
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
