//! Over random queries: what authorization and audit saw is what was carried out.

use super::{audit, grant, recorded};
use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person},
};
use futures_util::{StreamExt, stream};
use kaji_meta::{Query, Random, SeededRandom};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const QUERIES: usize = 250;

fn pick<'a>(random: &SeededRandom, from: &[&'a str]) -> &'a str {
    from[(random.u64() % from.len() as u64) as usize]
}

/// Some parameters of lists and watches: repeated, empty, escaped, misspelt.
fn reading(random: &SeededRandom) -> String {
    let mut pairs = vec![];
    for _ in 0..random.u64() % 6 {
        let fields = [
            "",
            "=",
            "=metadata.name%3Ds1",
            "=metadata.name%3Ds2",
            "=metadata.name%3D%3Ds1",
            "=metadata.name!%3Ds1",
            "=metadata.name%3Ds1,type%3DOpaque",
            "=metadata.name%3Ds1,metadata.name%3Ds2",
            "=metadata.name",
            "=%zz",
            "=metadata.name%3Ds1;",
            "=metadata%2Ename=s1",
            "=type%3DOpaque",
        ];
        let labels =
            ["", "=", "=a%3Db", "=a!%3Db", "=!a", "=a%20in%20(b,c)", "=in%20(", "=a%3Db;", "=a%3Db%"];
        let flags = ["", "=", "=1", "=0", "=true", "=false", "=False", "=f", "=no", "=%30", "=1;", "=%"];
        pairs.push(match random.u64() % 8 {
            0..3 => format!(
                "{}{}",
                pick(random, &["fieldSelector", "fieldSelector", "fieldselector", "field%53elector"]),
                pick(random, &fields)
            ),
            3 => format!("{}{}", pick(random, &["labelSelector", "label%53elector"]), pick(random, &labels)),
            4..7 => {
                format!("{}{}", pick(random, &["watch", "watch", "Watch", "%77atch"]), pick(random, &flags))
            }
            _ => format!("limit{}", pick(random, &["=1", "=0", "=", "=x", "=-1"])),
        });
    }
    // Watches end by themselves.
    pairs.push("timeoutSeconds=1".to_owned());
    pairs.join("&")
}

/// The names in an answer, and whether it is a watch's.
fn shown(answer: &Value) -> (bool, BTreeSet<String>) {
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    if let Some(items) = answer["items"].as_array() {
        return (false, items.iter().map(name).collect());
    }
    let events: Vec<Value> = match answer {
        // One event alone reads as an object, none as an empty text.
        Value::Object(_) => vec![answer.clone()],
        _ => answer.as_str().unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect(),
    };
    (true, events.iter().map(|e| name(&e["object"])).collect())
}

async fn world(dir: &std::path::Path) -> TestCluster {
    let audit = audit(dir, &["lister", "watcher", "named"]);
    let test = TestCluster::start_with(|o| o.audit = audit).await;
    for (name, labels) in [("s1", json!({})), ("s2", json!({"a": "b"})), ("s3", json!({"a": "c"}))] {
        let secret = json!({"metadata": {"name": name, "labels": labels}});
        ok(&test, &admin(), &format!("POST {SECRETS}"), secret).await;
    }
    let rule = |verbs: &[&str], names: &[&str]| json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": verbs, "resourceNames": names}]);
    grant(&test, "lister", rule(&["list"], &[])).await;
    grant(&test, "watcher", rule(&["watch"], &[])).await;
    grant(&test, "named", rule(&["list", "watch"], &["s1"])).await;
    test
}

