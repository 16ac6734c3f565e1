//! `/openapi/v2` and `/openapi/v3`. Source: KEP-2896.
//!
//! Invariants:
//! - A v3 document's hash is a function of what the document is made from, so the index costs no rendering; a document
//!   under its own hash never changes and may be cached for ever.
//! - Group versions of extension servers are part of the index and of v2; no request waits for an extension server.
//! - Documents are built on request and cached within a bound; a cluster without such requests pays nothing.
//! - Concurrent requests for a document share one build. However many requests are cancelled, no more than a few threads
//!   build.

use bytes::Bytes;
use kaji_aggregator::Aggregator;
use kaji_engine::{Engine, Resource};
use kaji_meta::text::hex;
use kaji_meta::{GroupResource, GroupVersion};
use kaji_resource::{ObjectReader, SubresourceDef, SubresourceKind, Verb, VersionDef};
use kaji_schema::{
    SchemaRef,
    openapi::{self, Custom, Group, Model, Root},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError, Weak},
};
use tokio::{
    sync::{OnceCell, Semaphore},
    task::JoinError,
};

/// The description of a type or of one of its fields.
pub type Docs = fn(&str, Option<&str>) -> Option<String>;

/// Bytes of documents that are kept, of either version.
const KEPT: usize = 12 << 20;

/// Requests at a time for which is found out what document they are for.
const LOOKING: usize = 2;

/// What a request for a document gets.
pub enum Served {
    /// No such document.
    NotFound,
    /// Not in a form that the client takes.
    NotAcceptable,
    /// The document has another hash by now.
    Redirect(String),
    /// The document.
    Document {
        /// Encoded.
        body: Bytes,
        /// Media type.
        content_type: &'static str,
        /// Quoted.
        etag: String,
        /// May be cached for ever.
        immutable: bool,
    },
}

/// OpenAPI of one server.
pub struct OpenApi {
    docs: Docs,
    v3: Arc<Kept>,
    v2: Arc<Kept>,
    looking: Arc<Semaphore>,
}

/// Makes a document.
type Make = Box<dyn FnOnce() -> Bytes + Send>;

/// Documents that were made, by their keys.
struct Kept {
    documents: Mutex<VecDeque<(String, Bytes)>>,
    /// Documents that are being built.
    coming: Mutex<HashMap<String, Weak<OnceCell<Bytes>>>>,
    /// One is made at a time: that takes many times its size.
    making: Arc<Semaphore>,
    /// So many stay, however large.
    least: usize,
}

impl Kept {
    fn new(least: usize) -> Arc<Kept> {
        let making = Arc::new(Semaphore::new(1));
        Arc::new(Kept { documents: Mutex::default(), coming: Mutex::default(), making, least })
    }

    /// A document, built if it is not cached, once for all waiting requests. A cancelled request leaves its turn to another;
    /// a build that has begun is completed and cached.
    async fn get(self: &Arc<Self>, key: String, make: Make) -> Result<Bytes, JoinError> {
        if let Some(body) = self.there(&key) {
            return Ok(body);
        }
        let cell = self.coming(&key);
        let made = cell.get_or_try_init(|| async {
            let turn = self.making.clone().acquire_owned().await;
            if let Some(body) = self.there(&key) {
                return Ok(body);
            }
            let kept = self.clone();
            let work = move || {
                let _turn = turn;
                let body = make();
                kept.put(key, body.clone());
                body
            };
            kaji_store::blocking(work).await
        });
        made.await.cloned()
    }

    fn there(&self, key: &str) -> Option<Bytes> {
        let documents = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        documents.iter().find(|(k, _)| k == key).map(|(_, body)| body.clone())
    }

    fn put(&self, key: String, body: Bytes) {
        let mut kept = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((key, body));
        while kept.len() > self.least && kept.iter().map(|(_, b)| b.len()).sum::<usize>() > KEPT {
            kept.pop_front();
        }
    }

