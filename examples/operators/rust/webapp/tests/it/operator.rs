//! What the operator's users see, with the operator's program running as its service account, and pods on simulated nodes.

use crate::common::{Cluster, Operator, object};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Pod, Service},
        events::v1::Event,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

fn ready(app: &DynamicObject) -> Option<&Value> {
    app.data["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == "Ready")
}

fn is_ready(app: &DynamicObject, generation: i64) -> bool {
    app.data["status"]["observedGeneration"] == generation
        && ready(app).is_some_and(|c| c["status"] == "True")
}

async fn host_of(hosts: &Api<ConfigMap>, host: &str) -> Option<String> {
    hosts.get_opt("webapp-hosts").await.unwrap()?.data?.remove(host)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_from_creation_to_garbage() {
    let cluster = Cluster::start().await;
    let operator = Operator::start(&cluster, "one", 15, true).await;
    cluster.call_webhooks_of(&operator).await;
    let (client, apps) = (cluster.client(), cluster.apps());

    // The sample names an image; the webhook adds the rest.
    let made = apps.create(&PostParams::default(), &object(crate::common::SAMPLE)).await.unwrap();
    let spec = json!({"image": "nginx:1.29", "replicas": 2, "port": 80, "host": "shop.default.example.com"});
    assert_eq!(made.data["spec"], spec);

    let app = cluster.until(&apps, "shop", "ready", |app| is_ready(app, 1)).await;
    let condition = ready(&app).unwrap();
    assert_eq!(condition["reason"], "AllReplicasReady");
    assert_eq!(condition["message"], "2 of 2 replicas are ready");
    assert_eq!(condition["observedGeneration"], 1);
    assert_eq!(app.data["status"]["readyReplicas"], 2);
    assert_eq!(app.data["status"]["url"], "http://shop.default.example.com");
    assert_eq!(app.metadata.finalizers.as_deref(), Some(&["apps.example.com/host".to_owned()][..]));

    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let hosts: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let (deployment, service) = (deployments.get("shop").await.unwrap(), services.get("shop").await.unwrap());
    for owners in [&deployment.metadata.owner_references, &service.metadata.owner_references] {
        let owner = &owners.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("WebApp", app.metadata.uid.as_ref()));
        assert_eq!(owner.controller, Some(true));
    }
    let port = &service.spec.unwrap().ports.unwrap()[0];
    assert_eq!((port.port, port.target_port.clone()), (80, Some(IntOrString::String("http".into()))));
    assert_eq!(host_of(&hosts, "shop.default.example.com").await.as_deref(), Some("default/shop"));

    // What it is changed to, it becomes; what is taken away comes back.
    let more = json!({"spec": {"replicas": 3, "image": "nginx:1.30"}});
    apps.patch("shop", &PatchParams::default(), &Patch::Merge(more)).await.unwrap();
    services.delete("shop", &DeleteParams::default()).await.unwrap();
    let app = cluster.until(&apps, "shop", "ready again", |app| is_ready(app, 2)).await;
    assert_eq!(app.data["status"]["readyReplicas"], 3);
    let image =
        deployments.get("shop").await.unwrap().spec.template.spec.unwrap().containers[0].image.clone();
    assert_eq!(image.as_deref(), Some("nginx:1.30"));
    cluster.until(&services, "shop", "back", |s| s.metadata.uid != service.metadata.uid).await;
    let events: Api<Event> = Api::default_namespaced(client.clone());
    cluster
        .eventually("events of it", async || {
            let list = events.list(&ListParams::default()).await.unwrap();
            let mut mine =
                list.items.iter().filter(|e| e.reporting_controller.as_deref() == Some("webapp-operator"));
            mine.any(|e| {
                e.reason.as_deref() == Some("AllReplicasReady")
                    && e.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some("shop")
            })
        })
        .await;

    // Its end: the finalizer gives the host back, garbage collection takes what it owned.
    apps.delete("shop", &DeleteParams::default()).await.unwrap();
    cluster.until_gone(&apps, "shop").await;
    assert_eq!(host_of(&hosts, "shop.default.example.com").await, None);
    cluster.until_gone(&deployments, "shop").await;
    cluster.until_gone(&services, "shop").await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    cluster
        .eventually("pods gone", async || pods.list(&ListParams::default()).await.unwrap().items.is_empty())
        .await;
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_work_is_refused() {
    let cluster = Cluster::start().await;
    let operator = Operator::start(&cluster, "one", 15, true).await;
    cluster.call_webhooks_of(&operator).await;
    let apps = cluster.apps();
    let refusal = async |name: &str, spec: Value| {
        let app = cluster.app(name, spec);
        apps.create(&PostParams::default(), &app).await.unwrap_err().to_string()
    };

    let said = refusal("loose", json!({"image": "nginx"})).await;
    let because = r#"admission webhook "validate.webapps.apps.example.com" denied the request: spec.image: "nginx" needs a tag other than latest, or a digest"#;
    assert!(said.contains(because), "{said}");
    // The definition's own rules come with the same words in any language.
    let said = refusal("many", json!({"image": "nginx:1", "replicas": 101})).await;
    assert!(
        said.contains(
            "spec.replicas: Invalid value: 101: spec.replicas in body should be less than or equal to 100"
        ),
        "{said}"
    );

    apps.create(
        &PostParams::default(),
        &cluster.app("first", json!({"image": "nginx:1", "host": "a.example.com"})),
    )
    .await
    .unwrap();
    cluster.until(&apps, "first", "ready", |app| is_ready(app, 1)).await;
    let said = refusal("second", json!({"image": "nginx:1", "host": "a.example.com"})).await;
    assert!(said.contains("denied the request: spec.host: a.example.com belongs to default/first"), "{said}");
    let moved = Patch::Merge(json!({"spec": {"host": "b.example.com"}}));
    let said = apps.patch("first", &PatchParams::default(), &moved).await.unwrap_err().to_string();
    assert!(said.contains("spec.host: Invalid value: \"b.example.com\": a host cannot be changed"), "{said}");
    // Without an operator nothing admits it.
    operator.stop().await;
    let said = refusal("late", json!({"image": "nginx:1"})).await;
    assert!(said.contains(r#"failed calling webhook "default.webapps.apps.example.com""#), "{said}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_claim_waits_for_the_host() {
    let cluster = Cluster::start().await;
    // No webhooks: that the host is another's shows in the status.
    let operator = Operator::start(&cluster, "one", 15, false).await;
    let hosts: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    let list = object(
        &json!({"metadata": {"name": "webapp-hosts"}, "data": {"a.example.com": "far/away"}}).to_string(),
    );
    hosts.create(&PostParams::default(), &list).await.unwrap();
    let apps = cluster.apps();
    let app = cluster.app("late", json!({"image": "nginx:1", "host": "a.example.com"}));
    apps.create(&PostParams::default(), &app).await.unwrap();
    let app = cluster.until(&apps, "late", "refused", |app| ready(app).is_some()).await;
    let condition = ready(&app).unwrap();
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("HostTaken")));
    assert_eq!(condition["message"], "a.example.com belongs to far/away");
    let deployments: Api<Deployment> = Api::default_namespaced(cluster.client());
    assert!(deployments.get_opt("late").await.unwrap().is_none());

    let free = Patch::Merge(json!({"data": {"a.example.com": null}}));
    hosts.patch("webapp-hosts", &PatchParams::default(), &free).await.unwrap();
    cluster.until(&apps, "late", "ready", |app| is_ready(app, 1)).await;
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_takes_over() {
    let cluster = Cluster::start().await;
    let leases: Api<Lease> = Api::default_namespaced(cluster.client());
    let holder = async || {
        let spec = leases.get("webapp-operator").await.unwrap().spec.unwrap();
        (spec.holder_identity.unwrap_or_default(), spec.lease_transitions.unwrap_or_default())
    };
    let mut one = Operator::start(&cluster, "one", 10, false).await;
    one.says("leading").await;
    let mut two = Operator::start(&cluster, "two", 10, false).await;
    assert!(two.says("standing by").await.contains("holder=one"));
    assert_eq!(holder().await, ("one".into(), 1));
    let apps = cluster.apps();
    let create = async |name: &str| {
        let app = cluster.app(name, json!({"image": "nginx:1"}));
        apps.create(&PostParams::default(), &app).await.unwrap();
        cluster.until(&apps, name, "ready", |app| is_ready(app, 1)).await;
    };
    create("a").await;

    // One that ends in order hands over at once.
    one.stop().await;
    two.says("leading").await;
    assert_eq!(holder().await, ("two".into(), 2));
    create("b").await;

    // From one that dies it is taken when the lease has run out.
    let mut three = Operator::start(&cluster, "three", 10, false).await;
    three.says("standing by").await;
    two.kill();
    three.says("leading").await;
    assert_eq!(holder().await, ("three".into(), 3));
    create("c").await;
    three.stop().await;
    cluster.stop().await;
}

#[test]
fn the_definition_is_the_one_that_is_applied() {
    let output = std::process::Command::new(crate::common::PROGRAM).arg("crd").output().unwrap();
    assert!(output.status.success());
    expect_test::expect_file!["../../../../manifests/webapp-crd.yaml"]
        .assert_eq(&String::from_utf8(output.stdout).unwrap());
}
