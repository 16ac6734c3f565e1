//! A cache of the discovery documents of extension servers.
//!
//! Invariants:
//! - Reading never waits for a server: the last document is cached, or an empty one that is marked `Stale`.
//! - A server with several group versions is requested once for all of them.
//! - Only known fields of the registered group versions are kept of a response, within a bound; parsing it delays no other
//!   task.
//!
//! Source: upstream's `discoveryManager`; KEP-3352.

use crate::{Route, Table, availability_controller, forwarded_request, service::ApiService};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kaji_outbound::{Client, ClientCache, RequestClass};
use kaji_resource::UserInfo;
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};

/// How long an answer may take.
const TIME: Duration = Duration::from_secs(5);
/// Bytes of an answer that lists resources.
const LARGEST: usize = 4 << 20;
/// The forms that are understood.
const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// A server, by its service.
type Server = (String, String, u16);
/// Group and version.
type Version = (String, String);

/// The last response of a server.
#[derive(Clone)]
struct CachedDiscovery {
    /// Before the request.
    at: Instant,
    etag: Option<HeaderValue>,
    /// The group versions that were registered.
    wanted: Arc<BTreeSet<Version>>,
    versions: BTreeMap<Version, Arc<Value>>,
}

/// A group version of an extension server, for discovery.
#[derive(Clone, Debug)]
pub struct Extension {
    /// `example.com`
    pub group: String,
    /// `v1`
    pub version: String,
    /// Of the group, among all.
    pub group_priority: i64,
    /// Of the version, in its group.
    pub version_priority: i64,
    /// The `APIVersionDiscovery` of the aggregated form, with its freshness.
    pub document: Arc<Value>,
}

#[derive(Default)]
struct Known {
    /// Grows with each change.
    generation: u64,
    /// By the APIService's name.
    documents: HashMap<String, Arc<Value>>,
    servers: HashMap<Server, Arc<tokio::sync::Mutex<Option<CachedDiscovery>>>>,
}

/// The cache.
#[derive(Default)]
pub(crate) struct Documents(Mutex<Known>);

impl Documents {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes with what [`Documents::list`] gives for one table.
    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// All group versions of a table.
    pub fn list(&self, table: &Table) -> Vec<Extension> {
        let known = self.lock();
        let extension = |route: &Arc<Route>| {
            let service = &route.service;
            let document = known.documents.get(&service.name).cloned();
            Extension {
                group: service.group.clone(),
                version: service.version.clone(),
                group_priority: service.group_priority,
                version_priority: service.version_priority,
                document: document.unwrap_or_else(|| Arc::new(stale(service))),
            }
        };
        table.routes().map(extension).collect()
    }

    fn set(&self, name: &str, document: Value) {
        let mut known = self.lock();
        if known.documents.get(name).is_some_and(|old| **old == document) {
            return;
        }
        known.generation += 1;
        known.documents.insert(name.to_owned(), Arc::new(document));
    }

    /// Nothing can be said of a group version any more.
    pub fn stale(&self, service: &ApiService) {
        self.set(&service.name, stale(service));
    }

    /// Forgets all that a table has no more.
    pub fn retain(&self, table: &Table) {
        let mut known = self.lock();
        let before = known.documents.len();
        known.documents.retain(|name, _| table.named(name).is_some());
        known.generation += u64::from(known.documents.len() != before);
        known.servers.retain(|server, _| table.routes().any(|r| server_of(&r.service) == *server));
    }

    /// Asks a server about one of its group versions.
    ///
    /// # Errors
    /// It does not say.
    pub async fn ask(&self, route: &Route, table: &Table, clients: &ClientCache) -> Result<(), String> {
        let since = Instant::now();
        let place = server_of(&route.service);
        let server = self.lock().servers.entry(place.clone()).or_default().clone();
        let same = table.routes().map(|r| &r.service).filter(|s| server_of(s) == place);
        let wanted = same.chain([&route.service]).map(|s| (s.group.clone(), s.version.clone())).collect();
        let found = match route.client(clients) {
            Ok(client) => heard(&client, route, &server, (since, wanted)).await,
            Err(error) => Err(error.to_string()),
        };
        let service = &route.service;
        match found {
            Ok(version) => {
                let mut document =
                    version.map_or_else(|| json!({"version": service.version}), |v| (*v).clone());
                document["freshness"] = "Current".into();
                self.set(&service.name, document);
                Ok(())
            }
            Err(why) => {
                self.stale(service);
                Err(why)
            }
        }
    }
}

fn server_of(service: &ApiService) -> Server {
    let backend = &service.backend;
    (backend.namespace.clone(), backend.name.clone(), backend.port)
}

