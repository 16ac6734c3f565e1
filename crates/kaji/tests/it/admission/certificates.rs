//! Rights to approve, sign, attest, and set owners of objects.

use super::{PODS, pod};
use crate::common::{TestCluster, api::Api};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kaji_resource::{UserInfo, Verb};
use serde_json::{Value, json};

const REQUESTS: &str = "certificates.k8s.io/v1/certificatesigningrequests";

fn user(group: &str) -> UserInfo {
    UserInfo { name: "somebody".into(), groups: vec![group.into()], ..UserInfo::default() }
}

fn request(name: &str, organization: &str) -> Value {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": STANDARD.encode(pem), "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_approval_and_signing_without_rights_on_the_signer() {
    let cluster = TestCluster::start(0).await;
    let api = Api(&cluster);
    let (authenticated, master) = (user("system:authenticated"), user("system:masters"));
    assert_eq!(
        api.answer_to(&master, Verb::Create, REQUESTS, request("m", "system:masters")).await,
        (403, r#"certificatesigningrequests.certificates.k8s.io "m" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"#.into())
    );
    let mut made = api.ok(Verb::Create, REQUESTS, request("r", "devs")).await;
    made["status"]["conditions"] = json!([{"type": "Approved", "status": "True"}]);
    let approval = format!("{REQUESTS}/r/approval");
    assert_eq!(
        api.answer_to(&authenticated, Verb::Update, &approval, made.clone()).await,
        (403, r#"certificatesigningrequests.certificates.k8s.io "r" is forbidden: user not permitted to approve requests with signerName "kubernetes.io/kube-apiserver-client""#.into())
    );
    assert_eq!(api.answer_to(&master, Verb::Update, &approval, made).await, (200, String::new()));
    let mut approved = api.ok(Verb::Get, &format!("{REQUESTS}/r"), Value::Null).await;
    let conditions = approved["status"]["conditions"].as_array_mut().unwrap();
    conditions.push(json!({"type": "Failed", "status": "True"}));
    let status = format!("{REQUESTS}/r/status");
    assert_eq!(
        api.answer_to(&authenticated, Verb::Update, &status, approved.clone()).await,
        (403, r#"certificatesigningrequests.certificates.k8s.io "r" is forbidden: user not permitted to sign requests with signerName "kubernetes.io/kube-apiserver-client""#.into())
    );
    assert_eq!(api.answer_to(&master, Verb::Update, &status, approved).await, (200, String::new()));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_blocking_owners_without_the_right_to_finalize_them() {
    let cluster = TestCluster::start_with(|o| {
        o.admission.enable = vec!["OwnerReferencesPermissionEnforcement".into()];
    })
    .await;
    let api = Api(&cluster);
    let (authenticated, master) = (user("system:authenticated"), user("system:masters"));
    let owned = |name: &str, kind: &str, block: bool| {
        let mut pod = pod(name, json!({}));
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "blockOwnerDeletion": block}]);
        pod
    };
    assert_eq!(api.answer_to(&authenticated, Verb::Create, PODS, owned("a", "Pod", false)).await.0, 201);
    assert_eq!(
        api.answer_to(&authenticated, Verb::Create, PODS, owned("b", "Pod", true)).await,
        (403, r#"pods "b" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>"#.into())
    );
    assert_eq!(
        api.answer_to(&authenticated, Verb::Create, PODS, owned("b", "Nonsense", true)).await,
        (403, r#"pods "b" is forbidden: cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion v1 Kind Nonsense: no matches for kind "Nonsense" in version "v1""#.into())
    );
    assert_eq!(api.answer_to(&master, Verb::Create, PODS, owned("b", "Pod", true)).await.0, 201);
    let mut freed = api.ok(Verb::Get, "/v1/pods/a?namespace=default", Value::Null).await;
    freed["metadata"]["ownerReferences"] = json!([]);
    assert_eq!(
        api.answer_to(&authenticated, Verb::Update, "/v1/pods/a?namespace=default", freed).await,
        (
            403,
            r#"pods "a" is forbidden: cannot set an ownerRef on a resource you can't delete: , <nil>"#.into()
        )
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("admission.yaml");
    let text = r#"
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits: [{type: Namespace, qps: 1, burst: 1}]
"#;
    std::fs::write(&file, text).unwrap();
    let cluster = TestCluster::start_with(|o| {
        o.admission.enable = vec!["EventRateLimit".into()];
        o.admission.config_file = Some(file);
    })
    .await;
    let api = Api(&cluster);
    let event = |name: &str| json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "involvedObject": {"namespace": "default"}});
    let path = "/v1/events?namespace=default";
    let mut codes = vec![];
    for i in 0..50 {
        codes.push(api.answer_to(&user("a"), Verb::Create, path, event(&format!("e{i}"))).await);
    }
    let refused = (429, "Too many requests: limit reached on type Namespace for key default".to_owned());
    assert_eq!(codes[0].0, 201);
    assert!(codes.contains(&refused));
    cluster.stop().await;
}
