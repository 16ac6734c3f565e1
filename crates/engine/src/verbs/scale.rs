//! The `scale` subresource: the replicas of any object as `autoscaling/v1` Scale.
//!
//! A write turns the stored object into its Scale, changes that, and puts the replicas back, so that field managers of
//! the Scale and of the object are the same people (upstream's scale handler). Paths are those of the request's version.

use crate::{
    decode::{self, Want},
    encode,
    engine::Engine,
    pipeline::{
        Op, State, metadata,
        options::WriteOptions,
        update::{self, Made, Plan},
    },
    registry::Resource,
    request::ApiRequest,
    response::ApiResponse,
    verbs::patch::{self, Patch},
};
use kaji_meta::{
    GroupKind, GroupResource, Path, Reason, Status, Work, field, labels, object,
    objectmeta::validate_object_meta, validation,
};
use kaji_resource::{
    ScaleDef, SubresourceKind, Verb,
    nested::{self, dotted},
};
use kaji_schema::{
    SchemaRef,
    managed::{self, ApplyArgs, UpdateArgs},
    types,
};
use serde_json::{Map, Value, json};
use std::{borrow::Cow, sync::Arc};

const API_VERSION: &str = "autoscaling/v1";
/// Stands for replicas that a custom resource does not have, while its Scale is patched.
const NO_REPLICAS: i64 = i32::MIN as i64;

/// GET, PUT and PATCH of a Scale.
pub(crate) async fn scale(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let kind = match req.verb {
        Verb::Patch => {
            let version = res.def.version(&req.version).ok_or_else(Status::generic_not_found)?;
            Some(patch::Kind::of(&req.content_type, decode::is_custom(&version.schema))?)
        }
        _ => None,
    };
    let op = Op::new(engine, res, req, WriteOptions::of(req, kind == Some(patch::Kind::Apply))?)?;
    let Some(SubresourceKind::Scale(def)) = op.sub.map(|s| &s.kind) else {
        return Err(Status::generic_not_found());
    };
    let result = match kind {
        None if req.verb == Verb::Get => get(&op, def).await,
        None => put(&op, def, req).await,
        Some(kind) => patched(&op, def, kind, req).await,
    };
    op.warned(result.and_then(|scale| encode::scale_response(res, req, op.now, scale)))
}

async fn get(op: &Op<'_>, def: &ScaleDef) -> Result<Value, Status> {
    op.engine.wait_consistent().await?;
    let (state, _) = op.cached(&op.key(op.name)).await?;
    let state = state.ok_or_else(|| op.not_found(op.name))?;
    let scale = of(op, def, &state.object)?;
    if custom(op) && !has_replicas(op, def, &state.object)? {
        let path = dotted(&def.spec_replicas);
        return Err(Status::internal(format!("the spec replicas field {path:?} does not exist")));
    }
    Ok(scale)
}

async fn put(op: &Op<'_>, def: &ScaleDef, req: &ApiRequest) -> Result<Value, Status> {
    let schema = scale_schema()?;
    let mut sent = op.decode_as(&want(&schema), req)?;
    req.audit.iter().for_each(|t| t.object(&sent));
    metadata::match_namespace(op, &mut sent)?;
    metadata::match_name(&sent, op.name)?;
    let uid = object::uid(&sent).to_owned();
    let plan =
        Plan { uid: Some(uid.as_str()).filter(|u| !u.is_empty()), scale: Some(def), ..Plan::default() };
    let mut make = |state: Option<&State>| {
        let Some(state) = state else { return Err(not_found(op)) };
        let live = live_scale(op, def, &state.object)?;
        let mut new = sent.clone();
        record(op, &schema, &live, &mut new)?;
        to_parent(op, def, state, &new).map(Made::Object)
    };
    let written = update::update(op, op.name, &plan, &mut make).await?;
    of(op, def, &written.into_object())
}

async fn patched(op: &Op<'_>, def: &ScaleDef, kind: patch::Kind, req: &ApiRequest) -> Result<Value, Status> {
    let schema = scale_schema()?;
    let patch = Patch::parse(op, kind, &req.body)?;
    req.audit.iter().for_each(|t| t.patch(patch.config()));
    let apply = kind == patch::Kind::Apply;
    let plan = Plan { scale: Some(def), keep_managed_fields: apply, ..Plan::default() };
    let mut make = |state: Option<&State>| {
        let Some(state) = state else { return Err(not_found(op)) };
        let live = live_scale(op, def, &state.object)?;
        let mut new = if apply {
            match apply_scale(op, &schema, &live, patch.config())? {
                Some(new) => new,
                None => return Ok(Made::Unchanged),
            }
        } else {
            let mut new = patch.patched(op, &want(&schema), live.clone())?;
            record(op, &schema, &live, &mut new)?;
            new
        };
        metadata::match_namespace(op, &mut new)?;
        metadata::match_name(&new, op.name)?;
        to_parent(op, def, state, &new).map(Made::Object)
    };
    let written = update::update(op, op.name, &plan, &mut make).await?;
    of(op, def, &written.into_object())
}