    fn coming(&self, key: &str) -> Arc<OnceCell<Bytes>> {
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = coming.get(key).and_then(Weak::upgrade) {
            return cell;
        }
        coming.retain(|_, cell| cell.strong_count() > 0);
        let cell = Arc::default();
        coming.insert(key.to_owned(), Arc::downgrade(&cell));
        cell
    }
}

/// What is to be served.
enum Found {
    Served(Served),
    Kept { of: Arc<Kept>, key: String, make: Make, content_type: &'static str, etag: String, immutable: bool },
}

/// The resources of each group-version that is served.
type Groups = BTreeMap<(String, String), Vec<Arc<Resource>>>;

const JSON: &str = "application/json";

impl OpenApi {
    /// Documents with descriptions from `docs`.
    pub fn new(docs: Docs) -> Self {
        // What others make large, v2 in its two forms, takes no room from what is this server's alone.
        let looking = Arc::new(Semaphore::new(LOOKING));
        OpenApi { docs, v3: Kept::new(1), v2: Kept::new(2), looking }
    }

    /// Serves a path below `/openapi/`. Documents are large, and extension servers make them larger: no other request
    /// waits for a build, and a request that is cancelled before its turn costs nothing.
    ///
    /// # Errors
    /// The work did not come to its end.
    pub async fn serve(
        self: &Arc<Self>,
        (engine, aggregator): (Arc<Engine>, Arc<Aggregator>),
        path: String,
        accept: String,
        hash: Option<String>,
    ) -> Result<Served, JoinError> {
        let (this, turn) = (self.clone(), self.looking.clone().acquire_owned().await);
        let look = move || {
            let _turn = turn;
            this.find(&engine, &aggregator, &path, &accept, hash.as_deref())
        };
        match kaji_store::blocking(look).await? {
            Found::Served(served) => Ok(served),
            Found::Kept { of, key, make, content_type, etag, immutable } => {
                let body = of.get(key, make).await?;
                Ok(Served::Document { body, content_type, etag, immutable })
            }
        }
    }

    fn find(
        &self,
        engine: &Arc<Engine>,
        aggregator: &Aggregator,
        path: &str,
        accept: &str,
        hash: Option<&str>,
    ) -> Found {
        let groups = groups(engine);
        match path.trim_end_matches('/') {
            "v2" => self.v2(engine, aggregator, groups, accept),
            "v3" => {
                let mut paths: serde_json::Map<String, Value> = groups
                    .iter()
                    .map(|(gv, resources)| {
                        let (root, hash) = (root(gv), fingerprint(engine, gv, resources));
                        (
                            root.clone(),
                            json!({"serverRelativeURL": format!("/openapi/v3/{root}?hash={hash}")}),
                        )
                    })
                    .collect();
                let hash = build_hash();
                paths.extend(roots(&groups).into_iter().map(|root| {
                    let key = root.key();
                    let at = format!("/openapi/v3/{key}?hash={hash}");
                    (key, json!({"serverRelativeURL": at}))
                }));
                let extensions = aggregator.openapi_v3().into_iter();
                paths.extend(extensions.map(|(root, at)| (root, json!({"serverRelativeURL": at}))));
                let body = Bytes::from(json!({"paths": paths}).to_string());
                let etag = format!("\"{}\"", hex(&Sha256::digest(&body)).to_uppercase());
                Found::Served(Served::Document { body, content_type: JSON, etag, immutable: false })
            }
            other => match other.strip_prefix("v3/") {
                Some(wanted) => self.v3((engine, aggregator), &groups, wanted, accept, hash),
                None => Found::Served(Served::NotFound),
            },
        }
    }

