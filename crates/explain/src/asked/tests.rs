//! What each form of a question is answered with.

use super::*;
use crate::testing::fixture;
use serde_json::json;

const REFUSED: &str =
    r#"pods "web" is forbidden: User "bob" cannot get resource "pods" in API group "" in the namespace "d""#;

#[tokio::test]
async fn parameters_name_an_object_or_a_refusal() {
    let server = fixture(&[
        json!({"kind": "PersistentVolumeClaim", "name": "data", "namespace": "e", "status": {"phase": "Pending"}}),
        json!({"kind": "Service", "name": "web"}),
    ]);
    let long = "x".repeat(LONGEST + 1);
    let mut said = vec![];
    for pairs in [
        vec![("subject", "persistentvolumeclaim/data"), ("namespace", "e")],
        vec![("subject", "service/web")],
        vec![("subject", "service/web"), ("namespace", "")],
        vec![("subject", "service/web"), ("namespace", "e")],
        vec![("refusal", REFUSED)],
        vec![("refusal", "nonsense")],
        vec![("subject", "service")],
        vec![("namespace", "e")],
        vec![("subject", &long)],
        vec![("refusal", &long)],
    ] {
        let query = pairs.iter().fold(Query::default(), |query, (name, value)| query.with(name, value));
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        said.push(match answer(&server, &query, "d", now).await {
            Ok(report) => report.subject,
            Err(error) => format!("{error:?}"),
        });
    }
    expect_test::expect![[r#"
        PersistentVolumeClaim e/data
        Service d/web
        Service d/web
        NotFound("services \"web\" not found")
        bob may not get pods web in the namespace d
        Subject("this is no refusal of the API server")
        Subject("\"service\" is no KIND/NAME, such as pod/web")
        Subject("\"\" is no KIND/NAME, such as pod/web")
        Subject("subject has more than 16384 bytes")
        Subject("refusal has more than 16384 bytes")"#]]
    .assert_eq(&said.join("\n"));
}
