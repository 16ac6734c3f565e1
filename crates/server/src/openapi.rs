//! `/openapi/v2` and `/openapi/v3`. Source: KEP-2896.
//!
//! Invariants:
//! - A v3 document's hash is a function of what the document is made from, so the index costs no rendering; a document
//!   under its own hash never changes and may be cached for ever.
//! - What extension servers serve is part of the index and of v2; nobody waits for any of them.
//! - Documents are made when asked for and kept within a bound; a cluster nobody asks pays nothing.

use crate::discovery::hex;
use bytes::Bytes;
use kaji_aggregator::Aggregator;
use kaji_engine::{Engine, Resource};
use kaji_meta::{GroupResource, GroupVersion};
use kaji_resource::{Api, SubresourceDef, SubresourceKind, Verb, VersionDef};
use kaji_schema::{
    SchemaRef,
    openapi::{self, Custom, Group, Model},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

/// The description of a type or of one of its fields.
pub type Docs = fn(&str, Option<&str>) -> Option<String>;

/// Bytes of documents that are kept, of either version.
const KEPT: usize = 12 << 20;

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
    v3: Kept,
    v2: Kept,
}

/// Documents that were made, by their keys.
struct Kept {
    documents: Mutex<VecDeque<(String, Bytes)>>,
    /// One is made at a time: that takes many times its size.
    making: Mutex<()>,
    /// So many stay, however large.
    least: usize,
}

impl Kept {
    fn new(least: usize) -> Kept {
        Kept { documents: Mutex::default(), making: Mutex::default(), least }
    }

    /// A document, made if it is not there.
    fn get(&self, key: String, make: impl FnOnce() -> Bytes) -> Bytes {
        let lock = || self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        let there = || lock().iter().find(|(k, _)| *k == key).map(|(_, body)| body.clone());
        if let Some(body) = there() {
            return body;
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(body) = there() {
            return body;
        }
        let body = make();
        let mut kept = lock();
        kept.push_back((key, body.clone()));
        while kept.len() > self.least && kept.iter().map(|(_, b)| b.len()).sum::<usize>() > KEPT {
            kept.pop_front();
        }
        body
    }
}

/// The resources of each group-version that is served.
type Groups = BTreeMap<(String, String), Vec<Arc<Resource>>>;

const JSON: &str = "application/json";

impl OpenApi {
    /// Documents whose prose comes from `docs`.
    pub fn new(docs: Docs) -> Self {
        // What others make large, v2 in its two forms, takes no room from what is this server's alone.
        OpenApi { docs, v3: Kept::new(1), v2: Kept::new(2) }
    }

    /// Serves a path below `/openapi/`.
    pub fn serve(
        &self,
        engine: &Engine,
        aggregator: &Aggregator,
        path: &str,
        accept: &str,
        hash: Option<&str>,
    ) -> Served {
        let groups = groups(engine);
        match path.trim_end_matches('/') {
            "v2" => self.v2(engine, aggregator, &groups, accept),
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
                let elsewhere = aggregator.openapi_v3().into_iter();
                paths.extend(elsewhere.map(|(root, at)| (root, json!({"serverRelativeURL": at}))));
                let body = Bytes::from(json!({"paths": paths}).to_string());
                let etag = format!("\"{}\"", hex(&Sha256::digest(&body)).to_uppercase());
                Served::Document { body, content_type: JSON, etag, immutable: false }
            }
            other => match other.strip_prefix("v3/") {
                Some(wanted) => self.v3((engine, aggregator), &groups, wanted, accept, hash),
                None => Served::NotFound,
            },
        }
    }

    fn v3(
        &self,
        (engine, aggregator): (&Engine, &Aggregator),
        groups: &Groups,
        wanted: &str,
        accept: &str,
        hash: Option<&str>,
    ) -> Served {
        let own = groups.iter().find(|(gv, _)| root(gv) == wanted);
        let made = aggregator.openapi_v3_document(wanted);
        if own.is_none() && made.is_none() {
            return Served::NotFound;
        }
        if !takes(accept, JSON) {
            return Served::NotAcceptable;
        }
        if let Some((body, current)) = made {
            if hash.is_some_and(|h| h != current) {
                return Served::Redirect(format!("/openapi/v3/{wanted}?hash={current}"));
            }
            let (etag, immutable) = (format!("\"{current}\""), hash.is_some());
            return Served::Document { body, content_type: JSON, etag, immutable };
        }
        let Some((gv, resources)) = own else { return Served::NotFound };
        let current = fingerprint(engine, gv, resources);
        if hash.is_some_and(|h| h != current) {
            return Served::Redirect(format!("/openapi/v3/{wanted}?hash={current}"));
        }
        let body = self.v3.get(format!("v3 {wanted} {current}"), || {
            let customs = customs(engine, gv, resources);
            Bytes::from(openapi::v3(&group(gv, resources, &customs), &self.docs).to_string())
        });
        Served::Document {
            body,
            content_type: JSON,
            etag: format!("\"{current}\""),
            immutable: hash.is_some(),
        }
    }

    fn v2(&self, engine: &Engine, aggregator: &Aggregator, groups: &Groups, accept: &str) -> Served {
        let protobuf = accept.contains(openapi::V2_PROTOBUF)
            || accept.contains("application/com.github.proto-openapi.spec.v2@v1.0+protobuf");
        if !protobuf && !takes(accept, JSON) {
            return Served::NotAcceptable;
        }
        let mut prints: Vec<String> = groups.iter().map(|(gv, r)| fingerprint(engine, gv, r)).collect();
        let elsewhere = aggregator.swaggers();
        prints.push(elsewhere.mark.clone());
        let current = hex(&Sha256::digest(prints.concat().as_bytes())).to_uppercase();
        let form = if protobuf { "protobuf" } else { "json" };
        let body = self.v2.get(format!("v2 {form} {current}"), || {
            let customs: Vec<Vec<Option<Custom>>> =
                groups.iter().map(|(gv, r)| customs(engine, gv, r)).collect();
            let all: Vec<Group<'_>> = groups
                .iter()
                .zip(&customs)
                .map(|((gv, resources), customs)| group(gv, resources, customs))
                .collect();
            let mut document = openapi::v2(&all, &self.docs);
            elsewhere.merge_into(&mut document);
            if protobuf { openapi::to_protobuf(&document).into() } else { Bytes::from(document.to_string()) }
        });
        let content_type = if protobuf { openapi::V2_PROTOBUF } else { JSON };
        Served::Document { body, content_type, etag: format!("\"{current}-{form}\""), immutable: false }
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
        SubresourceKind::Call { kind } => (
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

    #[test]
    fn what_is_large_drives_out_nothing_else() {
        let (v2, v3) = (Kept::new(2), Kept::new(1));
        let large = || Bytes::from(vec![0; KEPT]);
        let unexpected = || -> Bytes { panic!("it was kept") };
        v3.get("own".into(), || Bytes::from_static(b"x"));
        // Both forms stay, of the newest.
        for key in ["json 1", "protobuf 1", "json 2", "protobuf 2"] {
            v2.get(key.into(), large);
        }
        assert_eq!(v2.get("json 2".into(), unexpected).len(), KEPT);
        assert_eq!(v2.get("protobuf 2".into(), unexpected).len(), KEPT);
        assert_eq!(v3.get("own".into(), unexpected), "x");
        assert_eq!(v2.get("json 1".into(), || Bytes::from_static(b"made anew")), "made anew");
    }
}