fn stale(service: &ApiService) -> Value {
    json!({"version": service.version, "freshness": "Stale"})
}

/// The response of a server, now or to another controller after `since`; the registered group versions of it are kept.
async fn heard(
    client: &Client,
    route: &Route,
    server: &tokio::sync::Mutex<Option<CachedDiscovery>>,
    (since, wanted): (Instant, BTreeSet<Version>),
) -> Result<Option<Arc<Value>>, String> {
    let key = (route.service.group.clone(), route.service.version.clone());
    let mut last = server.lock().await;
    // Of what was not looked for nothing is known.
    last.take_if(|heard| !wanted.is_subset(&heard.wanted));
    if let Some(heard) = last.as_ref().filter(|h| h.at > since) {
        return Ok(heard.versions.get(&key).cloned());
    }
    let at = Instant::now();
    let etag = last.as_ref().and_then(|h| h.etag.clone());
    let accept = HeaderValue::from_static(ACCEPT);
    let answer =
        get(client, "/apis", &availability_controller::prober(), (accept, etag), (TIME, LARGEST)).await?;
    let form = answer.content_type.to_ascii_lowercase();
    let aggregated = form.contains("apigroupdiscoverylist") || form.contains("apidiscovery.k8s.io");
    match answer.code {
        StatusCode::NOT_MODIFIED if last.is_some() => {
            let heard = last.as_mut().ok_or("unchanged, but never seen")?;
            heard.at = at;
            Ok(heard.versions.get(&key).cloned())
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            Err(format!("service {} returned non-success response code: 503", route.authority()))
        }
        StatusCode::OK if aggregated => {
            let wanted = Arc::new(wanted);
            let (body, these) = (answer.body, wanted.clone());
            let versions = apart(move || {
                let value: Value = serde_json::from_slice(&body).map_err(|e| e.to_string())?;
                Ok(versions(&value, &these))
            });
            let versions = versions.await?;
            let found = versions.get(&key).cloned();
            *last = Some(CachedDiscovery { at, etag: answer.etag, wanted, versions });
            Ok(found)
        }
        // The server supports only the old form, which is about one group version.
        _ => {
            let path = route.service.path();
            let user = UserInfo { groups: vec![], ..availability_controller::prober() };
            let accept = HeaderValue::from_static("application/json");
            let answer = get(client, &path, &user, (accept, None), (TIME, LARGEST)).await?;
            if answer.code != StatusCode::OK {
                let said = String::from_utf8_lossy(&answer.body[..answer.body.len().min(200)]).into_owned();
                return Err(format!(
                    "failed to download legacy discovery for {path}: {} {said}",
                    answer.code
                ));
            }
            let (body, version) = (answer.body, route.service.version.clone());
            let document = apart(move || {
                let value: Value = serde_json::from_slice(&body).map_err(|e| e.to_string())?;
                from_legacy(&version, &value)
            });
            document.await.map(|document| Some(Arc::new(document)))
        }
    }
}

/// Parses responses of extension servers, of unknown cost, on a thread that serves no client.
pub(crate) async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    static ROOM: Semaphore = Semaphore::const_new(2);
    within(&ROOM, work).await
}

/// The permit is held until the work is done, even if the caller is cancelled.
async fn within<T: Send + 'static>(
    room: &'static Semaphore,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let place = room.acquire().await;
    let work = move || {
        let _place = place;
        work()
    };
    kaji_store::blocking(work).await.unwrap_or_else(|e| Err(e.to_string()))
}

/// A whole answer.
pub(crate) struct Answer {
    pub code: StatusCode,
    pub content_type: String,
    pub etag: Option<HeaderValue>,
    pub body: Bytes,
}

/// Gets a document in this much time and of no more than so many bytes; `etag` is that of the one that is there.
pub(crate) async fn get(
    client: &Client,
    path: &str,
    user: &UserInfo,
    (accept, etag): (HeaderValue, Option<HeaderValue>),
    (time, largest): (Duration, usize),
) -> Result<Answer, String> {
    let mut request = forwarded_request::own_request(path, user);
    request.headers_mut().insert(header::ACCEPT, accept);
    if let Some(etag) = etag {
        request.headers_mut().insert(header::IF_NONE_MATCH, etag);
    }
    let exchange = async {
        let answer = client.send(request, RequestClass::Internal).await.map_err(|e| e.to_string())?;
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, largest).collect().await.map_err(|e| e.to_string())?.to_bytes();
        let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
        Ok(Answer {
            code: parts.status,
            content_type: content_type.unwrap_or_default().to_owned(),
            etag: parts.headers.get(header::ETAG).cloned(),
            body,
        })
    };
    tokio::time::timeout(time, exchange).await.unwrap_or_else(|_| Err("request timed out".into()))
}

