//! Decisions with extenders that run beside the tests.

use super::super::Scheduler;
use crate::{
    configuration::Configuration,
    extenders::{WholeNode, WholePod},
    framework::{Event, Nomination, Profile, Reads},
    metrics::Metrics,
    pod_info::PodInfo,
    schedule_one::Decision,
    testing::{extender::FakeExtender, node},
};
use kaji_meta::{Features, ManualClock, SeededRandom};
use kaji_runtime::{Client, Informers, Shared};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;

/// A client that receives no response: whole objects come from the fixtures.
fn silent_client() -> Client {
    type Answer = Result<http::Response<kube::client::Body>, std::convert::Infallible>;
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| std::future::pending::<Answer>());
    Client::new(kube::Client::new(silent, "default"), "test")
}

fn a_pod(name: &str, priority: i64, spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["priority"] = json!(priority);
    if spec["containers"].is_null() {
        spec["containers"] = json!([{"name": "c", "resources": {"requests": {"cpu": "1"}}}]);
    }
    json!({"metadata": {"name": name, "namespace": "d", "uid": name, "managedFields": [{}],
        "annotations": {"note": name}}, "spec": spec})
}

/// A scheduler with extenders, given as YAML, on nodes with four CPUs and pods.
struct World {
    scheduler: Scheduler,
    nodes: Vec<Value>,
    pods: Vec<Value>,
}

impl World {
    fn new(extenders: &str, nodes: &[&str], pods: &[Value]) -> World {
        let file = format!(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders:\n{extenders}"
        );
        let configuration = Configuration::parse(&file, Features::default()).unwrap();
        let shared = Shared {
            client: silent_client(),
            clock: Arc::new(ManualClock::new(jiff::Timestamp::UNIX_EPOCH)),
            random: Arc::new(SeededRandom::new(1)),
            decisions: None,
        };
        let informers = Informers::new(shared.client.clone());
        let mut reads = Reads::nothing();
        configuration.profiles.iter().flat_map(Profile::points).for_each(|p| p.plugin.reads(&mut reads));
        configuration.extenders.read(&mut reads);
        let whole_node = |name: &&str| json!({"metadata": {"name": name}, "spec": {"unknown": 1}});
        let nodes_of = |nodes: &[&str]| nodes.iter().map(whole_node).collect::<Vec<_>>();
        let nodes_whole =
            nodes_of(nodes).into_iter().map(|n| serde_json::from_value::<WholeNode>(n).unwrap());
        let whole = |pod: &Value| serde_json::from_value::<WholePod>(pod.clone()).unwrap();
        let listers = reads.finish().0.with(nodes_whole).with(pods.iter().map(whole));
        let (sender, _) = mpsc::channel(1024);
        let scheduler =
            Scheduler::new(informers.get(), shared, configuration, Metrics::default(), listers, sender);
        let nodes = nodes_of(nodes);
        let mut world = World { scheduler, nodes, pods: pods.to_vec() };
        for node_of in &world.nodes {
            let name = node_of["metadata"]["name"].as_str().unwrap().to_owned();
            world.scheduler.cache.set_node(&name, Some(node(&json!({"name": name}))));
        }
        for pod in &world.pods {
            if let Some(node) = pod["spec"]["nodeName"].as_str() {
                world.scheduler.cache.assume(&info(pod), node);
            }
        }
        world
    }

    /// Decides on a pod: the node, or why none and what is done about it.
    async fn decide(&mut self, name: &str) -> String {
        let pod = self.pods.iter().find(|pod| pod["metadata"]["name"] == name).unwrap();
        let now = self.scheduler.now();
        self.scheduler.queue.add(info(pod), 0, now);
        let popped = self.scheduler.queue.pop().unwrap();
        let profiles = self.scheduler.profiles.clone();
        match self.scheduler.decide(&profiles[0], &popped).await {
            Decision::Bind(chosen) => format!("-> {}", chosen.node),
            Decision::Failed(status) => format!("failed: {status}"),
            Decision::Unschedulable(why) => {
                let room = match &why.nomination {
                    Nomination::Node(node) => {
                        let victims: Vec<&str> = why.victims.iter().map(|victim| victim.uid()).collect();
                        format!(" PREEMPT {} on {node}", victims.join(","))
                    }
                    _ => String::new(),
                };
                format!("{}{room} by {:?}", why.message, why.plugins)
            }
        }
    }
}

