//! Paths and operations.

use serde_json::{Map, Value, json};

use crate::types;

use super::components::PREFIX;
use super::{Docs, Group, Model, Resource, Subresource, connect, gvk};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// A parameter: name, place, type, and where its description is found.
#[derive(Clone, Copy)]
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) place: &'static str,
    pub(super) ty: &'static str,
    pub(super) owner: &'static str,
}

impl Param {
    pub(super) fn description(&self, docs: Docs<'_>) -> Option<String> {
        match self.name {
            "pretty" => Some("If 'true', then the output is pretty printed.".into()),
            "name" => Some("name of the object".into()),
            "namespace" => Some("object name and auth scope, such as for teams and projects".into()),
            name => docs(&format!("{META}.{}", self.owner), Some(name)),
        }
    }
}

pub(super) const fn query(name: &'static str, ty: &'static str, owner: &'static str) -> Param {
    Param { name, place: "query", ty, owner }
}

pub(super) const fn in_path(name: &'static str) -> Param {
    Param { name, place: "path", ty: "string", owner: "" }
}

pub(super) const PRETTY: Param = query("pretty", "string", "");
const NAME: Param = in_path("name");
const NAMESPACE: Param = in_path("namespace");

const LIST: [Param; 11] = [
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

const DELETE: [Param; 5] = [
    query("dryRun", "string", "DeleteOptions"),
    query("gracePeriodSeconds", "integer", "DeleteOptions"),
    query("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean", "DeleteOptions"),
    query("orphanDependents", "boolean", "DeleteOptions"),
    query("propagationPolicy", "string", "DeleteOptions"),
];

const PATCH: [Param; 4] = [
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
    pub(super) params: Vec<Param>,
    pub(super) body: Body,
    /// The definition that is answered; none where the answer is plain text.
    pub(super) answer: Option<String>,
    pub(super) codes: &'static [(&'static str, &'static str)],
    /// Lists can be watched: streaming content types.
    pub(super) streams: bool,
    pub(super) gvk: Option<Value>,
    /// Custom resources have neither protobuf nor strategic merge patch.
    pub(super) custom: bool,
    pub(super) tag: String,
}

/// One path.
pub(super) struct PathItem<'a> {
    pub(super) path: String,
    pub(super) params: Vec<Param>,
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

const OK: &[(&str, &str)] = &[("200", "OK")];
const OK_CREATED: &[(&str, &str)] = &[("200", "OK"), ("201", "Created")];
const OK_ACCEPTED: &[(&str, &str)] = &[("200", "OK"), ("202", "Accepted")];
const ALL: &[(&str, &str)] = &[("200", "OK"), ("201", "Created"), ("202", "Accepted")];

/// The paths of a group-version.
pub(super) fn paths<'a>(group: &Group<'a>) -> Vec<PathItem<'a>> {
    let names = Names::new(group);
    let mut out = vec![resource_list(group, &names)];
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
    let mut common: Vec<Param> = if r.namespaced { vec![NAMESPACE] } else { Vec::new() };
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
    common.insert(0, NAME);
    let object = maker.object(None);
    if !object.is_empty() {
        let path = format!("{root}/{{name}}");
        out.push(PathItem { path, params: common.clone(), operations: object, models: maker.models(false) });
    }
    for s in &r.subresources {
        let path = format!("{root}/{{name}}/{}", s.name);
        if s.model.is_none() {
            connect::paths(&maker, s, &path, &common, out);
            continue;
        }
        let operations = maker.object(Some(s));
        if !operations.is_empty() {
            let models = s.model.into_iter().collect();
            out.push(PathItem { path, params: common.clone(), operations, models });
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
            op.params = PATCH[..3].to_vec();
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
                if let Some(s) = sub {
                    op.gvk = Some(gvk(s.gvk.0, s.gvk.1, s.gvk.2));
                }
                f(&mut op);
                out.push(op);
            }
        };
        let the = |word: &str| format!("{word} {of}the specified {}", r.kind);
        push("get", "get", "get", "read", the("read"), &|_| {});
        push("update", "put", "put", "replace", the("replace"), &|op| {
            op.params = PATCH[..3].to_vec();
            op.body = Body::Object(model.clone());
            op.codes = OK_CREATED;
        });
        push("patch", "patch", "patch", "patch", the("partially update"), &|op| {
            op.params = PATCH.to_vec();
            op.body = Body::Patch;
            op.codes = OK_CREATED;
        });
        let a = with_article(r.kind);
        if sub.is_some() {
            push("create", "post", "post", "create", format!("create {of}{a}"), &|op| {
                op.params = PATCH[..3].to_vec();
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
    fn watches(&self, common: &[Param], root: &str, out: &mut Vec<PathItem<'a>>) {
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

fn params_v3(params: &[Param], docs: Docs<'_>) -> Value {
    let one = |p: &Param| {
        let mut out = json!({"name": p.name, "in": p.place, "schema": {"type": p.ty, "uniqueItems": true}});
        if let Some(d) = p.description(docs) {
            out["description"] = d.into();
        }
        if p.place == "path" {
            out["required"] = true.into();
        }
        out
    };
    params.iter().map(one).collect()
}

fn content(kinds: &[&str], name: &str) -> Value {
    let schema = json!({"schema": {"$ref": format!("{PREFIX}{name}")}});
    Value::Object(kinds.iter().map(|k| (k.to_string(), schema.clone())).collect())
}

/// Content types of answers.
pub(super) fn produces(op: &Operation) -> Vec<&'static str> {
    let mut out = vec!["application/json", "application/yaml"];
    if !op.custom {
        out.push("application/vnd.kubernetes.protobuf");
        if op.streams {
            out.extend(["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"]);
        }
    }
    out
}

/// Content types of patches.
pub(super) fn patch_types(op: &Operation) -> &'static [&'static str] {
    const TYPES: [&str; 4] = [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
        "application/strategic-merge-patch+json",
    ];
    if op.custom { &TYPES[..3] } else { &TYPES }
}

/// A path as v3 documents write it.
pub(super) fn render_v3(path: &PathItem<'_>, docs: Docs<'_>) -> Value {
    let mut out = Map::new();
    if !path.params.is_empty() {
        out.insert("parameters".into(), params_v3(&path.params, docs));
    }
    for op in &path.operations {
        let mut o = common(op);
        if !op.params.is_empty() {
            o.insert("parameters".into(), params_v3(&op.params, docs));
        }
        let any = if op.custom { &["application/json", "application/yaml"][..] } else { &["*/*"][..] };
        let body = match &op.body {
            Body::None => None,
            Body::Object(name) => Some(json!({"content": content(any, name), "required": true})),
            Body::Delete => Some(json!({"content": content(any, &format!("{META}.DeleteOptions"))})),
            Body::Patch => {
                Some(json!({"content": content(patch_types(op), &format!("{META}.Patch")), "required": true}))
            }
        };
        if let Some(b) = body {
            o.insert("requestBody".into(), b);
        }
        let mut responses = Map::new();
        for (code, text) in op.codes {
            let content = match &op.answer {
                Some(name) => content(&produces(op), name),
                None => json!({"*/*": {"schema": {"type": "string"}}}),
            };
            responses.insert(code.to_string(), json!({"description": text, "content": content}));
        }
        responses.insert("401".into(), json!({"description": "Unauthorized"}));
        o.insert("responses".into(), Value::Object(responses));
        out.insert(op.method.into(), Value::Object(o));
    }
    Value::Object(out)
}

/// What v2 and v3 write alike.
pub(super) fn common(op: &Operation) -> Map<String, Value> {
    let mut o = Map::new();
    o.insert("description".into(), op.description.clone().into());
    o.insert("operationId".into(), op.id.clone().into());
    o.insert("tags".into(), json!([op.tag]));
    if !op.action.is_empty() {
        o.insert("x-kubernetes-action".into(), op.action.into());
    }
    if let Some(gvk) = &op.gvk {
        o.insert("x-kubernetes-group-version-kind".into(), gvk.clone());
    }
    o
}
