//! Where the streams of pods lead, and what is refused before.

use super::*;
use crate::shared::testing::TestContext;
use expect_test::expect;
use kaji_meta::GroupResource;
use serde_json::json;

#[test]
fn names_the_container() {
    let one = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}});
    assert_eq!(container(&one, "").unwrap(), "a");
    let two = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}],
        "initContainers": [{"name": "i"}]}});
    assert_eq!(
        container(&two, "").unwrap_err().message,
        "a container name must be specified for pod p, choose one of: [i a b]"
    );
    assert_eq!(container(&two, "x").unwrap_err().message, "container x is not valid for pod p");
    assert_eq!(container(&two, "i").unwrap(), "i");
}

/// A node `n`, a pod `p` on it, and one that is on none.
fn context() -> TestContext {
    let test = TestContext::default();
    let put = |resource: &str, object: Value| test.api.put(&GroupResource::new("", resource), object);
    put(
        "nodes",
        json!({"metadata": {"name": "n"}, "status": {
        "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.1.1.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10260}}}}),
    );
    let containers = json!([{"name": "a", "ports": [{"containerPort": 8080}]}, {"name": "b"}]);
    put(
        "pods",
        json!({"metadata": {"namespace": "d", "name": "p"}, "spec": {"nodeName": "n", "containers": containers},
        "status": {"podIPs": [{"ip": "10.2.0.1"}]}}),
    );
    put(
        "pods",
        json!({"metadata": {"namespace": "d", "name": "v6"}, "spec": {"nodeName": "gone", "containers": [{"name": "a"}]},
        "status": {"podIPs": [{"ip": "fd00::1"}]}}),
    );
    put(
        "pods",
        json!({"metadata": {"namespace": "d", "name": "waits"}, "spec": {"containers": [{"name": "a"}]}}),
    );
    test
}

fn show(location: Result<Option<Location>, Status>) -> String {
    match location {
        Ok(None) => "nothing".into(),
        Ok(Some(l)) => format!("{:?} {} {:?} {} {:?}", l.host, l.port, l.security, l.path, l.query),
        Err(status) => format!("{} {}", status.code, status.message),
    }
}

fn ask(test: &TestContext, name: &str, subresource: &str, options: &Value, query: &str) -> String {
    let object = json!({"metadata": {"namespace": "d", "name": name}});
    let query = Query::parse(query);
    let request = ConnectRequest { options, query: &query };
    show(location(&test.ctx(&object, subresource, "v1"), &request))
}

#[test]
fn streams_lead_to_the_kubelet() {
    let test = context();
    let exec = json!({"container": "b", "command": ["sh", "-c", "a&b=c"], "stdin": true, "stdout": true, "tty": true});
    let seen = [
        ask(&test, "p", "exec", &exec, ""),
        ask(&test, "p", "attach", &json!({"container": "a", "stdout": true, "stderr": true}), ""),
        ask(&test, "p", "portforward", &json!({"ports": [80, 81]}), ""),
        ask(&test, "p", "exec", &json!({}), ""),
        ask(&test, "waits", "exec", &json!({}), ""),
        ask(&test, "v6", "attach", &json!({}), ""),
        ask(&test, "missing", "exec", &json!({}), ""),
    ];
    expect![[r#"
        AnyOf([("Hostname", "n"), ("InternalIP", "10.1.1.1")]) 10260 Mutual { verify: true } /exec/d/p/b Pairs([("input", "1"), ("output", "1"), ("tty", "1"), ("command", "sh"), ("command", "-c"), ("command", "a&b=c")])
        AnyOf([("Hostname", "n"), ("InternalIP", "10.1.1.1")]) 10260 Mutual { verify: true } /attach/d/p/a Pairs([("output", "1"), ("error", "1")])
        AnyOf([("Hostname", "n"), ("InternalIP", "10.1.1.1")]) 10260 Mutual { verify: true } /portForward/d/p Pairs([("port", "80,81")])
        400 a container name must be specified for pod p, choose one of: [a b]
        400 pod waits does not have a host assigned
        404 nodes "gone" not found
        404 pods "missing" not found"#]]
    .assert_eq(&seen.join("\n"));
}

#[test]
fn log_options_are_checked() {
    let test = context();
    let log = |name: &str, query: &str| ask(&test, name, "log", &Value::Null, query);
    let seen = [
        log("p", "container=a&follow=1&previous=false&timestamps&tailLines=3&tailLines=x"),
        log(
            "p",
            "container=a&sinceTime=2026-01-02T03:04:05%2B01:00&limitBytes=1&insecureSkipTLSVerifyBackend=true",
        ),
        log("p", "container=a&path=/etc"),
        log("p", "container=a&stream=Stdout"),
        log("p", "stream=All"),
        log("p", "stream="),
        log("waits", ""),
        log("waits", "tailLines=-1&limitBytes=0&sinceSeconds=0&stream=both"),
        log("waits", "sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z&stream=Stderr&tailLines=1"),
        log("waits", "tailLines=x"),
        log("waits", "sinceTime=yesterday"),
        log("p", "container=../../pods"),
    ];
    expect![[r#"
        AnyOf([("Hostname", "n"), ("InternalIP", "10.1.1.1")]) 10260 Mutual { verify: true } /containerLogs/d/p/a Pairs([("follow", "true"), ("timestamps", "true"), ("tailLines", "3")])
        AnyOf([("Hostname", "n"), ("InternalIP", "10.1.1.1")]) 10260 Mutual { verify: false } /containerLogs/d/p/a Pairs([("limitBytes", "1"), ("sinceTime", "2026-01-02T02:04:05Z")])
        AnyOf([("Hostname", "n"), ("InternalIP", "10.1.1.1")]) 10260 Mutual { verify: true } /containerLogs/d/p/a Pairs([])
        422 PodLogOptions "p" is invalid: stream: Forbidden: may not be specified
        422 PodLogOptions "p" is invalid: stream: Forbidden: may not be specified
        422 PodLogOptions "p" is invalid: stream: Forbidden: may not be specified
        nothing
        422 PodLogOptions "waits" is invalid: [tailLines: Invalid value: -1: must be greater than or equal to 0, limitBytes: Invalid value: 0: must be greater than 0, sinceSeconds: Invalid value: 0: must be greater than 0, stream: Forbidden: may not be specified]
        422 PodLogOptions "waits" is invalid: [: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified, stream: Forbidden: may not be specified]
        400 strconv.ParseInt: parsing "x": invalid syntax
        400 parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006"
        400 container ../../pods is not valid for pod p"#]].assert_eq(&seen.join("\n"));
}

#[test]
fn proxies_lead_to_the_pod() {
    let test = context();
    let proxy = |name: &str, path: &str| ask(&test, name, "proxy", &json!({ "path": path }), "");
    let seen = [
        proxy("p", ""),
        proxy("p:9090", "/a/"),
        proxy("https:p:443", "/a/../../b"),
        proxy("https:v6:", "/"),
        proxy("waits", "/"),
        proxy("missing", "/"),
        proxy("p:web", "/"),
        proxy("gopher:p:1", "/"),
    ];
    expect![[r#"
        Address("10.2.0.1") 8080 Plain  AsReceived
        Address("10.2.0.1") 9090 Plain /a/ AsReceived
        Address("10.2.0.1") 443 Unverified /b AsReceived
        Address("fd00::1") 443 Unverified / AsReceived
        400 address not allowed
        404 pods "missing" not found
        503 error trying to reach service: dial tcp: lookup tcp/web: unknown port
        400 invalid pod request "gopher:p:1""#]]
    .assert_eq(&seen.join("\n"));
}
