//! Non-resource requests: discovery, OpenAPI, version, health, metrics, the index.

use crate::{
    body::ResponseBody,
    discovery::{Discovery, Document},
    documents::{Form, Offer},
    openapi::Served,
    route::RequestInfo,
    routing::{self, NoRoute},
    stack::Stack,
    version,
    zpages::ZPage,
};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use kaji_auth::authn::IssuerDocuments;
use kaji_meta::{Query, Status};
use serde_json::{Value, json};
use std::sync::Arc;

/// Whether the client takes gzip.
pub fn takes_gzip(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|e| {
        let mut parts = e.trim().split(';');
        parts.next() == Some("gzip") && !parts.any(|p| p.trim() == "q=0")
    })
}

/// The path of snapshots, which upstream does not have.
pub const SNAPSHOT_PATH: &str = "/kaji/snapshot";

/// Begins a snapshot of the store. One that fails ends early, which its format shows.
pub type SnapshotSource = Arc<dyn Fn() -> BoxStream<'static, Bytes> + Send + Sync>;

/// Serves a non-resource path.
pub async fn serve(
    stack: &Stack,
    parts: &Parts,
    info: &RequestInfo,
) -> Result<Response<ResponseBody>, Status> {
    if info.path.starts_with("//") {
        return Ok(not_found());
    }
    let query = &info.query;
    let mut segments = info.path.trim_matches('/').splitn(2, '/');
    let (first, rest) = (segments.next().unwrap_or_default(), segments.next().unwrap_or_default());
    if parts.method != Method::GET && reads_only(stack, first, rest) {
        return Err(routing::method_not_allowed());
    }
    match (first, rest) {
        // Of these, a path with a slash at its end is another one.
        ("livez" | "readyz" | "healthz" | "metrics" | "debug", _) if info.path.ends_with('/') => {
            Ok(not_found())
        }
        ("", _) => Ok(text(200, JSON, format!("{:#}", index(stack)))),
        ("livez" | "readyz" | "healthz", check) => Ok(match stack.health.serve(first, check, query).await {
            Some((code, body)) => text(code, "text/plain; charset=utf-8", body),
            None => not_found(),
        }),
        ("version", "") => {
            Form::of(parts, query, Offer::Json)?;
            Ok(text(200, JSON, version::info()))
        }
        ("metrics", "") => Ok(metrics(parts, stack.metrics.render(&stack.engine, &stack.flow))),
        ("statusz", "") if parts.uri.path() == "/statusz" => statusz(stack, parts),
        ("flagz", "") if parts.uri.path() == "/flagz" => Ok(zpage(stack.zpages.flagz(&parts.headers)?)),
        ("metrics", "slis") => Ok(metrics(parts, stack.health.slis())),
        ("debug", page) => {
            let page =
                page.strip_prefix("api_priority_and_fairness/").and_then(|p| stack.flow.debug(p, query));
            Ok(page.map_or_else(not_found, |page| text(200, "text/plain; charset=utf-8", page)))
        }
        ("kaji", "snapshot") => Ok(snapshot(stack)),
        (".well-known", "openid-configuration") => Ok(issuer(stack, |i| (&i.configuration, JSON))),
        ("openid", "v1/jwks") => Ok(issuer(stack, |i| (&i.keys, "application/jwk-set+json"))),
        ("openapi", which) => openapi(stack, parts, which, query).await,
        ("api", "") => discovery_root(stack, parts, query, true),
        ("apis", "") => discovery_root(stack, parts, query, false),
        ("api", version) => api_resources(stack, parts, query, ("", version)),
        ("apis", path) => match path.split_once('/') {
            None => match Discovery::group(&stack.engine.registry(), &stack.aggregator.extensions(), path) {
                Some(group) => document(Form::of(parts, query, Offer::Plain)?, &group),
                None => Ok(not_found()),
            },
            Some(of) => api_resources(stack, parts, query, of),
        },
        _ => Ok(not_found()),
    }
}

fn statusz(stack: &Stack, parts: &Parts) -> Result<Response<ResponseBody>, Status> {
    let index = index_paths(stack);
    let paths = index.iter().map(String::as_str);
    Ok(zpage(stack.zpages.statusz(&parts.headers, paths)?))
}

