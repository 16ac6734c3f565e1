//! The scale subresource.

use super::Env;
use expect_test::expect;
use serde_json::{Value, json};

const PATH: &str = "apps/v1/deployments/default/d";
const SCALE: &str = "apps/v1/deployments/default/d/scale";

async fn deployment(env: &Env) -> Value {
    let body = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1,
        "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d", "e"]}]},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let made = env.create("apps/v1/deployments/default", body).await;
    assert_eq!(made.code, 201, "{}", made.show());
    made.body
}

#[tokio::test]
async fn scales_a_built_in_resource() {
    let env = Env::new().await;
    deployment(&env).await;
    let scale = env.get(SCALE).await;
    expect![[r#"
        200
        {
          "apiVersion": "autoscaling/v1",
          "kind": "Scale",
          "metadata": {
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "name": "d",
            "namespace": "default",
            "resourceVersion": "3",
            "uid": "f893a2ee-fb32-455e-b1c1-8690ee42c90b"
          },
          "spec": {
            "replicas": 1
          },
          "status": {
            "replicas": 0,
            "selector": "a=b,c in (d,e)"
          }
        }
    "#]]
    .assert_eq(&scale.show());
    let mut new = scale.body.clone();
    new["spec"]["replicas"] = json!(5);
    let put = env.put(&format!("{SCALE}?fieldManager=scaler"), &new).await;
    assert_eq!((put.code, &put.body["spec"]["replicas"]), (200, &json!(5)), "{}", put.show());
    let object = env.get(PATH).await.body;
    assert_eq!((&object["spec"]["replicas"], &object["metadata"]["generation"]), (&json!(5), &json!(2)));
    let managers: Vec<String> = object["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| {
            format!(
                "{} {} {} {}",
                e["manager"], e["operation"], e["subresource"], e["fieldsV1"]["f:spec"]["f:replicas"]
            )
        })
        .collect();
    expect![[r#"
        "scaler" "Update" "scale" {}
        "tester" "Update" null null"#]]
    .assert_eq(&managers.join("\n"));
    // The resourceVersion of the Scale is that of the object.
    let stale = env.put(SCALE, &new).await;
    expect![[r#"409 Conflict: Operation cannot be fulfilled on deployments.apps "d": the object has been modified; please apply your changes to the latest version and try again"#]].assert_eq(&stale.brief());
    let patched = env.patch("merge", SCALE, json!({"spec": {"replicas": 7}})).await;
    assert_eq!(patched.body["spec"]["replicas"], json!(7), "{}", patched.show());
    let applied = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 8}});
    expect![[r#"409 Conflict: Apply failed with 1 conflict: conflict with "tester" with subresource "scale" using autoscaling/v1: .spec.replicas"#]].assert_eq(&env.patch("apply", &format!("{SCALE}?fieldManager=m"), &applied).await.brief());
    let forced = env.patch("apply", &format!("{SCALE}?fieldManager=m&force=true"), &applied).await;
    assert_eq!(forced.body["spec"]["replicas"], json!(8), "{}", forced.show());
}

#[tokio::test]
async fn rejects_invalid_scales() {
    let env = Env::new().await;
    deployment(&env).await;
    let mut out = String::new();
    for patch in [
        json!({"spec": {"replicas": -1}}),
        json!({"metadata": {"name": "x"}}),
        json!({"metadata": {"uid": "x"}}),
        json!({"spec": {"replicas": "x"}}),
    ] {
        out += &format!("{patch}\n    {}\n", env.patch("merge", SCALE, &patch).await.brief());
    }
    out += &env.get("apps/v1/deployments/default/none/scale").await.brief();
    expect![[r#"
        {"spec":{"replicas":-1}}
            422 Invalid: Scale.autoscaling "d" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0
        {"metadata":{"name":"x"}}
            400 BadRequest: the name of the object (x) does not match the name on the URL (d)
        {"metadata":{"uid":"x"}}
            409 Conflict: Operation cannot be fulfilled on deployments/scale.apps "d": Precondition failed: UID in precondition: x, UID in object meta: f893a2ee-fb32-455e-b1c1-8690ee42c90b
        {"spec":{"replicas":"x"}}
            422 Invalid:  "" is invalid: patch: Invalid value: "{\"apiVersion\":\"autoscaling/v1\",\"kind\":\"Scale\",\"metadata\":{\"name\":\"d\",\"namespace\":\"default\",\"uid\":\"f893a2ee-fb32-455e-b1c1-8690ee42c90b\",\"resourceVersion\":\"3\",\"creationTimestamp\":\"2026-01-01T00:00:00Z\",\"managedFields\":[{\"manager\":\"tester\",\"operation\":\"Update\",\"apiVersion\":\"autoscaling/v1\",\"time\":\"2026-01-01T00:00:00Z\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:spec\":{\"f:replicas\":{}}}}]},\"spec\":{\"replicas\":\"x\"},\"status\":{\"replicas\":0,\"selector\":\"a=b,c in (d,e)\"}}": json: cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32
        404 NotFound: deployments.apps "none" not found"#]].assert_eq(&out);
}

#[tokio::test]
async fn scales_a_custom_resource() {
    let env = Env::new().await;
    let widget = |name: &str, spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec});
    let all = "example.com/v1/widgets/default";
    assert_eq!(env.create(all, widget("w", json!({"replicas": 2}))).await.code, 201);
    assert_eq!(env.create(all, widget("none", json!({}))).await.code, 201);
    let status = env
        .patch("merge", &format!("{all}/w/status"), json!({"status": {"replicas": 1, "selector": "a=b"}}))
        .await;
    assert_eq!(status.code, 200, "{}", status.show());
    let scale = |name: &str| format!("{all}/{name}/scale");
    let got = env.get(&scale("w")).await;
    assert_eq!(
        (&got.body["spec"], &got.body["status"]),
        (&json!({"replicas": 2}), &json!({"replicas": 1, "selector": "a=b"}))
    );
    let mut out = String::new();
    out += &format!("{}\n", env.get(&scale("none")).await.brief());
    out += &format!(
        "{}\n",
        env.patch("merge", &scale("none"), json!({"metadata": {"labels": {}}})).await.brief()
    );
    out += &format!("{}\n", env.patch("strategic", &scale("w"), json!({})).await.brief());
    expect![[r#"
        500 InternalError: Internal error occurred: the spec replicas field ".spec.replicas" does not exist
        400 BadRequest: the spec replicas field ".spec.replicas" cannot be empty
        415 UnsupportedMediaType: the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml
    "#]].assert_eq(&out);
    // Through another version than the stored one.
    let other = env
        .patch("merge", "example.com/v2/widgets/default/none/scale", json!({"spec": {"replicas": 4}}))
        .await;
    assert_eq!(other.body["spec"]["replicas"], json!(4), "{}", other.show());
}
