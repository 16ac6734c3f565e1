//! Tests of field management: a tiny server that keeps one object, driven by applies and updates.

use expect_test::{Expect, expect};
use kaji_meta::{Status, Work};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::fieldset::tests::{everything, schema};
use crate::schema::SchemaRef;

mod apply;
mod laws;
mod many;
mod upstream;

/// One stored object.
pub(crate) struct Server {
    schema: SchemaRef,
    version: &'static str,
    pub live: Value,
    second: u32,
    subresource: &'static str,
    reset: Option<FieldSet>,
    /// Fields of version v2 that v1 calls otherwise, for conversion.
    renamed: &'static [(&'static str, &'static str)],
}

impl Server {
    pub(crate) fn new(schema: SchemaRef, version: &'static str) -> Server {
        Server { schema, version, live: Value::Null, second: 0, subresource: "", reset: None, renamed: &[] }
    }

    /// A custom resource with one of each kind of field.
    pub(crate) fn custom() -> Server {
        Server::new(everything(), "v1")
    }

    pub(crate) fn builtin(group: &str, version: &str, kind: &str) -> Server {
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        Server::new(types::for_gvk(group, version, kind).unwrap(), api_version.leak())
    }

    fn now(&mut self) -> String {
        self.second += 1;
        format!("2026-01-01T00:00:{:02}Z", self.second)
    }

    fn whole(&self, object: Value) -> Value {
        let mut object = object;
        if object.get("apiVersion").is_none() {
            object["apiVersion"] = self.version.into();
        }
        if object.get("kind").is_none() {
            let kind = self.live.get("kind").cloned();
            object["kind"] = kind.unwrap_or_else(|| match self.schema.get().short_name() {
                "" => "Thing".into(),
                name => name.into(),
            });
        }
        if object.get("metadata").is_none() {
            object["metadata"] = json!({});
        }
        object["metadata"]["name"] = "x".into();
        object
    }

    fn keep(&mut self, mut object: Value) {
        object["metadata"]["uid"] = "u".into();
        self.live = object;
    }

    fn convert(&self) -> impl Fn(&Value, &str) -> Result<Value, Status> + use<> {
        let renamed = self.renamed;
        move |object: &Value, to: &str| {
            if !matches!(to, "v1" | "v2") {
                return Err(Status::generic_not_found());
            }
            let mut object = object.clone();
            for (v1, v2) in renamed {
                let (from, into) = if to == "v2" { (v1, v2) } else { (v2, v1) };
                let map = object.as_object_mut().unwrap();
                if let Some(v) = map.remove(*from) {
                    map.insert((*into).to_owned(), v);
                }
            }
            object["apiVersion"] = to.into();
            Ok(object)
        }
    }

    /// A create or update of the whole object; managedFields are those given, if any.
    pub(crate) fn update(&mut self, manager: &str, object: Value) -> &mut Server {
        let mut object = self.whole(object);
        if let Some(uid) = self.live.pointer("/metadata/uid") {
            object["metadata"]["uid"] = uid.clone();
        }
        let (now, convert) = (self.now(), self.convert());
        let result = update(UpdateArgs {
            schema: &self.schema,
            live: &self.live,
            new: &mut object,
            manager,
            api_version: self.version,
            subresource: self.subresource,
            now: &now,
            reset: self.reset.as_ref(),
            convert: &convert,
            work: &Work::unbounded(),
        });
        assert_eq!(result, Ok(()));
        revert_timestamps(&self.live, &mut object);
        self.keep(object);
        self
    }

    /// The outcome: "changed", "unchanged", or the error.
    pub(crate) fn try_apply(&mut self, manager: &str, force: bool, config: Value) -> Result<bool, Status> {
        let config = self.whole(config);
        let (now, convert) = (self.now(), self.convert());
        let result = super::apply(ApplyArgs {
            schema: &self.schema,
            live: &self.live,
            config: &config,
            manager,
            api_version: self.version,
            subresource: self.subresource,
            now: &now,
            reset: self.reset.as_ref(),
            force,
            convert: &convert,
            work: &Work::unbounded(),
        })?;
        let changed = result.is_some();
        if let Some(object) = result {
            self.keep(object);
        }
        Ok(changed)
    }

