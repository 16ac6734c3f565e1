//! What an operator's tests do, with kube-rs: definitions, a control loop, clusters side by side, users, ports.

use futures_util::{StreamExt, TryStreamExt, future::join_all};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        authentication::v1::{SelfSubjectReview, TokenRequest, TokenRequestSpec, TokenReview},
        batch::v1::{CronJob, Job},
        core::v1::{ConfigMap, Event, Namespace, Node, Pod, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kaji_testenv::{Error, TestEnv};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams, WatchEvent, WatchParams,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{fmt::Debug, path::Path, sync::Arc, time::Duration};

/// Nothing here should take long; a hang is a failure with a name.
pub(crate) async fn soon<T>(what: &str, f: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), f).await.unwrap_or_else(|_| panic!("{what} did not happen"))
}

pub(crate) fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn post() -> PostParams {
    PostParams::default()
}

/// Follows one object from what it is now until it is as wanted; `None` when it is gone.
pub(crate) async fn until<K>(api: &Api<K>, name: &str, what: &str, mut done: impl FnMut(Option<&K>) -> bool)
where
    K: Clone + Debug + DeserializeOwned + Resource,
{
    let field = format!("metadata.name={name}");
    let list = api.list(&ListParams::default().fields(&field)).await.unwrap();
    if done(list.items.first()) {
        return;
    }
    let from = list.metadata.resource_version.unwrap();
    let mut events = api.watch(&WatchParams::default().fields(&field), &from).await.unwrap().boxed();
    soon(what, async {
        while let Some(event) = events.try_next().await.unwrap() {
            let ended = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => done(Some(&object)),
                WatchEvent::Deleted(_) => done(None),
                WatchEvent::Bookmark(_) => false,
                WatchEvent::Error(error) => panic!("{error:?}"),
            };
            if ended {
                return;
            }
        }
        panic!("the watch ended before {what}");
    })
    .await;
}

fn widgets() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"))
}

async fn define_widgets(client: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let spec =
        json!({"type": "object", "properties": {"size": {"type": "integer", "default": 3, "maximum": 9}}});
    let status = json!({"type": "object", "properties": {"seen": {"type": "integer"}}});
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
            }],
        },
    });
    definitions.create(&post(), &object(definition)).await.unwrap();
    until(&definitions, "widgets.example.com", "the definition's taking effect", |definition| {
        let status = definition.and_then(|d| d.status.as_ref());
        let mut conditions = status.iter().flat_map(|s| s.conditions.iter().flatten());
        conditions.any(|c| c.type_ == "Established" && c.status == "True")
    })
    .await;
}

/// A controller as small as they come: each widget gets a ConfigMap of its size and reports the generation it saw.
async fn reconcile_widgets(client: Client) -> kube::Result<()> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &widgets());
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let mut events = api.watch(&WatchParams::default(), "0").await?.boxed();
    let apply = PatchParams::apply("widget-controller").force();
    while let Some(event) = events.try_next().await? {
        let (WatchEvent::Added(widget) | WatchEvent::Modified(widget)) = event else { continue };
        if widget.meta().deletion_timestamp.is_some() {
            continue;
        }
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": widget.name_any(), "ownerReferences": [widget.controller_owner_ref(&widgets())]},
            "data": {"size": widget.data["spec"]["size"].to_string()},
        });
        maps.patch(&widget.name_any(), &apply, &Patch::Apply(&map)).await?;
        let status = json!({"status": {"seen": widget.meta().generation}});
        api.patch_status(&widget.name_any(), &PatchParams::default(), &Patch::Merge(&status)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_operator_from_definition_to_garbage() {
    let env = TestEnv::builder().controllers(["garbage-collector-controller"]).start().await.unwrap();
    let client = env.client();
    define_widgets(&client).await;
    let controller = tokio::spawn(reconcile_widgets(env.client()));

    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &widgets());
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let widget = |size: Value| DynamicObject::new("w", &widgets()).data(json!({"spec": {"size": size}}));
    let refused = api.create(&post(), &widget(json!(10))).await.unwrap_err();
    assert!(refused.to_string().contains("should be less than or equal to 9"), "{refused}");
    let made =
        api.create(&post(), &DynamicObject::new("w", &widgets()).data(json!({"spec": {}}))).await.unwrap();
    assert_eq!(made.data["spec"]["size"], 3);

    let seen = |generation: i64| {
        move |w: Option<&DynamicObject>| w.is_some_and(|w| w.data["status"]["seen"] == generation)
    };
    until(&api, "w", "the first status", seen(1)).await;
    assert_eq!(maps.get("w").await.unwrap().data.unwrap()["size"], "3");
    let larger = Patch::Merge(json!({"spec": {"size": 5}}));
    api.patch("w", &PatchParams::default(), &larger).await.unwrap();
    until(&api, "w", "the second status", seen(2)).await;
    assert_eq!(maps.get("w").await.unwrap().data.unwrap()["size"], "5");

    api.delete("w", &DeleteParams::default()).await.unwrap();
    until(&maps, "w", "the collection of what the widget owned", |map| map.is_none()).await;
    assert!(!controller.is_finished());
    controller.abort();
    env.stop().await;
    assert!(!Path::new("pki").exists() && !Path::new("store").exists(), "files were left");
}