    fn v3(
        &self,
        (engine, aggregator): (&Arc<Engine>, &Aggregator),
        groups: &Groups,
        wanted: &str,
        accept: &str,
        hash: Option<&str>,
    ) -> Found {
        let own = groups.iter().find(|(gv, _)| root(gv) == wanted);
        let other = roots(groups).into_iter().find(|root| root.key() == wanted);
        let made = aggregator.openapi_v3_document(wanted);
        if own.is_none() && other.is_none() && made.is_none() {
            return Found::Served(Served::NotFound);
        }
        if !takes(accept, JSON) {
            return Found::Served(Served::NotAcceptable);
        }
        let extension = |current: &str| {
            let other = hash.is_some_and(|h| h != current);
            other.then(|| Found::Served(Served::Redirect(format!("/openapi/v3/{wanted}?hash={current}"))))
        };
        let (content_type, immutable) = (JSON, hash.is_some());
        if let Some((body, current)) = made {
            let etag = format!("\"{current}\"");
            let served = || Found::Served(Served::Document { body, content_type, etag, immutable });
            return extension(&current).unwrap_or_else(served);
        }
        let docs = self.docs;
        let (current, make): (String, Make) = match (other, own) {
            (Some(root), _) => {
                (build_hash(), Box::new(move || Bytes::from(openapi::root_v3(&root, &docs).to_string())))
            }
            (None, Some((gv, resources))) => {
                let current = fingerprint(engine, gv, resources);
                let (engine, gv, resources) = (engine.clone(), gv.clone(), resources.clone());
                let make = move || {
                    let customs = customs(&engine, &gv, &resources);
                    Bytes::from(openapi::v3(&group(&gv, &resources, &customs), &docs).to_string())
                };
                (current, Box::new(make))
            }
            (None, None) => return Found::Served(Served::NotFound),
        };
        if let Some(found) = extension(&current) {
            return found;
        }
        let (key, etag) = (format!("v3 {wanted} {current}"), format!("\"{current}\""));
        Found::Kept { of: self.v3.clone(), key, make, content_type, etag, immutable }
    }

