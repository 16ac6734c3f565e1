//! The OpenAPI documents of extension servers.
//!
//! Invariants: reading never waits for a server; the last document is kept until its APIService is deleted, as an old
//! document serves clients better than none. Of a v2 document only the paths of the APIService's own group version count, of a
//! v3 index only its own documents, which are forwarded like any other request. For a server without v3 the document is made
//! of its v2.
//!
//! Source: upstream's OpenAPI aggregation controllers.

use crate::{Route, Table, availability_controller, documents, merge, service::ApiService, v3};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use kaji_outbound::ClientCache;
use kaji_resource::UserInfo;
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use tokio::sync::watch;

/// The user of requests, as the server sees it.
const READER: &str = "system:aggregator";
/// After a success.
const REFRESH: Duration = Duration::from_secs(60);
/// After failures.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(3600));
/// How long an answer may take.
const TIME: Duration = Duration::from_secs(30);

/// Bytes of a document.
const LARGEST: usize = 8 << 20;

fn parse(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|e| e.to_string())
}

/// What one server said about one group version.
#[derive(Clone, Default)]
struct Spec {
    etag: Option<HeaderValue>,
    /// Its own paths of the v2 document, and the revision of this server's that names them.
    v2: Option<(u64, Arc<Value>)>,
    /// Names of v3 documents, and where they are.
    v3: BTreeMap<String, String>,
    /// The server has no v3.
    old: bool,
    /// Its v2 document converted to v3; present if it has no v3 document.
    made: Option<ConvertedDocument>,
}

/// A v2 document converted to v3 here.
#[derive(Clone)]
struct ConvertedDocument {
    body: Bytes,
    hash: String,
}

impl ConvertedDocument {
    /// `None` if it is too large.
    fn of(v2: &Value) -> Option<ConvertedDocument> {
        let body = Bytes::from(v3::convert(v2).to_string());
        if body.len() > LARGEST {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        Some(ConvertedDocument { hash: format!("{:016X}", hasher.finish()), body })
    }
}

/// The name of an APIService's document of v3.
fn root(service: &ApiService) -> String {
    format!("apis/{}/{}", service.group, service.version)
}

#[derive(Default)]
struct Known {
    /// By the APIService's name.
    specs: HashMap<String, Spec>,
    /// Numbers v2 documents.
    count: u64,
}

/// All that is known.
#[derive(Default)]
pub(crate) struct Specs(Mutex<Known>);

/// The v2 documents of extension servers.
#[derive(Clone, Default)]
pub struct Swaggers {
    /// Another whenever any of them is.
    pub mark: String,
    documents: Vec<Arc<Value>>,
}

impl Swaggers {
    /// Adds what they say to a document.
    pub fn merge_into(&self, document: &mut Value) {
        self.documents.iter().for_each(|d| merge::merge(document, d));
    }
}

impl Specs {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the order of priorities.
    pub fn v2(&self, table: &Table) -> Swaggers {
        let mut services: Vec<&ApiService> = table.routes().map(|r| &r.service).collect();
        let highest = |group: &str| {
            let all = services.iter().filter(|s| s.group == group).map(|s| s.group_priority);
            all.max().unwrap_or_default()
        };
        let mut order: Vec<(i64, &ApiService)> = services.iter().map(|s| (-highest(&s.group), *s)).collect();
        order.sort_by(|(p, a), (q, b)| p.cmp(q).then(a.name.cmp(&b.name)));
        services = order.into_iter().map(|(_, s)| s).collect();
        let known = self.lock();
        let mut all = Swaggers::default();
        for service in services {
            if let Some((number, document)) = known.specs.get(&service.name).and_then(|s| s.v2.as_ref()) {
                all.mark += &format!(" {} {number}", service.name);
                all.documents.push(document.clone());
            }
        }
        all
    }

    /// Names of documents (`apis/example.com/v1`) and where they are.
    pub fn v3(&self, table: &Table) -> BTreeMap<String, String> {
        let known = self.lock();
        let mut all = BTreeMap::new();
        for service in table.routes().map(|r| &r.service) {
            let Some(spec) = known.specs.get(&service.name) else { continue };
            all.extend(spec.v3.clone());
            if let Some(made) = &spec.made {
                let root = root(service);
                let at = format!("/openapi/v3/{root}?hash={}", made.hash);
                all.insert(root, at);
            }
        }
        all
    }

    /// A v2 document converted to v3 here.
    pub fn cached(&self, table: &Table, document: &str) -> Option<(Bytes, String)> {
        let route = table.routes().find(|r| root(&r.service) == document)?;
        let made = self.lock().specs.get(&route.service.name)?.made.clone()?;
        Some((made.body, made.hash))
    }

    /// The route of the server that has a document.
    pub fn owner(&self, table: &Table, document: &str) -> Option<Arc<Route>> {
        let known = self.lock();
        let has =
            |r: &&Arc<Route>| known.specs.get(&r.service.name).is_some_and(|s| s.v3.contains_key(document));
        table.routes().find(has).cloned()
    }