#[tokio::test]
async fn clusters_side_by_side_have_nothing_in_common() {
    let environments = join_all((0..4).map(|_| TestEnv::start())).await;
    let environments: Vec<TestEnv> = environments.into_iter().map(Result::unwrap).collect();
    let made = environments.iter().enumerate().map(async |(i, env)| {
        let maps: Api<ConfigMap> = Api::default_namespaced(env.client());
        let map = json!({"metadata": {"name": "same"}, "data": {"cluster": i.to_string()}});
        let map = maps.create(&post(), &object(map)).await.unwrap();
        (map.uid().unwrap(), map.data.unwrap()["cluster"].clone())
    });
    let mut made = join_all(made).await;
    let clusters: Vec<String> = made.iter().map(|(_, cluster)| cluster.clone()).collect();
    assert_eq!(clusters, ["0", "1", "2", "3"]);
    made.sort();
    made.dedup_by(|a, b| a.0 == b.0);
    assert_eq!(made.len(), 4, "{made:?}");
    // A definition in one is unknown in the others.
    define_widgets(&environments[0].client()).await;
    let served = environments.iter().map(async |env| {
        Api::<DynamicObject>::namespaced_with(env.client(), "default", &widgets())
            .list(&ListParams::default())
            .await
            .is_ok()
    });
    assert_eq!(join_all(served).await, [true, false, false, false]);
    join_all(environments.into_iter().map(TestEnv::stop)).await;
}

#[tokio::test]
async fn users_may_do_what_roles_say() {
    let env = TestEnv::start().await.unwrap();
    let (admin, jane) = (env.client(), env.client_as("jane", ["readers"]));
    let theirs: Api<ConfigMap> = Api::default_namespaced(jane.clone());
    let refused = theirs.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");

    let role = json!({"metadata": {"name": "read"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]});
    let api_group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": "read"},
        "roleRef": {"apiGroup": api_group, "kind": "Role", "name": "read"},
        "subjects": [
            {"apiGroup": api_group, "kind": "Group", "name": "readers"},
            {"kind": "ServiceAccount", "name": "app", "namespace": "default"},
        ],
    });
    Api::<Role>::default_namespaced(admin.clone()).create(&post(), &object(role)).await.unwrap();
    Api::<RoleBinding>::default_namespaced(admin).create(&post(), &object(binding)).await.unwrap();
    theirs.list(&ListParams::default()).await.unwrap();
    assert!(theirs.create(&post(), &object(json!({"metadata": {"name": "a"}}))).await.is_err());
    let none: [&str; 0] = [];
    let account = env.client_as("system:serviceaccount:default:app", none);
    Api::<ConfigMap>::default_namespaced(account).list(&ListParams::default()).await.unwrap();
    let other = env.client_as("system:serviceaccount:default:other", none);
    assert!(Api::<ConfigMap>::default_namespaced(other).list(&ListParams::default()).await.is_err());

    let reviews: Api<SelfSubjectReview> = Api::all(jane);
    let review = reviews.create(&post(), &SelfSubjectReview::default()).await.unwrap();
    let user = review.status.unwrap().user_info.unwrap();
    assert_eq!(user.username.as_deref(), Some("jane"));
    assert_eq!(user.groups.unwrap(), ["readers", "system:authenticated"]);
    env.stop().await;
}

