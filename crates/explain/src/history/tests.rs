//! Histories of fixtures: tables, states at moments, blame, what may be restored.

use super::*;
use expect_test::expect;
use serde_json::json;

fn revision(number: u64, change: &str, user: &str, state: Value) -> Revision {
    let item = json!({
        "revision": number.to_string(), "time": format!("2026-01-01T00:00:{number:02}Z"), "change": change, "user": user,
        "fieldManager": format!("{user}-tool"), "verb": "patch", "state": state,
    });
    Revision::of(&item).unwrap()
}

fn map(data: Value) -> Value {
    json!({"kind": "ConfigMap", "metadata": {"name": "m", "resourceVersion": "1", "managedFields": [{"time": "x"}]}, "data": data})
}

fn history(revisions: Vec<Revision>) -> ObjectHistory {
    ObjectHistory {
        resource: "configmaps".into(),
        group: String::new(),
        plural: "configmaps".into(),
        namespace: "d".into(),
        name: "m".into(),
        path: String::new(),
        collection: String::new(),
        revisions,
    }
}

fn sample() -> ObjectHistory {
    history(vec![
        revision(3, "Created", "ann", map(json!({"a": "1", "b": "1"}))),
        revision(5, "Modified", "bob", map(json!({"a": "2", "b": "1"}))),
        revision(9, "Modified", "cid", map(json!({"a": "2", "b": "1", "c/d": "3"}))),
        revision(12, "Deleted", "ann", map(json!({"a": "2", "b": "1", "c/d": "3"}))),
    ])
}

#[test]
fn tables_say_what_changed() {
    expect![[r#"
        REVISION   TIME                       CHANGE     USER   MANAGER    VERB    FIELDS
        3          2026-01-01T00:00:03.000Z   Created    ann    ann-tool   patch
        5          2026-01-01T00:00:05.000Z   Modified   bob    bob-tool   patch   .data.a
        9          2026-01-01T00:00:09.000Z   Modified   cid    cid-tool   patch   .data["c/d"]
        12         2026-01-01T00:00:12.000Z   Deleted    ann    ann-tool   patch
    "#]]
    .assert_eq(&sample().table());
    assert!(history(vec![]).table().contains("No revision"));
}

#[test]
fn each_field_is_from_the_last_request_that_changed_it() {
    let mut history = sample();
    history.revisions.pop();
    expect![[r#"
        5   2026-01-01T00:00:05.000Z   bob   bob-tool   .data.a: "2"
        3   2026-01-01T00:00:03.000Z   ann   ann-tool   .data.b: "1"
        9   2026-01-01T00:00:09.000Z   cid   cid-tool   .data["c/d"]: "3"
        3   2026-01-01T00:00:03.000Z   ann   ann-tool   .kind: "ConfigMap"
        3   2026-01-01T00:00:03.000Z   ann   ann-tool   .metadata.name: "m"
    "#]]
    .assert_eq(&blame(&history));
    history.revisions[0].change = "Former".into();
    assert!(blame(&history).contains("-   before"));
    let gap = Revision { state: None, ..revision(8, "Gap", "", json!(null)) };
    history.revisions.insert(2, gap);
    assert!(blame(&history).contains("in a gap"), "{}", blame(&history));
}

#[test]
fn states_at_moments() {
    let (history, now) = (sample(), "2026-01-01T00:00:20Z".parse().unwrap());
    let at = |text: &str| match history.at(&Moment::parse(text, now).unwrap()) {
        Ok((revision, _)) => revision.revision.to_string(),
        Err(error) => error.to_string(),
    };
    assert_eq!(at("5"), "5");
    assert_eq!(at("8"), "5");
    assert_eq!(at("2026-01-01T00:00:10Z"), "9");
    assert_eq!(at("16s"), "3");
    expect![
        "configmaps/m: it was not there at revision 2: it was created at 2026-01-01T00:00:03Z as revision 3"
    ]
    .assert_eq(&at("2"));
    expect!["configmaps/m: it was not there at 2026-01-01T00:00:20Z: ann deleted it at 2026-01-01T00:00:12Z (revision 12)"].assert_eq(&at("0s"));
    assert!(Moment::parse("yesterday", now).is_err());
    let mut former = sample();
    former.revisions[0].change = "Former".into();
    assert_eq!(former.at(&Moment::parse("2026-01-01T00:00:01Z", now).unwrap()).unwrap().0.revision, 3);
}

#[test]
fn changes_are_named_by_what_identifies_entries() {
    let pod = |image: &str, port: u64| json!({"spec": {"containers": [{"name": "a", "image": image}, {"name": "b", "ports": [{"containerPort": port}]}], "args": ["x"]}});
    let text: String = changes(&pod("i:1", 80), &pod("i:2", 81)).iter().map(ToString::to_string).collect();
    expect![[r#"
        - .spec.containers[name=a].image: "i:1"
        + .spec.containers[name=a].image: "i:2"
        - .spec.containers[name=b].ports[containerPort=80].containerPort: 80
        + .spec.containers[name=b].ports[containerPort=81].containerPort: 81
    "#]]
    .assert_eq(&text);
}

#[test]
fn hashes_are_not_restored() {
    assert!(check_restorable(&map(json!({"a": "1"}))).is_ok());
    let error = check_restorable(&map(json!({"a": "redacted:00"}))).unwrap_err().to_string();
    assert!(error.starts_with(".data.a is not kept"), "{error}");
}

#[test]
fn the_state_before_a_change() {
    let mut history = sample();
    assert_eq!(history.before(9).unwrap().map(|before| before.revision), Some(5));
    assert_eq!(history.before(3).unwrap(), None);
    assert_eq!(history.deleted().unwrap().revision, 12);
    let gap = Revision { state: None, ..revision(8, "Gap", "", json!(null)) };
    history.revisions.insert(2, gap);
    expect!["configmaps/m: what was before revision 9 is not recorded"]
        .assert_eq(&history.before(9).unwrap_err().to_string());
    history.revisions.pop();
    assert!(history.deleted().unwrap_err().to_string().contains("it was not deleted"));
    assert_eq!(history.at(&Moment::Latest).unwrap().0.revision, 9);
}

#[test]
fn origins_as_json() {
    let mut history = sample();
    history.revisions.truncate(2);
    let origins = serde_json::to_value(origins(&history)).unwrap();
    assert_eq!(
        origins[0],
        json!({"path": ".data.a", "value": "2", "revision": 5, "time": "2026-01-01T00:00:05Z", "user": "bob", "fieldManager": "bob-tool"})
    );
    let revision = serde_json::to_value(&history.revisions[1]).unwrap();
    assert_eq!((&revision["fieldManager"], &revision["verb"]), (&json!("bob-tool"), &json!("patch")));
}