/// The wanted group versions of an aggregated document.
fn versions(document: &Value, wanted: &BTreeSet<Version>) -> BTreeMap<Version, Arc<Value>> {
    let mut found = BTreeMap::new();
    for group in array(&document["items"]) {
        let name = group["metadata"]["name"].as_str().unwrap_or_default();
        for version in array(&group["versions"]) {
            let Some(label) = version["version"].as_str() else { continue };
            let key = (name.to_owned(), label.to_owned());
            if !wanted.contains(&key) {
                continue;
            }
            let resources: Vec<Value> = array(&version["resources"]).iter().map(resource).collect();
            let mut clean = json!({"version": label});
            if !resources.is_empty() {
                clean["resources"] = resources.into();
            }
            found.insert(key, Arc::new(clean));
        }
    }
    found
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn resource(given: &Value) -> Value {
    let mut out = Map::new();
    texts(&mut out, given, &["resource", "scope", "singularResource"]);
    out.insert("responseKind".into(), kind(&given["responseKind"]));
    lists(&mut out, given, &["verbs", "shortNames", "categories"]);
    let subs: Vec<Value> = array(&given["subresources"])
        .iter()
        .map(|sub| {
            let mut out = Map::new();
            texts(&mut out, sub, &["subresource"]);
            out.insert("responseKind".into(), kind(&sub["responseKind"]));
            let accepted: Vec<Value> = array(&sub["acceptedTypes"]).iter().map(kind).collect();
            if !accepted.is_empty() {
                out.insert("acceptedTypes".into(), accepted.into());
            }
            lists(&mut out, sub, &["verbs"]);
            out.into()
        })
        .collect();
    if !subs.is_empty() {
        out.insert("subresources".into(), subs.into());
    }
    out.into()
}

/// Clients expect one to be there.
fn kind(given: &Value) -> Value {
    let text = |field: &str| given[field].as_str().unwrap_or_default();
    json!({"group": text("group"), "version": text("version"), "kind": text("kind")})
}

fn texts(out: &mut Map<String, Value>, given: &Value, fields: &[&str]) {
    for field in fields {
        out.insert((*field).into(), given[field].as_str().unwrap_or_default().into());
    }
}

fn lists(out: &mut Map<String, Value>, given: &Value, fields: &[&str]) {
    for field in fields {
        let list: Vec<&str> = array(&given[field]).iter().filter_map(Value::as_str).collect();
        if !list.is_empty() || *field == "verbs" {
            out.insert((*field).into(), list.into());
        }
    }
}

/// An `APIResourceList` in the aggregated form.
fn from_legacy(version: &str, list: &Value) -> Result<Value, String> {
    let mut found: Vec<Value> = vec![];
    // Where each of them is.
    let mut places: HashMap<String, usize> = HashMap::new();
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let scope = |r: &Value| if r["namespaced"] == true { "Namespaced" } else { "Cluster" };
    let all = array(&list["resources"]);
    let split = |r: &Value| text(r, "name").split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned()));
    for given in all.iter().filter(|r| split(r).is_none()) {
        let mut out = Map::new();
        out.insert("resource".into(), text(given, "name").into());
        out.insert("scope".into(), scope(given).into());
        out.insert("singularResource".into(), text(given, "singularName").into());
        out.insert("responseKind".into(), kind(given));
        lists(&mut out, given, &["verbs", "shortNames", "categories"]);
        places.entry(text(given, "name")).or_insert(found.len());
        found.push(out.into());
    }
    for (given, (parent, sub)) in all.iter().filter_map(|r| Some((r, split(r)?))) {
        let at = match places.get(&parent) {
            Some(at) => *at,
            None => {
                let mut out = Map::new();
                out.insert("resource".into(), parent.clone().into());
                out.insert("scope".into(), scope(given).into());
                out.insert("singularResource".into(), "".into());
                out.insert("responseKind".into(), kind(&Value::Null));
                out.insert("verbs".into(), json!([]));
                places.insert(parent.clone(), found.len());
                found.push(out.into());
                found.len() - 1
            }
        };
        if found[at]["scope"] != scope(given) {
            let parent_scope = found[at]["scope"].as_str().unwrap_or_default();
            return Err(format!(
                "Error: Parent {parent} (scope: {parent_scope}) and subresource {sub} (scope: {}) scope do not match",
                scope(given)
            ));
        }
        let mut out = Map::new();
        out.insert("subresource".into(), sub.into());
        out.insert("responseKind".into(), kind(given));
        lists(&mut out, given, &["verbs"]);
        if !found[at]["subresources"].is_array() {
            found[at]["subresources"] = json!([]);
        }
        if let Some(subs) = found[at]["subresources"].as_array_mut() {
            subs.push(out.into());
        }
    }
    Ok(json!({"version": version, "resources": found}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    /// Work continues after its caller is cancelled, and still counts.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn cancelled_callers_release_no_permit() {
        static ROOM: Semaphore = Semaphore::const_new(1);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let wait = Arc::new(Mutex::new(wait));
        let work = || {
            let (begun, wait) = (begun.clone(), wait.clone());
            Box::pin(within(&ROOM, move || {
                begun.send(()).unwrap();
                wait.lock().unwrap().recv().map_err(|e| e.to_string())
            }))
        };
        let mut given_up = work();
        tokio::select! {
            biased;
            _ = &mut given_up => panic!("it waits"),
            _ = begins.recv() => drop(given_up),
        }
        let mut second = work();
        assert!(futures_util::poll!(&mut second).is_pending());
        assert_eq!(ROOM.available_permits(), 0);
        assert!(begins.try_recv().is_err());
        go.send(()).unwrap();
        go.send(()).unwrap();
        second.await.unwrap();
        begins.recv().await.unwrap();
    }

    #[test]
    fn only_known_fields_go_on() {
        let document = json!({"kind": "APIGroupDiscoveryList", "items": [{
            "metadata": {"name": "a.io", "labels": {"x": "y"}},
            "versions": [
                {"version": "v1", "freshness": "Current", "x": 1, "resources": [{
                    "resource": "flunders", "scope": "Namespaced", "verbs": ["get", 7], "more": {},
                    "responseKind": null, "shortNames": ["fl"],
                    "subresources": [{"subresource": "status", "verbs": ["get"], "responseKind": {"kind": "Flunder"}}],
                }]},
                {"version": "v2"},
                {"resources": []},
            ],
        }]});
        let wanted = |all: &[&str]| all.iter().map(|v| ("a.io".to_owned(), (*v).to_owned())).collect();
        let found = versions(&document, &wanted(&["v1", "v2", "v3"]));
        let got: Vec<String> = found.iter().map(|(k, v)| format!("{k:?} {v}")).collect();
        expect![[r#"
            ("a.io", "v1") {"resources":[{"resource":"flunders","responseKind":{"group":"","kind":"","version":""},"scope":"Namespaced","shortNames":["fl"],"singularResource":"","subresources":[{"responseKind":{"group":"","kind":"Flunder","version":""},"subresource":"status","verbs":["get"]}],"verbs":["get"]}],"version":"v1"}
            ("a.io", "v2") {"version":"v2"}"#]]
        .assert_eq(&got.join("\n"));
        assert!(versions(&json!([]), &wanted(&["v1"])).is_empty());
        // Group versions that are not registered are not kept.
        assert_eq!(versions(&document, &wanted(&["v2"])).len(), 1);
    }

    #[test]
    fn the_old_form_is_understood() {
        let list = json!({"kind": "APIResourceList", "resources": [
            {"name": "a", "singularName": "", "namespaced": true, "kind": "A", "verbs": ["list"], "categories": ["all"]},
            {"name": "a/status", "namespaced": true, "kind": "A", "verbs": ["get"]},
            {"name": "b/x", "namespaced": false, "kind": "X", "group": "g", "version": "v", "verbs": ["create"]},
        ]});
        expect![[r#"{"resources":[{"categories":["all"],"resource":"a","responseKind":{"group":"","kind":"A","version":""},"scope":"Namespaced","singularResource":"","subresources":[{"responseKind":{"group":"","kind":"A","version":""},"subresource":"status","verbs":["get"]}],"verbs":["list"]},{"resource":"b","responseKind":{"group":"","kind":"","version":""},"scope":"Cluster","singularResource":"","subresources":[{"responseKind":{"group":"g","kind":"X","version":"v"},"subresource":"x","verbs":["create"]}],"verbs":[]}],"version":"v1"}"#]]
        .assert_eq(&from_legacy("v1", &list).unwrap().to_string());
        // The cost is linear in their number.
        let name = |i: usize| json!({"name": format!("r{i}/x"), "kind": "X"});
        let many = json!({"resources": (0..20_000).map(name).collect::<Vec<_>>()});
        assert_eq!(array(&from_legacy("v1", &many).unwrap()["resources"]).len(), 20_000);
        let torn = json!({"resources": [{"name": "a", "namespaced": true}, {"name": "a/b"}]});
        assert!(from_legacy("v1", &torn).unwrap_err().contains("scope do not match"));
    }
}
