//! One set-up for many tests: forks, their clocks, and faults between a client and the server.

use k8s_openapi::api::core::v1::ConfigMap;
use kaji_testenv::{
    Error, TestEnv,
    fault::{Fault, FaultKind, Point},
    layer::Signal,
};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use std::time::Duration;

fn map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    }
}

fn maps(env: &TestEnv) -> Api<ConfigMap> {
    Api::default_namespaced(env.client())
}

async fn names(env: &TestEnv) -> Vec<String> {
    let all = maps(env).list(&kube::api::ListParams::default()).await.unwrap();
    all.iter().map(ResourceExt::name_any).filter(|name| name != "kube-root-ca.crt").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_begin_as_their_source_is_and_part() {
    let base = TestEnv::builder().forkable().virtual_clock().start().await.unwrap();
    let shared = maps(&base).create(&PostParams::default(), &map("shared")).await.unwrap();
    base.advance(Duration::from_secs(3600)).unwrap();

    let (one, other) = tokio::join!(base.fork(), base.fork());
    let (one, other) = (one.unwrap(), other.unwrap());
    let found = maps(&one).get("shared").await.unwrap();
    assert_eq!((found.uid(), found.resource_version()), (shared.uid(), shared.resource_version()));
    maps(&one).create(&PostParams::default(), &map("own")).await.unwrap();
    maps(&other).delete("shared", &kube::api::DeleteParams::default()).await.unwrap();
    one.advance(Duration::from_secs(24 * 3600)).unwrap();

    assert_eq!(names(&base).await, ["shared"]);
    assert_eq!(names(&one).await, ["own", "shared"]);
    assert_eq!(names(&other).await, [""; 0]);
    let ahead =
        |env: &TestEnv| env.now().duration_since(std::time::SystemTime::now()).unwrap().as_secs() / 3600;
    // A moment passes between the two looks at the clock.
    assert!((0..=1).contains(&ahead(&base)) && (0..=1).contains(&ahead(&other)) && ahead(&one) >= 24);
    let again = one.fork().await.unwrap();
    assert_eq!(names(&again).await, ["own", "shared"]);
    for env in [one, other, again, base] {
        env.stop().await;
    }
}

#[tokio::test]
async fn clusters_in_memory_are_not_forked() {
    let env = TestEnv::start().await.unwrap();
    assert!(matches!(env.fork().await, Err(Error::NotForkable)));
    env.stop().await;
}

#[tokio::test]
async fn faults_meet_the_client_that_asks_for_them_alone() {
    let env = TestEnv::start().await.unwrap();
    // A client in this process says no name.
    let at =
        |nth| Point { client: "unnamed".into(), verb: "create".into(), resource: "configmaps".into(), nth };
    let fault = |kind, nth| Fault { kind, at: at(nth) };
    let faults =
        vec![fault(FaultKind::AnswerLost, 1), fault(FaultKind::Unavailable, 2), fault(FaultKind::Kill, 3)];
    let mut meets = env.client_with_faults(faults, Duration::from_secs(1));
    let api: Api<ConfigMap> = Api::default_namespaced(meets.client.clone());

    api.create(&PostParams::default(), &map("lost")).await.unwrap_err();
    assert_eq!(names(&env).await, ["lost"]);
    let refused = api.create(&PostParams::default(), &map("refused")).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 503));
    assert_eq!(names(&env).await, ["lost"]);
    {
        let posted = map("killed");
        let (params, waits) = (PostParams::default(), meets.signals.recv());
        tokio::select! {
            answer = api.create(&params, &posted) => panic!("there is an answer: {answer:?}"),
            signal = waits => assert_eq!(signal, Some(Signal::Kill)),
        }
    }
    assert_eq!(names(&env).await, ["killed", "lost"]);
    assert_eq!(meets.layer.fired().len(), 3);
    assert!(meets.layer.armed().is_empty());

    // Points are counted from the beginning again.
    meets.layer.arm(vec![fault(FaultKind::InternalError, 1)]);
    let refused = api.create(&PostParams::default(), &map("again")).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 500));
    assert_eq!(meets.layer.records().len(), 1);
    env.stop().await;
}
