//! How custom objects behave: validated by their schema, status kept apart where the version says so.
//! Source: apiextensions-apiserver, `registry/customresource`.

use kaji_meta::{
    field::{ErrorList, Path},
    object,
};
use kaji_resource::{Ctx, Hooks, VersionDef};
use kaji_schema::{SchemaRef, validate};
use serde_json::Value;

struct Version {
    name: String,
    schema: SchemaRef,
    status: bool,
}

/// Hooks of one custom resource.
pub struct CustomHooks {
    versions: Vec<Version>,
}

impl CustomHooks {
    /// Hooks for these versions.
    pub fn new(versions: &[VersionDef]) -> Self {
        let versions = versions
            .iter()
            .map(|v| Version { name: v.name.to_string(), schema: v.schema.clone(), status: v.has_status() })
            .collect();
        CustomHooks { versions }
    }

    fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|v| v.name == name)
    }
}

impl Hooks for CustomHooks {
    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        if self.version(ctx.version).is_some_and(|v| v.status)
            && let Some(map) = object.as_object_mut()
        {
            map.remove("status");
        }
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource != "status" {
            return;
        }
        // Nothing but the status is taken; field management is the exception, for it records this very write.
        let status = new.get("status").cloned();
        let managed = object::at(new, &["metadata", "managedFields"]).cloned();
        let version = object::resource_version(new).to_owned();
        *new = old.clone();
        match status {
            Some(status) => object::set_at(new, &["status"], status),
            None => drop(object::remove_at(new, &["status"])),
        }
        match managed {
            Some(managed) => object::set_at(new, &["metadata", "managedFields"], managed),
            None => drop(object::remove_at(new, &["metadata", "managedFields"])),
        }
        if !version.is_empty() {
            object::set_at(new, &["metadata", "resourceVersion"], version);
        }
    }

    fn validate_create(&self, ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        self.version(ctx.version).map_or_else(ErrorList::new, |v| validate::validate(v.schema.get(), object, &Path::root()))
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        self.version(ctx.version)
            .map_or_else(ErrorList::new, |v| validate::validate_update(v.schema.get(), new, old, &Path::root()))
    }

    fn reset_fields(&self, version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        match (subresource, self.version(version).is_some_and(|v| v.status)) {
            ("", true) => &[&["status"]],
            ("status", _) => &[&["spec"]],
            _ => &[],
        }
    }
}