    pub(crate) fn apply(&mut self, manager: &str, config: Value) -> &mut Server {
        self.try_apply(manager, false, config).unwrap();
        self
    }

    pub(crate) fn force(&mut self, manager: &str, config: Value) -> &mut Server {
        self.try_apply(manager, true, config).unwrap();
        self
    }

    pub(crate) fn refused(&mut self, manager: &str, config: Value) -> String {
        let before = self.live.clone();
        let shown = config.to_string();
        let status = self.try_apply(manager, false, config).expect_err(&shown);
        assert_eq!(self.live, before);
        let causes = status.details.iter().flat_map(|d| &d.causes);
        let causes: Vec<String> =
            causes.map(|c| format!("\n  {} {} ({})", c.reason, c.field, c.message)).collect();
        format!("{} {:?}: {}{}", status.code, status.reason.as_str(), status.message, causes.concat())
    }

    pub(crate) fn managed(&self) -> String {
        let entries = self.live.pointer("/metadata/managedFields").and_then(Value::as_array);
        let lines = entries.into_iter().flatten().map(|e| {
            let text = |k: &str| e.get(k).and_then(Value::as_str).unwrap_or("-");
            let second = text("time").strip_prefix("2026-01-01T00:00:").unwrap_or("-").trim_end_matches('Z');
            let sub = e.get("subresource").map_or(String::new(), |s| format!("/{}", s.as_str().unwrap()));
            format!(
                "{} {}{} {} @{}: {}",
                text("operation"),
                text("manager"),
                sub,
                text("apiVersion"),
                second,
                e["fieldsV1"]
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Whether any field has a manager. An empty list that was applied has none, as upstream has it, and the next apply to
    /// an object without managers gives what is there to "before-first-apply".
    pub(crate) fn is_managed(&self) -> bool {
        !self.managed().is_empty()
    }

    /// The object without metadata, and its managers.
    pub(crate) fn show(&self) -> String {
        let mut object = self.live.clone();
        for key in ["apiVersion", "kind"] {
            object.as_object_mut().unwrap().remove(key);
        }
        let meta = object["metadata"].as_object_mut().unwrap();
        for key in ["name", "uid", "managedFields"] {
            meta.remove(key);
        }
        if meta.is_empty() {
            object.as_object_mut().unwrap().remove("metadata");
        }
        format!("{object}\n{}", self.managed())
    }

    pub(crate) fn check(&self, want: &Expect) {
        want.assert_eq(&self.show());
    }
}

#[test]
fn updates_take_and_release_ownership() {
    let mut s = Server::custom();
    s.update("a", json!({"string": "1", "map": {"x": "1", "y": "1"}}));
    s.check(&expect![[r#"
        {"map":{"x":"1","y":"1"},"string":"1"}
        Update a v1 @01: {"f:map":{".":{},"f:x":{},"f:y":{}},"f:string":{}}"#]]);
    // b changes a field and adds one; a loses the former.
    s.update("b", json!({"string": "2", "map": {"x": "1", "y": "1", "z": "1"}}));
    s.check(&expect![[r#"
        {"map":{"x":"1","y":"1","z":"1"},"string":"2"}
        Update a v1 @01: {"f:map":{".":{},"f:x":{},"f:y":{}}}
        Update b v1 @02: {"f:map":{"f:z":{}},"f:string":{}}"#]]);
    // Removing a field takes it from its manager, and changes no entry's time.
    s.update("c", json!({"string": "2", "map": {"y": "1", "z": "1"}}));
    s.check(&expect![[r#"
        {"map":{"y":"1","z":"1"},"string":"2"}
        Update a v1 @01: {"f:map":{".":{},"f:y":{}}}
        Update b v1 @02: {"f:map":{"f:z":{}},"f:string":{}}"#]]);
    // b removes the last of its fields.
    s.update("b", json!({"map": {"y": "1"}}));
    s.check(&expect![[r#"
        {"map":{"y":"1"}}
        Update a v1 @01: {"f:map":{".":{},"f:y":{}}}"#]]);
    // Nothing changes.
    s.update("d", json!({"map": {"y": "1"}}));
    s.check(&expect![[r#"
        {"map":{"y":"1"}}
        Update a v1 @01: {"f:map":{".":{},"f:y":{}}}"#]]);
    s.update("d", json!({}));
    s.check(&expect![[r#"
        {}
    "#]]);
    // Without managers nothing is tracked any more.
    s.update("e", json!({"string": "x"}));
    s.check(&expect![[r#"
        {"string":"x"}
    "#]]);
}

#[test]
fn managers_may_be_reset_but_not_removed() {
    let mut s = Server::custom();
    s.update("a", json!({"string": "1"})).apply("b", json!({"bool": true}));
    // Clients that do not send managedFields.
    s.update("c", json!({"string": "1", "bool": true, "number": 1}));
    s.check(&expect![[r#"
        {"bool":true,"number":1,"string":"1"}
        Apply b v1 @02: {"f:bool":{}}
        Update a v1 @01: {"f:string":{}}
        Update c v1 @03: {"f:number":{}}"#]]);
    // Garbage counts as nothing sent.
    for bad in [
        json!([{"manager": "x"}]),
        json!([{"manager": "x", "operation": "Update", "apiVersion": "v1"}]),
        json!([{"manager": "x", "operation": "Update", "fieldsType": "FieldsV1"}]),
        json!([{"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV2"}]),
        json!([{"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f": {}}}]),
        json!("x"),
    ] {
        assert!(check_entries(&bad).is_err());
        let before = s.managed();
        s.update("c", json!({"string": "1", "bool": true, "number": 1, "metadata": {"managedFields": bad}}));
        assert_eq!(s.managed(), before);
    }
    // What is sent counts, in canonical form.
    s.update("c", json!({"string": "1", "bool": true, "number": 1, "metadata": {"managedFields": [
        {"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "time": "2026-01-01T01:00:09.5+01:00",
         "fieldsV1": {"f:string": {".": {}}, "f:set": {"v: \"a\"": {}}}}]}}));
    s.check(&expect![[r#"
        {"bool":true,"number":1,"string":"1"}
        Update x v1 @09: {"f:set":{"v:\"a\"":{}},"f:string":{}}"#]]);
    let shown = [json!([]), json!([{}])].map(|reset| {
        let mut t = Server { live: s.live.clone(), ..Server::custom() };
        t.update("c", json!({"string": "1", "metadata": {"managedFields": reset}}));
        assert_eq!(t.managed(), "");
        // The first apply afterwards gives everything that is there to one manager.
        t.apply("b", json!({"string": "1", "bool": true}));
        t.show()
    });
    assert_eq!(shown[0], shown[1]);
    expect![[r#"
        {"bool":true,"string":"1"}
        Apply b v1 @02: {"f:bool":{},"f:string":{}}
        Update before-first-apply v1 @02: {"f:string":{}}"#]]
    .assert_eq(&shown[0]);
}

#[test]
fn subresources_do_not_set_managed_fields() {
    let mut s = Server { subresource: "status", ..Server::custom() };
    s.update("a", json!({"string": "1"}));
    s.update("b", json!({"string": "2", "metadata": {"managedFields": []}}));
    s.check(&expect![[r#"
        {"string":"2"}
        Update b/status v1 @02: {"f:string":{}}"#]]);
}

#[test]
fn reset_fields_have_no_owner() {
    let reset = FieldSet::from_paths(&[&["struct"], &["metadata", "labels"]]);
    let mut s = Server { reset: Some(reset), ..Server::custom() };
    s.update("a", json!({"string": "1", "struct": {"a": "1"}, "metadata": {"labels": {"x": "y"}}}));
    s.check(&expect![[r#"
        {"metadata":{"labels":{"x":"y"}},"string":"1","struct":{"a":"1"}}
        Update a v1 @01: {"f:string":{}}"#]]);
    s.apply("b", json!({"bool": true, "struct": {"a": "2"}}));
    s.check(&expect![[r#"
        {"bool":true,"metadata":{"labels":{"x":"y"}},"string":"1","struct":{"a":"2"}}
        Apply b v1 @02: {"f:bool":{}}
        Update a v1 @01: {"f:string":{}}"#]]);
}

#[test]
fn old_updates_are_merged() {
    let mut s = Server::custom();
    let mut map = Map::new();
    for i in 0..14 {
        map.insert(format!("k{i:02}"), "v".into());
        s.update(&format!("m{i:02}"), json!({"map": map}));
    }
    s.check(&expect![[r#"
        {"map":{"k00":"v","k01":"v","k02":"v","k03":"v","k04":"v","k05":"v","k06":"v","k07":"v","k08":"v","k09":"v","k10":"v","k11":"v","k12":"v","k13":"v"}}
        Update ancient-changes v1 @05: {"f:map":{".":{},"f:k00":{},"f:k01":{},"f:k02":{},"f:k03":{},"f:k04":{}}}
        Update m05 v1 @06: {"f:map":{"f:k05":{}}}
        Update m06 v1 @07: {"f:map":{"f:k06":{}}}
        Update m07 v1 @08: {"f:map":{"f:k07":{}}}
        Update m08 v1 @09: {"f:map":{"f:k08":{}}}
        Update m09 v1 @10: {"f:map":{"f:k09":{}}}
        Update m10 v1 @11: {"f:map":{"f:k10":{}}}
        Update m11 v1 @12: {"f:map":{"f:k11":{}}}
        Update m12 v1 @13: {"f:map":{"f:k12":{}}}
        Update m13 v1 @14: {"f:map":{"f:k13":{}}}"#]]);
}

#[test]
fn managers_of_other_versions() {
    let mut s = Server { renamed: &[("string", "text")], ..Server::custom() };
    s.update("a", json!({"string": "1", "bool": true}));
    s.version = "v2";
    s.schema = schema(
        &json!({"type": "object", "properties": {"text": {"type": "string"}, "bool": {"type": "boolean"},
        "string": {"type": "string"}}}),
    );
    s.live = s.convert()(&s.live, "v2").unwrap();
    // The manager of v1 loses the field under its own name for it.
    s.update("b", json!({"text": "2", "bool": true}));
    s.check(&expect![[r#"
        {"bool":true,"text":"2"}
        Update a v1 @01: {"f:bool":{}}
        Update b v2 @02: {"f:text":{}}"#]]);
    expect![[r#"
        409 "Conflict": Apply failed with 1 conflict: conflict with "a" using v1: .bool
          FieldManagerConflict .bool (conflict with "a" using v1)"#]]
    .assert_eq(&s.refused("c", json!({"bool": false})));
    s.force("c", json!({"bool": false}));
    s.check(&expect![[r#"
        {"bool":false,"text":"2"}
        Apply c v2 @04: {"f:bool":{}}
        Update b v2 @02: {"f:text":{}}"#]]);
    // An applier may move on to another version, keeping its one entry.
    s.version = "v1";
    s.live = s.convert()(&s.live, "v1").unwrap();
    s.apply("c", json!({"bool": false, "string": "2"}));
    s.check(&expect![[r#"
        {"bool":false,"string":"2"}
        Apply c v1 @04: {"f:bool":{},"f:string":{}}
        Update b v2 @02: {"f:text":{}}"#]]);
    s.apply("c", json!({"string": "2"}));
    s.check(&expect![[r#"
        {"string":"2"}
        Apply c v1 @06: {"f:string":{}}
        Update b v2 @02: {"f:text":{}}"#]]);
}

#[test]
fn drops_managers_of_removed_versions() {
    let old = json!([{"manager": "old", "operation": "Update", "apiVersion": "v0", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:string": {}}}]);
    let mut s = Server::custom();
    s.update("a", json!({"string": "1"}));
    s.update("b", json!({"string": "1", "bool": true, "metadata": {"managedFields": old}}));
    s.check(&expect![[r#"
        {"bool":true,"string":"1"}
        Update b v1 @02: {"f:bool":{}}"#]]);
}

#[test]
fn timestamps_alone_are_no_change() {
    let mut s = Server::custom();
    s.update("a", json!({"string": "1"}));
    let live = s.live.clone();
    let mut new = live.clone();
    new["metadata"]["managedFields"][0]["time"] = "2030-01-01T00:00:00Z".into();
    let mut changed = new.clone();
    revert_timestamps(&live, &mut new);
    assert_eq!(new, live);
    changed["string"] = "2".into();
    revert_timestamps(&live, &mut changed);
    assert_eq!(changed["metadata"]["managedFields"][0]["time"], "2030-01-01T00:00:00Z");
}

#[test]
fn schema_changes_between_granular_and_atomic() {
    let with = |atomic: bool| {
        let (list, map) = if atomic { ("atomic", "atomic") } else { ("set", "granular") };
        schema(&json!({"type": "object", "properties": {
            "list": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": list},
            "map": {"type": "object", "x-kubernetes-map-type": map, "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}}}))
    };
    let config = json!({"list": ["x", "y"], "map": {"a": "1", "b": "1"}});
    let mut s = Server::new(with(false), "v1");
    s.apply("a", config.clone());
    s.check(&expect![[r#"
        {"list":["x","y"],"map":{"a":"1","b":"1"}}
        Apply a v1 @01: {"f:list":{"v:\"x\"":{},"v:\"y\"":{}},"f:map":{"f:a":{},"f:b":{}}}"#]]);
    s.schema = with(true);
    s.update(
        "b",
        json!({"list": ["x", "y"], "map": {"a": "1", "b": "1"}, "metadata": {"labels": {"l": "1"}}}),
    );
    s.check(&expect![[r#"
        {"list":["x","y"],"map":{"a":"1","b":"1"},"metadata":{"labels":{"l":"1"}}}
        Apply a v1 @01: {"f:list":{},"f:map":{}}
        Update b v1 @02: {"f:metadata":{"f:labels":{".":{},"f:l":{}}}}"#]]);
    let mut s = Server::new(with(true), "v1");
    s.apply("a", config.clone());
    s.schema = with(false);
    // Going to granular, the old owner of the whole stays that until it applies again.
    s.apply("a", config);
    s.check(&expect![[r#"
        {"list":["x","y"],"map":{"a":"1","b":"1"}}
        Apply a v1 @01: {"f:list":{"v:\"x\"":{},"v:\"y\"":{}},"f:map":{"f:a":{},"f:b":{}}}"#]]);
}

#[test]
fn translates_managed_fields_of_the_scale_subresource() {
    let paths: ScalePaths<'_> = &[("apps/v1", Some(&["spec", "replicas"])), ("apps/v1beta1", None)];
    let entry = |manager: &str, operation: &str, version: &str, fields: Value| {
        json!({"manager": manager, "operation": operation, "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": fields,
            "time": "2026-01-01T00:00:01Z"})
    };
    let parent = json!([
        entry("applier", "Apply", "apps/v1", json!({"f:spec": {"f:replicas": {}, "f:selector": {}}})),
        entry("other", "Update", "apps/v1", json!({"f:spec": {"f:paused": {}}})),
        entry("gone", "Update", "apps/v1alpha1", json!({"f:spec": {"f:replicas": {}}})),
    ]);
    let scale = scale_to_subresource(&parent, paths).unwrap();
    expect![[r#"[{"apiVersion":"autoscaling/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}},"manager":"applier","operation":"Apply","time":"2026-01-01T00:00:01Z"}]"#]].assert_eq(&scale.to_string());
    // Unchanged, the parent's entries stay (those of unknown versions are dropped).
    expect![[r#"[{"apiVersion":"apps/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{},"f:selector":{}}},"manager":"applier","operation":"Apply","time":"2026-01-01T00:00:01Z"},{"apiVersion":"apps/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:paused":{}}},"manager":"other","operation":"Update","time":"2026-01-01T00:00:01Z"}]"#]].assert_eq(&scale_to_parent(&parent, &scale, "apps/v1", paths).unwrap().to_string());
    // Another manager scales.
    let taken = json!([{"manager": "hpa", "operation": "Update", "apiVersion": "autoscaling/v1", "subresource": "scale",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}, "time": "2026-01-01T00:00:05Z"}]);
    expect![[r#"[{"apiVersion":"apps/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:selector":{}}},"manager":"applier","operation":"Apply","time":"2026-01-01T00:00:01Z"},{"apiVersion":"apps/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}},"manager":"hpa","operation":"Update","subresource":"scale"},{"apiVersion":"apps/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:paused":{}}},"manager":"other","operation":"Update","time":"2026-01-01T00:00:01Z"}]"#]].assert_eq(&scale_to_parent(&parent, &taken, "apps/v1", paths).unwrap().to_string());
}
