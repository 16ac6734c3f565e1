//! The engine's response as JSON, whatever media type the client requested.

use bytes::Bytes;
use kaji_audit::{ResponseStatus, compact};
use kaji_engine::{ApiResponse, Body};
use kaji_meta::gvk::split_api_version;
use kaji_schema::{protobuf, types};
use serde_json::Value;

const PARTIAL: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// A whole body as one line of JSON; `None` for what is no object.
pub(super) fn json(content_type: &str, body: &Bytes) -> Option<Bytes> {
    match media(content_type) {
        "application/json" => compact(body.clone()),
        "application/yaml" => {
            let value: Value = serde_saphyr::from_slice(body).ok()?;
            Some(value.to_string().into())
        }
        "application/vnd.kubernetes.protobuf" => Some(decoded(body)?.to_string().into()),
        _ => None,
    }
}

fn media(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default()
}

fn decoded(body: &[u8]) -> Option<Value> {
    let envelope = protobuf::open(body).ok()?;
    let (api_version, kind) = (envelope.api_version, envelope.kind);
    let schema = match kind.as_str() {
        "PartialObjectMetadata" | "PartialObjectMetadataList" => types::lookup(&format!("{PARTIAL}.{kind}")),
        _ => {
            let (group, version) = split_api_version(&api_version)?;
            types::for_gvk(group, version, &kind)
        }
    }?;
    let mut value = protobuf::decode(&schema, envelope.raw).ok()?;
    let map = value.as_object_mut()?;
    map.insert("apiVersion".into(), api_version.into());
    map.insert("kind".into(), kind.into());
    Some(value)
}

/// The response as a Status, if it is one.
pub(crate) fn status(response: &ApiResponse) -> Option<ResponseStatus> {
    let Body::Full(body) = &response.body else { return None };
    let media = media(response.content_type);
    if response.code < 400 && !looks_like_status(media, body) {
        return None;
    }
    let value: Value = serde_json::from_slice(&json(media, body)?).ok()?;
    (value.get("kind").and_then(Value::as_str) == Some("Status")).then(|| ResponseStatus::of(&value))
}

/// Whether a body has the kind Status near its beginning.
fn looks_like_status(media: &str, body: &[u8]) -> bool {
    const NEAR: usize = 96;
    if media == "application/vnd.kubernetes.protobuf" {
        return protobuf::open(body).is_ok_and(|e| e.kind == "Status");
    }
    // How nearly all bodies begin.
    if let Some(rest) = body.strip_prefix(b"{\"kind\":\"") {
        return rest.starts_with(b"Status\"");
    }
    let bare = |b: &u8| !b.is_ascii_whitespace() && *b != b'"';
    let head: Vec<u8> = body.iter().take(NEAR).copied().filter(bare).collect();
    let kind = b"kind:Status";
    head.windows(kind.len()).any(|w| w == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::{GroupResource, Status};

    fn full(code: u16, content_type: &'static str, body: impl Into<Bytes>) -> ApiResponse {
        ApiResponse {
            code,
            content_type,
            warnings: vec![],
            annotations: vec![],
            body: Body::Full(body.into()),
        }
    }

    #[test]
    fn statuses_are_found_in_every_form() {
        let refusal = ApiResponse::from(Status::not_found(&GroupResource::new("", "pods"), "a"));
        let schema = types::for_gvk("", "v1", "Status").unwrap();
        let done = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
        let proto = protobuf::object(&schema, "v1", "Status", &done).unwrap();
        let answers = [
            refusal,
            full(200, "application/json", r#"{"kind":"Status","apiVersion":"v1","status":"Success"}"#),
            full(200, "application/json", "{\n  \"kind\": \"Status\",\n  \"status\": \"Success\"\n}\n"),
            full(200, "application/yaml", "apiVersion: v1\nkind: Status\nstatus: Success\n"),
            full(200, "application/vnd.kubernetes.protobuf", proto),
            full(200, "application/json", r#"{"kind":"Pod","apiVersion":"v1","status":{}}"#),
        ];
        let got: Vec<String> = answers
            .iter()
            .map(|a| status(a).map_or("-".into(), |s| format!("{} {} {}", s.status, s.reason, s.message)))
            .collect();
        expect_test::expect![[r#"
            Failure NotFound pods "a" not found
            Success  
            Success  
            Success  
            Success  
            -"#]]
        .assert_eq(&got.join("\n"));
    }

    #[test]
    fn answers_are_one_line_of_json() {
        let list = serde_json::json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"},
            "items": [{"metadata": {"name": "a"}, "data": {"k": "v"}}]});
        let schema = types::for_gvk("", "v1", "ConfigMapList").unwrap();
        let proto = protobuf::object(&schema, "v1", "ConfigMapList", &list).unwrap();
        let got = [
            json("application/json", &"{\n  \"a\": \"x\\ny\"\n}\n".into()),
            json("application/yaml", &"a:\n- 1\n".into()),
            json("application/vnd.kubernetes.protobuf", &proto.into()),
            json("text/plain; charset=utf-8", &"no".into()),
        ];
        let got: Vec<String> = got
            .into_iter()
            .map(|b| b.map_or("-".into(), |b| String::from_utf8(b.to_vec()).unwrap()))
            .collect();
        expect_test::expect![[r#"
            {"a":"x\ny"}
            {"a":[1]}
            {"apiVersion":"v1","items":[{"data":{"k":"v"},"metadata":{"name":"a"}}],"kind":"ConfigMapList","metadata":{"resourceVersion":"7"}}
            -"#]]
        .assert_eq(&got.join("\n"));
    }
}