fn zpage(mut page: ZPage) -> Response<ResponseBody> {
    let mut response = text(200, page.content_type, std::mem::take(&mut page.body));
    page.warn(&mut response);
    response
}

/// A page of metrics, in the form that the client takes.
fn metrics(parts: &Parts, page: String) -> Response<ResponseBody> {
    let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    compressed(parts, text(200, kaji_exposition::content_type(accept), page))
}

/// A snapshot of everything that is stored, as the store has it. No default role but `cluster-admin` allows it.
fn snapshot(stack: &Stack) -> Response<ResponseBody> {
    let Some(source) = &stack.snapshots else { return not_found() };
    let mut response = Response::new(ResponseBody::Stream(source()));
    let content_type = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// Whether upstream serves a path for GET alone; others answer whatever the method is.
fn reads_only(stack: &Stack, first: &str, rest: &str) -> bool {
    match (first, rest.split_once('/')) {
        ("version", None) => rest.is_empty(),
        ("api", None) => true,
        ("apis", Some((group, version))) => {
            !version.contains('/') && routing::is_builtin_group(&stack.engine.registry(), group)
        }
        (".well-known", None) => rest == "openid-configuration",
        ("kaji", None) => matches!(rest, "snapshot" | "why"),
        ("openid", _) => rest == "v1/jwks",
        _ => false,
    }
}

/// A document about the issuer of the cluster's tokens; others may keep it for an hour, as upstream says.
fn issuer<'a>(
    stack: &'a Stack,
    pick: impl Fn(&'a IssuerDocuments) -> (&'a String, &'static str),
) -> Response<ResponseBody> {
    let Some((body, content_type)) = stack.issuer.as_ref().map(pick) else { return not_found() };
    let mut response = text(200, content_type, body.clone());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    response
}

fn api_resources(
    stack: &Stack,
    parts: &Parts,
    query: &Query,
    (group, version): (&str, &str),
) -> Result<Response<ResponseBody>, Status> {
    match Discovery::resources(&stack.engine.registry(), group, version) {
        Ok(list) => document(Form::of(parts, query, Offer::Route)?, &list),
        Err(status) if routing::is_builtin_group(&stack.engine.registry(), group) => Err(status),
        Err(_) => Ok(not_found()),
    }
}

fn discovery_root(
    stack: &Stack,
    parts: &Parts,
    query: &Query,
    core: bool,
) -> Result<Response<ResponseBody>, Status> {
    let form = Form::of(parts, query, Offer::Groups(core))?;
    let registry = stack.engine.registry();
    if form.aggregated {
        return aggregated(parts, form, stack.discovery.aggregated(&registry, &stack.aggregator, core));
    }
    let value = match core {
        true => Discovery::core_versions(&stack.address),
        false => Discovery::group_list(&registry, &stack.aggregator.extensions()),
    };
    let mut response = document(form, &value)?;
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

/// A document in the negotiated form.
fn document(form: Form, value: &Value) -> Result<Response<ResponseBody>, Status> {
    Ok(text(200, form.content_type(), form.encode(value)?))
}

fn aggregated(parts: &Parts, form: Form, document: Document) -> Result<Response<ResponseBody>, Status> {
    let mut response = if not_modified(parts, &document.etag) {
        text(304, JSON, "")
    } else if form.is_kept() {
        Response::new(ResponseBody::full(document.body))
    } else {
        let value = serde_json::from_slice(&document.body).map_err(|e| Status::internal(e.to_string()))?;
        Response::new(ResponseBody::full(form.encode(&value)?))
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    if let Ok(etag) = HeaderValue::from_str(&document.etag) {
        headers.insert(header::ETAG, etag);
    }
    Ok(compressed(parts, response))
}

fn not_modified(parts: &Parts, etag: &str) -> bool {
    let given = parts.headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok()).unwrap_or_default();
    given.split(',').any(|e| e.trim().trim_start_matches("W/") == etag)
}

async fn openapi(
    stack: &Stack,
    parts: &Parts,
    path: &str,
    query: &Query,
) -> Result<Response<ResponseBody>, Status> {
    let accept = parts.headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
    let hash = query.first("hash").map(str::to_owned);
    let (path, accept) = (path.to_owned(), accept.to_owned());
    let of = (stack.engine.clone(), stack.aggregator.clone());
    let served = stack.openapi.serve(of, path, accept, hash).await;
    let served = served.map_err(|e| Status::internal(e.to_string()))?;
    Ok(match served {
        Served::NotFound => not_found(),
        Served::NotAcceptable => text(406, "text/plain; charset=utf-8", "406 not acceptable\n"),
        Served::Redirect(location) => {
            let mut response = text(301, "text/plain; charset=utf-8", "");
            if let Ok(value) = HeaderValue::from_str(&location) {
                response.headers_mut().insert(header::LOCATION, value);
            }
            response
        }
        Served::Document { body, content_type, etag, immutable } => {
            let mut response = if not_modified(parts, &etag) {
                text(304, JSON, "")
            } else {
                Response::new(ResponseBody::full(body))
            };
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
            let cache = if immutable { "public, immutable" } else { "no-cache, private" };
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
            if let Ok(etag) = HeaderValue::from_str(&etag) {
                headers.insert(header::ETAG, etag);
            }
            compressed(parts, response)
        }
    })
}

/// `GET /`: the index of paths.
fn index(stack: &Stack) -> Value {
    json!({"paths": index_paths(stack)})
}

/// Pages that the index names. As upstream has it, those below `/debug` are served and not named.
const PAGES: [&str; 11] = [
    "/flagz",
    "/healthz",
    "/livez",
    "/metrics",
    "/metrics/slis",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/",
    "/readyz",
    "/statusz",
    "/version",
];

fn index_paths(stack: &Stack) -> Vec<String> {
    let registry = stack.engine.registry();
    let mut paths = vec!["/api".to_owned(), "/api/v1".into(), "/apis".into(), "/apis/".into()];
    let groups = Discovery::group_list(&registry, &stack.aggregator.extensions());
    for group in groups["groups"].as_array().into_iter().flatten() {
        paths.push(format!("/apis/{}", group["name"].as_str().unwrap_or_default()));
        for version in group["versions"].as_array().into_iter().flatten() {
            paths.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap_or_default()));
        }
    }
    paths.extend(PAGES.map(str::to_owned));
    if stack.issuer.is_some() {
        paths.extend(["/.well-known/openid-configuration".into(), "/openid/v1/jwks".into()]);
    }
    paths.sort();
    paths
}

