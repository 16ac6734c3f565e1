//! The kind Revision of `history.kaji.dev/v1alpha1`: the recorded revisions of one object, or of all objects of a namespace, read from
//! the archive at each request.
//!
//! A list is about one object if its field selector names one (`object.resource`, `object.name` and `object.group`; the namespace is
//! that of the request, and without one it is an object of the cluster). Any other list is about what changed in the namespace, or
//! everywhere, since `sinceTime`. `limit` and `continue` page both. What changed goes on: its `metadata.resourceVersion` is the
//! `continue` of what changes after it.
//!
//! Invariants: the user of a request may `get` the object, or the answer is the same 403 whether there is, or ever was, such an object;
//! so is the 404 for the name of a revision that the user may not see. Gaps are in every history that they concern.

use crate::{
    GROUP, History, REVISIONS, VERSION, Window, key_of, parts_of,
    record::{Change, Record, hash},
};
use jiff::Timestamp;
use kaji_auth::{Attributes, Authorizer};
use kaji_meta::{GroupResource, Status, object, time::MicroTime};
use kaji_resource::{
    BoxFuture, CallHooks, CallRequest, Column, Ctx, Hooks, ResourceDef, Scope, SelectableField, UserInfo,
    Verb,
};
use kaji_schema::{SchemaRef, structural};
use serde_json::{Value, json};
use std::{collections::HashMap, sync::Arc};

const KIND: &str = "Revision";
/// Revisions in one answer, and bytes of their objects, about.
const PAGE: usize = 500;
const PAGE_BYTES: usize = 8 << 20;

const COLUMNS: &[Column] = &[
    Column::text("Revision", "The resourceVersion that the object has since then"),
    Column::text("Time", "When it was made"),
    Column::text(
        "Change",
        "Created, Modified, Deleted; Former: what was there before the archive; Gap: what is missing; Purged",
    ),
    Column::text("User", "The user that made it"),
    Column::text("Manager", "The field manager"),
    Column::text("Verb", "What was asked"),
    Column::text("Message", "About what is missing"),
];

/// The resource.
pub(crate) fn def(history: &Arc<History>, authorizer: &Arc<dyn Authorizer>) -> ResourceDef {
    let schema = SchemaRef::owned(structural::build(&schema()));
    let shown = Shown { history: history.clone(), authorizer: authorizer.clone() };
    let mut def =
        ResourceDef::computed((GROUP, VERSION, KIND, REVISIONS), Scope::Namespaced, schema, COLUMNS, shown);
    for version in &mut def.versions {
        version.selectable =
            ["object.group", "object.resource", "object.name"].map(SelectableField::new).into();
    }
    // Clients that list everything that discovery says can be listed, to keep or to delete it, are not meant.
    def.undiscovered_verbs = &[Verb::List];
    def
}

fn schema() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    json!({"type": "object", "description": "A revision of an object, with the request that made it.", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "object": {"type": "object", "properties": {
            "group": {"type": "string"}, "resource": {"type": "string"}, "namespace": {"type": "string"}, "name": {"type": "string"}}},
        "revision": text("The resourceVersion that the object has since then."),
        "time": {"type": "string", "format": "date-time", "description": "When it was recorded, moments after it was made."},
        "change": text("Created, Modified, Deleted, Former, Gap or Purged."),
        "user": text("The user that made it; empty when it is not known."),
        "userAgent": text("The user agent of the request."),
        "fieldManager": text("The field manager of the request."),
        "verb": text("What was asked."),
        "subresource": text("Of which subresource."),
        "auditID": text("The id that audit logs have of the request."),
        "since": text("The first revision of a gap."),
        "message": text("What is missing, and why."),
        "state": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "description": "The object as it was stored; values of Secrets are replaced by keyed hashes."},
    }})
}

struct Shown {
    history: Arc<History>,
    authorizer: Arc<dyn Authorizer>,
}

/// The object of a question.
struct Subject<'a> {
    group: &'a str,
    resource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> Subject<'a> {
    fn field(&self, field: &str) -> &'a str {
        match field {
            "object.group" => self.group,
            "object.resource" => self.resource,
            "object.name" => self.name,
            _ => "",
        }
    }
}

