//! Content negotiation of discovery documents and their errors: JSON, YAML or protobuf; lists of groups also in the
//! aggregated form.
//!
//! Invariant: the form is negotiated before a document is built, so that an unacceptable request costs nothing.
//! Source: upstream's `WriteObjectNegotiated`, and go-restful's choice of a route.

use crate::{
    api,
    body::ResponseBody,
    negotiate::{self, Clause},
    route::RequestInfo,
};
use http::{HeaderValue, Response, header, request::Parts};
use kaji_engine::{ApiResponse, Body, Encoding, encode};
use kaji_meta::{Query, Status, json, object};
use kaji_schema::{order, protobuf, types, yaml};
use serde_json::Value;

const ALL: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const DISCOVERY: &str = "io.k8s.api.apidiscovery.v2";

/// The form of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    encoding: Encoding,
    /// Groups with their versions and resources instead of names.
    pub aggregated: bool,
    pretty: bool,
}

/// What is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// JSON alone, by a route that says so.
    Json,
    /// Every encoding, by a route that says so.
    Route,
    /// Every encoding.
    Plain,
    /// Every encoding, also aggregated; `true` by a route that says what it offers.
    Groups(bool),
}

impl Form {
    /// What a client prefers.
    ///
    /// # Errors
    /// 406 when it takes nothing that is offered.
    pub fn of(parts: &Parts, query: &Query, offer: Offer) -> Result<Form, Status> {
        let text = |name| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let pretty = api::wants_pretty(query, text(header::USER_AGENT));
        let accept = text(header::ACCEPT);
        if accept.is_empty() {
            return Ok(Form { encoding: Encoding::Json, aggregated: false, pretty });
        }
        let clauses = negotiate::clauses(accept);
        let forms = clauses.iter().filter_map(|clause| offer.form(clause, pretty));
        forms.into_iter().next().ok_or_else(|| offer.refusal(&clauses))
    }

    /// The answer's content type.
    pub fn content_type(self) -> &'static str {
        match (self.encoding, self.aggregated) {
            (Encoding::Json, false) => "application/json",
            (Encoding::Yaml, false) => "application/yaml",
            (Encoding::Protobuf, false) => "application/vnd.kubernetes.protobuf",
            (Encoding::Json, true) => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            (Encoding::Yaml, true) => "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            (Encoding::Protobuf, true) => {
                "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            }
        }
    }

    /// Whether it is the JSON that documents are kept as.
    pub fn is_kept(self) -> bool {
        self.encoding == Encoding::Json && !self.pretty
    }

    /// A document in this form.
    ///
    /// # Errors
    /// 500 for one that its type does not describe.
    pub fn encode(self, value: &Value) -> Result<Vec<u8>, Status> {
        let internal = |error: &dyn std::fmt::Display| Status::internal(error.to_string());
        match self.encoding {
            Encoding::Json => {
                let mut json = Vec::new();
                order::write_document(&mut json, value);
                if self.pretty {
                    return Ok(json::indent(&json, encode::PRETTY));
                }
                json.push(b'\n');
                Ok(json)
            }
            Encoding::Yaml => Ok(yaml::document(value).into_bytes()),
            Encoding::Protobuf => {
                let kind = object::kind(value);
                let package = if self.aggregated { DISCOVERY } else { META };
                let schema = types::lookup(&format!("{package}.{kind}"));
                let schema = schema.ok_or_else(|| internal(&format!("{kind} has no protobuf form")))?;
                let api_version = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
                protobuf::object(&schema, api_version, kind, value).map_err(|e| internal(&e))
            }
        }
    }
}