fn info(pod: &Value) -> Arc<PodInfo> {
    Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod.clone()).unwrap())))
}

fn extender(url: &str, rest: &str) -> String {
    format!("- {{urlPrefix: {url}/, {rest}}}\n")
}

const CAPABLE: &str = "filterVerb: filter, nodeCacheCapable: true";

#[tokio::test]
async fn nodes_are_filtered_by_name() {
    let fake =
        FakeExtender::start(|_, _| json!({"NodeNames": ["b"], "FailedNodes": {"a": "no", "z": "?"}})).await;
    let mut world = World::new(&extender(&fake.url, CAPABLE), &["a", "b"], &[a_pod("p", 0, &json!({}))]);
    assert_eq!(world.decide("p").await, "-> b");
    let asked = fake.asked();
    let (verb, args) = &asked[0];
    assert_eq!((verb.as_str(), asked.len()), ("filter", 1));
    assert_eq!((&args["NodeNames"], &args["Nodes"]), (&json!(["a", "b"]), &Value::Null));
    // The whole pod, but for what its writers are.
    assert_eq!(args["Pod"]["metadata"]["annotations"]["note"], "p");
    assert_eq!(args["Pod"]["metadata"].get("managedFields"), None);
}

#[tokio::test]
async fn nodes_are_sent_whole_to_an_extender_that_knows_none() {
    // As extenders in other languages write it.
    let fake = FakeExtender::start(|_, args| json!({"nodes": {"items": [args["Nodes"]["items"][1]]}})).await;
    let mut world =
        World::new(&extender(&fake.url, "filterVerb: filter"), &["a", "b"], &[a_pod("p", 0, &json!({}))]);
    assert_eq!(world.decide("p").await, "-> b");
    let (_, args) = &fake.asked()[0];
    assert_eq!(args["NodeNames"], Value::Null);
    assert_eq!(args["Nodes"]["items"], json!(world.nodes));
}

