//! DRA drivers on sockets: claims of pods are prepared and unprepared, their devices reach containers, and their health the status.

use crate::fake::{Fake, NoMounts};
use crate::lifecycle::{Run, pod, ready};
use expect_test::expect;
use futures_util::StreamExt;
use futures_util::stream;
use kaji_grpc::{Client, Router, Status, bind, serve};
use kaji_kubelet::plugins::dra::{DraManager, messages as m};
use kaji_kubelet::plugins::pod_resources::{self, messages as r};
use kaji_kubelet::pods::core::Pod;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const SOON: Duration = Duration::from_secs(20);

type Lines = Arc<Mutex<Vec<String>>>;

/// A driver; its calls are kept, and those that are to fail do.
struct TestDriver {
    calls: Lines,
    failures: Lines,
    health: watch::Sender<i32>,
    socket: PathBuf,
    task: JoinHandle<()>,
}

fn prepared(claim: &m::Claim) -> m::PreparedClaim {
    let device = m::PreparedDevice {
        request_names: vec!["r".into()],
        pool_name: "pool".into(),
        device_name: "x".into(),
        cdi_device_ids: vec![format!("vendor.com/d={}", claim.name)],
        share_id: None,
    };
    m::PreparedClaim { devices: vec![device], error: String::new() }
}

fn report(health: i32) -> m::HealthReport {
    let device = m::DeviceIdentifier { pool_name: "pool".into(), device_name: "x".into() };
    let message = if health == m::UNHEALTHY { "hot" } else { "" }.to_owned();
    let health = m::DeviceHealth { device: Some(device), health, message, ..Default::default() };
    m::HealthReport { devices: vec![health] }
}

impl TestDriver {
    /// A driver that speaks v1 or v1beta1, not registered yet.
    fn start(fake: &Fake, beta: bool) -> TestDriver {
        let (calls, failures) = (Lines::default(), Lines::default());
        let (prepares, unprepares, errors) = (calls.clone(), calls.clone(), failures.clone());
        let names = |request: &m::ClaimsRequest| {
            request.claims.iter().map(|c| format!("{}/{}", c.namespace, c.name)).collect::<Vec<_>>().join(" ")
        };
        let (prepare, unprepare) =
            if beta { (m::PREPARE_BETA, m::UNPREPARE_BETA) } else { (m::PREPARE, m::UNPREPARE) };
        let (health, changes) = watch::channel(m::HEALTHY);
        let router = Router::default()
            .unary(prepare, move |request: m::ClaimsRequest| {
                prepares.lock().unwrap().push(format!("prepare {}", names(&request)));
                let error = errors.lock().unwrap().pop();
                let of = |claim: &m::Claim| {
                    let fails = error.clone().map(|error| m::PreparedClaim { devices: vec![], error });
                    (claim.uid.clone(), fails.unwrap_or_else(|| prepared(claim)))
                };
                let claims = request.claims.iter().map(of).collect();
                std::future::ready(Ok(m::PrepareResponse { claims }))
            })
            .unary(unprepare, move |request: m::ClaimsRequest| {
                unprepares.lock().unwrap().push(format!("unprepare {}", names(&request)));
                let claims: BTreeMap<_, _> =
                    request.claims.iter().map(|c| (c.uid.clone(), m::UnpreparedClaim::default())).collect();
                std::future::ready(Ok(m::UnprepareResponse { claims }))
            })
            .server_streaming(m::WATCH_HEALTH, move |_: m::Empty| {
                let first = *changes.borrow();
                let later = stream::unfold(changes.clone(), |mut changes| async move {
                    changes.changed().await.ok()?;
                    let health = *changes.borrow_and_update();
                    Some((Ok(report(health)), changes))
                });
                let all = stream::once(async move { Ok::<_, Status>(report(first)) }).chain(later);
                std::future::ready(Ok(all))
            });
        let socket = fake.dir.path().join("plugins/dra.sock");
        let task = tokio::spawn(serve(bind(&socket).unwrap(), router));
        TestDriver { calls, failures, health, socket, task }
    }

    async fn register(&self, fake: &Fake, service: &str) {
        let endpoint = self.socket.display().to_string();
        fake.cx.dra.register("driver.test", &endpoint, &[service.to_owned()]).await.unwrap();
    }

    fn calls(&self) -> String {
        std::mem::take(&mut *self.calls.lock().unwrap()).join("\n")
    }
}

/// Puts a claim into the API that is reserved for these pods.
fn put_claim(fake: &Fake, name: &str, pods: &[&str]) {
    let reserved: Vec<Value> =
        pods.iter().map(|p| json!({"resource": "pods", "name": p, "uid": p})).collect();
    let results = json!([{"driver": "driver.test", "pool": "pool", "device": "x", "request": "r"}]);
    let claim = json!({
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}")},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved},
    });
    let path = format!("/apis/resource.k8s.io/v1/namespaces/n/resourceclaims/{name}");
    fake.objects.objects.lock().unwrap().insert(path, claim);
}