    fn v2(&self, engine: &Arc<Engine>, aggregator: &Aggregator, groups: Groups, accept: &str) -> Found {
        let protobuf = accept.contains(openapi::V2_PROTOBUF)
            || accept.contains("application/com.github.proto-openapi.spec.v2@v1.0+protobuf");
        if !protobuf && !takes(accept, JSON) {
            return Found::Served(Served::NotAcceptable);
        }
        let mut prints: Vec<String> = groups.iter().map(|(gv, r)| fingerprint(engine, gv, r)).collect();
        let extensions = aggregator.swaggers();
        prints.push(extensions.mark.clone());
        let current = hex(&Sha256::digest(prints.concat().as_bytes())).to_uppercase();
        let form = if protobuf { "protobuf" } else { "json" };
        let (engine, docs) = (engine.clone(), self.docs);
        let make = Box::new(move || {
            let customs: Vec<Vec<Option<Custom>>> =
                groups.iter().map(|(gv, r)| customs(&engine, gv, r)).collect();
            let all: Vec<Group<'_>> = groups
                .iter()
                .zip(&customs)
                .map(|((gv, resources), customs)| group(gv, resources, customs))
                .collect();
            let mut document = openapi::v2(&all, &roots(&groups), &docs);
            extensions.merge_into(&mut document);
            if protobuf { openapi::to_protobuf(&document).into() } else { Bytes::from(document.to_string()) }
        });
        let content_type = if protobuf { openapi::V2_PROTOBUF } else { JSON };
        let (key, etag) = (format!("v2 {form} {current}"), format!("\"{current}-{form}\""));
        Found::Kept { of: self.v2.clone(), key, make, content_type, etag, immutable: false }
    }
}

fn takes(accept: &str, media: &str) -> bool {
    crate::negotiate::clauses(accept)
        .iter()
        .any(|c| matches!(c.media, "*/*" | "application/*") || c.media == media)
}

fn groups(engine: &Engine) -> Groups {
    let mut groups = Groups::new();
    for resource in engine.registry().iter() {
        for version in resource.def.versions.iter().filter(|v| v.served) {
            let key = (resource.def.group.to_string(), version.name.to_string());
            groups.entry(key).or_default().push(resource.clone());
        }
    }
    groups
}

/// The documents besides those of group-versions.
fn roots(groups: &Groups) -> Vec<Root> {
    let built_in = groups.iter().filter(|((_, version), resources)| {
        resources.first().is_some_and(|resource| !is_custom(resource, version))
    });
    Root::all(built_in.map(|((group, _), _)| group.as_str()))
}

/// Names the content of documents that this build alone makes.
fn build_hash() -> String {
    hex(&Sha256::digest(env!("CARGO_PKG_VERSION"))).to_uppercase()
}

/// `api/v1`, `apis/apps/v1`
fn root((group, version): &(String, String)) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

fn is_custom(resource: &Resource, version: &str) -> bool {
    resource.def.version(version).is_some_and(|v| matches!(v.schema, SchemaRef::Owned(_)))
}

/// The definition that a custom resource comes from.
fn definition(engine: &Engine, resource: &Resource) -> Option<Arc<Value>> {
    let name = format!("{}.{}", resource.def.plural, resource.def.group);
    engine.get(&GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions"), "", &name)
}

/// Names the content of a group-version's document: this build, its resources and their definitions' generations.
fn fingerprint(engine: &Engine, gv: &(String, String), resources: &[Arc<Resource>]) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{} {} {}", env!("CARGO_PKG_VERSION"), gv.0, gv.1));
    for resource in resources {
        hash.update(format!(" {} {}", resource.def.plural, resource.def.kind));
        if is_custom(resource, &gv.1)
            && let Some(definition) = definition(engine, resource)
        {
            let meta = &definition["metadata"];
            hash.update(format!(
                " {} {} {}",
                meta["uid"], meta["generation"], definition["status"]["acceptedNames"]
            ));
        }
    }
    hex(&hash.finalize()[..32]).to_uppercase()
}

/// For each resource, its custom model when it is a custom one.
fn customs(engine: &Engine, gv: &(String, String), resources: &[Arc<Resource>]) -> Vec<Option<Custom>> {
    resources
        .iter()
        .map(|resource| {
            if !is_custom(resource, &gv.1) {
                return None;
            }
            let definition = definition(engine, resource)?;
            let versions = definition["spec"]["versions"].as_array()?;
            let version = versions.iter().find(|v| v["name"] == gv.1.as_str())?;
            let fields = version["selectableFields"].as_array().into_iter().flatten();
            Some(Custom {
                group: gv.0.clone(),
                version: gv.1.clone(),
                kind: resource.def.kind.to_string(),
                list_kind: resource.def.list_kind.to_string(),
                plural: resource.def.plural.to_string(),
                schema: version.pointer("/schema/openAPIV3Schema").cloned(),
                selectable_fields: fields.filter_map(|f| f["jsonPath"].as_str().map(str::to_owned)).collect(),
            })
        })
        .collect()
}

fn group<'a>(
    gv: &(String, String),
    resources: &'a [Arc<Resource>],
    customs: &'a [Option<Custom>],
) -> Group<'a> {
    let resources = resources
        .iter()
        .zip(customs)
        .filter_map(|(resource, custom)| {
            let (def, version) = (&resource.def, resource.def.version(&gv.1)?);
            let model = match custom {
                Some(custom) => Model::Custom(custom),
                None => Model::of_kind(&def.group, &version.name, &def.kind)?,
            };
            Some(openapi::Resource {
                plural: &def.plural,
                kind: &def.kind,
                list_kind: &def.list_kind,
                namespaced: def.namespaced(),
                verbs: verbs(def.verbs),
                model,
                subresources: version
                    .subresources
                    .iter()
                    .map(|s| subresource(resource, version, s, model))
                    .collect(),
            })
        })
        .collect();
    Group { group_version: GroupVersion::new(gv.0.as_str(), gv.1.as_str()), resources }
}

