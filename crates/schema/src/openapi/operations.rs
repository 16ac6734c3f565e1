//! Paths and operations.

use serde_json::Value;

use crate::types;

use super::{Docs, Group, Model, Resource, Subresource, connect, gvk};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// A parameter: name, place, type, and the type that its description is found in. Of a name, it is the kind that has it.
#[derive(Clone, Copy)]
pub(super) struct Param<'a> {
    pub(super) name: &'static str,
    pub(super) place: &'static str,
    pub(super) ty: &'static str,
    pub(super) owner: &'a str,
}

const PRETTY_TEXT: &str = "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates \
                           a browser or command-line HTTP tool (curl and wget).";

impl Param<'_> {
    pub(super) fn description(&self, docs: Docs<'_>) -> Option<String> {
        match (self.name, self.place) {
            ("pretty", _) => Some(PRETTY_TEXT.into()),
            ("name", _) => Some(format!("name of the {}", self.owner)),
            ("namespace", _) => Some("object name and auth scope, such as for teams and projects".into()),
            ("path", "path") => Some("path to the resource".into()),
            (name, _) if self.owner.contains('.') => docs(self.owner, Some(name)),
            (name, _) => docs(&format!("{META}.{}", self.owner), Some(name)),
        }
    }
}

pub(super) const fn query<'a>(name: &'static str, ty: &'static str, owner: &'a str) -> Param<'a> {
    Param { name, place: "query", ty, owner }
}

pub(super) const fn in_path(name: &'static str) -> Param<'static> {
    Param { name, place: "path", ty: "string", owner: "" }
}

pub(super) const PRETTY: Param<'static> = query("pretty", "string", "");
const NAMESPACE: Param<'static> = in_path("namespace");

/// The name of an object of this kind, in a path.
fn name_of(kind: &str) -> Param<'_> {
    Param { owner: kind, ..in_path("name") }
}

const LIST: [Param<'static>; 11] = [
    query("allowWatchBookmarks", "boolean", "ListOptions"),
    query("continue", "string", "ListOptions"),
    query("fieldSelector", "string", "ListOptions"),
    query("labelSelector", "string", "ListOptions"),
    query("limit", "integer", "ListOptions"),
    query("resourceVersion", "string", "ListOptions"),
    query("resourceVersionMatch", "string", "ListOptions"),
    query("sendInitialEvents", "boolean", "ListOptions"),
    query("shardSelector", "string", "ListOptions"),
    query("timeoutSeconds", "integer", "ListOptions"),
    query("watch", "boolean", "ListOptions"),
];

const DELETE: [Param<'static>; 5] = [
    query("dryRun", "string", "DeleteOptions"),
    query("gracePeriodSeconds", "integer", "DeleteOptions"),
    query("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean", "DeleteOptions"),
    query("orphanDependents", "boolean", "DeleteOptions"),
    query("propagationPolicy", "string", "DeleteOptions"),
];

const CREATE: [Param<'static>; 3] = written("CreateOptions");
const UPDATE: [Param<'static>; 3] = written("UpdateOptions");

const fn written(owner: &'static str) -> [Param<'static>; 3] {
    [
        query("dryRun", "string", owner),
        query("fieldManager", "string", owner),
        query("fieldValidation", "string", owner),
    ]
}

const PATCH: [Param<'static>; 4] = [
    query("dryRun", "string", "PatchOptions"),
    query("fieldManager", "string", "PatchOptions"),
    query("fieldValidation", "string", "PatchOptions"),
    query("force", "boolean", "PatchOptions"),
];

/// What an operation takes as body.
#[derive(Clone, PartialEq)]
pub(super) enum Body {
    None,
    /// The object itself.
    Object(String),
    /// Delete options, optional.
    Delete,
    /// A patch.
    Patch,
}

/// One operation.
pub(super) struct Operation {
    /// Lower-case HTTP method.
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) description: String,
    pub(super) action: &'static str,
    pub(super) params: Vec<Param<'static>>,
    pub(super) body: Body,
    /// The definition that is answered; none where the answer is plain text.
    pub(super) answer: Option<String>,
    pub(super) codes: &'static [(&'static str, &'static str)],
    /// Lists can be watched: streaming content types.
    pub(super) streams: bool,
    pub(super) gvk: Option<Value>,
    /// Custom resources have neither protobuf nor strategic merge patch.
    pub(super) custom: bool,
    /// Content types that are not those of objects.
    pub(super) media: Option<Media>,
    pub(super) tag: String,
}

/// Content types of answers, and those of bodies that v2 has even where there is no body.
#[derive(Clone, Copy)]
pub(super) struct Media {
    pub(super) produces: &'static [&'static str],
    pub(super) consumes: &'static [&'static str],
}

