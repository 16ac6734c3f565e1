//! Events, served by the core group and by events.k8s.io. They are stored in the core form; hooks get that form,
//! and only defaulting and tables get the requested one.

use crate::shared::{
    check, metadata,
    table::{human, seconds_between},
    value::Fields,
};
use kaji_meta::{
    GroupResource, Status,
    field::{Error, ErrorList, Path},
    object, semantic_equal, validation,
};
use kaji_resource::{
    Column, Ctx, GarbageCollectionPolicy, Hooks, ResourceDef, Scope, SelectableField, name_column,
};
use serde_json::Value;
use std::time::Duration;

const COLUMNS: &[Column] = &[
    Column::new(
        "Last Seen",
        "string",
        0,
        "The time at which the most recent occurrence of this event was recorded.",
    ),
    Column::new(
        "Type",
        "string",
        0,
        "Type of this event (Normal, Warning), new types could be added in the future",
    ),
    Column::new(
        "Reason",
        "string",
        0,
        "This should be a short, machine understandable string that gives the reason for the transition into the object's current status.",
    ),
    Column::new("Object", "string", 0, "The object that this event is about."),
    Column::new(
        "Subobject",
        "string",
        1,
        "If referring to a piece of an object instead of an entire object, this string should contain a valid JSON/Go field access statement, such as desiredState.manifest.containers[2]. For example, if the object reference is to a container within a pod, this would take on a value like: \"spec.containers{name}\" (where \"name\" refers to the name of the container that triggered the event) or if no container name is specified \"spec.containers[2]\" (container with index 2 in this pod). This syntax is chosen only to have some well-defined way of referencing a part of an object.",
    ),
    Column::new(
        "Source",
        "string",
        1,
        "The component reporting this event. Should be a short machine understandable string.",
    ),
    Column::new("Message", "string", 0, "A human-readable description of the status of this operation."),
    Column::new(
        "First Seen",
        "string",
        1,
        "The time at which the event was first recorded. (Time of server receipt is in TypeMeta.)",
    ),
    Column::new("Count", "string", 1, "The number of times this event has occurred."),
    name_column().wide(),
];

/// Fields by their names in the core group and in events.k8s.io.
const NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Selectable parts of the object an event is about.
const ABOUT: &[&str] = &["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"];

struct Events {
    /// Served by events.k8s.io, with its stricter rules.
    strict: bool,
}

fn rename(object: &mut Value, core_to_events: bool) {
    let Some(map) = object.as_object_mut() else { return };
    for (core, events) in NAMES {
        let (from, to) = if core_to_events { (core, events) } else { (events, core) };
        if let Some(v) = map.remove(*from) {
            map.insert((*to).to_owned(), v);
        }
    }
}

/// A field under either of its names.
fn either<'a>(object: &'a Value, core: &str) -> &'a Value {
    let events = NAMES.iter().find(|(c, _)| *c == core).map_or(core, |(_, e)| e);
    object.get_field(core).unwrap_or_else(|| object.at(events))
}

fn name_rule(errs: &mut ErrorList, path: &str, value: &str) {
    if value.len() > 128 {
        errs.push(Error::invalid(&Path::new(path), "", "can have at most 128 characters"));
    }
}

fn needed(errs: &mut ErrorList, path: &str, value: &str) {
    check::required(errs, &Path::new(path), value);
    name_rule(errs, path, value);
}

/// The rules that both groups share.
fn common(event: &Value, strict: bool) -> ErrorList {
    let mut errs = vec![];
    let namespace = object::namespace(event);
    let about = event.at("involvedObject").text("namespace");
    let home = namespace.is_empty() || namespace == "default";
    let fits = if event.text("eventTime").is_empty() {
        if about.is_empty() { home } else { about == namespace }
    } else {
        !about.is_empty() || namespace == "default" || namespace == "kube-system"
    };
    if !fits {
        let path = Path::new("involvedObject").child("namespace");
        errs.push(Error::invalid(&path, about, "does not match event.namespace"));
    }
    if !event.text("eventTime").is_empty() {
        let path = if strict { "reportingController" } else { "reportingComponent" };
        let controller = event.text("reportingComponent");
        check::required(&mut errs, &Path::new(path), controller);
        check::qualified_name(&mut errs, &Path::new(path), controller);
        needed(&mut errs, "reportingInstance", event.text("reportingInstance"));
        needed(&mut errs, "action", event.text("action"));
        needed(&mut errs, "reason", event.text("reason"));
        if event.text("message").len() > 1024 {
            errs.push(Error::invalid(&Path::new("message"), "", "can have at most 1024 characters"));
        }
    }
    check::each(&mut errs, &Path::new("namespace"), namespace, validation::is_dns1123_subdomain(namespace));
    errs
}