impl Shown {
    async fn may_get(&self, user: &UserInfo, subject: &Subject<'_>) -> bool {
        let Subject { group, resource, namespace, name } = *subject;
        let question = Attributes { namespace, name, ..Attributes::resource(user, "get", group, resource) };
        self.authorizer.authorize(&question).await.allowed()
    }

    async fn list(&self, ctx: &Ctx<'_>, request: &CallRequest<'_>) -> Result<Value, Status> {
        let options = request.query.list_options().map_err(Status::bad_request)?;
        let after = match options.continue_token {
            "" => 0,
            token => token.parse().map_err(|_| Status::bad_request("continue key is not valid"))?,
        };
        let limit = usize::try_from(options.limit).ok().filter(|limit| *limit > 0).unwrap_or(PAGE).min(PAGE);
        let since = request.query.text("sinceTime");
        let selected = |field: &str| options.fields.and_then(|fields| fields.requires_exact(field));
        match (selected("object.resource"), selected("object.name")) {
            (Some(resource), Some(name)) if since.is_empty() => {
                let group = selected("object.group").unwrap_or_default();
                let subject = Subject { group, resource, namespace: ctx.namespace, name };
                if options.fields.is_some_and(|fields| !fields.matches(|field| subject.field(field))) {
                    // Its terms contradict each other.
                    return Ok(list_of(&json!({}), &[]));
                }
                self.object(ctx, subject, (after, limit)).await
            }
            (Some(_), Some(_)) => {
                Err(Status::bad_request("sinceTime is not for the history of one object, which is whole"))
            }
            _ => {
                let namespace = Some(ctx.namespace).filter(|namespace| !namespace.is_empty());
                let window = Window {
                    namespace: namespace.map(str::to_owned),
                    objects: options.fields.cloned(),
                    after,
                    since: milliseconds(since)?,
                    limit,
                    bytes: PAGE_BYTES,
                };
                self.changes(ctx, window).await
            }
        }
    }

    /// The history of one object.
    async fn object(
        &self,
        ctx: &Ctx<'_>,
        subject: Subject<'_>,
        (after, limit): (u64, usize),
    ) -> Result<Value, Status> {
        if !self.may_get(ctx.user, &subject).await {
            let Subject { group, resource, name, .. } = subject;
            let text = format!(
                "User {:?} cannot get resource {resource:?} in API group {group:?}, and so not its history",
                ctx.user.name
            );
            return Err(Status::forbidden(&GroupResource::new(group, resource), name, text));
        }
        let key = key_of(subject.group, subject.resource, subject.namespace, subject.name);
        let found = self.history.records(key.clone(), after, limit, PAGE_BYTES).await?;
        warn_of_damage(ctx, &found.lost);
        let mut metadata = json!({});
        if let Some(last) = found.records.last().filter(|_| found.more) {
            metadata["continue"] = last.revision.to_string().into();
        }
        let items: Vec<Value> = found.records.iter().map(|record| shown(record, &key)).collect();
        Ok(list_of(&metadata, &items))
    }

    /// What changed: the records of objects that the user may get. The others are left out, without a trace.
    async fn changes(&self, ctx: &Ctx<'_>, window: Window) -> Result<Value, Status> {
        let found = self.history.changes(window).await?;
        warn_of_damage(ctx, &found.lost);
        let mut metadata = json!({"resourceVersion": found.through.to_string()});
        if found.more {
            metadata["continue"] = found.through.to_string().into();
        }
        let (mut items, mut allowed) = (Vec::with_capacity(found.records.len()), HashMap::new());
        for record in &found.records {
            let may = match (allowed.get(record.key.as_str()), parts_of(&record.key)) {
                (Some(known), _) => *known,
                // A gap is in every history.
                (None, None) => true,
                (None, Some([group, resource, namespace, name])) => {
                    self.may_get(ctx.user, &Subject { group, resource, namespace, name }).await
                }
            };
            allowed.insert(record.key.as_str(), may);
            if may {
                items.push(shown(record, &record.key));
            }
        }
        Ok(list_of(&metadata, &items))
    }