impl Media {
    const BOTH: &'static [&'static str] =
        &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
    /// Of what is negotiated as objects are.
    pub(super) const NEGOTIATED: Media = Media { produces: Media::BOTH, consumes: Media::BOTH };
    /// Of what is JSON alone.
    pub(super) const JSON: Media = Media { produces: &["application/json"], consumes: &["application/json"] };
}

/// One path.
pub(super) struct PathItem<'a> {
    pub(super) path: String,
    pub(super) params: Vec<Param<'a>>,
    pub(super) operations: Vec<Operation>,
    /// The types that the operations mention.
    pub(super) models: Vec<Model<'a>>,
}

/// Kinds for which a delete returns the object instead of a Status.
const ANSWERS_OBJECT: [&str; 18] = [
    "CSIDriver",
    "CSINode",
    "DeviceClass",
    "DeviceTaintRule",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourcePoolStatusRequest",
    "ResourceQuota",
    "ResourceSlice",
    "Service",
    "ServiceAccount",
    "StorageClass",
    "VolumeAttachment",
    "VolumeAttributesClass",
];

pub(super) const OK: &[(&str, &str)] = &[("200", "OK")];
const OK_CREATED: &[(&str, &str)] = &[("200", "OK"), ("201", "Created")];
const OK_ACCEPTED: &[(&str, &str)] = &[("200", "OK"), ("202", "Accepted")];
const ALL: &[(&str, &str)] = &[("200", "OK"), ("201", "Created"), ("202", "Accepted")];

/// The paths of a group-version.
pub(super) fn paths<'a>(group: &Group<'a>) -> Vec<PathItem<'a>> {
    let names = Names::new(group);
    // The group-versions of custom resources have no document of their discovery.
    let mut out = if group.is_custom() { vec![] } else { vec![resource_list(group, &names)] };
    for r in &group.resources {
        resource_paths(group, &names, r, &mut out);
    }
    out
}

/// "get available resources".
fn resource_list<'a>(group: &Group<'a>, names: &Names) -> PathItem<'a> {
    let operation = Operation {
        method: "get",
        id: format!("get{}APIResources", names.camel),
        description: "get available resources".into(),
        action: "",
        params: Vec::new(),
        body: Body::None,
        answer: Some(format!("{META}.APIResourceList")),
        codes: OK,
        streams: false,
        gvk: None,
        custom: false,
        media: Some(Media::NEGOTIATED),
        tag: names.tag.clone(),
    };
    PathItem {
        path: format!("{}/", group.root()),
        params: Vec::new(),
        operations: vec![operation],
        models: Vec::new(),
    }
}

/// Parts of operation names that come from the group-version.
pub(super) struct Names {
    /// "AppsV1".
    pub(super) camel: String,
    /// "apps_v1".
    tag: String,
}

impl Names {
    fn new(group: &Group<'_>) -> Names {
        let gv = &group.group_version;
        let group =
            if gv.group.is_empty() { "core" } else { gv.group.strip_suffix(".k8s.io").unwrap_or(&gv.group) };
        Names {
            camel: format!("{}{}", camel(group, true), camel(&gv.version, true)),
            tag: format!("{}_{}", camel(group, false), camel(&gv.version, false)),
        }
    }
}

/// "flowcontrol.apiserver" is "FlowcontrolApiserver".
pub(super) fn camel(text: &str, mut upper: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if !c.is_alphanumeric() {
            upper = !out.is_empty() || upper;
            continue;
        }
        if upper {
            out.extend(c.to_uppercase())
        } else {
            out.push(c)
        }
        upper = false;
    }
    out
}

/// "a Pod", "an Ingress"; plurals ("Endpoints") have no article.
fn with_article(noun: &str) -> String {
    let vowel = noun.starts_with(['A', 'E', 'I', 'O', 'U', 'a', 'e', 'i', 'o', 'u']);
    match (noun.ends_with('s') && !noun.ends_with("ss"), vowel) {
        (true, _) => noun.to_string(),
        (false, true) => format!("an {noun}"),
        (false, false) => format!("a {noun}"),
    }
}