fn scale_schema() -> Result<SchemaRef, Status> {
    types::for_gvk("autoscaling", "v1", "Scale").ok_or_else(|| Status::internal("the type Scale is missing"))
}

fn want(schema: &SchemaRef) -> Want<'_> {
    Want { group: "autoscaling", version: "v1", kind: "Scale", schema }
}

fn custom(op: &Op<'_>) -> bool {
    decode::is_custom(&op.version.schema)
}

fn not_found(op: &Op<'_>) -> Status {
    op.not_found(op.name)
}

fn segments<'a>(path: &'a [Cow<'static, str>]) -> Vec<&'a str> {
    path.iter().map(AsRef::as_ref).collect()
}

/// The stored object in the request's version, copied only if it has to be converted.
fn view<'a>(op: &Op<'_>, stored: &'a Value) -> Result<Cow<'a, Value>, Status> {
    if op.in_hub() { Ok(Cow::Borrowed(stored)) } else { op.in_version(stored).map(Cow::Owned) }
}

fn has_replicas(op: &Op<'_>, def: &ScaleDef, stored: &Value) -> Result<bool, Status> {
    Ok(object::at(&*view(op, stored)?, &segments(&def.spec_replicas)).is_some_and(|v| !v.is_null()))
}

fn number(object: &Value, path: &[Cow<'static, str>]) -> Result<i64, Status> {
    nested::integer(object, path).map(Option::unwrap_or_default).map_err(unreadable)
}

/// An object from before its definition called these paths replicas: upstream answers with the bare error.
fn unreadable(text: String) -> Status {
    Status::new(500, Reason::Unknown, text)
}

/// The selector as text. Custom resources hold text; built-ins a label selector, or a map of labels.
fn selector(op: &Op<'_>, def: &ScaleDef, object: &Value) -> Result<String, Status> {
    let Some(path) = &def.selector else { return Ok(String::new()) };
    if custom(op) {
        let text = nested::string(object, path).map_err(unreadable)?;
        return Ok(text.unwrap_or_default().to_owned());
    }
    let label_selector =
        |m: &Map<String, Value>| m.keys().all(|k| matches!(k.as_str(), "matchLabels" | "matchExpressions"));
    match object::at(object, &segments(path)) {
        Some(Value::Object(map)) if !label_selector(map) => {
            let labels = map.iter().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?)));
            Ok(labels::Selector::from_map(labels).to_string())
        }
        Some(v @ Value::Object(_)) => labels::Selector::from_label_selector(v)
            .map(|s| s.to_string())
            .map_err(|e| Status::bad_request(e.to_string())),
        _ => Ok(String::new()),
    }
}

/// The Scale of a stored object.
pub(crate) fn of(op: &Op<'_>, def: &ScaleDef, stored: &Value) -> Result<Value, Status> {
    let object = view(op, stored)?;
    let mut meta = Map::new();
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(v) = object.get("metadata").and_then(|m| m.get(key)).filter(|v| !v.is_null()) {
            meta.insert(key.into(), v.clone());
        }
    }
    let mut spec = Map::new();
    let replicas = number(&object, &def.spec_replicas)?;
    if replicas != 0 {
        spec.insert("replicas".into(), replicas.into());
    }
    let mut status = Map::new();
    status.insert("replicas".into(), number(&object, &def.status_replicas)?.into());
    let selector = selector(op, def, &object)?;
    if !selector.is_empty() {
        status.insert("selector".into(), selector.into());
    }
    Ok(json!({"kind": "Scale", "apiVersion": API_VERSION, "metadata": meta, "spec": spec, "status": status}))
}

/// The Scale as patches and field management see it.
fn live_scale(op: &Op<'_>, def: &ScaleDef, stored: &Value) -> Result<Value, Status> {
    let mut scale = of(op, def, stored)?;
    if custom(op) && !has_replicas(op, def, stored)? {
        object::set_at(&mut scale, &["spec", "replicas"], NO_REPLICAS);
    }
    let managed = stored.get("metadata").and_then(|m| m.get("managedFields")).unwrap_or(&Value::Null);
    let entries =
        with_paths(op, |paths| managed::scale_to_subresource(managed, paths)).map_err(Status::internal)?;
    if !entries.is_null() {
        object::meta_mut(&mut scale).insert("managedFields".into(), entries);
    }
    Ok(scale)
}