    /// A revision by its name, of which the key is known only when it is found.
    async fn get(&self, ctx: &Ctx<'_>) -> Result<Value, Status> {
        let missing = || Status::not_found(&GroupResource::new(GROUP, REVISIONS), ctx.name);
        let (revision, hashed) = ctx.name.split_once('-').ok_or_else(missing)?;
        let revision: u64 = revision.parse().map_err(|_| missing())?;
        let hashed = u64::from_str_radix(hashed, 16).map_err(|_| missing())?;
        let record = self.history.record(revision, hashed).await?.ok_or_else(missing)?;
        let [group, resource, namespace, name] = parts_of(&record.key).ok_or_else(missing)?;
        let subject = Subject { group, resource, namespace, name };
        if namespace != ctx.namespace || !self.may_get(ctx.user, &subject).await {
            return Err(missing());
        }
        Ok(shown(&record, &record.key))
    }

    async fn answer(&self, ctx: &Ctx<'_>, request: CallRequest<'_>) -> Result<(u16, Value), Status> {
        match request.verb {
            Verb::Get => Ok((200, self.get(ctx).await?)),
            Verb::List => Ok((200, self.list(ctx, &request).await?)),
            other => Err(Status::method_not_supported(&GroupResource::new(GROUP, REVISIONS), other.as_str())),
        }
    }
}

fn list_of(metadata: &Value, items: &[Value]) -> Value {
    json!({"kind": format!("{KIND}List"), "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": metadata, "items": items})
}

/// A time as milliseconds of the epoch; without text that of everything.
fn milliseconds(time: &str) -> Result<i64, Status> {
    if time.is_empty() {
        return Ok(i64::MIN);
    }
    let parsed = time.parse::<Timestamp>();
    let parsed =
        parsed.map_err(|_| Status::bad_request(format!("sinceTime {time:?} is no RFC 3339 time")))?;
    Ok(parsed.as_millisecond())
}

fn warn_of_damage(ctx: &Ctx<'_>, lost: &[String]) {
    lost.iter().for_each(|lost| ctx.warn(format!("a part of the history is damaged: {}", file_of(lost))));
}

/// The file and what is wrong with it, without the directory.
fn file_of(lost: &str) -> &str {
    lost.rsplit_once('/').map_or(lost, |(_, file)| file)
}

fn time_of(record: &Record) -> String {
    MicroTime::new(Timestamp::from_millisecond(record.time).unwrap_or_default()).to_string()
}

/// A record as an object; `key` is that of the object in question.
fn shown(record: &Record, key: &str) -> Value {
    let [group, resource, namespace, name] = parts_of(key).unwrap_or_default();
    let mut object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": KIND,
        "metadata": {"name": format!("{}-{:016x}", record.revision, hash(key))},
        "object": {"group": group, "resource": resource, "namespace": namespace, "name": name},
        "revision": record.revision.to_string(),
        "time": time_of(record),
        "change": record.change.as_str(),
    });
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    let about = &record.attribution;
    for (field, text) in [
        ("user", &about.user),
        ("userAgent", &about.user_agent),
        ("fieldManager", &about.field_manager),
        ("verb", &about.verb),
        ("subresource", &about.subresource),
        ("auditID", &about.audit_id),
    ] {
        if !text.is_empty() {
            object[field] = text.as_str().into();
        }
    }
    match record.change {
        Change::Gap | Change::Purged | Change::Progress => {
            object["message"] = String::from_utf8_lossy(&record.value).into();
            if record.change == Change::Gap {
                object["since"] = record.since.to_string().into();
            }
        }
        Change::Created | Change::Modified | Change::Deleted | Change::Former => {
            let mut state: Value = serde_json::from_slice(&record.value).unwrap_or_default();
            if let Value::Object(_) = state {
                object::meta_mut(&mut state)
                    .insert("resourceVersion".into(), record.revision.to_string().into());
            }
            object["state"] = state;
        }
    }
    object
}

impl Hooks for Shown {
    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn row(&self, _version: &str, revision: &Value, _now: Timestamp) -> Vec<Value> {
        let fields = ["revision", "time", "change", "user", "fieldManager", "verb", "message"];
        fields.map(|field| Value::from(object::str_at(revision, &[field]))).into()
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
