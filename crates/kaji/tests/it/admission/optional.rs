//! Plugins that are off by default, together: a configuration file that has their parts in itself and in another file.

use super::{PODS, pod};
use crate::common::{TestCluster, api::Api, https::Https};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kaji_resource::Verb;
use serde_json::{Value, json};
use std::path::Path;

const PLUGINS: [&str; 7] = [
    "DenyServiceExternalIPs",
    "ImagePolicyWebhook",
    "LimitPodHardAntiAffinityTopology",
    "NamespaceAutoProvision",
    "NamespaceExists",
    "PodNodeSelector",
    "PodTolerationRestriction",
];

/// A service that allows every image but those called bad, and a kubeconfig that names it.
async fn image_service(dir: &Path) {
    let server = Https::bind(dir).await;
    let url = format!("{}/review", server.url);
    let pki = server.serve(|path, sent| {
        let mut review: Value = serde_json::from_slice(sent).unwrap();
        let containers = review["spec"]["containers"].as_array().unwrap();
        let bad = containers.iter().any(|c| c["image"] == "bad");
        review["status"] = json!({"allowed": !bad && path == "/review", "reason": format!("in {}", review["spec"]["namespace"])});
        (200, review.to_string())
    });
    let authority = STANDARD.encode(&pki.ca.certificate);
    let kubeconfig = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "images"}}],
        "clusters": [{"name": "images", "cluster": {"server": url, "certificate-authority-data": authority}}]});
    std::fs::write(dir.join("kubeconfig"), kubeconfig.to_string()).unwrap();
}

async fn configured(dir: &Path) -> TestCluster {
    image_service(dir).await;
    std::fs::write(
        dir.join("selectors.yaml"),
        "podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: env=dev}",
    )
    .unwrap();
    let file = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [
        {"name": "PodNodeSelector", "path": "selectors.yaml"},
        {"name": "ImagePolicyWebhook", "configuration": {"imagePolicy": {"kubeConfigFile": dir.join("kubeconfig")}}},
        {"name": "PodTolerationRestriction", "configuration": {
            "apiVersion": "podtolerationrestriction.admission.k8s.io/v1alpha1", "kind": "Configuration",
            "default": [{"key": "mine", "operator": "Exists"}],
            "whitelist": [{"key": "mine", "operator": "Exists"}, {"operator": "Exists", "effect": "NoExecute"}]}},
    ]});
    let path = dir.join("admission.yaml");
    std::fs::write(&path, file.to_string()).unwrap();
    TestCluster::start_with(|options| {
        options.admission.enable = PLUGINS.map(str::to_owned).to_vec();
        options.admission.config_file = Some(path);
    })
    .await
}

fn map() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugins_that_are_off_by_default_run_together() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = configured(dir.path()).await;
    let api = Api(&cluster);
    // Namespaces are created with their first object, but not by a dry run.
    assert_eq!(
        api.refused(Verb::Create, "/v1/configmaps?namespace=new&dryRun=All", map()).await,
        (404, r#"namespaces "new" not found"#.into())
    );
    api.ok(Verb::Create, "/v1/configmaps?namespace=new", map()).await;
    api.ok(Verb::Get, "/v1/namespaces/new", Value::Null).await;
    let made = api.ok(Verb::Create, PODS, pod("p", json!({"nodeSelector": {"a": "b"}}))).await;
    assert_eq!(made["spec"]["nodeSelector"], json!({"a": "b", "env": "dev"}));
    assert_eq!(made["spec"]["tolerations"].as_array().unwrap().last().unwrap()["key"], "mine");
    let anti = json!([{"topologyKey": "zone", "labelSelector": {}}]);
    let refused = [
        (json!({"nodeSelector": {"env": "prod"}}), 403),
        (json!({"tolerations": [{"key": "other", "operator": "Exists"}]}), 500),
        (
            json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": anti}}}),
            403,
        ),
        (json!({"containers": [{"name": "c", "image": "bad"}]}), 403),
    ];
    let mut texts = vec![];
    for (spec, code) in refused {
        let (refused, text) = api.refused(Verb::Create, PODS, pod("q", spec)).await;
        assert_eq!(refused, code, "{text}");
        texts.push(text);
    }
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "bad"}]);
    texts.push(api.refused(Verb::Patch, "/v1/pods/p?namespace=default", image).await.1);
    let service = |ips: &[&str]| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"ports": [{"port": 80}], "externalIPs": ips}})
    };
    let services = "/v1/services?namespace=default";
    api.ok(Verb::Create, services, service(&[])).await;
    let more = json!([{"op": "add", "path": "/spec/externalIPs", "value": ["198.51.100.1"]}]);
    texts.push(api.refused(Verb::Patch, "/v1/services/s?namespace=default", more).await.1);
    expect_test::expect![[r#"
        pods "q" is forbidden: pod node label selector conflicts with its namespace node label selector
        pod tolerations (possibly merged with namespace default tolerations) conflict with its cluster whitelist
        pods "q" is forbidden: affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname is allowed
        pods "q" is forbidden: image policy webhook backend denied one or more images: in "default"
        pods "p" is forbidden: image policy webhook backend denied one or more images: in "default"
        services "s" is forbidden: Use of external IPs is denied by admission control"#]].assert_eq(&texts.join("\n"));
    cluster.stop().await;
}