#[tokio::test]
async fn chosen_controllers_and_simulated_nodes() {
    let unknown = TestEnv::builder().controllers(["deploymint"]).start().await.err().unwrap();
    assert!(matches!(&unknown, Error::Controller(_)), "{unknown}");
    assert_eq!(unknown.to_string(), "\"deploymint\" is not in the list of known controllers");

    let env = TestEnv::builder()
        .controllers(["deployment-controller", "replicaset-controller", "scheduler"])
        .controllers(["namespace-controller"])
        .nodes(2)
        .start()
        .await
        .unwrap();
    let namespaces: Api<Namespace> = Api::all(env.client());
    namespaces.create(&post(), &object(json!({"metadata": {"name": "short"}}))).await.unwrap();
    namespaces.delete("short", &DeleteParams::default()).await.unwrap();
    until(&namespaces, "short", "the namespace's end", |namespace| namespace.is_none()).await;

    let deployments: Api<Deployment> = Api::default_namespaced(env.client());
    let labels = json!({"app": "web"});
    let deployment = json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}},
        },
    });
    deployments.create(&post(), &object(deployment)).await.unwrap();
    until(&deployments, "web", "two ready pods", |deployment| {
        deployment.and_then(|d| d.status.as_ref()).is_some_and(|s| s.available_replicas == Some(2))
    })
    .await;
    // There is no listener, for nodes neither: they name the usual port, which has none.
    let nodes: Api<Node> = Api::all(env.client());
    until(&nodes, "sim-1", "the usual port", |node| {
        let daemons =
            node.and_then(|n| n.status.as_ref()?.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref());
        daemons.is_some_and(|d| d.port == 10250)
    })
    .await;
    env.stop().await;
}