/// The content type and the body of an error in the form that the client prefers, as upstream's `ErrorNegotiated` writes it, unless that
/// is the engine's JSON. A client that accepts none gets indented JSON.
fn negotiated(parts: &Parts, info: &RequestInfo, answer: &ApiResponse) -> Option<(&'static str, Vec<u8>)> {
    let Body::Full(json) = &answer.body else { return None };
    if answer.code < 400 || answer.content_type != "application/json" {
        return None;
    }
    let Ok(form) = Form::of(parts, &info.query, Offer::Plain) else {
        return Some(("application/json", json::indent(json, encode::PRETTY)));
    };
    if form.is_kept() {
        return None;
    }
    let status: Value = serde_json::from_slice(json).ok()?;
    let body = (object::kind(&status) == "Status").then(|| form.encode(&status).ok())??;
    Some((form.content_type(), body))
}

/// The response for an answer, an error in the form that the client prefers.
pub fn response(
    parts: &Parts,
    info: &RequestInfo,
    answer: ApiResponse,
    gzip: bool,
) -> Response<ResponseBody> {
    let Some((content_type, body)) = negotiated(parts, info, &answer) else {
        return api::response(answer, gzip);
    };
    // Read from the JSON, which is gone then.
    let retry_after = api::retry_after(&answer);
    let mut response =
        api::response(ApiResponse { content_type, body: Body::Full(body.into()), ..answer }, gzip);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The response for an error.
pub fn refusal(parts: &Parts, info: &RequestInfo, status: &Status) -> Response<ResponseBody> {
    response(parts, info, ApiResponse::from(status.clone()), false)
}

impl Offer {
    /// The form that a clause asks for, if it is offered.
    fn form(self, clause: &Clause<'_>, pretty: bool) -> Option<Form> {
        let encoding = self.encoding(clause)?;
        let aggregated = match (clause.param("as"), clause.param("g"), clause.param("v")) {
            (None | Some(""), ..) => false,
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2"))
                if matches!(self, Offer::Groups(_)) =>
            {
                true
            }
            _ => return None,
        };
        Some(Form { encoding, aggregated, pretty: pretty || clause.param("pretty") == Some("1") })
    }

    fn encoding(self, clause: &Clause<'_>) -> Option<Encoding> {
        match clause.media {
            "application/json" | "*/*" | "application/*" => Some(Encoding::Json),
            _ if self == Offer::Json => None,
            "application/yaml" => Some(Encoding::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Encoding::Protobuf),
            _ => None,
        }
    }

    fn refusal(self, clauses: &[Clause<'_>]) -> Status {
        let routed = !matches!(self, Offer::Plain | Offer::Groups(false));
        if !routed || clauses.iter().any(|clause| self.encoding(clause).is_some()) {
            return Status::not_acceptable(format!("only the following media types are accepted: {ALL}"));
        }
        let all = if self == Offer::Json { "application/json" } else { ALL };
        let message = format!("406: Not Acceptable\n\nAvailable representations: {all}");
        // With empty details, as whatever is made of a code alone.
        Status { details: Status::generic_not_found().details, ..Status::not_acceptable(message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use serde_json::json;

    fn form(accept: &str, offer: Offer) -> Result<Form, Status> {
        let (parts, ()) = Request::get("/").header(header::ACCEPT, accept).body(()).unwrap().into_parts();
        Form::of(&parts, &Query::default(), offer)
    }

    #[test]
    fn negotiates_what_upstream_offers() {
        const AGGREGATED: &str = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let show = |accept: &str, offer| match form(accept, offer) {
            Ok(form) => form.content_type().to_owned(),
            Err(status) => format!("{} {}", status.code, status.message),
        };
        let got = [
            show("application/yaml", Offer::Plain),
            show("application/vnd.kubernetes.protobuf", Offer::Route),
            show("application/cbor,application/yaml;q=0.5,application/json;q=0.4", Offer::Plain),
            show(&format!("application/yaml{AGGREGATED}"), Offer::Groups(false)),
            show(&format!("application/vnd.kubernetes.protobuf{AGGREGATED},*/*"), Offer::Groups(true)),
            show(&format!("application/json{AGGREGATED}"), Offer::Plain),
            show("text/plain", Offer::Groups(true)),
            show("text/plain", Offer::Groups(false)),
            show("application/json;as=Other", Offer::Groups(true)),
            show("application/yaml", Offer::Json),
            show("*/*", Offer::Json),
        ];
        expect_test::expect![[r#"
            application/yaml
            application/vnd.kubernetes.protobuf
            application/yaml
            application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList
            application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList
            406 only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf
            406 406: Not Acceptable

            Available representations: application/json, application/yaml, application/vnd.kubernetes.protobuf
            406 only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf
            406 only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf
            406 406: Not Acceptable

            Available representations: application/json
            application/json"#]]
        .assert_eq(&got.join("\n"));
    }

    #[test]
    fn errors_are_negotiated() {
        let show = |path: &str, accept: &str| {
            let (parts, ()) =
                Request::get(path).header(header::ACCEPT, accept).body(()).unwrap().into_parts();
            let query = parts.uri.query().map(Query::parse).unwrap_or_default();
            let info = RequestInfo::parse(&parts.method, parts.uri.path(), query).unwrap();
            let answer = ApiResponse::from(Status::generic_not_found());
            let response = match negotiated(&parts, &info, &answer) {
                Some((content_type, body)) => {
                    ApiResponse { content_type, body: Body::Full(body.into()), ..answer }
                }
                None => answer,
            };
            let body = response.body.into_bytes().unwrap();
            let body = match protobuf::open(&body) {
                Ok(envelope) => format!("{} {}", envelope.api_version, envelope.kind),
                Err(_) => String::from_utf8(body.to_vec()).unwrap().lines().next().unwrap().to_owned(),
            };
            format!("{} {} {body}", response.code, response.content_type)
        };
        let got = [
            show("/apis/apps/v9", "application/yaml"),
            show("/apis/apps/v9", "application/vnd.kubernetes.protobuf"),
            show("/apis/apps/v9", "text/plain"),
            show("/api/v1/pods", "application/yaml"),
            show(
                "/api/v1/pods",
                "application/json;as=Table;v=v1;g=meta.k8s.io, application/vnd.kubernetes.protobuf",
            ),
            show("/api/v1/pods?pretty=1", ""),
        ];
        expect_test::expect![[r#"
            404 application/yaml apiVersion: v1
            404 application/vnd.kubernetes.protobuf v1 Status
            404 application/json {
            404 application/yaml apiVersion: v1
            404 application/vnd.kubernetes.protobuf v1 Status
            404 application/json {"#]]
        .assert_eq(&got.join("\n"));
    }

    #[test]
    fn documents_are_encoded_as_upstream_does() {
        let versions = json!({"kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:19343"}]});
        let encoded = |accept| form(accept, Offer::Plain).unwrap().encode(&versions).unwrap();
        let yaml = String::from_utf8(encoded("application/yaml")).unwrap();
        assert!(yaml.starts_with("kind: APIVersions\nserverAddressByClientCIDRs:\n- clientCIDR: "), "{yaml}");
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), versions);
        assert_eq!(
            encoded("application/vnd.kubernetes.protobuf"),
            b"k8s\0\n\x0f\n\x00\x12\x0bAPIVersions\x12\"\n\x02v1\x12\x1c\n\t0.0.0.0/0\x12\x0f127.0.0.1:19343\x1a\x00\"\x00"
        );
        let json = r#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"127.0.0.1:19343"}]}"#;
        assert_eq!(encoded("application/json"), format!("{json}\n").into_bytes());
        assert!(encoded("application/json;pretty=1").starts_with(b"{\n  \"kind\": \"APIVersions\",\n"));
        let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": []});
        let accept =
            "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        assert_eq!(
            form(accept, Offer::Groups(false)).unwrap().encode(&list).unwrap(),
            b"k8s\0\n/\n\x16apidiscovery.k8s.io/v2\x12\x15APIGroupDiscoveryList\x12\x08\n\x06\n\x00\x12\x00\x1a\x00\x1a\x00\"\x00"
        );
    }
}
