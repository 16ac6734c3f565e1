//! Certificates, end to end: a request is approved and signed, and the certificate logs its user in with its groups;
//! nodes' requests are approved by themselves; the server's own certificate is renewed under open connections.

use crate::common::TestCluster;
use futures_util::TryStreamExt;
use k8s_openapi::{
    ByteString,
    api::{authentication::v1::SelfSubjectReview, certificates::v1::CertificateSigningRequest},
};
use kaji::StoreKind;
use kaji_server::Certificates;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

/// A request as a user's tool makes it, and the key.
fn request(
    name: &str,
    subject: (&str, &str),
    signer: &str,
    usages: &[&str],
) -> (CertificateSigningRequest, KeyPair) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.distinguished_name.push(DnType::OrganizationName, subject.1);
    params.distinguished_name.push(DnType::CommonName, subject.0);
    let key = KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let csr = json!({
        "metadata": {"name": name},
        "spec": {"request": ByteString(pem.into_bytes()), "signerName": signer, "usages": usages, "expirationSeconds": 3600},
    });
    (serde_json::from_value(csr).unwrap(), key)
}

/// Waits until a request is as wanted.
async fn until(
    api: &Api<CertificateSigningRequest>,
    name: &str,
    done: impl Fn(&CertificateSigningRequest) -> bool,
) -> CertificateSigningRequest {
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let watched = async {
        let mut events = std::pin::pin!(api.watch(&only, "0").await.unwrap());
        while let Some(event) = events.try_next().await.unwrap() {
            if let WatchEvent::Added(csr) | WatchEvent::Modified(csr) = event
                && done(&csr)
            {
                return csr;
            }
        }
        panic!("the watch ended")
    };
    tokio::time::timeout(Duration::from_secs(60), watched).await.unwrap()
}

fn certificate(csr: &CertificateSigningRequest) -> Option<String> {
    let pem = csr.status.as_ref()?.certificate.as_ref()?;
    Some(String::from_utf8(pem.0.clone()).unwrap())
}

fn condition(csr: &CertificateSigningRequest, kind: &str) -> Option<(String, String)> {
    let all = csr.status.as_ref()?.conditions.as_ref()?;
    let found = all.iter().find(|c| c.type_ == kind)?;
    Some((found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default()))
}

/// A client of the cluster that shows this certificate.
async fn client(cluster: &TestCluster, certificate: &str, key: &KeyPair) -> Client {
    let identity = kaji_server::pki::Identity { certificate: certificate.into(), key: key.serialize_pem() };
    let path = cluster.kubeconfig.with_extension("user");
    kaji::kubeconfig::write(
        &path,
        kaji::kubeconfig::NAME,
        &cluster.cluster.url(),
        &cluster.cluster.pki.ca.certificate,
        &identity,
    )
    .unwrap();
    let config = kube::config::Kubeconfig::read_from(&path).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

async fn approve(api: &Api<CertificateSigningRequest>, name: &str) {
    let body = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "KubectlApprove",
        "message": "This CSR was approved by kubectl certificate approve."}]}});
    let params = PatchParams::default();
    let target = api.patch_subresource("approval", name, &params, &Patch::Merge(body)).await.unwrap();
    assert_eq!(target.name_any(), name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_become_logins() {
    let cluster = TestCluster::start(1).await;
    let admin = cluster.kube().await;
    let api: Api<CertificateSigningRequest> = Api::all(admin.clone());

    let usages = &["client auth", "digital signature"];
    let (csr, key) = request("alice", ("alice", "devs"), "kubernetes.io/kube-apiserver-client", usages);
    api.create(&PostParams::default(), &csr).await.unwrap();
    approve(&api, "alice").await;
    let signed = certificate(&until(&api, "alice", |c| certificate(c).is_some()).await).unwrap();
    let der = CertificateDer::from_pem_slice(signed.as_bytes()).unwrap();
    let user = kaji_server::from_certificate(&der).unwrap();
    assert_eq!((user.name.as_str(), user.groups), ("alice", vec!["devs".into()]));
    let alice = client(&cluster, &signed, &key).await;
    let review: Api<SelfSubjectReview> = Api::all(alice);
    let answer = review.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    // Whether alice may ask depends on what authenticated users may; that she was recognized shows either way.
    match answer {
        Ok(review) => {
            let user = review.status.unwrap().user_info.unwrap();
            assert_eq!(user.username.as_deref(), Some("alice"));
            assert_eq!(user.groups.unwrap(), ["devs", "system:authenticated"]);
        }
        Err(kube::Error::Api(status)) => assert!(status.message.contains("User \"alice\""), "{status:?}"),
        Err(error) => panic!("{error}"),
    }

    // What a signer does not sign says why.
    let (csr, _) =
        request("bad", ("bob", "devs"), "kubernetes.io/kube-apiserver-client", &["client auth", "cert sign"]);
    api.create(&PostParams::default(), &csr).await.unwrap();
    approve(&api, "bad").await;
    let failed = until(&api, "bad", |c| condition(c, "Failed").is_some()).await;
    assert_eq!(
        condition(&failed, "Failed").unwrap(),
        ("SignerValidationFailure".into(), "invalid usage for client certificate: cert sign".into())
    );

    // A node's request is approved because the user (an administrator) may ask for any.
    let node = "kubernetes.io/kube-apiserver-client-kubelet";
    let (csr, _) = request("node", ("system:node:a", "system:nodes"), node, usages);
    api.create(&PostParams::default(), &csr).await.unwrap();
    let approved = until(&api, "node", |c| certificate(c).is_some()).await;
    assert_eq!(
        condition(&approved, "Approved").unwrap(),
        (
            "AutoApproved".into(),
            "Auto approving kubelet client certificate after SubjectAccessReview.".into()
        )
    );
    drop((api, review, admin));
    cluster.stop().await;
}

/// The certificate that a new connection is shown.
async fn shown(cluster: &TestCluster) -> Vec<u8> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(cluster.cluster.pki.ca.certificate.as_bytes()).unwrap())
        .unwrap();
    let admin = &cluster.cluster.certificates.current().admin;
    let chain = vec![CertificateDer::from_pem_slice(admin.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(admin.key.as_bytes()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let tcp = tokio::net::TcpStream::connect(cluster.cluster.address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
    tls.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_renews_its_certificate_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let names = "kubernetes kubernetes.default kubernetes.default.svc kubernetes.default.svc.cluster.local localhost \
                 127.0.0.1 ::1 10.96.0.1";
    // Issued so long ago that the coming midnight is the time to renew.
    let issued = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(274 * 24);
    let names = names.split_whitespace().map(String::from).collect();
    let before = Certificates::open(&dir.path().join("pki"), names, issued).unwrap().current();

    let cluster = TestCluster::start_in(dir, 0, StoreKind::Memory).await;
    let certificates = cluster.cluster.certificates.clone();
    assert_eq!(certificates.current().serving.certificate, before.serving.certificate);
    let client = cluster.kube().await;
    client.apiserver_version().await.unwrap();
    let first = shown(&cluster).await;
    assert_eq!(shown(&cluster).await, first);

    let midnight = certificates.current().renew_at().unwrap();
    assert!(certificates.renew(midnight).unwrap());
    assert_ne!(shown(&cluster).await, first, "a new connection, with the new client certificate");
    client.apiserver_version().await.unwrap();
    drop(client);
    cluster.stop().await;
}
