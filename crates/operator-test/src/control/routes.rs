//! Requests of the control, and their answers, all JSON:
//!
//! ```text
//! GET    /v1/clusters                    names, sources and URLs
//! GET    /v1/clusters/NAME               with kubeconfigs
//! DELETE /v1/clusters/NAME               ends it
//! POST   /v1/clusters/NAME/forks         {"name": …}; another cluster that begins as it is
//! POST   /v1/clusters/NAME/kubeconfig    {"serviceAccount": "namespace/name", "faults": true}
//! GET    /v1/clusters/NAME/clock         {"now": …, "aheadSeconds": …}
//! POST   /v1/clusters/NAME/clock         {"advanceSeconds": …}
//! PUT    /v1/clusters/NAME/faults        a plan, JSON or YAML; ?client=NAME stands in for the clients of its points
//! GET    /v1/clusters/NAME/faults        which came about, and the requests of the client under test
//! DELETE /v1/clusters/NAME/faults        no more of them
//! GET    /v1/clusters/NAME/kills         ?after=N&seconds=S waits until the client was to be killed more than N times
//! DELETE /v1/clusters/NAME/leases        gives back what a killed client holds
//! ```
//!
//! Invariant: a member or parameter that is not known is refused.

use super::clusters::{Clusters, ControlError, Entry};
use crate::{fault::Fault, plan::PlanFile, record::Recorder};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};
use kaji_files::yaml;
use kaji_meta::{Query, time::Clock};
use kaji_runtime::VirtualClock;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{fmt, rc::Rc, time::Duration};
use tokio::time::timeout;

/// The longest body.
const LONGEST_BODY: usize = 1 << 20;
/// The longest wait for a kill.
const LONGEST_WAIT: u64 = 60;
/// The longest jump of the clock: ten years.
const LONGEST_JUMP: f64 = 10.0 * 366.0 * 86_400.0;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRejection {
    /// The status code.
    pub code: StatusCode,
    text: String,
}

impl fmt::Display for RequestRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl RequestRejection {
    pub fn new(code: StatusCode, text: &str) -> RequestRejection {
        RequestRejection { code, text: text.to_owned() }
    }