fn using(uid: &str, claim: &str) -> Value {
    let mut pod = pod(json!({
        "resourceClaims": [{"name": "own", "resourceClaimName": claim}],
        "containers": [
            {"name": "c", "image": "i", "resources": {"claims": [{"name": "own", "request": "r"}]}},
            {"name": "without", "image": "i"},
        ],
    }));
    pod["metadata"]["uid"] = uid.into();
    pod
}

fn parsed(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).unwrap()
}

fn follow(fake: &Fake) -> JoinHandle<()> {
    tokio::spawn(fake.cx.dra.clone().run())
}

#[tokio::test]
async fn a_pod_runs_with_its_claim_and_gives_it_back() {
    let fake = Fake::new();
    let driver = TestDriver::start(&fake, false);
    let followed = follow(&fake);
    put_claim(&fake, "c1", &["u"]);
    driver.failures.lock().unwrap().push("out of order".into());
    let mut object = using("u", "c1");
    let run = Run::start(fake, &object);
    let event = |text: &str| {
        let events = run.fake.api.events.lock().unwrap();
        events.iter().any(|e| e.starts_with("FailedPrepareDynamicResources: ") && e.contains(text))
    };
    run.until("an event", |_| event("prepare dynamic resources: DRA driver driver.test is not registered"))
        .await;
    driver.register(&run.fake, "v1.DRAPlugin").await;
    let later = |run: &Run| run.fake.clock.advance(Duration::from_secs(130).try_into().unwrap());
    run.until("another event", |_| {
        later(&run);
        event("NodePrepareResources failed for ResourceClaim c1: out of order")
    })
    .await;
    assert!(run.fake.runtime.state.lock().unwrap().sandboxes.is_empty(), "it does not run before");
    run.until("ready", |s| {
        later(&run);
        ready(s)
    })
    .await;
    let devices: Vec<_> = run.fake.runtime.state.lock().unwrap().cdi_devices.clone();
    expect![[r#"["c: vendor.com/d=c1", "without: "]"#]].assert_eq(&format!("{devices:?}"));
    assert!(run.fake.dir.path().join("kubelet/dra_manager_state").exists());
    assert_eq!(run.fake.cx.dra.claims_in_use().1, 1);
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:07Z".into();
    object["metadata"]["deletionGracePeriodSeconds"] = 1.into();
    run.change(&object);
    run.until("unprepared", |_| run.fake.cx.dra.claims_in_use().1 == 0).await;
    expect![[r#"
        prepare n/c1
        prepare n/c1
        unprepare n/c1"#]]
    .assert_eq(&driver.calls());
    followed.abort();
}

#[tokio::test]
async fn a_shared_claim_is_unprepared_after_its_last_pod() {
    let fake = Fake::new();
    let driver = TestDriver::start(&fake, true);
    driver.register(&fake, "v1beta1.DRAPlugin").await;
    put_claim(&fake, "shared", &["a", "b"]);
    let (a, b) = (parsed(&using("a", "shared")), parsed(&using("b", "shared")));
    let (dra, sources) = (&fake.cx.dra, &*fake.cx.sources);
    let (first, second) = tokio::join!(dra.prepare(sources, &a), dra.prepare(sources, &b));
    assert_eq!((first, second), (Ok(()), Ok(())));
    assert_eq!(driver.calls(), "prepare n/shared");
    dra.unprepare(&a).await.unwrap();
    assert_eq!(driver.calls(), "");
    let without = parsed(&using("other", "shared"));
    expect![
        "prepare dynamic resources: pod p (other) is not allowed to use ResourceClaim shared (uid-shared)"
    ]
    .assert_eq(&dra.prepare(sources, &without).await.unwrap_err());
    dra.unprepare(&without).await.unwrap();
    assert_eq!(driver.calls(), "", "another pod has it still");
    // A kubelet that starts knows it, and gives it back once its pod is gone.
    let Fake { dir, .. } = fake;
    let fake = Fake::at(dir, NoMounts::default());
    driver.register(&fake, "v1beta1.DRAPlugin").await;
    fake.cx.dra.reconcile(&BTreeSet::from(["b".to_owned()])).await;
    assert_eq!(driver.calls(), "");
    fake.cx.dra.reconcile(&BTreeSet::new()).await;
    assert_eq!(driver.calls(), "unprepare n/shared");
    fake.cx.dra.unprepare(&b).await.unwrap();
    assert_eq!(driver.calls(), "");
}

#[tokio::test]
async fn slices_of_a_driver_that_is_gone_are_removed() {
    let fake = Fake::new();
    let driver = TestDriver::start(&fake, false);
    let followed = follow(&fake);
    let until = async |what: &str, expected: &[&str]| {
        let seen = || fake.slices.0.lock().unwrap().clone();
        let wait = async {
            while seen() != expected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(SOON, wait).await.is_ok(), "{what}: {:?}", seen());
    };
    until("those of before", &[""]).await;
    driver.register(&fake, "v1.DRAPlugin").await;
    let (endpoint, offered) = (driver.socket.display().to_string(), ["v1.DRAPlugin".to_owned()]);
    let error = fake.cx.dra.register("driver.test", &endpoint, &offered).await.unwrap_err();
    assert!(error.contains("already registered"), "{error}");
    let mut connected = false;
    for _ in 0..4000 {
        connected = driver.task.is_finished() || fake.cx.dra.is_usable("driver.test");
        if connected {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(connected);
    let before = fake.slices.0.lock().unwrap().len();
    driver.task.abort();
    let wait = async {
        while fake.slices.0.lock().unwrap().len() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap();
    assert_eq!(fake.slices.0.lock().unwrap().last().unwrap(), "driver.test");
    fake.cx.dra.unregister("driver.test", &driver.socket.display().to_string()).await;
    let pod = parsed(&using("a", "c"));
    put_claim(&fake, "c", &["a"]);
    let error = fake.cx.dra.prepare(&*fake.cx.sources, &pod).await.unwrap_err();
    assert_eq!(error, "prepare dynamic resources: DRA driver driver.test is not registered");
    followed.abort();
}

#[tokio::test]
async fn the_health_of_devices_is_shown() {
    let fake = Fake::new();
    let driver = TestDriver::start(&fake, false);
    let followed = follow(&fake);
    driver.register(&fake, "v1.DRAPlugin").await;
    put_claim(&fake, "c1", &["u"]);
    let run = Run::start(fake, &using("u", "c1"));
    let shown = |status: &Value| status["containerStatuses"][0]["allocatedResourcesStatus"].clone();
    let is = |status: &Value, health: &str| shown(status)[0]["resources"][0]["health"] == health;
    run.until("healthy", |s| is(s, "Healthy")).await;
    driver.health.send(m::UNHEALTHY).unwrap();
    let status = run.until("unhealthy", |s| is(s, "Unhealthy")).await;
    expect![[r#"[{"name":"claim:own/r","resources":[{"health":"Unhealthy","message":"hot","resourceID":"vendor.com/d=c1"}]}]"#]]
        .assert_eq(&shown(&status).to_string());
    let mut changed = run.fake.cx.dra.changed_pods().unwrap();
    assert_eq!(changed.recv().await.as_deref(), Some("u"));
    followed.abort();
    // A kubelet that is started again shows it before the driver has said anything to it.
    let (fake, pod) = (&run.fake, parsed(&using("u", "c1")));
    let manager = || {
        let slices = fake.slices.clone();
        DraManager::new(&fake.cx.config.root_dir, slices, fake.clock.clone(), Arc::default(), Duration::ZERO)
    };
    let health = |manager: &DraManager| {
        let containers = json!([{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0}]);
        let mut status = serde_json::from_value(json!({"containerStatuses": containers})).unwrap();
        manager.show_health(&pod, &mut status);
        serde_json::to_value(&status).unwrap()
    };
    assert_eq!(shown(&health(&manager())), shown(&status));
    fake.clock.advance(Duration::from_secs(31).try_into().unwrap());
    assert!(is(&health(&manager()), "Unknown"));
}

#[tokio::test]
async fn monitoring_agents_see_the_claims_of_containers() {
    let fake = Fake::new();
    let driver = TestDriver::start(&fake, false);
    driver.register(&fake, "v1.DRAPlugin").await;
    put_claim(&fake, "c1", &["u"]);
    let pod = Arc::new(parsed(&using("u", "c1")));
    fake.cx.dra.prepare(&*fake.cx.sources, &pod).await.unwrap();
    let pods: pod_resources::ActivePods = Arc::new(move || vec![pod.clone()]);
    let served = tokio::spawn(pod_resources::run(fake.cx.clone(), pods));
    let client = Client::new(fake.cx.config.root_dir.join(pod_resources::SOCKET)).waiting_for_peer();
    let all: r::ListResponse = client.unary(r::LIST, r::Empty {}, SOON).await.unwrap();
    let containers = &all.pod_resources[0].containers;
    let claim = &containers[0].dynamic_resources[0];
    let device = &claim.claim_resources[0];
    assert_eq!((claim.claim_name.as_str(), claim.claim_namespace.as_str()), ("c1", "n"));
    assert_eq!(
        (device.driver_name.as_str(), device.cdi_devices[0].name.as_str()),
        ("driver.test", "vendor.com/d=c1")
    );
    assert!(containers[1].dynamic_resources.is_empty());
    let request = |name: &str| r::GetRequest { pod_name: name.into(), pod_namespace: "n".into() };
    let one: r::GetResponse = client.unary(r::GET, request("p"), SOON).await.unwrap();
    assert_eq!(one.pod_resources.as_ref(), all.pod_resources.first());
    let missing = client.unary::<_, r::GetResponse>(r::GET, request("other"), SOON).await.unwrap_err();
    assert_eq!(missing.message, "pod other in namespace n not found");
    let some =
        client.unary::<_, r::AllocatableResources>(r::GET_ALLOCATABLE, r::Empty {}, SOON).await.unwrap();
    assert_eq!(some, r::AllocatableResources::default());
    served.abort();
}
