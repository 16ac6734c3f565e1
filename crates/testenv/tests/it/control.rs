//! The control of `kaji envtest serve`, by plain HTTP.

use kaji::operator_tests::in_process;
use kaji_operator_test::{
    control::{Announcement, Settings, serve},
    scenario::ClusterSpec,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
};

/// A client of the control, as any language has one.
struct Control {
    address: String,
    token: String,
}

impl Control {
    async fn send(&self, request: &str, headers: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let host = match headers.contains("Host:") {
            true => String::new(),
            false => format!("Host: {}\r\n", self.address),
        };
        let head = format!(
            "{request} HTTP/1.1\r\n{host}{headers}Connection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, serde_json::from_str(body).unwrap())
    }

    async fn ask(&self, request: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(request, &format!("Authorization: Bearer {}\r\n", self.token), &body).await
    }

    async fn done(&self, request: &str, body: Value) -> Value {
        let (code, answer) = self.ask(request, body).await;
        assert!((200..300).contains(&code), "{request}: {code} {answer}");
        answer
    }
}

async fn client(access: &Value) -> kube::Client {
    let config = Kubeconfig::from_yaml(access["kubeconfig"].as_str().unwrap()).unwrap();
    let mut config =
        kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    // Each refusal is seen, and each request is one point.
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

async fn create(client: &kube::Client, name: &str) -> Result<Value, kube::Error> {
    let body = json!({"metadata": {"name": name}}).to_string().into_bytes();
    let request =
        http::Request::post("/api/v1/namespaces/default/configmaps").header("user-agent", "suite/1");
    client.request(request.header("content-type", "application/json").body(body).unwrap()).await
}

async fn exists(client: &kube::Client, name: &str) -> bool {
    let path = format!("/api/v1/namespaces/default/configmaps/{name}");
    client.request::<Value>(http::Request::get(path).body(vec![]).unwrap()).await.is_ok()
}

/// Runs a test with a control, and what is there at the end of it.
async fn with_control(test: impl AsyncFnOnce(&Control, Value)) {
    with_controllers(&[], test).await;
}

async fn with_controllers(controllers: &[&str], test: impl AsyncFnOnce(&Control, Value)) {
    let parent = tempfile::tempdir().unwrap();
    let controllers = controllers.iter().map(|&name| name.to_owned()).collect();
    let settings = Settings {
        spec: ClusterSpec { controllers, nodes: 0, pods_without_accounts: true },
        port: 0,
        directory: parent.path().to_owned(),
        delay: Duration::from_secs(1),
    };
    let (announced, waits) = oneshot::channel();
    let (ended, end) = oneshot::channel::<()>();
    let announce = move |announcement: &Announcement| {
        announced.send(serde_json::to_value(announcement).unwrap()).unwrap();
        Ok(())
    };
    let stop = async { drop(end.await) };
    let serving = serve(settings, in_process(), &kaji_meta::random::SystemRandom, announce, stop);
    let testing = async {
        let announcement: Value = waits.await.unwrap();
        let control = Control {
            address: announcement["control"].as_str().unwrap().trim_start_matches("http://").to_owned(),
            token: announcement["token"].as_str().unwrap().to_owned(),
        };
        assert!(control.address.starts_with("127.0.0.1:"));
        test(&control, announcement["cluster"].clone()).await;
        ended.send(()).unwrap();
    };
    let (served, ()) = tokio::join!(serving, testing);
    served.unwrap();
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0, "the data is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_requests_with_its_token_are_answered() {
    with_control(async |control, _| {
        let path = "GET /v1/clusters";
        let auth = format!("Authorization: Bearer {}\r\n", control.token);
        assert_eq!(control.send(path, "", "").await.0, 401);
        assert_eq!(control.send(path, "Authorization: Bearer 0\r\n", "").await.0, 401);
        assert_eq!(control.send(path, &format!("{auth}Origin: http://example.com\r\n"), "").await.0, 403);
        assert_eq!(control.send(path, &format!("{auth}Host: example.com\r\n"), "").await.0, 403);
        assert_eq!(control.send(path, &auth, "").await.0, 200);
        for (request, body, code) in [
            ("GET /v1/nothing", Value::Null, 404),
            ("GET /v1/clusters/none", Value::Null, 404),
            ("GET /v1/clusters/base/nothing", Value::Null, 404),
            ("PATCH /v1/clusters/base/clock", Value::Null, 405),
            ("DELETE /v1/clusters/base", Value::Null, 409),
            ("POST /v1/clusters/base/forks", json!({"name": "../x"}), 422),
            ("POST /v1/clusters/base/forks", json!({"name": "base"}), 409),
            ("POST /v1/clusters/base/forks", json!({"nam": "x"}), 422),
            ("POST /v1/clusters/base/clock", json!({"advanceSeconds": -1}), 422),
            ("POST /v1/clusters/base/kubeconfig", json!({"serviceAccount": "default/none"}), 422),
            ("GET /v1/clusters/base/kills?later=1", Value::Null, 422),
            ("PUT /v1/clusters/base/faults", json!({"faults": [{"kind": "no"}]}), 422),
        ] {
            let (found, answer) = control.ask(request, body).await;
            assert_eq!(found, code, "{request}: {answer}");
            assert!(answer["error"].is_string());
        }
    })
    .await;
}

/// The controller creates the account after the namespace: a request in between waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn waits_for_default_accounts_that_a_controller_creates() {
    with_controllers(&["serviceaccount-controller"], async |control, base| {
        let administrator = client(&base).await;
        for name in ["first", "second", "third"] {
            let namespace = json!({"metadata": {"name": name}}).to_string().into_bytes();
            let request =
                http::Request::post("/api/v1/namespaces").header("content-type", "application/json");
            administrator.request::<Value>(request.body(namespace).unwrap()).await.unwrap();
            let account = json!({"serviceAccount": format!("{name}/default")});
            control.done("POST /v1/clusters/base/kubeconfig", account).await;
        }
        // What no controller creates is not waited for.
        for account in ["none/default", "default/none"] {
            let (code, answer) =
                control.ask("POST /v1/clusters/base/kubeconfig", json!({"serviceAccount": account})).await;
            assert_eq!(code, 422, "{answer}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tests_share_a_set_up_and_part() {
    with_control(async |control, base| {
        create(&client(&base).await, "shared").await.unwrap();
        let fork = control.done("POST /v1/clusters/base/forks", json!({"name": "mine"})).await;
        assert_eq!((fork["name"].as_str(), fork["source"].as_str()), (Some("mine"), Some("base")));
        assert_ne!(fork["url"], base["url"]);
        let mine = client(&fork).await;
        assert!(exists(&mine, "shared").await);
        create(&mine, "own").await.unwrap();
        // The controller of service accounts does not run: pods need none.
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "c"}]}});
        let request = http::Request::post("/api/v1/namespaces/default/pods");
        let request = request.header("content-type", "application/json").body(pod.to_string().into_bytes());
        mine.request::<Value>(request.unwrap()).await.unwrap();
        assert!(!exists(&client(&base).await, "own").await);
        let file = std::fs::read_to_string(fork["kubeconfigFile"].as_str().unwrap()).unwrap();
        assert_eq!(file, fork["kubeconfig"].as_str().unwrap());

        let jump = json!({"advanceSeconds": 7200});
        let clock = control.done("POST /v1/clusters/mine/clock", jump).await;
        assert_eq!(clock["aheadSeconds"], 7200.0);
        assert_eq!(control.done("GET /v1/clusters/base/clock", Value::Null).await["aheadSeconds"], 0.0);
        let later = control.done("POST /v1/clusters/mine/forks", Value::Null).await;
        let name = later["name"].as_str().unwrap();
        let clock = control.done(&format!("GET /v1/clusters/{name}/clock"), Value::Null).await;
        assert_eq!(clock["aheadSeconds"], 7200.0);

        let all = control.done("GET /v1/clusters", Value::Null).await;
        assert_eq!(all["clusters"].as_array().unwrap().len(), 3);
        control.done("DELETE /v1/clusters/mine", Value::Null).await;
        assert_eq!(control.ask("GET /v1/clusters/mine", Value::Null).await.0, 404);
        assert!(!exists(&mine, "shared").await);
        assert!(exists(&client(&later).await, "own").await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_meet_the_client_under_test() {
    with_control(async |control, base| {
        let (under_test, other) = (client(&base["faults"]).await, client(&base).await);
        let at = |nth| json!({"client": "operator", "verb": "create", "resource": "configmaps", "nth": nth});
        let plan = json!({"scenario": "/a.yaml", "seed": 1, "found": [], "faults": [
            {"kind": "unavailable", "at": at(1)}, {"kind": "kill", "at": at(2)}]});
        let armed = control.done("PUT /v1/clusters/base/faults?client=suite", plan).await;
        assert_eq!(armed["armed"].as_array().unwrap().len(), 2);

        create(&other, "one").await.unwrap();
        let refused = create(&under_test, "two").await.unwrap_err();
        assert!(matches!(refused, kube::Error::Api(status) if status.code == 503));
        let waits = "GET /v1/clusters/base/kills?after=0&seconds=60";
        let kills = tokio::select! {
            answer = create(&under_test, "three") => panic!("there is an answer: {answer:?}"),
            answer = control.done(waits, Value::Null) => answer["kills"].clone(),
        };
        assert_eq!(kills, 1);
        assert!(exists(&other, "three").await && !exists(&other, "two").await);
        let report = control.done("GET /v1/clusters/base/faults", Value::Null).await;
        assert_eq!(report["fired"].as_array().unwrap().len(), 2);
        assert_eq!(report["requests"][0]["code"], 503);
        control.done("DELETE /v1/clusters/base/leases", Value::Null).await;
        // Points are counted from a plan on.
        let fault = json!({"faults": [{"kind": "internal-error", "at": at(1)}]});
        control.done("PUT /v1/clusters/base/faults?client=suite", fault).await;
        control.done("DELETE /v1/clusters/base/faults", Value::Null).await;
        create(&under_test, "four").await.unwrap();
    })
    .await;
}