fn resource_paths<'a>(group: &Group<'a>, names: &Names, r: &Resource<'a>, out: &mut Vec<PathItem<'a>>) {
    let (root, scope) = match r.namespaced {
        true => (format!("{}/namespaces/{{namespace}}/{}", group.root(), r.plural), "Namespaced"),
        false => (format!("{}/{}", group.root(), r.plural), ""),
    };
    let maker = Maker { group, names, resource: r, scope };
    let mut common: Vec<Param<'a>> = if r.namespaced { vec![NAMESPACE] } else { Vec::new() };
    common.push(PRETTY);
    if r.namespaced && r.verbs.contains(&"list") {
        let id = format!("list{}{}ForAllNamespaces", names.camel, r.kind);
        let mut list = maker.list(id);
        let mut params = std::mem::take(&mut list.params);
        params.insert(5, PRETTY);
        let path = format!("{}/{}", group.root(), r.plural);
        out.push(PathItem { path, params, operations: vec![list], models: maker.models(true) });
    }
    let collection = maker.collection();
    if !collection.is_empty() {
        let models = maker.models(r.verbs.contains(&"list"));
        out.push(PathItem { path: root.clone(), params: common.clone(), operations: collection, models });
    }
    common.insert(0, name_of(r.kind));
    let object = maker.object(None);
    if !object.is_empty() {
        let path = format!("{root}/{{name}}");
        out.push(PathItem { path, params: common.clone(), operations: object, models: maker.models(false) });
    }
    for s in &r.subresources {
        let path = format!("{root}/{{name}}/{}", s.name);
        let mut common = common.clone();
        if let (Model::BuiltIn(_), Some(name)) = (r.model, common.first_mut()) {
            *name = name_of(s.gvk.2);
        }
        if s.model.is_none() {
            connect::paths(&maker, s, &path, &common, out);
            continue;
        }
        let operations = maker.object(Some(s));
        if !operations.is_empty() {
            let models = s.model.into_iter().collect();
            out.push(PathItem { path, params: common, operations, models });
        }
    }
    maker.watches(&common, &root, out);
}

pub(super) struct Maker<'g, 'a> {
    group: &'g Group<'a>,
    pub(super) names: &'g Names,
    pub(super) resource: &'g Resource<'a>,
    pub(super) scope: &'static str,
}