#[tokio::test]
async fn a_port_when_asked_for() {
    let env = TestEnv::start().await.unwrap();
    let error = env.kubeconfig().unwrap_err();
    assert!(matches!(error, Error::NotListening), "{error}");
    env.stop().await;

    let env = TestEnv::builder().listen().start().await.unwrap();
    let inside: Api<ConfigMap> = Api::default_namespaced(env.client());
    inside.create(&post(), &object(json!({"metadata": {"name": "a"}}))).await.unwrap();
    let config = kube::config::Kubeconfig::from_yaml(&env.kubeconfig().unwrap()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    assert_eq!(config.cluster_url.host(), Some("127.0.0.1"));
    let outside: Api<ConfigMap> = Api::default_namespaced(Client::try_from(config).unwrap());
    assert_eq!(outside.get("a").await.unwrap(), inside.get("a").await.unwrap());
    drop(outside);
    env.stop().await;
}

#[tokio::test]
async fn an_end_is_an_end() {
    let env = TestEnv::builder().controllers(["*"]).nodes(1).start().await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(env.client());
    let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    env.stop().await;
    soon("the end of the watch", async { while events.next().await.is_some() {} }).await;
    let map = object(json!({"metadata": {"name": "late"}}));
    assert!(soon("an answer", maps.create(&post(), &map)).await.is_err());

    // Dropping ends a control plane too, with whatever loops.
    let three = &["disruption-controller", "resourcequota-controller", "namespace-controller"];
    for controllers in [&[][..], three, &["*"]] {
        let env = TestEnv::builder().controllers(controllers.iter().copied()).start().await.unwrap();
        let stack = Arc::downgrade(&env.cluster().stack);
        drop(env);
        soon("the stack's end", async {
            while stack.strong_count() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn time_that_a_test_moves_on() {
    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);
    let env = TestEnv::start().await.unwrap();
    let error = env.advance(HOUR).unwrap_err();
    assert!(matches!(error, Error::NoClock), "{error}");
    env.stop().await;

    let controllers = [
        "cronjob-controller",
        "job-controller",
        "ttl-after-finished-controller",
        "garbage-collector-controller",
        "serviceaccount-controller",
    ];
    let builder = TestEnv::builder().controllers(controllers).virtual_clock();
    let env = builder.start().await.unwrap();
    let client = env.client();

    // A schedule's hour comes, twice.
    let crons: Api<CronJob> = Api::default_namespaced(client.clone());
    let template = json!({"spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "busybox"}],
    }});
    let cron = json!({
        "metadata": {"name": "hourly"},
        "spec": {"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": template}}},
    });
    let made = crons.create(&post(), &object(cron)).await.unwrap().creation_timestamp().unwrap();
    let jobs: Api<Job> = Api::default_namespaced(client.clone());
    for hours in 1..=2 {
        env.advance(HOUR).unwrap();
        let mut last = None;
        until(&crons, "hourly", "its hour", |cron| {
            last = cron.and_then(|c| c.status.clone()).and_then(|s| s.last_schedule_time);
            last.as_ref().is_some_and(|t| t.0.duration_since(made.0).as_hours() + 1 >= hours)
        })
        .await;
        assert_eq!(last.unwrap().0.strftime("%M:%S").to_string(), "00:00");
    }

    // What is done is kept for a day.
    let job = json!({
        "metadata": {"name": "done"},
        "spec": {"ttlSecondsAfterFinished": 24 * 3600, "completions": 0, "template": template},
    });
    jobs.create(&post(), &object(job)).await.unwrap();
    until(&jobs, "done", "its completion", |job| {
        job.and_then(|j| j.status.as_ref()).is_some_and(|s| s.completion_time.is_some())
    })
    .await;
    env.advance(23 * HOUR).unwrap();
    assert!(jobs.get_opt("done").await.unwrap().is_some());
    env.advance(HOUR).unwrap();
    until(&jobs, "done", "its removal", |job| job.is_none()).await;

    // A token for an hour is one for an hour, and a minute for clocks that differ.
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    until(&accounts, "default", "the account", |account| account.is_some()).await;
    let asked = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(3600), ..Default::default() }),
        ..Default::default()
    };
    let token =
        accounts.create_token_request("default", &post(), &asked).await.unwrap().status.unwrap().token;
    let reviews: Api<TokenReview> = Api::all(client);
    let review: TokenReview = object(json!({"metadata": {}, "spec": {"token": token}}));
    for authenticated in [true, false] {
        let answer: TokenReview = reviews.create(&post(), &review).await.unwrap();
        assert_eq!(answer.status.unwrap().authenticated.unwrap_or_default(), authenticated);
        env.advance(HOUR + 2 * MINUTE).unwrap();
    }
    env.stop().await;
}

/// Nothing changes in this cluster but the time.
#[tokio::test]
async fn a_pod_without_a_node_is_tried_again_by_itself() {
    const FLUSH: Duration = Duration::from_secs(300);
    let env = TestEnv::builder().controllers(["scheduler"]).virtual_clock().start().await.unwrap();
    let client = env.client();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "busybox"}]}});
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    pods.create(&post(), &object(pod)).await.unwrap();
    let events: Api<Event> = Api::default_namespaced(client);
    let mut seen = events.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    for attempt in 1..=4 {
        soon("another attempt", async {
            while let Some(event) = seen.try_next().await.unwrap() {
                let (WatchEvent::Added(event) | WatchEvent::Modified(event)) = event else { continue };
                if event.reason.as_deref() == Some("FailedScheduling") && event.count == Some(attempt) {
                    return;
                }
            }
        })
        .await;
        env.advance(FLUSH).unwrap();
    }
    env.stop().await;
}
