//! Files that are good, and what is wrong with others.

use super::*;
use serde_json::json;

fn config(authorizers: Value) -> Value {
    json!({"apiVersion": VERSIONS[0], "kind": "AuthorizationConfiguration", "authorizers": authorizers})
}

fn one(kind: &str, name: &str) -> Value {
    json!({"type": kind, "name": name})
}

#[test]
fn reads_and_rejects_lists_of_authorizers() {
    let all = [
        config(json!([one("Node", "node"), one("RBAC", "rbac")])),
        config(json!([one("AlwaysDeny", "alwaysdeny"), one("ABAC", "abac")])),
        config(json!([])),
        config(json!([one("", ""), one("X", "x"), one("RBAC", ""), one("RBAC", "rbac")])),
        config(json!([one("RBAC", "Rbac"), one("AlwaysDeny", "alwaysdeny"), one("Node", "alwaysdeny")])),
        config(json!([one("RBAC", "roles"), one("Node", "mine")])),
        config(json!([{"type": "Webhook", "name": "w"}, {"type": "Node", "name": "node", "webhook": {}}])),
        config(json!([{"type": "Node", "name": "node", "webhok": {}}])),
        config(json!([{"type": 1}])),
        config(json!("RBAC")),
        config(json!(["RBAC"])),
        json!({"apiVersion": "v1", "kind": "ConfigMap"}),
    ];
    let mut shown = all.map(|c| format!("{:?}", parse(&c, &[]))).to_vec();
    shown.push(format!("{:?}", parse(&config(json!([one("RBAC", "roles")])), &["Node", "AlwaysDeny"])));
    expect_test::expect![[r#"
        Ok([Node, Rbac])
        Ok([AlwaysDeny, Abac])
        Err("authorizers: Required value: at least one authorization mode must be defined")
        Err("[authorizers[0].type: Required value, authorizers[1].type: Unsupported value: \"X\": supported values: \"ABAC\", \"AlwaysAllow\", \"AlwaysDeny\", \"Node\", \"RBAC\", \"Webhook\", authorizers[2].name: Required value, authorizers[3].type: Duplicate value: \"RBAC\"]")
        Err("[authorizers[0].name: Invalid value: \"Rbac\": authorizer name is invalid: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'), authorizers[2].name: Duplicate value: \"alwaysdeny\"]")
        Err("[expected name rbac for authorizer RBAC instead of roles, expected name node for authorizer Node instead of mine]")
        Err("[authorizers[0].webhook: Required value: required when type=Webhook, authorizers[1].webhook: Invalid value: \"non-null\": may only be specified when type=Webhook]")
        Err("failed to load AuthorizationConfiguration from file: strict decoding error: unknown field \"authorizers[0].webhok\"")
        Err("failed to load AuthorizationConfiguration from file: strict decoding error: authorizers[0].type: expected a string")
        Err("failed to load AuthorizationConfiguration from file: strict decoding error: authorizers: expected a list")
        Err("failed to load AuthorizationConfiguration from file: strict decoding error: authorizers[0]: expected an object")
        Err("failed to load AuthorizationConfiguration from file: no kind \"ConfigMap\" is registered for version \"v1\": expected AuthorizationConfiguration of apiserver.config.k8s.io/v1")
        Err("[expected name rbac for authorizer RBAC instead of roles, missing required types: [Node AlwaysDeny]]")"#]].assert_eq(&shown.join("\n"));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn validates_webhook_authorizers() {
    let file = tempfile();
    let good = json!({
        "timeout": "3s",
        "subjectAccessReviewVersion": "v1",
        "failurePolicy": "Deny",
        "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": file},
    });
    let with = |changes: Value| {
        let mut webhook = good.clone();
        for (key, value) in changes.as_object().unwrap() {
            webhook[key] = value.clone();
        }
        let entry = json!({"type": "Webhook", "name": "w", "webhook": webhook});
        match parse(&config(json!([entry])), &[]) {
            Ok(modes) => format!("{:?}", modes[0]),
            Err(error) => error,
        }
    };
    let connected =
        |kind: &str, file: &str| with(json!({"connectionInfo": {"type": kind, "kubeConfigFile": file}}));
    let all = [
        with(json!({})),
        with(
            json!({"authorizedTTL": "1m30s", "cacheUnauthorizedRequests": false, "failurePolicy": "NoOpinion", "subjectAccessReviewVersion": "v1beta1"}),
        ),
        with(
            json!({"timeout": null, "subjectAccessReviewVersion": "", "failurePolicy": null, "connectionInfo": null}),
        ),
        with(
            json!({"timeout": "31s", "authorizedTTL": "-1s", "unauthorizedTTL": "-1m", "failurePolicy": "Allow", "subjectAccessReviewVersion": "v2"}),
        ),
        with(json!({"timeout": "-1s"})),
        with(json!({"timeout": "soon"})),
        with(json!({"timeout": 3})),
        with(json!({"cacheAuthorizedRequests": "yes"})),
        with(json!({"ttl": "3s"})),
        connected("KubeConfigFile", ""),
        connected("KubeConfigFile", "config"),
        connected("KubeConfigFile", "/nowhere/to/be/found"),
        connected("KubeConfigFile", "/"),
        connected("InClusterConfig", "/x"),
        connected("File", "/x"),
        with(json!({"matchConditions": [{"expression": "true"}]})),
        with(
            json!({"matchConditions": [{"expression": "a"}, {"expression": " "}, {"expression": "a"}], "matchConditionSubjectAccessReviewVersion": "v1beta1"}),
        ),
        with(json!({"matchConditions": [{"expresion": "a"}]})),
        with(
            json!({"matchConditions": vec![json!({"expression": "a"}); 65], "matchConditionSubjectAccessReviewVersion": "v1"}),
        ),
    ];
    let shown = all.join("\n").replace(&file, "FILE");
    std::fs::remove_file(&file).unwrap();
    expect_test::expect![[r#"
        Webhook(WebhookConfig { name: "w", timeout: 3s, authorized_ttl: 300s, unauthorized_ttl: 30s, version: "v1", on_failure: Deny, kubeconfig: "FILE", conditions: [] })
        Webhook(WebhookConfig { name: "w", timeout: 3s, authorized_ttl: 90s, unauthorized_ttl: 0ns, version: "v1beta1", on_failure: NoOpinion, kubeconfig: "FILE", conditions: [] })
        [authorizers[0].timeout: Required value, authorizers[0].subjectAccessReviewVersion: Required value, authorizers[0].failurePolicy: Required value, authorizers[0].connectionInfo.type: Required value]
        [authorizers[0].timeout: Invalid value: "31s": must be > 0s and <= 30s, authorizers[0].authorizedTTL: Invalid value: "-1s": must be > 0s, authorizers[0].unauthorizedTTL: Invalid value: "-1m": must be > 0s, authorizers[0].subjectAccessReviewVersion: Unsupported value: "v2": supported values: "v1", "v1beta1", authorizers[0].failurePolicy: Unsupported value: "Allow": supported values: "NoOpinion", "Deny"]
        authorizers[0].timeout: Invalid value: "-1s": must be > 0s and <= 30s
        failed to load AuthorizationConfiguration from file: strict decoding error: authorizers[0].webhook.timeout: "soon" cannot be used here
        failed to load AuthorizationConfiguration from file: strict decoding error: authorizers[0].webhook.timeout: 3 cannot be used here
        failed to load AuthorizationConfiguration from file: strict decoding error: authorizers[0].webhook.cacheAuthorizedRequests: "yes" cannot be used here
        failed to load AuthorizationConfiguration from file: strict decoding error: unknown field "authorizers[0].webhook.ttl"
        authorizers[0].connectionInfo.kubeConfigFile: Required value
        authorizers[0].connectionInfo.kubeConfigFile: Invalid value: "config": must be an absolute path
        authorizers[0].connectionInfo.kubeConfigFile: Invalid value: "/nowhere/to/be/found": error loading file: No such file or directory (os error 2)
        authorizers[0].connectionInfo.kubeConfigFile: Invalid value: "/": must be a regular file
        [authorizers[0].connectionInfo.kubeConfigFile: Invalid value: "/x": can only be set when type=KubeConfigFile, authorizers[0].connectionInfo.type: Invalid value: "InClusterConfig": the API server itself runs in no pod; use KubeConfigFile]
        authorizers[0].connectionInfo.type: Unsupported value: "File": supported values: "InClusterConfig", "KubeConfigFile"
        authorizers[0].matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified
        [authorizers[0].matchConditionSubjectAccessReviewVersion: Unsupported value: "v1beta1": supported values: "v1", authorizers[0].matchConditions[0].expression: Invalid value: "a": compilation failed: ERROR: <input>:1:1: undeclared reference to 'a' (in container '')
         | a
         | ^, authorizers[0].matchConditions[1].expression: Required value, authorizers[0].matchConditions[2].expression: Duplicate value: "a"]
        failed to load AuthorizationConfiguration from file: strict decoding error: unknown field "authorizers[0].webhook.matchConditions[0].expresion"
        authorizers[0].matchConditions: Too many: 65: must have at most 64 items"#]].assert_eq(&shown);
}

/// An empty file for one test.
fn tempfile() -> String {
    let path = std::env::temp_dir().join(format!("kaji-authz-{}", std::process::id()));
    std::fs::write(&path, "").unwrap();
    path.to_str().unwrap().to_owned()
}
