//! Requests after their deadline: nothing of them is written.

use super::Env;
use kaji_engine::{Admission, ApiRequest, Attributes, Deadline};
use kaji_meta::Status;
use kaji_resource::{BoxFuture, Verb};
use serde_json::{Value, json};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Hangs in the phase that an annotation names; lets everything else pass.
struct Hanging;

async fn hang(a: &Attributes<'_>, phase: &str) -> Result<(), Status> {
    let wanted = a.new_object().or(a.old).map(|o| &o["metadata"]["annotations"]["hang"]);
    if wanted.is_some_and(|w| w == phase) {
        std::future::pending::<()>().await;
    }
    Ok(())
}

impl Admission for Hanging {
    fn name(&self) -> &'static str {
        "Hanging"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        // The caller gets the time until which it applies.
        a.deadline.instant().is_some()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { hang(a, "admit").await })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { hang(a, "validate").await })
    }
}

fn pod(name: &str, phase: &str) -> Value {
    json!({"metadata": {"name": name, "annotations": {"hang": phase}}, "spec": {"containers": [{"name": "c"}]}})
}

async fn late(env: &Env, request: ApiRequest) -> String {
    env.send(ApiRequest { deadline: Deadline::after(Duration::ZERO), ..request }).await.brief()
}

const OVER: &str = "504 Timeout: Timeout: request did not complete within the allotted timeout";

#[tokio::test]
async fn nothing_is_written_when_time_is_over() {
    let env = Env::with(vec![Arc::new(Hanging)]).await;
    let there = env.create("v1/pods/default", pod("there", "admit")).await;
    let before = env.get("v1/pods/default/there").await.body;
    // Whether a plugin hangs or has let it pass.
    for phase in ["admit", "validate", "never"] {
        let request = env.request(Verb::Create, "v1/pods/default", pod(phase, phase));
        let got = late(&env, request).await;
        assert!(got.starts_with(OVER), "{phase}: {got}");
        assert_eq!(env.get(&format!("v1/pods/default/{phase}")).await.code, 404, "{phase}");
    }
    let change = json!({"metadata": {"labels": {"a": "b"}}});
    let merge = |name: &str| ApiRequest {
        content_type: "application/merge-patch+json".into(),
        ..env.request(Verb::Patch, &format!("v1/pods/default/{name}"), &change)
    };
    let update = env.request(Verb::Update, "v1/pods/default/there", pod("there", "never"));
    let options = json!({"gracePeriodSeconds": 0});
    let delete = env.request(Verb::Delete, "v1/pods/default/there", options);
    let all = env.request(Verb::DeleteCollection, "v1/pods/default", "");
    let binding = json!({"metadata": {"name": "there"}, "target": {"name": "n"}});
    let bind = env.request(Verb::Create, "v1/pods/default/there/binding", binding);
    for request in [merge("there"), update, delete, all, bind] {
        let what = format!("{:?} {}", request.verb, request.subresource);
        let got = late(&env, request).await;
        assert!(got.starts_with(OVER), "{what}: {got}");
    }
    assert_eq!(env.get("v1/pods/default/there").await.body, before);
    // What was reserved was given back.
    let counters = &env.counters;
    let taken = counters.taken.load(Ordering::SeqCst) - counters.committed.load(Ordering::SeqCst);
    assert_eq!(taken, counters.rolled_back.load(Ordering::SeqCst), "{}", counters.show());
    assert_eq!(there.code, 201);
}

/// With time left, everything is as ever.
#[tokio::test]
async fn what_comes_in_time_is_written() {
    let env = Env::with(vec![Arc::new(Hanging)]).await;
    let request = env.request(Verb::Create, "v1/pods/default", pod("a", "never"));
    let answer =
        env.send(ApiRequest { deadline: Deadline::after(Duration::from_secs(600)), ..request }).await;
    assert_eq!(answer.code, 201, "{}", answer.show());
    assert_eq!(env.get("v1/pods/default/a").await.code, 200);
}