fn subresource<'a>(
    resource: &'a Resource,
    version: &'a VersionDef,
    sub: &'a SubresourceDef,
    parent: Model<'a>,
) -> openapi::Subresource<'a> {
    let (gvk, model) = match &sub.kind {
        SubresourceKind::Status | SubresourceKind::Update => {
            ((resource.def.group.as_ref(), version.name.as_ref(), resource.def.kind.as_ref()), Some(parent))
        }
        SubresourceKind::Scale(_) => {
            (("autoscaling", "v1", "Scale"), Model::of_kind("autoscaling", "v1", "Scale"))
        }
        SubresourceKind::Call { kind } | SubresourceKind::Connect { kind, .. } => (
            (kind.group.as_str(), kind.version.as_str(), kind.kind.as_str()),
            Model::of_kind(&kind.group, &kind.version, &kind.kind),
        ),
    };
    openapi::Subresource { name: &sub.name, gvk, verbs: verbs(sub.verbs), model }
}

/// Discovery's names of verbs; the lists that definitions use are few, so each is made once.
fn verbs(list: &'static [Verb]) -> &'static [&'static str] {
    type Names = Mutex<BTreeMap<usize, &'static [&'static str]>>;
    static NAMES: Names = Mutex::new(BTreeMap::new());
    let key = list.iter().fold(0, |bits, v| bits | 1 << (*v as usize));
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.entry(key).or_insert_with(|| list.iter().map(|v| v.as_str()).collect::<Vec<_>>().leak())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn what_is_large_drives_out_nothing_else() {
        let (v2, v3) = (Kept::new(2), Kept::new(1));
        let make = |kept: &Arc<Kept>, key: &str, make: fn() -> Bytes| {
            let (kept, key) = (kept.clone(), key.to_owned());
            async move { kept.get(key, Box::new(make)).await.unwrap() }
        };
        let large = || Bytes::from(vec![0; KEPT]);
        let unexpected = || -> Bytes { panic!("it was kept") };
        make(&v3, "own", || Bytes::from_static(b"x")).await;
        // Both forms stay, of the newest.
        for key in ["json 1", "protobuf 1", "json 2", "protobuf 2"] {
            make(&v2, key, large).await;
        }
        assert_eq!(make(&v2, "json 2", unexpected).await.len(), KEPT);
        assert_eq!(make(&v2, "protobuf 2", unexpected).await.len(), KEPT);
        assert_eq!(make(&v3, "own", unexpected).await, "x");
        assert_eq!(make(&v2, "json 1", || Bytes::from_static(b"made anew")).await, "made anew");
    }

    /// A thousand cancelled requests occupy one thread, and all others get one document.
    #[test]
    fn cancelled_requests_cost_nothing() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).max_blocking_threads(2).build().unwrap();
        runtime.block_on(async {
            let (kept, made) = (Kept::new(1), Arc::new(AtomicUsize::new(0)));
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let wait = Arc::new(Mutex::new(wait));
            let ask = |key: &str| {
                let (made, wait) = (made.clone(), wait.clone());
                let make = move || {
                    made.fetch_add(1, Ordering::SeqCst);
                    wait.lock().unwrap().recv().unwrap();
                    Bytes::from(vec![0; KEPT])
                };
                let (kept, key) = (kept.clone(), key.to_owned());
                let get = async move { kept.get(key, Box::new(make)).await.unwrap() };
                Box::pin(tokio::task::unconstrained(get))
            };
            for i in 0..1000 {
                assert!(ask(["a", "b"][i % 2]).now_or_never().is_none());
            }
            // Other blocking work is done.
            tokio::task::spawn_blocking(|| ()).await.unwrap();
            // All waiting requests get the document that is being built, though the cache has no room for it.
            let mut staying: Vec<_> = (0..100).map(|i| ask(["a", "b"][i % 2])).collect();
            assert!(staying.iter_mut().all(|s| s.now_or_never().is_none()));
            go.send(()).unwrap();
            go.send(()).unwrap();
            let all = futures_util::future::join_all(staying).await;
            assert!(all.iter().all(|body| body.len() == KEPT));
            assert_eq!(made.load(Ordering::SeqCst), 2);
            assert!(kept.coming.lock().unwrap().values().all(|cell| cell.strong_count() == 0));
        });
    }
}
