//! Pages of changes as a server answers them: shown once each, over failures, with the fields that are known.

use super::*;
use expect_test::expect;
use futures_util::future::BoxFuture;
use serde_json::json;
use std::{collections::VecDeque, sync::Mutex};

/// Answers one after another, and the paths that were asked for.
#[derive(Default)]
struct Answers {
    rest: Mutex<VecDeque<Result<Value, RequestError>>>,
    paths: Mutex<Vec<String>>,
}

impl Api for Answers {
    fn get<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Value, RequestError>> {
        self.paths.lock().unwrap().push(path.into());
        let answer = self.rest.lock().unwrap().pop_front();
        Box::pin(async move { answer.unwrap_or_else(|| Err(RequestError::Forbidden("that is all".into()))) })
    }

    fn text<'a>(&'a self, _: &'a str, _: usize) -> BoxFuture<'a, Result<String, RequestError>> {
        Box::pin(async { Err(RequestError::NotFound("no text".into())) })
    }
}

fn item(number: u64, change: &str, (resource, name): (&str, &str), replicas: u64) -> Value {
    let group = if resource == "deployments" { "apps" } else { "" };
    json!({"object": {"group": group, "resource": resource, "namespace": "shop", "name": name},
        "revision": number.to_string(), "time": format!("2026-01-01T00:00:{number:02}Z"), "change": change,
        "user": "ann", "verb": "patch", "state": {"metadata": {"name": name}, "spec": {"replicas": replicas}}})
}

fn page(items: &[Value], through: u64, more: bool) -> Result<Value, RequestError> {
    let mut metadata = json!({"resourceVersion": through.to_string()});
    if more {
        metadata["continue"] = through.to_string().into();
    }
    Ok(json!({"metadata": metadata, "items": items}))
}

fn of(answers: &Answers) -> RecentChanges<'_> {
    let since = "2026-01-01T00:00:00Z".parse().unwrap();
    RecentChanges {
        api: answers,
        path: "/r".into(),
        since,
        through: String::new(),
        states: HashMap::new(),
        with_states: false,
    }
}

fn answers(list: Vec<Result<Value, RequestError>>) -> Answers {
    Answers { rest: Mutex::new(list.into()), ..Answers::default() }
}

fn sample() -> Vec<Result<Value, RequestError>> {
    let (web, map) = (("deployments", "web"), ("configmaps", "m"));
    let gap = json!({"object": {"group": "", "resource": "", "namespace": "", "name": ""}, "revision": "9", "since": "7",
        "time": "2026-01-01T00:00:09Z", "change": "Gap", "message": "the store had forgotten them"});
    vec![
        page(&[item(3, "Created", web, 1), item(4, "Modified", map, 0)], 4, true),
        page(&[], 5, true),
        page(&[item(6, "Modified", web, 2), gap, item(10, "Deleted", web, 2)], 11, false),
    ]
}

#[tokio::test]
async fn a_table_has_all_pages() {
    let answers = answers(sample());
    let found = of(&answers).read().await.unwrap();
    expect![[r#"
        REVISION   TIME                       CHANGE     OBJECT                 USER   VERB    FIELDS
        3          2026-01-01T00:00:03.000Z   Created    deployments.apps/web   ann    patch
        4          2026-01-01T00:00:04.000Z   Modified   configmaps/m           ann    patch
        6          2026-01-01T00:00:06.000Z   Modified   deployments.apps/web   ann    patch   .spec.replicas
        7-9        2026-01-01T00:00:09.000Z   Gap        -                      -      -       the store had forgotten them
        10         2026-01-01T00:00:10.000Z   Deleted    deployments.apps/web   ann    patch
    "#]]
    .assert_eq(&recent_table(&found, false));
    assert!(recent_table(&found, true).starts_with("NAMESPACE   REVISION"));
    assert!(found.iter().all(|change| change.revision.state.is_none()));
    let since = "/r?sinceTime=2026-01-01T00%3A00%3A00Z";
    let paths = answers.paths.lock().unwrap();
    assert_eq!(*paths, [since.to_owned(), format!("{since}&continue=4"), format!("{since}&continue=5")]);
}

#[tokio::test]
async fn states_are_kept_where_they_are_asked_for() {
    let answers = answers(sample());
    let found = RecentChanges { with_states: true, ..of(&answers) }.read().await.unwrap();
    let with: Vec<bool> = found.iter().map(|change| change.revision.state.is_some()).collect();
    assert_eq!(with, [true, true, true, false, true]);
    assert_eq!(found[2].details, ".spec.replicas");
}

#[tokio::test(start_paused = true)]
async fn following_goes_on_over_failures_until_the_server_refuses() {
    let mut list = sample();
    list.push(Err(RequestError::Failed("no answer".into())));
    list.push(Err(RequestError::Failed("no answer".into())));
    list.push(page(&[item(12, "Created", ("configmaps", "n"), 0)], 12, false));
    let answers = answers(list);
    let (mut lines, mut notes) = (vec![], vec![]);
    let mut recent = of(&answers);
    let mut show = |change: &RecentChange| {
        lines.push(change.line(true));
        Ok(())
    };
    let ended = recent.follow(&mut show, &mut |text| notes.push(text.to_owned())).await;
    assert_eq!(ended.unwrap_err().to_string(), "that is all");
    assert_eq!(notes, ["no answer; trying again"]);
    assert_eq!(lines.len(), 6);
    expect![[r#"2026-01-01T00:00:06.000Z shop Modified deployments.apps/web by ann (patch) .spec.replicas"#]]
        .assert_eq(&lines[2]);
    assert!(lines[5].contains("configmaps/n"), "{}", lines[5]);
}

#[tokio::test]
async fn a_first_request_that_fails_is_an_error() {
    let answers = answers(vec![Err(RequestError::Failed("no answer".into()))]);
    let ended = of(&answers).follow(&mut |_| Ok(()), &mut |_| ()).await;
    assert_eq!(ended.unwrap_err().to_string(), "no answer");
}