/// Calls `f` with the replicas paths of all versions.
fn with_paths<T>(op: &Op<'_>, f: impl FnOnce(managed::ScalePaths<'_>) -> T) -> T {
    let versions: Vec<(String, Option<Vec<&str>>)> = op
        .res
        .def
        .versions
        .iter()
        .map(|v| {
            let path = v.subresources.iter().find_map(|s| match &s.kind {
                SubresourceKind::Scale(def) => Some(segments(&def.spec_replicas)),
                _ => None,
            });
            (op.res.api_version(&v.name), path)
        })
        .collect();
    let paths: Vec<(&str, Option<&[&str]>)> =
        versions.iter().map(|(v, p)| (v.as_str(), p.as_deref())).collect();
    f(&paths)
}

/// Scale has one version.
fn one_version(scale: &Value, api_version: &str) -> Result<Value, Status> {
    if api_version == API_VERSION { Ok(scale.clone()) } else { Err(Status::generic_not_found()) }
}

fn record(op: &Op<'_>, schema: &SchemaRef, live: &Value, new: &mut Value) -> Result<(), Status> {
    let over = || op.deadline.is_over();
    managed::update(UpdateArgs {
        schema,
        live,
        new,
        manager: &op.options.manager,
        api_version: API_VERSION,
        subresource: op.subresource(),
        now: &op.now_text,
        reset: None,
        convert: &one_version,
        work: &Work::new(&over),
    })
}

fn apply_scale(
    op: &Op<'_>,
    schema: &SchemaRef,
    live: &Value,
    config: &Value,
) -> Result<Option<Value>, Status> {
    let over = || op.deadline.is_over();
    managed::apply(ApplyArgs {
        schema,
        live,
        config,
        manager: &op.options.field_manager,
        force: op.options.force.unwrap_or(false),
        api_version: API_VERSION,
        subresource: op.subresource(),
        now: &op.now_text,
        reset: None,
        convert: &one_version,
        work: &Work::new(&over),
    })
}

/// `spec.replicas` of a Scale.
pub(crate) fn replicas(scale: &Value) -> i64 {
    object::i64_at(scale, &["spec", "replicas"]).unwrap_or(0)
}

/// Sets the replicas of a stored object.
pub(crate) fn set_replicas(
    op: &Op<'_>,
    def: &ScaleDef,
    stored: &mut Value,
    replicas: i64,
) -> Result<(), Status> {
    let path = segments(&def.spec_replicas);
    if op.in_hub() {
        object::set_at(stored, &path, replicas);
        return Ok(());
    }
    let mut object = op.in_version(stored)?;
    object::set_at(&mut object, &path, replicas);
    op.to_hub(&mut object)?;
    *stored = object;
    Ok(())
}

/// The stored object with what its new Scale says.
fn to_parent(op: &Op<'_>, def: &ScaleDef, state: &State, scale: &Value) -> Result<Value, Status> {
    let replicas = replicas(scale);
    check(op, def, state, scale, replicas)?;
    let mut parent = state.object.clone();
    set_replicas(op, def, &mut parent, replicas)?;
    let null = Value::Null;
    let old = state.object.get("metadata").and_then(|m| m.get("managedFields")).unwrap_or(&null);
    let new = scale.get("metadata").and_then(|m| m.get("managedFields")).unwrap_or(&null);
    let here = op.res.api_version(&op.version.name);
    let entries =
        with_paths(op, |paths| managed::scale_to_parent(old, new, &here, paths)).map_err(Status::internal)?;
    let meta = object::meta_mut(&mut parent);
    match entries {
        Value::Null => drop(meta.remove("managedFields")),
        entries => drop(meta.insert("managedFields".into(), entries)),
    }
    // A resourceVersion in the Scale is a precondition on the object.
    let version = object::resource_version(scale);
    if !version.is_empty() {
        meta.insert("resourceVersion".into(), version.into());
    }
    Ok(parent)
}

fn check(op: &Op<'_>, def: &ScaleDef, state: &State, scale: &Value, replicas: i64) -> Result<(), Status> {
    let uid = object::uid(scale);
    if !uid.is_empty() && uid != object::uid(&state.object) {
        let gr = &op.res.group_resource;
        let about = GroupResource::new(gr.group.as_str(), format!("{}/scale", gr.resource));
        let found = object::uid(&state.object);
        let text = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
        return Err(Status::conflict(&about, op.name, text));
    }
    if custom(op) {
        // Its range is checked with the object.
        if replicas == NO_REPLICAS {
            let path = dotted(&def.spec_replicas);
            return Err(Status::bad_request(format!("the spec replicas field {path:?} cannot be empty")));
        }
        return Ok(());
    }
    let meta = scale.get("metadata").unwrap_or(&Value::Null);
    let mut errors =
        validate_object_meta(meta, true, validation::name_is_dns_subdomain, &Path::new("metadata"));
    if replicas < 0 {
        let path = Path::new("spec").child("replicas");
        errors.push(field::Error::invalid(&path, replicas, "must be greater than or equal to 0"));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&GroupKind::new("autoscaling", "Scale"), op.name, &errors))
}
