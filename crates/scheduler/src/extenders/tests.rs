//! What extenders may be, and answers that are none.

use super::{config, wire};
use serde_json::{Value, json};

fn parse(extenders: &Value) -> String {
    match config::parse(extenders).map(super::Extenders::new) {
        Err(error) | Ok(Err(error)) => error,
        Ok(Ok(extenders)) => {
            let shown = extenders.0.iter().map(|extender| {
                let config = &extender.config;
                format!("{} {:?} insecure={}", config.url_prefix, config.timeout, config.tls.insecure)
            });
            shown.collect::<Vec<_>>().join("; ")
        }
    }
}

fn with(rest: &Value) -> String {
    let mut extender = json!({"urlPrefix": "http://x"});
    for (key, value) in rest.as_object().unwrap() {
        extender[key] = value.clone();
    }
    parse(&json!([extender]))
}

#[test]
fn extenders_are_validated() {
    let resource = |name: &str| json!({"managedResources": [{"name": name}]});
    let lines = [
        parse(
            &json!([{"urlPrefix": "http://x"}, {"urlPrefix": "https://y:1/z", "enableHTTPS": true, "httpTimeout": "1m"}]),
        ),
        with(&json!({"httpTimeout": "0s"})),
        with(&json!({"httpTimeout": "-1s"})),
        with(&json!({"httpTimeout": "soon"})),
        with(&json!({"urlPrefix": "ftp://x"})),
        with(&json!({"urlPrefix": "x y"})),
        with(&json!({"urlPrefix": ""})),
        with(&json!({"prioritizeVerb": "p"})),
        with(&json!({"weight": "heavy"})),
        with(&resource("cpu")),
        with(&resource("kubernetes.io/x")),
        with(&resource("a/b/c")),
        with(&json!({"managedResources": [{"name": "a.b/c"}, {"name": "a.b/c"}]})),
        with(&json!({"tlsConfig": {"insecure": true, "caData": "eA=="}})),
        with(&json!({"tlsConfig": {"caData": "?"}})),
        with(&json!({"tlsConfig": {"certData": "eA=="}})),
        with(&json!({"urlPrefix": "https://x", "tlsConfig": {"caData": "eA=="}})),
        parse(
            &json!([{"urlPrefix": "http://x", "bindVerb": "b"}, {"urlPrefix": "http://y", "bindVerb": "b"}]),
        ),
        parse(&json!({"urlPrefix": "http://x"})),
        with(&json!({"tlsConfig": {"caFile": "/does/not/exist"}})),
    ];
    expect_test::expect![[r#"
        http://x 5s insecure=false; https://y:1/z 60s insecure=true
        http://x 5s insecure=false
        extenders[0].httpTimeout: Invalid value: "-1s": must not be negative
        extenders[0].httpTimeout: time: invalid duration "soon"
        extender "ftp://x": unsupported protocol scheme "ftp"
        extender "x y": invalid uri character
        extender "": empty string
        extenders[0].weight: Invalid value: 0: must have a positive weight applied to it
        extenders[0]: invalid type: string "heavy", expected i64
        extenders[0].managedResources[0].name: Invalid value: "cpu": is an invalid extended resource name
        extenders[0].managedResources[0].name: Invalid value: "kubernetes.io/x": is an invalid extended resource name
        extenders[0].managedResources[0].name: Invalid value: "a/b/c": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')
        extenders[0].managedResources[1].name: Invalid value: "a.b/c": duplicate extender managed resource name
        extenders[0].tlsConfig: specifying a root certificates file with the insecure flag is not allowed
        extenders[0].tlsConfig.caData: Invalid symbol 63, offset 0.
        extenders[0].tlsConfig: a certificate and its key are needed together
        extender "https://x": unable to load root certificates: unable to parse bytes as PEM block
        extenders: Invalid value: "found 2 extenders implementing bind": only one extender can implement bind
        extenders: must be a list
        extenders[0].tlsConfig.caFile: /does/not/exist: No such file or directory (os error 2)"#]].assert_eq(&lines.join("\n"));
}

#[test]
fn members_are_found_whatever_their_case_and_null_is_nothing() {
    let answer = br#"{"nodenames": null, "NODES": {"Items": [{"Metadata": {"name": "a"}}, {}]}, "failednodes": {"B": "b"}, "error": null, "more": [1]}"#;
    let result = wire::FilterResult::parse(answer).unwrap();
    assert_eq!(result.nodes, Some(vec!["a".to_owned(), String::new()]));
    assert_eq!((result.node_names, result.error.as_str()), (None, ""));
    assert_eq!(result.failed.into_iter().collect::<Vec<_>>(), [("B".to_owned(), "b".to_owned())]);
    assert_eq!(wire::FilterResult::parse(b"null").unwrap(), wire::FilterResult::default());
}

#[test]
fn garbage_is_refused() {
    let garbage: [&[u8]; 8] = [
        b"",
        b"\xff",
        b"[",
        b"7",
        b"\"x\"",
        b"[[]]",
        b"{\"Nodes\": 1, \"Error\": 1}",
        b"{\"NodeNameToMetaVictims\": [], \"Score\": {}",
    ];
    for answer in garbage {
        assert!(wire::FilterResult::parse(answer).is_err(), "{answer:?}");
        assert!(wire::scores(answer).is_err(), "{answer:?}");
        assert!(wire::victims(answer).is_err() || answer.starts_with(b"{\"Nodes\""), "{answer:?}");
        assert!(wire::bound(answer).is_err(), "{answer:?}");
    }
}
