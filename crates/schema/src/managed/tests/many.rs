//! Thousands of managers of one object: what a write costs grows with them, and no faster.

use super::*;
use crate::managed::entry;
use std::cell::Cell;

/// An object with so many managers, each of a separate field, of a separate version where `versions` says so.
fn object(managers: usize, operation: &str, versions: bool) -> Value {
    let entry = |i: usize| {
        let version = if versions { format!("v{i}") } else { "v1".to_owned() };
        json!({"manager": format!("m{i}"), "operation": operation, "apiVersion": version, "fieldsType": "FieldsV1",
            "time": format!("2024-01-01T00:{:02}:{:02}Z", i / 60 % 60, i % 60),
            "fieldsV1": {"f:data": {format!("f:k{i}"): {}}}})
    };
    let entries: Vec<Value> = (0..managers).map(entry).collect();
    let data: Map<String, Value> = (0..managers).map(|i| (format!("k{i}"), "v".into())).collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"name": "n", "uid": "u", "managedFields": entries}})
}

fn only_v1(object: &Value, version: &str) -> Result<Value, Status> {
    if version == "v1" { Ok(object.clone()) } else { Err(Status::generic_not_found()) }
}

fn schema() -> SchemaRef {
    crate::types::for_gvk("", "v1", "ConfigMap").unwrap()
}

/// An update of an object by a client that sends its managers.
fn updated(live: &Value, new: &mut Value, work: &Work<'_>) -> Result<(), Status> {
    update(UpdateArgs {
        schema: &schema(),
        live,
        new,
        manager: "me",
        api_version: "v1",
        subresource: "",
        now: "2024-02-01T00:00:00Z",
        reset: None,
        convert: &only_v1,
        work,
    })
}

fn update_steps(managers: usize, operation: &str, versions: bool) -> u64 {
    let live = object(1, "Update", false);
    let mut new = object(managers, operation, versions);
    let work = Work::unbounded();
    updated(&live, &mut new, &work).unwrap();
    work.steps()
}

fn apply_steps(managers: usize, versions: bool) -> u64 {
    let live = object(managers, "Apply", versions);
    let config =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n"}, "data": {"mine": "x"}});
    let work = Work::unbounded();
    let applied = super::super::apply(ApplyArgs {
        schema: &schema(),
        live: &live,
        config: &config,
        manager: "m0",
        api_version: "v1",
        subresource: "",
        now: "2024-02-01T00:00:00Z",
        reset: None,
        force: true,
        convert: &only_v1,
        work: &work,
    });
    assert!(applied.unwrap().is_some());
    work.steps()
}

#[test]
fn work_grows_with_the_number_of_managers() {
    for versions in [false, true] {
        for operation in ["Update", "Apply"] {
            let (some, more) =
                (update_steps(2_000, operation, versions), update_steps(16_000, operation, versions));
            assert!(some >= 2_000 && more <= 9 * some, "{operation}: {some}, then {more}");
        }
        let (some, more) = (apply_steps(2_000, versions), apply_steps(16_000, versions));
        assert!(some >= 2_000 && more <= 9 * some, "apply: {some}, then {more}");
    }
}

#[test]
fn work_ends_with_the_request() {
    let live = object(1, "Update", false);
    let asked = Cell::new(0);
    let over = || {
        asked.set(asked.get() + 1);
        asked.get() > 2
    };
    let work = Work::new(&over);
    let refused = updated(&live, &mut object(16_000, "Apply", false), &work).unwrap_err();
    assert_eq!(refused.code, 504);
    assert!(work.steps() < 8_000, "{}", work.steps());
}

#[test]
fn old_updates_are_merged_by_version_whatever_their_number() {
    let capped = |versions: &[&str], buckets: &[usize]| {
        let mut entries = entry::decode(&object(16, "Update", false)["metadata"]["managedFields"]).unwrap();
        let mut raw: Vec<Value> =
            entry::encode(std::mem::take(&mut entries)).unwrap().as_array().unwrap().clone();
        for (i, entry) in raw.iter_mut().enumerate() {
            entry["apiVersion"] = versions[i % versions.len()].into();
            if buckets.contains(&i) {
                entry["manager"] = "ancient-changes".into();
            }
        }
        let mut entries = entry::decode(&Value::Array(raw)).unwrap();
        entry::cap(&mut entries);
        let shown = |e: &entry::Entry| {
            format!(
                "{}@{}:{}",
                e.id().manager,
                e.api_version(),
                e.fields()["f:data"].as_object().unwrap().len()
            )
        };
        entries.iter().map(shown).collect::<Vec<_>>().join(" ")
    };
    expect_test::expect![[r#"
        ancient-changes@v1:7 m7@v1:1 m8@v1:1 m9@v1:1 m10@v1:1 m11@v1:1 m12@v1:1 m13@v1:1 m14@v1:1 m15@v1:1
        ancient-changes@v1:4 ancient-changes@v2:4 m8@v1:1 m9@v2:1 m10@v1:1 m11@v2:1 m12@v1:1 m13@v2:1 m14@v1:1 m15@v2:1
        ancient-changes@v1:7 m7@v1:1 m8@v1:1 m9@v1:1 m10@v1:1 m11@v1:1 m12@v1:1 m13@v1:1 m14@v1:1 m15@v1:1"#]]
    .assert_eq(&[capped(&["v1"], &[]), capped(&["v1", "v2"], &[]), capped(&["v1"], &[3])].join("\n"));
}