impl<'a> Maker<'_, 'a> {
    fn is_custom(&self) -> bool {
        matches!(self.resource.model, Model::Custom(_))
    }

    fn models(&self, with_list: bool) -> Vec<Model<'a>> {
        let mut out = vec![self.resource.model];
        let named = |n: &str| types::entry(&format!("{META}.{n}")).map(Model::BuiltIn);
        out.extend(["Status", "DeleteOptions", "Patch"].into_iter().filter_map(named));
        if let (true, Model::BuiltIn(e)) = (with_list, self.resource.model) {
            let package = e.name().rsplit_once('.').map_or("", |(p, _)| p);
            out.extend(types::entry(&format!("{package}.{}", self.resource.list_kind)).map(Model::BuiltIn));
        }
        out
    }

    fn list_name(&self) -> String {
        match self.resource.model {
            Model::Custom(c) => c.definition_name(&c.list_kind),
            Model::BuiltIn(e) => {
                let package = e.name().rsplit_once('.').map_or("", |(p, _)| p);
                format!("{package}.{}", self.resource.list_kind)
            }
        }
    }

    pub(super) fn operation(
        &self,
        method: &'static str,
        action: &'static str,
        id: String,
        description: String,
    ) -> Operation {
        let gv = &self.group.group_version;
        Operation {
            method,
            id,
            description,
            action,
            params: Vec::new(),
            body: Body::None,
            answer: Some(self.resource.model.name()),
            codes: OK,
            streams: false,
            gvk: Some(gvk(&gv.group, &gv.version, self.resource.kind)),
            custom: self.is_custom(),
            media: None,
            tag: self.names.tag.clone(),
        }
    }

    fn list(&self, id: String) -> Operation {
        let kind = self.resource.kind;
        let verbs = if self.is_custom() { "list" } else { "list or watch" };
        let mut op = self.operation("get", "list", id, format!("{verbs} objects of kind {kind}"));
        op.answer = Some(self.list_name());
        op.params = LIST.to_vec();
        op.streams = !self.is_custom();
        op
    }

    pub(super) fn id(&self, verb: &str, suffix: &str) -> String {
        format!("{verb}{}{}{}{suffix}", self.names.camel, self.scope, self.resource.kind)
    }

    /// Operations on the collection.
    fn collection(&self) -> Vec<Operation> {
        let r = self.resource;
        let mut out = Vec::new();
        if r.verbs.contains(&"list") {
            out.push(self.list(self.id("list", "")));
        }
        if r.verbs.contains(&"create") {
            let mut op = self.operation(
                "post",
                "post",
                self.id("create", ""),
                format!("create {}", with_article(r.kind)),
            );
            op.params = CREATE.to_vec();
            op.body = Body::Object(r.model.name());
            op.codes = ALL;
            out.push(op);
        }
        if r.verbs.contains(&"deletecollection") {
            let id = format!("delete{}Collection{}{}", self.names.camel, self.scope, r.kind);
            let description = format!("delete collection of {}", r.kind);
            let mut op = self.operation("delete", "deletecollection", id, description);
            let list = LIST.into_iter().filter(|p| !matches!(p.name, "allowWatchBookmarks" | "watch"));
            op.params = list.chain(DELETE).collect();
            op.params.sort_by_key(|p| p.name);
            op.body = Body::Delete;
            if self.is_custom() {
                (op.params, op.body) = (LIST.to_vec(), Body::None);
            }
            op.answer = Some(format!("{META}.Status"));
            out.push(op);
        }
        out
    }

    /// Operations on one object, or on a subresource of it.
    fn object(&self, sub: Option<&Subresource<'a>>) -> Vec<Operation> {
        let r = self.resource;
        let verbs = sub.map_or(r.verbs, |s| s.verbs);
        let suffix = sub.map_or_else(String::new, |s| camel(s.name, true));
        let of = sub.map_or_else(String::new, |s| format!("{} of ", s.name));
        let model = sub.and_then(|s| s.model).unwrap_or(r.model).name();
        let mut out = Vec::new();
        let mut push = |verb: &str, method, action, word: &str, text: String, f: &dyn Fn(&mut Operation)| {
            if verbs.contains(&verb) {
                let mut op = self.operation(method, action, self.id(word, &suffix), text);
                op.answer = Some(model.clone());
                if let Some(s) = sub.filter(|_| !self.is_custom()) {
                    op.gvk = Some(gvk(s.gvk.0, s.gvk.1, s.gvk.2));
                }
                f(&mut op);
                out.push(op);
            }
        };
        let the = |word: &str| format!("{word} {of}the specified {}", r.kind);
        push("get", "get", "get", "read", the("read"), &|op| {
            if op.custom {
                op.params = vec![query("resourceVersion", "string", "GetOptions")];
            }
        });
        push("update", "put", "put", "replace", the("replace"), &|op| {
            op.params = UPDATE.to_vec();
            op.body = Body::Object(model.clone());
            op.codes = OK_CREATED;
        });
        push("patch", "patch", "patch", "patch", the("partially update"), &|op| {
            op.params = PATCH.to_vec();
            op.body = Body::Patch;
            op.codes = if op.custom { OK } else { OK_CREATED };
        });
        let a = with_article(r.kind);
        if sub.is_some() {
            push("create", "post", "post", "create", format!("create {of}{a}"), &|op| {
                op.params = CREATE.to_vec();
                op.body = Body::Object(model.clone());
                op.codes = ALL;
            });
        }
        push("delete", "delete", "delete", "delete", format!("delete {of}{a}"), &|op| {
            op.params = DELETE.to_vec();
            op.body = Body::Delete;
            op.codes = OK_ACCEPTED;
            op.answer = Some(match sub {
                None if !ANSWERS_OBJECT.contains(&r.kind) => format!("{META}.Status"),
                _ => model.clone(),
            });
        });
        out
    }

    /// The deprecated watch paths of built-in types.
    fn watches(&self, common: &[Param<'a>], root: &str, out: &mut Vec<PathItem<'a>>) {
        let r = self.resource;
        if self.is_custom() || !r.verbs.contains(&"watch") {
            return;
        }
        let base = self.group.root();
        let below = root.strip_prefix(&base).unwrap_or(root);
        let list_text = format!(
            "watch individual changes to a list of {}. deprecated: use the 'watch' parameter with a list operation instead.",
            r.kind
        );
        let one_text = format!(
            "watch changes to an object of kind {}. deprecated: use the 'watch' parameter with a list operation instead, \
             filtered to a single item with the 'fieldSelector' parameter.",
            r.kind
        );
        let event = types::entry(&format!("{META}.WatchEvent")).map(Model::BuiltIn);
        let mut push = |path: String, id: String, action, text: &str, skip: &[&str]| {
            let mut op = self.operation("get", action, id, text.into());
            op.answer = Some(format!("{META}.WatchEvent"));
            op.streams = true;
            let own = common.iter().filter(|p| !skip.contains(&p.name));
            let params = LIST.iter().chain(own).copied().collect();
            out.push(PathItem { path, params, operations: vec![op], models: event.into_iter().collect() });
        };
        if r.namespaced {
            let id = format!("watch{}{}ListForAllNamespaces", self.names.camel, r.kind);
            push(format!("{base}/watch/{}", r.plural), id, "watchlist", &list_text, &["name", "namespace"]);
        }
        push(format!("{base}/watch{below}"), self.id("watch", "List"), "watchlist", &list_text, &["name"]);
        if r.verbs.contains(&"get") {
            push(format!("{base}/watch{below}/{{name}}"), self.id("watch", ""), "watch", &one_text, &[]);
        }
    }
}
