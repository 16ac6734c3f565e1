//! Tests of `jsonpath`: fixtures in, expectations out.

use super::*;
use expect_test::expect;
use proptest::prelude::*;
use serde_json::json;

fn run(path: &str) -> String {
    let doc = json!({
        "metadata": {"name": "x", "labels": {"kubernetes.io/os": "linux", "a-b": "1"}},
        "spec": {"ports": [{"port": 80, "name": "http"}, {"port": 443, "name": "https"}, {"port": 8443}]},
        "status": {"conditions": [{"type": "Ready", "status": "True", "n": 1}, {"type": "Other", "status": "False", "n": 2.5}]}
    });
    match JsonPath::compile(path) {
        Ok(p) => p.find(&doc).iter().map(|v| v.to_string()).collect::<Vec<_>>().join(" "),
        Err(e) => format!("error: {e}"),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn evaluates_paths() {
    let paths = [
        ".metadata.name",
        "{.metadata.name}",
        "$.metadata.name",
        "metadata.name",
        ".metadata.labels.kubernetes\\.io/os",
        ".metadata.labels['kubernetes.io/os']",
        ".metadata.labels[\"a-b\"]",
        ".metadata.labels.a-b",
        ".metadata.labels['a-b','kubernetes.io/os']",
        ".spec.ports[0].port",
        ".spec.ports[-1].port",
        ".spec.ports[7].port",
        ".spec.ports[*].name",
        ".spec.ports[1:].port",
        ".spec.ports[:-1].port",
        ".spec.ports[::2].port",
        ".spec.ports[0,2].port",
        ".metadata.labels.*",
        "..port",
        ".status.conditions[?(@.type==\"Ready\")].status",
        ".status.conditions[?(@.type=='Ready')].status",
        ".status.conditions[?(@.type != \"Ready\")].status",
        ".status.conditions[?(@.n>1)].type",
        ".status.conditions[?(@.n<=1)].type",
        ".spec.ports[?(@.name)].port",
        ".spec.ports[?(@.name == $.nope)].port",
        ".missing.x",
        ".spec.ports.port",
        ".",
        "",
        ".spec.ports[",
        ".spec.ports[x]",
        ".spec.ports[0:1:0]",
        ".spec ports",
        ".spec..",
    ];
    let text: String = paths.iter().map(|p| format!("{p} => {}\n", run(p))).collect();
    expect![[r#"
        .metadata.name => "x"
        {.metadata.name} => "x"
        $.metadata.name => "x"
        metadata.name => "x"
        .metadata.labels.kubernetes\.io/os => "linux"
        .metadata.labels['kubernetes.io/os'] => "linux"
        .metadata.labels["a-b"] => "1"
        .metadata.labels.a-b => "1"
        .metadata.labels['a-b','kubernetes.io/os'] => "1" "linux"
        .spec.ports[0].port => 80
        .spec.ports[-1].port => 8443
        .spec.ports[7].port => 
        .spec.ports[*].name => "http" "https"
        .spec.ports[1:].port => 443 8443
        .spec.ports[:-1].port => 80 443
        .spec.ports[::2].port => 80 8443
        .spec.ports[0,2].port => 80 8443
        .metadata.labels.* => "1" "linux"
        ..port => 80 443 8443
        .status.conditions[?(@.type=="Ready")].status => "True"
        .status.conditions[?(@.type=='Ready')].status => "True"
        .status.conditions[?(@.type != "Ready")].status => "False"
        .status.conditions[?(@.n>1)].type => "Other"
        .status.conditions[?(@.n<=1)].type => "Ready"
        .spec.ports[?(@.name)].port => 80 443
        .spec.ports[?(@.name == $.nope)].port => 
        .missing.x => 
        .spec.ports.port => 
        . => {"metadata":{"labels":{"a-b":"1","kubernetes.io/os":"linux"},"name":"x"},"spec":{"ports":[{"name":"http","port":80},{"name":"https","port":443},{"port":8443}]},"status":{"conditions":[{"n":1,"status":"True","type":"Ready"},{"n":2.5,"status":"False","type":"Other"}]}}
         => {"metadata":{"labels":{"a-b":"1","kubernetes.io/os":"linux"},"name":"x"},"spec":{"ports":[{"name":"http","port":80},{"name":"https","port":443},{"port":8443}]},"status":{"conditions":[{"n":1,"status":"True","type":"Ready"},{"n":2.5,"status":"False","type":"Other"}]}}
        .spec.ports[ => error: unterminated array
        .spec.ports[x] => error: invalid array index x
        .spec.ports[0:1:0] => error: step must be > 0
        .spec ports => error: unrecognized character in action: " ports"
        .spec.. => error: field name expected
    "#]]
    .assert_eq(&text);
}

#[test]
fn recognizes_simple_paths() {
    let p = JsonPath::compile(".spec.a\\.b").unwrap();
    assert_eq!(p.simple_path(), Some(vec!["spec", "a.b"]));
    assert_eq!(p.first(&json!({"spec": {"a.b": 1}})), Some(&json!(1)));
    assert_eq!(JsonPath::compile(".a[0]").unwrap().simple_path(), None);
    assert!(JsonPath::compile(&".a".repeat(5000)).is_err());
    assert!(JsonPath::compile(&format!("{}@.a{}", "[?(".repeat(50), ")]".repeat(50))).is_err());
}

proptest! {
    #[test]
    fn never_panics(text in "[\\.\\[\\]\\*\\?\\(\\)@\\$'\":,\\\\a-c0-9=<>!{} -]{0,40}") {
        if let Ok(p) = JsonPath::compile(&text) {
            p.find(&json!({"a": [{"b": 1, "c": ["x"]}, [1, 2, 3]], "b": {"a": {"c": null}}}));
            p.first(&json!([]));
        }
    }

    #[test]
    fn compiles_or_rejects_any_text_without_panic(text in ".{0,60}") {
        if let Ok(p) = JsonPath::compile(&text) {
            p.find(&json!({"a": 1}));
        }
    }
}