fn series(errs: &mut ErrorList, event: &Value) {
    let series = event.at("series");
    if series.is_null() {
        return;
    }
    if series.int("count") < 2 {
        errs.push(Error::invalid(&Path::new("series.count"), "", "should be at least 2"));
    }
    check::required(errs, &Path::new("series.lastObservedTime"), series.text("lastObservedTime"));
}

fn strict_create(errs: &mut ErrorList, event: &Value) {
    series(errs, event);
    check::required(errs, &Path::new("eventTime"), event.text("eventTime"));
    let ty = event.text("type");
    if !["Normal", "Warning"].contains(&ty) {
        errs.push(Error::invalid(&Path::new("type"), "", format!("has invalid value: {ty}")));
    }
    let source = event.at("source");
    let set = [
        ("firstTimestamp", event.has("firstTimestamp")),
        ("lastTimestamp", event.has("lastTimestamp")),
        ("count", event.int("count") != 0),
        ("source", !source.text("component").is_empty() || !source.text("host").is_empty()),
    ];
    for (field, _) in set.iter().filter(|(_, set)| *set) {
        errs.push(Error::invalid(&Path::new(field), "", "needs to be unset"));
    }
}

impl Hooks for Events {
    fn convert(&self, object: &mut Value, _from: &str, _to: &str) -> Result<(), Status> {
        // Both groups call their version v1; the object still names the group it comes from.
        if self.strict {
            let from_core = object::api_version(object) == "v1";
            rename(object, from_core);
        }
        Ok(())
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = common(object, self.strict);
        if self.strict {
            strict_create(&mut errs, object);
        }
        errs
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = common(new, self.strict);
        if !self.strict {
            return errs;
        }
        if !semantic_equal(new.at("series"), old.at("series")) {
            series(&mut errs, new);
        }
        let fields = [
            "involvedObject",
            "reason",
            "message",
            "source",
            "firstTimestamp",
            "lastTimestamp",
            "count",
            "reason",
            "type",
            "eventTime",
            "action",
            "related",
            "reportingComponent",
            "reportingInstance",
        ];
        for f in fields {
            let shown = if f == "reportingComponent" { "reportingController" } else { f };
            let zero = |v: &Value| if crate::shared::rules::is_zero(v) { Value::Null } else { v.clone() };
            check::immutable(&mut errs, &Path::new(shown), &zero(new.at(f)), &zero(old.at(f)));
        }
        errs
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let since = |v: &Value| {
            let at = v.as_str().and_then(|t| t.parse::<jiff::Timestamp>().ok());
            at.map_or_else(|| "<unknown>".to_owned(), |t| human(seconds_between(t, now)))
        };
        let first = match either(object, "firstTimestamp") {
            Value::Null => since(object.at("eventTime")),
            t => since(t),
        };
        let mut last = match either(object, "lastTimestamp") {
            Value::Null => first.clone(),
            t => since(t),
        };
        let mut count = either(object, "count").as_i64().unwrap_or(0).max(1);
        if object.has("series") {
            last = since(object.at("series").at("lastObservedTime"));
            count = object.at("series").int("count");
        }
        let about = either(object, "involvedObject");
        let kind = about.text("kind").to_lowercase();
        let target = match about.text("name") {
            "" => kind,
            n => format!("{kind}/{n}"),
        };
        vec![
            last.into(),
            object.text("type").into(),
            object.text("reason").into(),
            target.into(),
            about.text("fieldPath").into(),
            source_cell(object).into(),
            either(object, "message").as_str().unwrap_or("").trim().into(),
            first.into(),
            count.into(),
            object::name(object).into(),
        ]
    }
}

fn source_cell(object: &Value) -> String {
    let source = either(object, "source");
    let first = |a: &str, b: &str| if a.is_empty() { b.to_owned() } else { a.to_owned() };
    let controller = either(object, "reportingComponent").as_str().unwrap_or("");
    let component = first(source.text("component"), controller);
    let host = first(source.text("host"), object.text("reportingInstance"));
    if host.is_empty() { component } else { format!("{component}, {host}") }
}

fn field(name: &str, path: &[&str]) -> SelectableField {
    let mut f = SelectableField::new("type");
    f.name = name.to_owned().into();
    f.path = path.iter().map(|p| (*p).to_owned().into()).collect();
    f
}