    pub fn failed(error: impl fmt::Display) -> RequestRejection {
        RequestRejection::new(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
    }

    fn invalid(error: impl fmt::Display) -> RequestRejection {
        RequestRejection::new(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string())
    }

    pub fn response(&self) -> Response<Bytes> {
        response(self.code, &json!({"error": self.text}))
    }
}

impl From<ControlError> for RequestRejection {
    fn from(error: ControlError) -> RequestRejection {
        match error {
            ControlError::Request(refusal) => refusal,
            // Of the cluster's API: an account that is not there, for the most part.
            ControlError::Api(error) => RequestRejection::invalid(error),
            other => RequestRejection::failed(other),
        }
    }
}

/// A plan without what says where it is from.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Faults {
    faults: Vec<Fault>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fork {
    name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Kubeconfig {
    service_account: Option<String>,
    faults: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Jump {
    advance_seconds: f64,
}

/// Answers a request with the token.
pub async fn answer<B>(clusters: &Rc<Clusters>, request: Request<B>) -> Response<Bytes>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (parts, body) = request.into_parts();
    let outcome = match Limited::new(body, LONGEST_BODY).collect().await {
        Ok(body) => route(clusters, (&parts.method, &parts.uri), &body.to_bytes()).await,
        Err(_) => {
            Err(RequestRejection::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is too long, or was not sent"))
        }
    };
    match outcome {
        Ok((code, value)) => response(code, &value),
        Err(refusal) => refusal.response(),
    }
}

type Outcome = Result<(StatusCode, Value), RequestRejection>;

async fn route(clusters: &Rc<Clusters>, (method, uri): (&Method, &Uri), body: &[u8]) -> Outcome {
    let path: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let (name, part) = match path[..] {
        ["v1", "clusters"] => ("", ""),
        ["v1", "clusters", name] => (name, ""),
        ["v1", "clusters", name, part] => (name, part),
        _ => return Err(RequestRejection::new(StatusCode::NOT_FOUND, "there is no such path")),
    };
    let allowed: &[&str] = match (method.as_str(), part) {
        ("PUT", "faults") => &["client"],
        ("GET", "kills") => &["after", "seconds"],
        _ => &[],
    };
    let query = parameters(uri, allowed)?;
    if name.is_empty() {
        return match *method {
            Method::GET => Ok((StatusCode::OK, list(clusters))),
            _ => Err(not_allowed()),
        };
    }
    match (method.as_str(), part) {
        ("DELETE", "") => {
            clusters.delete(name).await?;
            return Ok((StatusCode::OK, json!({})));
        }
        ("POST", "forks") => {
            let Fork { name: fork } = decode(body)?;
            let description = clusters.fork(name, fork).await?;
            return Ok((StatusCode::CREATED, json!(description)));
        }
        _ => {}
    }
    let entry = clusters.get(name)?;
    let value = match (method.as_str(), part) {
        ("GET", "") => json!(entry.description),
        ("POST", "kubeconfig") => {
            let Kubeconfig { service_account, faults } = decode(body)?;
            json!(entry.access(faults, service_account.as_deref()).await?)
        }
        ("GET", "clock") => clock(&entry),
        ("POST", "clock") => {
            advance(&entry, &decode(body)?)?;
            clock(&entry)
        }
        ("PUT", "faults") => arm(&entry, body, query.first("client"))?,
        ("GET", "faults") => report(&entry),
        ("DELETE", "faults") => {
            entry.layer.disarm();
            report(&entry)
        }
        ("GET", "kills") => kills(&entry, &query).await?,
        ("DELETE", "leases") => {
            entry.layer.release_leases().await;
            json!({})
        }
        (_, "" | "forks" | "kubeconfig" | "clock" | "faults" | "kills" | "leases") => {
            return Err(not_allowed());
        }
        _ => return Err(RequestRejection::new(StatusCode::NOT_FOUND, "there is no such path")),
    };
    Ok((StatusCode::OK, value))
}

fn not_allowed() -> RequestRejection {
    RequestRejection::new(StatusCode::METHOD_NOT_ALLOWED, "the path does not have this method")
}

fn parameters(uri: &Uri, allowed: &[&str]) -> Result<Query, RequestRejection> {
    let raw = uri.query().unwrap_or_default();
    let name = |pair: &str| pair.split('=').next().unwrap_or_default().to_owned();
    match raw.split('&').map(name).find(|name| !name.is_empty() && !allowed.contains(&name.as_str())) {
        Some(unknown) => {
            Err(RequestRejection::invalid(format!("the parameter {unknown:?} is not known here")))
        }
        None => Ok(Query::parse(raw)),
    }
}

/// An empty body has no members.
fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, RequestRejection> {
    let text = std::str::from_utf8(body).map_err(RequestRejection::invalid)?;
    yaml::decode(text).map_err(RequestRejection::invalid)
}

fn list(clusters: &Clusters) -> Value {
    let all = clusters.all();
    let of = |entry: &Rc<Entry>| {
        let d = &entry.description;
        json!({"name": d.name, "source": d.source, "url": d.access.url, "faults": {"url": d.faults.url}})
    };
    json!({"clusters": all.iter().map(of).collect::<Vec<_>>()})
}

fn clock(entry: &Entry) -> Value {
    let clock: &VirtualClock = &entry.cluster.clock;
    json!({"now": clock.now().to_string(), "aheadSeconds": clock.ahead().as_secs_f64()})
}

fn advance(entry: &Entry, jump: &Jump) -> Result<(), RequestRejection> {
    if !(0.0..=LONGEST_JUMP).contains(&jump.advance_seconds) {
        return Err(RequestRejection::invalid(
            "advanceSeconds: the clock goes forward, by ten years at most",
        ));
    }
    entry.cluster.clock.advance(Duration::from_secs_f64(jump.advance_seconds));
    Ok(())
}

fn arm(entry: &Entry, body: &[u8], client: Option<&str>) -> Result<Value, RequestRejection> {
    let document: Value = decode(body)?;
    // As `kaji test` writes it, or without scenario, seed and findings.
    let faults = match document.get("scenario") {
        Some(_) => serde_json::from_value(document).map(|plan: PlanFile| plan.faults),
        None => serde_json::from_value(document).map(|plan: Faults| plan.faults),
    };
    let mut faults = faults.map_err(RequestRejection::invalid)?;
    for fault in &mut faults {
        if !fault.kind.applies(&fault.at.verb, &fault.at.resource) {
            return Err(RequestRejection::invalid(format!(
                "{fault}: such a request does not have such a fault"
            )));
        }
        if let Some(client) = client {
            client.clone_into(&mut fault.at.client);
        }
    }
    entry.layer.arm(faults);
    Ok(report(entry))
}

fn report(entry: &Entry) -> Value {
    let layer = &entry.layer;
    json!({
        "armed": layer.armed(), "fired": layer.fired(), "atWork": layer.is_at_work(),
        "kills": *entry.kills.borrow(), "requests": layer.records(),
        "requestsInAll": layer.recorder(Recorder::requests),
    })
}

async fn kills(entry: &Entry, query: &Query) -> Result<Value, RequestRejection> {
    let number = |name: &str| match query.first(name) {
        None => Ok(0),
        Some(text) => {
            text.parse::<u64>().map_err(|_| RequestRejection::invalid(format!("{name}: not a number")))
        }
    };
    let (after, seconds) = (number("after")?, number("seconds")?.min(LONGEST_WAIT));
    let mut kills = entry.kills.clone();
    // Both a wait that is over and a cluster that has ended leave the number as it is.
    let _ = timeout(Duration::from_secs(seconds), kills.wait_for(|kills| *kills > after)).await;
    let kills = *kills.borrow();
    Ok(json!({"kills": kills}))
}

fn response(code: StatusCode, value: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(value.to_string()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