    /// Forgets all that a table has no more.
    pub fn retain(&self, table: &Table) {
        self.lock().specs.retain(|name, _| table.named(name).is_some());
    }

    /// Asks a server.
    async fn read(&self, route: &Route, clients: &ClientCache) -> Result<(), String> {
        let client = route.client(clients).map_err(|e| e.to_string())?;
        let user = UserInfo { name: READER.into(), ..UserInfo::default() };
        let json = HeaderValue::from_static("application/json");
        let service = &route.service;
        let index =
            documents::get(&client, "/openapi/v3", &user, (json.clone(), None), (TIME, LARGEST)).await?;
        let old = index.code == StatusCode::NOT_FOUND;
        let v3 = match index.code {
            StatusCode::OK => {
                let (service, body) = (service.clone(), index.body);
                let read = move || Ok(own_documents(&service, &parse(&body)?));
                documents::apart(read).await?
            }
            StatusCode::NOT_FOUND => BTreeMap::new(),
            code => return Err(format!("/openapi/v3: {code}")),
        };
        let etag = {
            let mut known = self.lock();
            let spec = known.specs.entry(service.name.clone()).or_default();
            if old != spec.old {
                // What is to be made of v2 is another thing, so it has to be read.
                (spec.old, spec.made, spec.etag) = (old, None, None);
            }
            spec.v3 = v3;
            spec.etag.clone()
        };
        let answer = documents::get(&client, "/openapi/v2", &user, (json, etag), (TIME, LARGEST)).await?;
        match answer.code {
            StatusCode::NOT_MODIFIED | StatusCode::NOT_FOUND => Ok(()),
            StatusCode::OK => {
                let (prefix, body) = (format!("{}/", service.path()), answer.body);
                let read = move || {
                    let own = merge::filter(&parse(&body)?, |path| path.starts_with(&prefix));
                    let made = if old { ConvertedDocument::of(&own) } else { None };
                    Ok((own, made))
                };
                let (own, made) = documents::apart(read).await?;
                let mut known = self.lock();
                known.count += 1;
                let number = known.count;
                let spec = known.specs.entry(service.name.clone()).or_default();
                (spec.etag, spec.made) = (answer.etag, made);
                if spec.v2.as_ref().is_none_or(|(_, old)| **old != own) {
                    spec.v2 = Some((number, Arc::new(own)));
                }
                Ok(())
            }
            code => Err(format!("/openapi/v2: {code}")),
        }
    }
}

/// What an index says about the group version itself.
fn own_documents(service: &ApiService, index: &Value) -> BTreeMap<String, String> {
    let own = root(service);
    let at = index["paths"][own.as_str()]["serverRelativeURL"].as_str();
    at.filter(|at| at.starts_with(&format!("/openapi/v3/{own}")))
        .map(|at| (own, at.to_owned()))
        .into_iter()
        .collect()
}

/// Fetches the documents of one APIService again and again, until it is aborted.
pub(crate) async fn follow(aggregator: Weak<crate::Aggregator>, mut routes: watch::Receiver<Arc<Route>>) {
    let mut delay = availability_controller::Delay::new(RETRY);
    loop {
        let route = routes.borrow_and_update().clone();
        let pause = match aggregator.upgrade() {
            None => return,
            Some(_) if !route.service.is_available() => None,
            Some(this) => match this.specs.read(&route, &this.clients).await {
                Ok(()) => {
                    delay.reset();
                    Some(REFRESH)
                }
                Err(error) => {
                    tracing::info!(
                        name = route.service.name,
                        error,
                        "an extension server's OpenAPI cannot be read"
                    );
                    Some(delay.grow())
                }
            },
        };
        let pause = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        let changed = async {
            // Another condition alone is no news, unless it is the one that was waited for.
            loop {
                if routes.changed().await.is_err() {
                    return false;
                }
                let now = routes.borrow().clone();
                let became = now.service.is_available() && !route.service.is_available();
                if became || !now.service.same_but_for_condition(&route.service) {
                    return true;
                }
            }
        };
        tokio::select! {
            biased;
            () = pause => {}
            more = changed => if !more { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_is_its_own_counts() {
        let object = json!({"metadata": {"name": "v1.a.io"}, "spec": {"group": "a.io", "version": "v1",
            "service": {"namespace": "n", "name": "s"}}});
        let service = ApiService::parse(&object).unwrap();
        let index = |url: &str| json!({"paths": {"apis/a.io/v1": {"serverRelativeURL": url}, "api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=1"}}});
        let found = own_documents(&service, &index("/openapi/v3/apis/a.io/v1?hash=1"));
        assert_eq!(
            found,
            BTreeMap::from([("apis/a.io/v1".into(), "/openapi/v3/apis/a.io/v1?hash=1".into())])
        );
        assert!(own_documents(&service, &index("https://elsewhere/openapi/v3/apis/a.io/v1")).is_empty());
        assert!(own_documents(&service, &json!({"paths": []})).is_empty());
    }
}