/// The definition of the core group's events.
pub fn core(ttl: Duration) -> ResourceDef {
    let mut fields: Vec<SelectableField> =
        ABOUT.iter().map(|f| field(&format!("involvedObject.{f}"), &["involvedObject", f])).collect();
    fields.extend([
        field("reason", &["reason"]),
        field("reportingComponent", &["reportingComponent"]),
        field("source", &["source", "component"]).or("reportingComponent"),
        field("type", &["type"]),
    ]);
    base("", false, ttl).select(&fields)
}

/// The definition of events.k8s.io's events, which are stored as the core group's. Selectable fields have paths into
/// the stored form.
pub fn events(ttl: Duration) -> ResourceDef {
    let mut fields: Vec<SelectableField> =
        ABOUT.iter().map(|f| field(&format!("regarding.{f}"), &["involvedObject", f])).collect();
    fields.extend([
        field("reason", &["reason"]),
        field("reportingController", &["reportingComponent"]),
        field("type", &["type"]),
    ]);
    let mut def = base("events.k8s.io", true, ttl)
        .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
        .select(&fields)
        .named(validation::name_is_dns_subdomain);
    def.shares_storage_of = Some(GroupResource::new("", "events"));
    def
}

fn base(group: &'static str, strict: bool, ttl: Duration) -> ResourceDef {
    ResourceDef::builtin(group, "v1", "Event", "events", Scope::Namespaced, COLUMNS, Events { strict })
        .optional_to_start()
        .with_garbage_collection(GarbageCollectionPolicy::Unsupported)
        .acknowledge_when_stored()
        .short(&["ev"])
        .create_on_update()
        .named(validation::path_segment_name)
        .expire(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors};
    use expect_test::expect;
    use serde_json::json;

    const TTL: Duration = Duration::from_secs(3600);

    fn stored() -> Value {
        json!({"apiVersion": "v1", "metadata": {"name": "e", "namespace": "n"}, "type": "Normal", "reason": "Started", "message": "hi ",
            "involvedObject": {"kind": "Pod", "namespace": "n", "name": "p"}, "source": {"component": "kubelet", "host": "node"},
            "firstTimestamp": "2026-01-02T03:00:05Z", "lastTimestamp": "2026-01-02T03:04:00Z", "count": 3})
    }

    #[test]
    fn conversion_goes_both_ways() {
        let def = events(TTL);
        let mut v = stored();
        def.hooks.convert(&mut v, "v1", "v1").unwrap();
        expect![[r#"{"apiVersion":"v1","deprecatedCount":3,"deprecatedFirstTimestamp":"2026-01-02T03:00:05Z","deprecatedLastTimestamp":"2026-01-02T03:04:00Z","deprecatedSource":{"component":"kubelet","host":"node"},"metadata":{"name":"e","namespace":"n"},"note":"hi ","reason":"Started","regarding":{"kind":"Pod","name":"p","namespace":"n"},"type":"Normal"}"#]]
            .assert_eq(&v.to_string());
        assert_eq!(row(&def, &v), row(&core(TTL), &stored()));
        v["apiVersion"] = "events.k8s.io/v1".into();
        def.hooks.convert(&mut v, "v1", "v1").unwrap();
        v["apiVersion"] = "v1".into();
        assert_eq!(v, stored());
    }

    #[test]
    fn rejects_invalid_fields() {
        assert_eq!(create_errors(&core(TTL), stored()), "");
        let mut bad = stored();
        bad["involvedObject"]["namespace"] = "x".into();
        expect![[r#"involvedObject.namespace: Invalid value: "x": does not match event.namespace"#]]
            .assert_eq(&create_errors(&core(TTL), bad));
        expect![[r#"
            eventTime: Required value
            firstTimestamp: Invalid value: "": needs to be unset
            lastTimestamp: Invalid value: "": needs to be unset
            count: Invalid value: "": needs to be unset
            source: Invalid value: "": needs to be unset"#]]
        .assert_eq(&create_errors(&events(TTL), stored()));
        let mut new = stored();
        new["reason"] = "Other".into();
        assert_eq!(update_errors(&core(TTL), "", new.clone(), stored()), "");
        expect![[r#"
            reason: Invalid value: "Other": field is immutable
            reason: Invalid value: "Other": field is immutable"#]]
        .assert_eq(&update_errors(&events(TTL), "", new, stored()));
    }

    #[test]
    fn prints_a_row() {
        assert_eq!(
            row(&core(TTL), &stored()),
            "5s | Normal | Started | pod/p |  | kubelet, node | hi | 4m | 3 | e"
        );
    }
}
