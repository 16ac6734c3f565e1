//! Hooks and probes of containers: what they ask for, and what becomes of the answers.

use crate::fake::Fake;
use crate::lifecycle::{Run, pod, ready, waiting};
use kaji_containers::RuntimeError;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A server without TLS that fails whatever it is asked; its port, and what it was asked.
async fn failing_server() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            seen.lock().unwrap().push(String::from_utf8_lossy(&request[..length]).into_owned());
            let answer = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\nbody";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (port, asked)
}

/// A pod of one container with these hooks, once it is ready.
async fn started(lifecycle: &Value) -> Run {
    let containers = json!([{"name": "c", "image": "i", "lifecycle": lifecycle}]);
    let run = Run::start(Fake::new(), &pod(json!({"containers": containers})));
    run.until("ready", ready).await;
    run
}

#[tokio::test]
async fn any_answer_to_a_hook_is_a_success() {
    let (port, asked) = failing_server().await;
    let headers = json!([{"name": "Authorization", "value": "secret"}, {"name": "X-Hook", "value": "kept"}]);
    let hook = |scheme: &str| {
        let action = json!({"host": "127.0.0.1", "port": port, "path": "/hook", "scheme": scheme, "httpHeaders": headers});
        json!({"postStart": {"httpGet": action}})
    };
    let shown = |text: &String| {
        let has = |header: &str| text.lines().any(|line| line.starts_with(header));
        let what = text.lines().next().filter(|line| line.starts_with("GET")).unwrap_or("no HTTP");
        format!("{what}: authorization {}, x-hook {}", has("authorization: secret"), has("x-hook: kept"))
    };
    started(&hook("HTTP")).await;
    let run = started(&hook("HTTPS")).await;
    let asked: Vec<String> = asked.lock().unwrap().iter().map(shown).collect();
    expect_test::expect![[r#"
        GET /hook HTTP/1.1: authorization true, x-hook true
        no HTTP: authorization false, x-hook false
        GET /hook HTTP/1.1: authorization false, x-hook true"#]]
    .assert_eq(&asked.join("\n"));
    let events = run.fake.api.events.lock().unwrap().join("\n").replace(&port.to_string(), "PORT");
    let fallback = "LifecycleHTTPFallback: request to HTTPS lifecycle hook 127.0.0.1:PORT got HTTP response, retry with HTTP succeeded";
    assert!(events.contains(fallback) && !events.contains("FailedPostStartHook"), "{events}");
}

#[tokio::test]
async fn a_container_with_a_failed_post_start_hook_is_killed_as_others_are() {
    let hook = |word: &str| json!({"exec": {"command": [word]}});
    let container = json!({
        "name": "c", "image": "i", "imagePullPolicy": "IfNotPresent",
        "lifecycle": {"postStart": hook("begin"), "preStop": hook("end")},
    });
    let fake = Fake::new();
    fake.runtime.state.lock().unwrap().failures.push(("exec", RuntimeError::Internal("no".into())));
    let spec = json!({"terminationGracePeriodSeconds": 7, "containers": [container]});
    let run = Run::start(fake, &pod(spec));
    let failed = run.until("fails", |s| waiting(s)["reason"] == "PostStartHookError").await;
    let message = waiting(&failed)["message"].as_str().unwrap().to_owned();
    let hook = r#"Exec lifecycle hook ([begin]) for Container "c" in Pod "p_n(u)" failed - error: "#;
    assert!(message.starts_with(hook) && message.ends_with(r#"no, message: """#), "{message}");
    run.until("ready", ready).await;
    expect_test::expect![[r#"
        sandbox 0
        pull i:latest
        create c/0
        start 
        exec begin
        exec end
        stop c 7
        create c/1
        start 
        exec begin"#]]
    .assert_eq(&run.calls());
    let events = run.fake.api.events.lock().unwrap().join("\n");
    let killed = "FailedPostStartHook: PostStartHook failed\nKilling: FailedPostStartHook";
    assert!(events.contains(killed), "{events}");
}

#[tokio::test]
async fn commands_of_probes_have_the_values_that_the_container_sets() {
    let words = json!({"command": ["check", "$(A)", "$$(A)", "$(NAME)", "$(NONE)"]});
    let container = json!({
        "name": "c", "image": "i",
        "env": [
            {"name": "A", "value": "0"},
            {"name": "A", "value": "1"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "lifecycle": {"postStart": {"exec": words}},
        "readinessProbe": {"exec": words},
    });
    let run = Run::start(Fake::new(), &pod(json!({"containers": [container]})));
    run.until("ready", ready).await;
    let calls = run.calls();
    let commands: Vec<&str> = calls.lines().filter(|call| call.starts_with("exec")).collect();
    // First that of the hook, which stays as it is.
    expect_test::expect![[r#"
        exec check $(A) $$(A) $(NAME) $(NONE)
        exec check 1 $(A)  $(NONE)"#]]
    .assert_eq(&commands.join("\n"));
}
