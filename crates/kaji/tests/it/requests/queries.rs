//! Query parameters: authorization and verbs take the same value of each, the one that upstream takes.

use super::grant;
use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person, user},
};
use kaji_auth::names::{AUTHENTICATED, NODES};
use serde_json::{Value, json};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Two secrets, and an account that may read the first.
async fn secrets() -> TestCluster {
    let test = TestCluster::start(0).await;
    for name in ["s1", "s2"] {
        ok(&test, &admin(), &format!("POST {SECRETS}"), json!({"metadata": {"name": name}})).await;
    }
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["s1"],
        "verbs": ["get", "list", "watch"]}]);
    grant(&test, "rita", rules).await;
    test
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_names_hold_for_repeated_selectors() {
    let test = secrets().await;
    let node = user("system:node:one", &[NODES, AUTHENTICATED]);
    for account in [person("rita"), node] {
        for query in [
            "fieldSelector=&fieldSelector=metadata.name%3Ds1",
            "fieldSelector&fieldSelector=metadata.name%3Ds1",
            "fieldSelector=metadata.name%3Ds2&fieldSelector=metadata.name%3Ds1",
            // Pairs that Go's parser drops.
            "fieldSelector=metadata.name%3Ds1;",
            "fieldSelector=metadata.name%3Ds1%",
            // Options that do not convert: no name is taken out of them.
            "fieldSelector=metadata.name%3Ds1&labelSelector=in%20(",
            "fieldSelector=metadata.name%3Ds1&limit=",
        ] {
            let (code, answer) = ask(&test, &account, &format!("GET {SECRETS}?{query}"), &Value::Null).await;
            assert_eq!(code, 403, "{} {query}: {answer}", account.name);
        }
        let legacy = "/api/v1/watch/namespaces/default/secrets?fieldSelector=metadata.name%3Ds1";
        let (code, _) = ask(&test, &account, &format!("GET {legacy}"), &Value::Null).await;
        assert_eq!(code, 403, "{}", account.name);
    }
    for query in
        ["fieldSelector=metadata.name%3Ds1&fieldSelector=", "fieldSelector=metadata.name%3Ds1&limit=1&limit="]
    {
        let list = ok(&test, &person("rita"), &format!("GET {SECRETS}?{query}"), Value::Null).await;
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
    }
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_dry_run_value_counts() {
    let test = TestCluster::start(0).await;
    let map = json!({"metadata": {"name": "m"}});
    for query in ["dryRun=", "dryRun", "dryRun=All&dryRun=", "dryRun=&dryRun=All", "dryRun=All&dryRun=x"] {
        let (code, answer) = ask(&test, &admin(), &format!("POST {MAPS}?{query}"), &map).await;
        assert_eq!(code, 422, "{query}: {answer}");
        let (code, _) = ask(&test, &admin(), &format!("GET {MAPS}/m"), &Value::Null).await;
        assert_eq!(code, 404, "{query}");
    }
    ok(&test, &admin(), &format!("POST {MAPS}?dryRun=All&dryRun=All"), map.clone()).await;
    ok(&test, &admin(), &format!("POST {MAPS}?dryRun=All;"), map).await;
    test.stop().await;
}

/// Code and message, or what kind of answer it is.
async fn show(test: &TestCluster, request: &str, body: &Value) -> String {
    let (code, answer) = ask(test, &admin(), request, body).await;
    let said = match (&answer["message"], answer.as_str()) {
        (Value::String(message), _) => message.clone(),
        (_, Some(text)) => {
            text.trim_end().lines().map(|line| line[..line.len().min(16)].to_owned()).collect()
        }
        _ => answer["kind"].as_str().unwrap_or("an event").to_owned(),
    };
    format!("{code} {said}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_are_read_as_upstream_reads_them() {
    let test = secrets().await;
    let mut seen = String::new();
    for query in [
        "watch=f&timeoutSeconds=-1",
        "watch&timeoutSeconds=-1",
        "watch=FALSE",
        "watch=0&watch=1",
        "Watch=1",
        "limit=",
        "limit=1_0",
        "limit=%2B1",
        "limit=-1",
        "limit=1&limit=x",
        "timeoutSeconds=",
        "timeoutSeconds=-1",
        "watch=1&timeoutSeconds=",
        "resourceVersion=&resourceVersion=x",
        "sendInitialEvents=",
        "labelSelector=in%20(",
        "fieldSelector=metadata.name",
        "fieldSelector=metadata.name&limit=x",
        "export=true",
    ] {
        seen += &format!("{query}: {}\n", show(&test, &format!("GET {SECRETS}?{query}"), &Value::Null).await);
    }
    for query in [
        "export=true",
        "export=",
        "export=false",
        "export=0&export=1",
        "resourceVersion=x",
        "timeout=x",
        "timeout=&timeout=x",
    ] {
        seen +=
            &format!("{query}: {}\n", show(&test, &format!("GET {SECRETS}/s1?{query}"), &Value::Null).await);
    }
    for query in ["force=", "force=false", "dryRun="] {
        seen +=
            &format!("{query}: {}\n", show(&test, &format!("PATCH {SECRETS}/s1?{query}"), &json!({})).await);
    }
    for query in [
        "gracePeriodSeconds=",
        "gracePeriodSeconds=0&gracePeriodSeconds=x&dryRun=All",
        "propagationPolicy=",
        "propagationPolicy=Background&propagationPolicy=x&dryRun=All",
        "orphanDependents=&propagationPolicy=Background",
        "dryRun=",
        "dryRun=All&dryRun=",
        "ignoreStoreReadErrorWithClusterBreakingPotential=1&dryRun=All",
    ] {
        seen += &format!(
            "{query}: {}\n",
            show(&test, &format!("DELETE {SECRETS}/s1?{query}"), &Value::Null).await
        );
    }
    for query in [
        "dryRun=&labelSelector=a%3Db",
        "dryRun=All&watch=1",
        "dryRun=All&limit=",
        "dryRun=All&sendInitialEvents=1",
    ] {
        seen +=
            &format!("{query}: {}\n", show(&test, &format!("DELETE {SECRETS}?{query}"), &Value::Null).await);
    }
    expect_test::expect![[r#"
        watch=f&timeoutSeconds=-1: 200 
        watch&timeoutSeconds=-1: 200 
        watch=FALSE: 200 SecretList
        watch=0&watch=1: 200 SecretList
        Watch=1: 200 SecretList
        limit=: 400 strconv.ParseInt: parsing "": invalid syntax
        limit=1_0: 400 strconv.ParseInt: parsing "1_0": invalid syntax
        limit=%2B1: 200 SecretList
        limit=-1: 200 SecretList
        limit=1&limit=x: 200 SecretList
        timeoutSeconds=: 400 strconv.ParseInt: parsing "": invalid syntax
        timeoutSeconds=-1: 200 SecretList
        watch=1&timeoutSeconds=: 400 strconv.ParseInt: parsing "": invalid syntax
        resourceVersion=&resourceVersion=x: 200 SecretList
        sendInitialEvents=: 422 ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list
        labelSelector=in%20(: 400 unable to parse requirement: found '(', expected: in, notin, =, ==, !=, gt, lt
        fieldSelector=metadata.name: 400 invalid selector: 'metadata.name'; can't understand 'metadata.name'
        fieldSelector=metadata.name&limit=x: 400 strconv.ParseInt: parsing "x": invalid syntax
        export=true: 200 SecretList
        export=true: 400 the export parameter, deprecated since v1.14, is no longer supported
        export=: 400 the export parameter, deprecated since v1.14, is no longer supported
        export=false: 200 Secret
        export=0&export=1: 200 Secret
        resourceVersion=x: 500 resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax
        timeout=x: 400 invalid timeout specified in the request URL - time: invalid duration "x"
        timeout=&timeout=x: 200 Secret
        force=: 422 PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch
        force=false: 422 PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch
        dryRun=: 422 PatchOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: [""]: supported values: "All"
        gracePeriodSeconds=: 400 strconv.ParseInt: parsing "": invalid syntax
        gracePeriodSeconds=0&gracePeriodSeconds=x&dryRun=All: 200 Status
        propagationPolicy=: 422 DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "": supported values: "Foreground", "Background", "Orphan", "nil"
        propagationPolicy=Background&propagationPolicy=x&dryRun=All: 200 Status
        orphanDependents=&propagationPolicy=Background: 422 DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Invalid value: "Background": orphanDependents and deletionPropagation cannot be both set
        dryRun=: 422 DeleteOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: [""]: supported values: "All"
        dryRun=All&dryRun=: 422 DeleteOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["All",""]: supported values: "All"
        ignoreStoreReadErrorWithClusterBreakingPotential=1&dryRun=All: 409 Operation cannot be fulfilled on secrets "s1": StorageError: invalid object, Code: 4, Key: /registry/secrets/default/s1, ResourceVersion: 0, AdditionalErrorMsg: unsafe deletion is not allowed because the object is decodable from storage
        dryRun=&labelSelector=a%3Db: 422 DeleteOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: [""]: supported values: "All"
        dryRun=All&watch=1: 200 SecretList
        dryRun=All&limit=: 400 strconv.ParseInt: parsing "": invalid syntax
        dryRun=All&sendInitialEvents=1: 422 ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list
    "#]].assert_eq(&seen);
    test.stop().await;
}

/// Of headers that have one value the first counts, for authorization as for what follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_headers_count_once() {
    let test = secrets().await;
    let list = format!("GET {SECRETS}?fieldSelector=metadata.name%3Ds1");
    let mut seen = String::new();
    for headers in [
        "impersonate-user: rita\nimpersonate-user: bob",
        "impersonate-user: bob\nimpersonate-user: rita",
        "impersonate-user: bob\nimpersonate-group: a\nimpersonate-group: system:masters",
        "accept: application/json\naccept: application/xml",
        "accept: application/xml\naccept: application/json",
    ] {
        seen += &format!("{headers:?}: {}\n", show(&test, &format!("{list}\n{headers}"), &Value::Null).await);
    }
    // The first content type is JSON.
    for kind in ["application/xml", "application/yaml"] {
        let request = format!("POST {MAPS}?dryRun=All\ncontent-type: {kind}");
        seen += &format!("{kind}: {}\n", show(&test, &request, &json!({"metadata": {"name": "m"}})).await);
    }
    expect_test::expect![[r#"
        "impersonate-user: rita\nimpersonate-user: bob": 200 SecretList
        "impersonate-user: bob\nimpersonate-user: rita": 403 secrets "s1" is forbidden: User "bob" cannot list resource "secrets" in API group "" in the namespace "default"
        "impersonate-user: bob\nimpersonate-group: a\nimpersonate-group: system:masters": 200 SecretList
        "accept: application/json\naccept: application/xml": 200 SecretList
        "accept: application/xml\naccept: application/json": 406 only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf
        application/xml: 201 ConfigMap
        application/yaml: 201 ConfigMap
    "#]].assert_eq(&seen);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn preconditions_come_in_the_query_too() {
    let test = TestCluster::start(0).await;
    let map = json!({"metadata": {"name": "m"}});
    let made = ok(&test, &admin(), &format!("POST {MAPS}"), map).await;
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let revision = made["metadata"]["resourceVersion"].as_str().unwrap();
    let mut seen = String::new();
    for query in [
        "uid=x",
        "resourceVersion=1",
        "resourceVersion=x",
        "uid=x&resourceVersion=1",
        &format!("uid={uid}&resourceVersion=1"),
        "uid=x&uid=",
    ] {
        for path in [format!("{MAPS}/m"), MAPS.to_owned()] {
            let (code, answer) = ask(&test, &admin(), &format!("DELETE {path}?{query}"), &Value::Null).await;
            seen += &format!(
                "{} {query}: {code} {}\n",
                path.len() - MAPS.len(),
                answer["message"].as_str().unwrap_or_default()
            );
            ok(&test, &admin(), &format!("GET {MAPS}/m"), Value::Null).await;
        }
    }
    let seen = seen.replace(uid, "UID").replace(&format!("({revision})"), "(REVISION)");
    expect_test::expect![[r#"
        2 uid=x: 409 Operation cannot be fulfilled on ConfigMap "m": the UID in the precondition (x) does not match the UID in record (UID). The object might have been deleted and then recreated
        0 uid=x: 409 Operation cannot be fulfilled on ConfigMap "m": the UID in the precondition (x) does not match the UID in record (UID). The object might have been deleted and then recreated
        2 resourceVersion=1: 409 Operation cannot be fulfilled on ConfigMap "m": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (REVISION). The object might have been modified
        0 resourceVersion=1: 200 
        2 resourceVersion=x: 409 Operation cannot be fulfilled on ConfigMap "m": the ResourceVersion in the precondition (x) does not match the ResourceVersion in record (REVISION). The object might have been modified
        0 resourceVersion=x: 400 invalid resource version: resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax
        2 uid=x&resourceVersion=1: 409 Operation cannot be fulfilled on ConfigMap "m": the UID in the precondition (x) does not match the UID in record (UID). The object might have been deleted and then recreated
        0 uid=x&resourceVersion=1: 200 
        2 uid=UID&resourceVersion=1: 409 Operation cannot be fulfilled on ConfigMap "m": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (REVISION). The object might have been modified
        0 uid=UID&resourceVersion=1: 200 
        2 uid=x&uid=: 409 Operation cannot be fulfilled on ConfigMap "m": the UID in the precondition (x) does not match the UID in record (UID). The object might have been deleted and then recreated
        0 uid=x&uid=: 409 Operation cannot be fulfilled on ConfigMap "m": the UID in the precondition (x) does not match the UID in record (UID). The object might have been deleted and then recreated
    "#]].assert_eq(&seen);
    // The first value counts, an empty one is none, and with a body the query is not looked at.
    ok(&test, &admin(), &format!("DELETE {MAPS}/m?uid=&uid=x&dryRun=All"), Value::Null).await;
    ok(&test, &admin(), &format!("DELETE {MAPS}/m?uid=x"), json!({"dryRun": ["All"]})).await;
    ok(&test, &admin(), &format!("DELETE {MAPS}/m?uid={uid}&resourceVersion={revision}"), Value::Null).await;
    let (code, _) = ask(&test, &admin(), &format!("GET {MAPS}/m"), &Value::Null).await;
    assert_eq!(code, 404);
    test.stop().await;
}