const JSON: &str = "application/json";

/// The response to a request without a route.
pub fn no_route(refused: NoRoute) -> Result<Response<ResponseBody>, Status> {
    match refused {
        NoRoute::Page => Ok(not_found()),
        NoRoute::Status(status) => Err(*status),
    }
}

fn not_found() -> Response<ResponseBody> {
    text(404, "text/plain; charset=utf-8", "404 page not found\n")
}

/// A response without a body.
pub(crate) fn empty(code: http::StatusCode) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(bytes::Bytes::new()));
    *response.status_mut() = code;
    response
}

pub(crate) fn text(
    code: u16,
    content_type: &'static str,
    body: impl Into<bytes::Bytes>,
) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Upstream's response to a request after its handler panicked. The process' panic hook has logged the panic.
pub(crate) fn panicked(method: &Method, uri: &http::Uri, id: Option<&HeaderValue>) -> Response<ResponseBody> {
    tracing::error!(%method, %uri, audit_id = ?id, "apiserver panic'd");
    let message = "This request caused apiserver to panic. Look in the logs for details.\n";
    text(500, "text/plain; charset=utf-8", message)
}

/// Upstream's response to a request that may not continue without an audit record.
pub(crate) fn not_recorded(parts: &Parts) -> Response<ResponseBody> {
    let uri = kaji_meta::text::quote(&parts.uri.to_string());
    let message = format!("Internal Server Error: {uri}: failed to store audit event\n");
    text(500, "text/plain; charset=utf-8", message)
}

fn compressed(parts: &Parts, response: Response<ResponseBody>) -> Response<ResponseBody> {
    if !takes_gzip(&parts.headers) {
        return response;
    }
    let (head, body) = response.into_parts();
    let (body, zipped) = body.gzip();
    let mut response = Response::from_parts(head, body);
    if zipped {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_for_debugging_are_not_named() {
        assert!(PAGES.iter().all(|page| !page.starts_with("/debug")));
        assert!(PAGES.is_sorted());
    }
}
