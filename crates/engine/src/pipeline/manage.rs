//! Field management inside the pipeline: objects go through it in the request's version.

use super::{ConversionStage, Op};
use crate::{decode, registry::Resource};
use kaji_meta::{GroupVersion, Reason, Status, Work, object};
use kaji_schema::{
    SchemaRef,
    fieldset::FieldSet,
    managed::{self, ApplyArgs, UpdateArgs, Versions},
};
use serde_json::Value;

/// The versions of a resource, for managers that wrote through another one.
pub(crate) struct ResourceVersions<'a> {
    res: &'a Resource,
    stage: &'a ConversionStage<'a>,
}

fn versions<'a>(op: &'a Op<'_>) -> ResourceVersions<'a> {
    ResourceVersions { res: op.target.res, stage: &op.conversion }
}

impl ResourceVersions<'_> {
    fn version<'b>(&'b self, api_version: &'b str) -> Option<&'b kaji_resource::VersionDef> {
        let gv = GroupVersion::parse(api_version).ok()?;
        self.res.def.version(&gv.version).filter(|_| gv.group == self.res.def.group)
    }
}

impl Versions for ResourceVersions<'_> {
    fn convert(&self, object: &Value, api_version: &str) -> Result<Value, Status> {
        let from = object::api_version(object);
        let (Some(from), Some(to)) = (self.version(from), self.version(api_version)) else {
            // Upstream's field management takes the first error alone for that of a version that is gone.
            return Err(if decode::is_custom(&self.res.storage_schema) {
                let text = format!("request to convert CR to an invalid group/version: {api_version}");
                Status::new(500, Reason::Unknown, text)
            } else {
                Status::generic_not_found()
            });
        };
        if from.name != to.name
            && let Some(converted) = self.stage.converted_by_webhook(object, api_version)
        {
            return converted;
        }
        let mut object = object.clone();
        if from.name != to.name {
            self.res.def.hooks.convert(&mut object, &from.name, &to.name)?;
            object::set_at(&mut object, &["apiVersion"], api_version);
        }
        Ok(object)
    }

    fn schema(&self, api_version: &str) -> Option<SchemaRef> {
        self.version(api_version).map(|v| v.schema.clone())
    }
}

fn reset_fields(op: &Op<'_>) -> Option<FieldSet> {
    let paths = op.target.res.def.hooks.reset_fields(&op.target.version.name, op.target.subresource());
    (!paths.is_empty()).then(|| FieldSet::from_paths(paths))
}

/// Records field managers after a create, update or patch. `new` is in the request's version, `live` in the pipeline's.
pub(crate) fn record(op: &Op<'_>, live: Option<&Value>, new: &mut Value) -> Result<(), Status> {
    let converted;
    let live = match live {
        Some(live) if op.conversion.in_hub() => live,
        Some(live) => {
            converted = op.conversion.in_version(live)?;
            &converted
        }
        None => &Value::Null,
    };
    let over = || op.deadline.is_over();
    managed::update(UpdateArgs {
        schema: &op.target.version.schema,
        live,
        new,
        manager: &op.options.manager,
        api_version: &op.target.res.api_version(&op.target.version.name),
        subresource: op.target.subresource(),
        now: &op.now_text,
        reset: reset_fields(op).as_ref(),
        convert: &versions(op),
        work: &Work::new(&over),
    })
}

/// Applies a configuration on top of `live` (request's version, or an empty object of the kind). `None`: no change.
pub(crate) fn apply(op: &Op<'_>, live: &Value, config: &Value) -> Result<Option<Value>, Status> {
    let over = || op.deadline.is_over();
    managed::apply(ApplyArgs {
        schema: &op.target.version.schema,
        live,
        config,
        manager: &op.options.field_manager,
        force: op.options.force.unwrap_or(false),
        api_version: &op.target.res.api_version(&op.target.version.name),
        subresource: op.target.subresource(),
        now: &op.now_text,
        reset: reset_fields(op).as_ref(),
        convert: &versions(op),
        work: &Work::new(&over),
    })
}

/// The managed fields from before admission, if there are plugins that may damage them.
pub(crate) enum ManagersBefore {
    /// No plugin damages them.
    Trusted,
    /// As they were; `None` when there were none.
    Before(Option<Value>),
}

/// Remembers the managed fields of an object that goes to admission, where a plugin may damage them.
pub(crate) fn snapshot(doubtful: bool, object: &Value) -> ManagersBefore {
    if !doubtful {
        return ManagersBefore::Trusted;
    }
    ManagersBefore::Before(object.get("metadata").and_then(|m| m.get("managedFields")).cloned())
}

/// Puts managed fields from before admission back if a plugin has damaged them.
pub(crate) fn guard(op: &Op<'_>, before: ManagersBefore, object: &mut Value) {
    let ManagersBefore::Before(before) = before else { return };
    let now = object.get("metadata").and_then(|m| m.get("managedFields"));
    if now == before.as_ref() {
        return;
    }
    if let Err(reason) = managed::check_entries(now.unwrap_or(&Value::Null)) {
        op.output.warn(format!(
            ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {reason}"
        ));
        match before {
            Some(before) => drop(object::meta_mut(object).insert("managedFields".into(), before)),
            None => drop(object::meta_mut(object).remove("managedFields")),
        }
    }
}

/// Drops managed fields of an object that is too large with them.
pub(crate) fn drop_entries(object: &mut Value) -> bool {
    object
        .get_mut("metadata")
        .and_then(Value::as_object_mut)
        .and_then(|m| m.remove("managedFields"))
        .is_some()
}