#[tokio::test]
async fn a_pod_that_extenders_reject_everywhere_waits_for_any_event() {
    let fake = FakeExtender::start(|_, _| {
        json!({"NodeNames": [], "FailedNodes": {"a": "no", "b": "no"}, "FailedAndUnresolvableNodes": {"b": "never"}})
    })
    .await;
    let victim = a_pod("v", -1, &json!({"nodeName": "a"}));
    let mut world =
        World::new(&extender(&fake.url, CAPABLE), &["a", "b"], &[a_pod("p", 0, &json!({})), victim]);
    expect_test::expect![[r#"0/2 nodes are available: 1 never, 1 no. preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling. by {"Extender"}"#]]
        .assert_eq(&world.decide("p").await);
    let key = kaji_runtime::Key::new("d", "p");
    let (queue, now) = (&mut world.scheduler.queue, tokio::time::Instant::now());
    queue.rejected(&key, ["Extender"].into(), [].into(), now);
    assert_eq!(queue.pending().unschedulable, 1);
    queue.event(&Event::of_node(None, Some(node(&json!({"name": "c"})))).unwrap(), now);
    assert_eq!(queue.pop().unwrap().key, key);
}

#[tokio::test]
async fn failures_count_unless_the_extender_is_ignorable() {
    let answers = |verb: &str, _: &Value| match verb {
        "broken" => Some((200, "<html>".to_owned())),
        "error" => Some((200, json!({"Error": "out of order"}).to_string())),
        "unknown" => Some((200, json!({"NodeNames": ["z"]}).to_string())),
        "code" => Some((500, "{}".to_owned())),
        _ => None,
    };
    let mut shown = vec![];
    for verb in ["broken", "error", "unknown", "code", "late"] {
        for ignorable in [false, true] {
            let fake = FakeExtender::raw(answers).await;
            let rest = format!(
                "filterVerb: {verb}, nodeCacheCapable: true, httpTimeout: 20ms, ignorable: {ignorable}"
            );
            let mut world = World::new(&extender(&fake.url, &rest), &["a"], &[a_pod("p", 0, &json!({}))]);
            shown.push(world.decide("p").await.replace(&fake.url, "URL"));
        }
    }
    expect_test::expect![[r#"
        failed: expected value at line 1 column 1
        -> a
        failed: out of order
        -> a
        failed: extender "URL/" claims a filtered node "z" which is not found in the input node list
        -> a
        failed: failed code with extender at URL URL/code, code 500
        -> a
        failed: Post "URL/late": context deadline exceeded (Client.Timeout exceeded while awaiting headers)
        -> a"#]]
    .assert_eq(&shown.join("\n"));
}

#[tokio::test]
async fn scores_are_scaled_and_weighted_and_failures_give_none() {
    let fake = FakeExtender::start(|verb, _| match verb {
        "a" => json!([{"Host": "a", "Score": 10}]),
        "c" => json!([{"host": "c", "score": 9}]),
        _ => json!("what"),
    })
    .await;
    let capable = "nodeCacheCapable: true";
    let mut shown = vec![];
    for (a, c) in [(1, 1), (1, 2)] {
        let extenders = extender(&fake.url, &format!("prioritizeVerb: a, weight: {a}, {capable}"))
            + &extender(&fake.url, &format!("prioritizeVerb: c, weight: {c}, {capable}"))
            + &extender(&fake.url, &format!("prioritizeVerb: x, weight: 9, {capable}"));
        let mut world = World::new(&extenders, &["a", "b", "c"], &[a_pod("p", 0, &json!({}))]);
        shown.push(world.decide("p").await);
    }
    assert_eq!(shown, ["-> a", "-> c"]);
}

#[tokio::test]
async fn a_nominated_node_that_an_extender_rejects_leaves_the_others() {
    let fake = FakeExtender::start(|_, args| {
        let names = args["NodeNames"].as_array().unwrap().iter();
        json!({"NodeNames": names.filter(|name| **name != "a").collect::<Vec<_>>()})
    })
    .await;
    let pod = a_pod("p", 0, &json!({}));
    let mut world = World::new(&extender(&fake.url, CAPABLE), &["a", "b"], std::slice::from_ref(&pod));
    world.scheduler.nominator.nominate(&info(&pod), "a");
    assert_eq!(world.decide("p").await, "-> b");
    let names: Vec<Value> = fake.asked().into_iter().map(|(_, args)| args["NodeNames"].clone()).collect();
    assert_eq!(names, [json!(["a"]), json!(["a", "b"])]);
}

#[tokio::test]
async fn only_pods_with_managed_resources_concern_an_extender_that_has_some() {
    let fake = FakeExtender::start(|_, _| json!({"NodeNames": ["b"]})).await;
    let rest = format!("{CAPABLE}, managedResources: [{{name: example.com/x, ignoredByScheduler: true}}]");
    let limits = json!({"containers": [{"name": "c", "resources": {
        "requests": {"example.com/x": "9"}, "limits": {"example.com/x": "9"}}}]});
    let pods = [a_pod("p", 0, &json!({})), a_pod("x", 0, &limits)];
    let mut world = World::new(&extender(&fake.url, &rest), &["a", "b"], &pods);
    world.decide("p").await;
    assert_eq!(fake.asked().len(), 0);
    // No node has the resource: the scheduler leaves it to the extender.
    assert_eq!(world.decide("x").await, "-> b");
    assert_eq!(fake.asked().len(), 1);
}

/// Two nodes that less important pods fill.
async fn preempt(rest: &str, say: impl Fn(&str, &Value) -> Value + Send + Sync + 'static) -> (String, Value) {
    let fake = FakeExtender::start(say).await;
    let filling = |name: &str, node: &str, priority: i64| {
        let resources = json!({"requests": {"cpu": "4"}});
        a_pod(
            name,
            priority,
            &json!({"nodeName": node, "containers": [{"name": "c", "resources": resources}]}),
        )
    };
    let pods = [a_pod("p", 9, &json!({})), filling("on-a", "a", 1), filling("on-b", "b", 2)];
    let mut world =
        World::new(&extender(&fake.url, &format!("preemptVerb: preempt, {rest}")), &["a", "b"], &pods);
    let decision = world.decide("p").await.replace(&fake.url, "URL");
    (decision, fake.asked().into_iter().next().map_or(Value::Null, |(_, args)| args))
}

#[tokio::test]
async fn extenders_choose_among_victims() {
    let only_b = |_: &str, _: &Value| json!({"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "on-b"}]}}});
    let (decision, args) = preempt("nodeCacheCapable: true", only_b).await;
    assert!(decision.contains("PREEMPT on-b on b"), "{decision}");
    let meta = |uid: &str| json!({"Pods": [{"UID": uid}], "NumPDBViolations": 0});
    assert_eq!(args["NodeNameToMetaVictims"], json!({"a": meta("on-a"), "b": meta("on-b")}));
    assert_eq!(args["NodeNameToVictims"], Value::Null);
    let (decision, args) = preempt("nodeCacheCapable: false", only_b).await;
    assert!(decision.contains("PREEMPT on-b on b"), "{decision}");
    assert_eq!(args["NodeNameToVictims"]["a"]["Pods"][0]["metadata"]["annotations"]["note"], "on-a");
}

#[tokio::test]
async fn answers_about_victims_are_checked() {
    let answers = [
        json!({}),
        json!({"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "other"}]}}}),
        json!({"NodeNameToMetaVictims": {"z": {"Pods": [{"UID": "on-b"}]}}}),
        json!({"NodeNameToMetaVictims": {"a": {"Pods": []}, "b": {"Pods": [{"UID": "on-b"}]}}}),
        json!({"NodeNameToMetaVictims": 7}),
    ];
    let mut shown = vec![];
    for answer in answers {
        for ignorable in [false, true] {
            let rest = format!("nodeCacheCapable: true, ignorable: {ignorable}");
            let said = answer.clone();
            let (decision, _) = preempt(&rest, move |_, _| said.clone()).await;
            let end = decision.split("Insufficient cpu.").last().unwrap_or_default().trim_start().to_owned();
            shown.push(end);
        }
    }
    expect_test::expect![[r#"
        preemption: no candidate node for preemption by {"NodeResourcesFit"}
        preemption: no candidate node for preemption by {"NodeResourcesFit"}
        preemption: extender: URL/ claims to preempt pod (UID: other) on node: b, but the pod is not found on that node by {"NodeResourcesFit"}
        preemption: found a potential placement for pod on node a, preempting 1 victims PREEMPT on-a on a by {"NodeResourcesFit"}
        preemption: nodeinfo not found for node name "z" by {"NodeResourcesFit"}
        preemption: found a potential placement for pod on node a, preempting 1 victims PREEMPT on-a on a by {"NodeResourcesFit"}
        preemption: expected at least one victim pod on node "a" by {"NodeResourcesFit"}
        preemption: found a potential placement for pod on node b, preempting 1 victims PREEMPT on-b on b by {"NodeResourcesFit"}
        preemption: NodeNameToMetaVictims: invalid type: integer `7`, expected a map at line 1 column 1 by {"NodeResourcesFit"}
        preemption: found a potential placement for pod on node a, preempting 1 victims PREEMPT on-a on a by {"NodeResourcesFit"}"#]]
    .assert_eq(&shown.join("\n"));
}

#[tokio::test]
async fn an_extender_binds_pods() {
    for (answer, ignorable, outcome) in [
        (json!({}), false, "Ok(true)"),
        (json!({"Error": "no"}), false, "no"),
        (json!({"Error": "no"}), true, "Ok(false)"),
    ] {
        let fake = FakeExtender::start(move |_, _| answer.clone()).await;
        let pod = a_pod("p", 0, &json!({}));
        let rest = format!("bindVerb: bind, ignorable: {ignorable}");
        let world = World::new(&extender(&fake.url, &rest), &["a"], &[]);
        let bound = world.scheduler.extenders.bind(&info(&pod), "a").await;
        assert_eq!(bound.map_or_else(|status| status.message(), |bound| format!("Ok({bound})")), outcome);
        let args = json!({"PodName": "p", "PodNamespace": "d", "PodUID": "p", "Node": "a"});
        assert_eq!(fake.asked(), [("bind".to_owned(), args)]);
    }
}

#[tokio::test]
async fn extenders_that_are_ignorable_are_asked_last() {
    let fake = FakeExtender::start(|_, args| json!({"NodeNames": args["NodeNames"]})).await;
    let extenders = extender(&fake.url, "filterVerb: first, nodeCacheCapable: true, ignorable: true")
        + &extender(&fake.url, "filterVerb: second, nodeCacheCapable: true");
    let mut world = World::new(&extenders, &["a"], &[a_pod("p", 0, &json!({}))]);
    world.decide("p").await;
    let verbs: Vec<String> = fake.asked().into_iter().map(|(verb, _)| verb).collect();
    assert_eq!(verbs, ["second", "first"]);
}
