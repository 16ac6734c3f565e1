//! The binaries that envtest starts, by the names and with the flags it has for them. The Go suite in `tests/go/envtest`
//! does the same through controller-runtime itself.

use crate::common::clients;
use kube::Api;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::json;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

const KAJI: &str = env!("CARGO_BIN_EXE_kaji");

fn assets(dir: &Path) -> PathBuf {
    let output =
        Command::new(KAJI).args(["envtest", "--print-assets"]).arg(dir.join("assets")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim_end().into()
}

/// A running program, killed when the test ends early.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    fn start(path: &Path, args: &[String]) -> Program {
        let child = Command::new(path).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Program(child.unwrap())
    }

    /// The first line with `word` in it, from there on. The program may not outlive the reader: writing more would fail.
    fn says(output: &mut impl BufRead, word: &str) -> String {
        let mut lines = output.lines().map(Result::unwrap);
        lines.find_map(|line| line.find(word).map(|at| line[at..].to_owned())).unwrap()
    }

    /// Ends it as envtest does.
    fn stop(mut self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

/// An authority as envtest makes them.
struct TinyCa {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl TinyCa {
    fn new() -> TinyCa {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["envtest-environment".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        TinyCa { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, name: &str, group: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![usage];
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

async fn client(url: &str, server: &TinyCa, (certificate, key): &(String, String)) -> kube::Client {
    clients::client(url, &server.pem, clients::certificate(certificate, key)).await
}

#[test]
fn etcd_answers_health_and_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--advertise-client-urls=http://127.0.0.1:0", "--listen-client-urls=http://127.0.0.1:0"];
    let mut etcd = Program::start(&assets(dir.path()).join("etcd"), &args.map(String::from));
    let mut stderr = BufReader::new(etcd.0.stderr.take().unwrap());
    let said = Program::says(&mut stderr, "127.0.0.1:");
    let address =
        said.split(|c: char| !c.is_ascii_digit() && c != '.' && c != ':').next().unwrap().to_owned();
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let health = ask("/health");
    assert!(health.starts_with("HTTP/1.1 200 OK"), "{health}");
    assert!(health.ends_with(r#"{"health":"true","reason":""}"#), "{health}");
    assert!(ask("/v3/kv/range").starts_with("HTTP/1.1 404"));
    etcd.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_takes_envtests_flags_and_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let (server, clients) = (TinyCa::new(), TinyCa::new());
    let certs = dir.path().join("certs");
    fs::create_dir(&certs).unwrap();
    let (certificate, key) = server.issue("localhost", "envtest", ExtendedKeyUsagePurpose::ServerAuth);
    fs::write(certs.join("apiserver.crt"), certificate).unwrap();
    fs::write(certs.join("apiserver.key"), key).unwrap();
    fs::write(certs.join("client-cert-auth-ca.crt"), &clients.pem).unwrap();
    let args = [
        "--allow-privileged=true",
        "--authorization-mode=RBAC",
        "--bind-address=127.0.0.1",
        &format!("--cert-dir={}", certs.display()),
        &format!("--client-ca-file={}", certs.join("client-cert-auth-ca.crt").display()),
        "--disable-admission-plugins=ServiceAccount",
        "--etcd-servers=http://127.0.0.1:2379",
        "--secure-port=0",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--kaji-controllers=namespace",
    ]
    .map(String::from);
    let mut started = Program::start(&assets(dir.path()).join("kube-apiserver"), &args);
    let mut stdout = BufReader::new(started.0.stdout.take().unwrap());
    let said = Program::says(&mut stdout, "https://");
    let url = said.split(' ').next().unwrap();

    let boss = clients.issue("boss", "system:masters", ExtendedKeyUsagePurpose::ClientAuth);
    let boss = client(url, &server, &boss).await;
    let services: Api<k8s_openapi::api::core::v1::Service> = Api::namespaced(boss.clone(), "default");
    let ip = services.get("kubernetes").await.unwrap().spec.unwrap().cluster_ip.unwrap();
    assert_eq!(ip, "10.0.0.1");
    let guest = clients.issue("guest", "visitors", ExtendedKeyUsagePurpose::ClientAuth);
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client(url, &server, &guest).await);
    let refused = nodes.list(&Default::default()).await.unwrap_err().to_string();
    assert!(refused.contains(r#"User "guest" cannot list resource "nodes""#), "{refused}");

    // Of all control loops, the one that was asked for.
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(boss.clone());
    let namespace = json!({"metadata": {"name": "going"}, "spec": {}});
    namespaces.create(&Default::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    namespaces.delete("going", &Default::default()).await.unwrap();
    while namespaces.get_opt("going").await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    drop((boss, nodes, services, namespaces));
    started.stop();
    // Nothing was written but what the test wrote.
    assert_eq!(fs::read_dir(&certs).unwrap().count(), 3);
}

#[test]
fn what_is_not_supported_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(assets(dir.path()).join("kube-apiserver"))
        .args(["--secure-port=0", "--allow-metric-labels=a,b=c"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "kaji: --allow-metric-labels=a,b=c is not supported by kaji's kube-apiserver: this server does not have it\n";
    assert!(said.ends_with(expected), "{said}");
}
