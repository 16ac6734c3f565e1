//! The `scale` subresource: the replicas of any object as `autoscaling/v1` Scale.
//!
//! A write converts the stored object to its Scale, changes that, and puts the replicas back, so that the object and its
//! Scale have the same field managers (upstream's scale handler). Paths are those of the request's version.

use crate::{
    decode::{self, ExpectedKind},
    encode,
    engine::Engine,
    options::WriteOptions,
    pipeline::{
        Op, State, metadata,
        scale::{API_VERSION, custom, of, replicas, segments, set_replicas, view},
        update::{self, Plan, UpdatedObject},
    },
    registry::Resource,
    request::ApiRequest,
    response::ApiResponse,
    verbs::patch::{self, Patch},
};
use kaji_meta::{
    GroupKind, GroupResource, Path, Status, Work, field, object, objectmeta::validate_object_meta, validation,
};
use kaji_resource::{ScaleDef, SubresourceKind, Verb, nested::dotted};
use kaji_schema::{
    SchemaRef,
    managed::{self, ApplyArgs, UpdateArgs},
    types,
};
use serde_json::Value;
use std::sync::Arc;

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
    let Some(SubresourceKind::Scale(def)) = op.target.sub.map(|s| &s.kind) else {
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
    let (state, _) = op.cached(&op.target.key(op.target.name)).await?;
    let state = state.ok_or_else(|| op.target.not_found(op.target.name))?;
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
    metadata::match_name(&sent, op.target.name)?;
    let uid = object::uid(&sent).to_owned();
    let plan =
        Plan { uid: Some(uid.as_str()).filter(|u| !u.is_empty()), scale: Some(def), ..Plan::default() };
    let mut make = |state: Option<&State>| {
        let Some(state) = state else { return Err(not_found(op)) };
        let live = live_scale(op, def, &state.object)?;
        let mut new = sent.clone();
        record(op, &schema, &live, &mut new)?;
        to_parent(op, def, state, &new).map(UpdatedObject::Object)
    };
    let written = update::update(op, op.target.name, &plan, &mut make).await?;
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
                None => return Ok(UpdatedObject::Unchanged),
            }
        } else {
            let mut new = patch.patched(op, &want(&schema), live.clone())?;
            record(op, &schema, &live, &mut new)?;
            new
        };
        metadata::match_namespace(op, &mut new)?;
        metadata::match_name(&new, op.target.name)?;
        to_parent(op, def, state, &new).map(UpdatedObject::Object)
    };
    let written = update::update(op, op.target.name, &plan, &mut make).await?;
    of(op, def, &written.into_object())
}

fn scale_schema() -> Result<SchemaRef, Status> {
    types::for_gvk("autoscaling", "v1", "Scale").ok_or_else(|| Status::internal("the type Scale is missing"))
}

fn want(schema: &SchemaRef) -> ExpectedKind<'_> {
    ExpectedKind { group: "autoscaling", version: "v1", kind: "Scale", schema }
}

fn not_found(op: &Op<'_>) -> Status {
    op.target.not_found(op.target.name)
}

fn has_replicas(op: &Op<'_>, def: &ScaleDef, stored: &Value) -> Result<bool, Status> {
    Ok(object::at(&*view(op, stored)?, &segments(&def.spec_replicas)).is_some_and(|v| !v.is_null()))
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
        .target
        .res
        .def
        .versions
        .iter()
        .map(|v| {
            let path = v.subresources.iter().find_map(|s| match &s.kind {
                SubresourceKind::Scale(def) => Some(segments(&def.spec_replicas)),
                _ => None,
            });
            (op.target.res.api_version(&v.name), path)
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
        subresource: op.target.subresource(),
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
        subresource: op.target.subresource(),
        now: &op.now_text,
        reset: None,
        convert: &one_version,
        work: &Work::new(&over),
    })
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
    let here = op.target.res.api_version(&op.target.version.name);
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
        let gr = &op.target.res.group_resource;
        let about = GroupResource::new(gr.group.as_str(), format!("{}/scale", gr.resource));
        let found = object::uid(&state.object);
        let text = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
        return Err(Status::conflict(&about, op.target.name, text));
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
    Err(Status::invalid(&GroupKind::new("autoscaling", "Scale"), op.target.name, &errors))
}