/// Verb and name that were recorded, by user and URI. The record of a watch may come after its client has seen its end.
async fn records(dir: &std::path::Path, count: usize) -> BTreeMap<(String, String), (String, String)> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let read = || -> BTreeMap<_, _> {
        let events = recorded(dir).into_iter().filter(|e| e["stage"] == "ResponseComplete");
        let pair = |e: Value| {
            let about = (text(&e["user"]["username"]), text(&e["requestURI"]));
            (about, (text(&e["verb"]), text(&e["objectRef"]["name"])))
        };
        events.map(pair).collect()
    };
    for _ in 0..1000 {
        let found = read();
        if found.len() >= count {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} of {count} requests were recorded", read().len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_are_authorized_and_recorded_as_they_are_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let test = world(dir.path()).await;
    let random = SeededRandom::new(7);
    let queries: BTreeSet<String> = (0..QUERIES).map(|_| reading(&random)).collect();
    let asked = |query: String| {
        let test = &test;
        async move {
            let mut answers = vec![];
            for name in ["lister", "watcher", "named"] {
                let request = format!("GET {SECRETS}?{query}");
                answers.push(ask(test, &person(name), &request, &Value::Null).await);
            }
            (query, answers)
        }
    };
    let answers: Vec<(String, Vec<(u16, Value)>)> =
        stream::iter(queries.into_iter().map(asked)).buffer_unordered(128).collect().await;
    let mut kinds = BTreeMap::<(u16, u16, u16), usize>::new();
    let seen = records(dir.path(), 3 * answers.len()).await;
    for (query, answers) in &answers {
        let codes: Vec<u16> = answers.iter().map(|(code, _)| *code).collect();
        let context = format!("{query}: {answers:?}");
        *kinds.entry((codes[0], codes[1], codes[2])).or_default() += 1;
        // Either a list or a watch.
        assert_eq!(codes[..2].iter().filter(|c| **c == 403).count(), 1, "{context}");
        for ((code, answer), account) in answers.iter().zip(["lister", "watcher", "named"]) {
            let (verb, name) = &seen[&(account.to_owned(), format!("{SECRETS}?{query}"))];
            if *code != 200 {
                assert!(*code == 400 || *code == 403, "{context}");
                continue;
            }
            let (watch, names) = shown(answer);
            assert_eq!(watch, verb == "watch", "{context}");
            assert!(name.is_empty() || names.iter().all(|n| n == name), "{context}");
            assert!(account != "named" || names.iter().all(|n| n == "s1"), "{context}");
            let parsed = Query::parse(query);
            let (fields, labels) = (parsed.field_selector().unwrap(), parsed.label_selector().unwrap());
            let matches = |(name, a): &(&str, Option<&str>)| {
                let field = |f: &str| if f == "metadata.name" { *name } else { "Opaque" };
                let label = |l: &str| if l == "a" { *a } else { None };
                fields.is_none_or(|s| s.matches(field)) && labels.is_none_or(|s| s.matches(label))
            };
            let all = [("s1", None), ("s2", Some("b")), ("s3", Some("c"))];
            let mut expected: BTreeSet<String> =
                all.into_iter().filter(matches).map(|(name, _)| name.to_owned()).collect();
            if !watch && parsed.number("limit") == Ok(Some(1)) {
                expected = expected.into_iter().take(1).collect();
            }
            assert_eq!(names, expected, "{context}");
        }
    }
    // The test means something: all kinds of outcomes occur.
    for outcome in [(200, 403, 200), (200, 403, 403), (403, 200, 200), (403, 200, 403), (400, 403, 403)] {
        assert!(kinds.contains_key(&outcome), "{kinds:?}");
    }
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dry_runs_are_not_carried_out() {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let test = TestCluster::start(0).await;
    let random = SeededRandom::new(11);
    let values = ["", "=", "=All", "=All", "=all", "=%41ll", "=All;", "=%zz", "=None"];
    for i in 0..QUERIES {
        let count = random.u64() % 4;
        let key = |random: &SeededRandom| pick(random, &["dryRun", "dryRun", "dryRun", "dry%52un", "dryrun"]);
        let pairs: Vec<String> =
            (0..count).map(|_| format!("{}{}", key(&random), pick(&random, &values))).collect();
        let query = pairs.join("&");
        let map = json!({"metadata": {"name": format!("m{i}")}});
        let (code, answer) = ask(&test, &admin(), &format!("POST {MAPS}?{query}"), &map).await;
        let found = ask(&test, &admin(), &format!("GET {MAPS}/m{i}"), &Value::Null).await.0;
        let parsed = Query::parse(&query);
        let asked: Vec<&str> = parsed.all("dryRun").collect();
        let expected = match asked.as_slice() {
            [] => (201, 200),
            all if all.iter().all(|v| *v == "All") => (201, 404),
            _ => (422, 404),
        };
        assert_eq!((code, found), expected, "{query}: {answer}");
    }
    test.stop().await;
}
