//! How custom objects behave: validated by their schema, status kept apart where the version says so.
//! Source: apiextensions-apiserver, `registry/customresource`.

use crate::{
    definitions, embedded, finalizers,
    lifecycle::FINALIZER,
    rules::{self, Rules},
    scale,
};
use kaji_meta::{
    GroupResource, SizeBudget, Status,
    field::{ErrorList, Path},
    object,
};
use kaji_resource::{Ctx, Hooks, Normalizer, ObjectVersion, ScaleDef, SubresourceKind, VersionDef};
use kaji_schema::{SchemaRef, defaulting, prune::prune_custom, validate};
use serde_json::Value;

/// Memory that the defaults of a stored object may take. An object is stored with those that there were; what a definition
/// gains later would, in an object that is written again, be refused by its size long before.
const READ_BYTES: usize = 16 << 20;

struct Version {
    name: String,
    schema: SchemaRef,
    status: bool,
    /// Whether objects of other kinds are in its objects.
    embeds: bool,
    scale: Option<ScaleDef>,
    rules: Option<Rules>,
}

impl Version {
    /// Adds what the rules say, if the object is well-formed enough for them.
    fn with_rules(&self, mut errors: ErrorList, new: &Value, old: Option<&Value>) -> ErrorList {
        if let Some(rules) = &self.rules {
            match rules::blocked(&errors) {
                Some(error) => errors.push(error),
                None => errors.extend(rules::validate(rules, self.schema.get(), new, old)),
            }
        }
        errors
    }

    /// What is wrong with a whole object.
    fn whole(&self, new: &Value, old: Option<&Value>) -> ErrorList {
        let (schema, root) = (self.schema.get(), Path::root());
        let mut errors = validate::values(schema, new, old, &root);
        if let Some(scale) = &self.scale {
            errors.extend(scale::check_spec(scale, new));
            errors.extend(scale::check_status(scale, new));
        }
        errors.extend(validate::embedded(schema, new, &root));
        errors.extend(validate::lists(schema, new, old, &root));
        self.with_rules(errors, new, old)
    }

    /// What is wrong with a change of the status: the rest of the object is not looked at, but for the rules.
    fn status(&self, new: &Value, old: &Value) -> ErrorList {
        let schema = self.schema.get();
        let mut errors = ErrorList::new();
        if let (Some(property), Some(status)) = (schema.property("status"), new.get("status")) {
            let before = old.get("status");
            errors = validate::values(property.schema.get(), status, before, &Path::new("status"));
        }
        if let Some(scale) = &self.scale {
            errors.extend(scale::check_status(scale, new));
        }
        errors.extend(validate::lists(schema, new, Some(old), &Path::root()));
        self.with_rules(errors, new, Some(old))
    }
}

/// Hooks of one custom resource.
pub struct CustomHooks {
    resource: GroupResource,
    versions: Vec<Version>,
    /// The definition is going: no new objects.
    terminating: bool,
}

impl CustomHooks {
    /// Hooks for these versions, with the JSON of their schemas.
    pub fn new(
        resource: GroupResource,
        versions: &[VersionDef],
        schemas: &[Option<&Value>],
        terminating: bool,
    ) -> Self {
        let rules = schemas.iter().map(|s| s.and_then(Rules::new)).chain(std::iter::repeat_with(|| None));
        let versions = versions
            .iter()
            .zip(rules)
            .map(|(v, rules)| Version {
                name: v.name.to_string(),
                schema: v.schema.clone(),
                status: v.has_status(),
                embeds: embedded::any(v.schema.get()),
                scale: v.subresources.iter().find_map(|s| match &s.kind {
                    SubresourceKind::Scale(def) => Some(def.clone()),
                    _ => None,
                }),
                rules,
            })
            .collect();
        CustomHooks { resource, versions, terminating }
    }

    fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|v| v.name == name)
    }

    fn refused_while_terminating(&self, ctx: &Ctx<'_>) -> Status {
        let reason = "create not allowed while custom resource definition is terminating";
        Status::forbidden(&self.resource, ctx.name, reason)
    }
}

impl Hooks for CustomHooks {
    /// Fields that the other version lacks go.
    fn convert(&self, object: &mut Value, _from: &str, to: &str) -> Result<(), Status> {
        if let Some(version) = self.version(to) {
            prune_custom(version.schema.get(), object);
            defaulting::prune_nulls(version.schema.get(), object);
        }
        Ok(())
    }

    /// Upstream forbids this in admission, ahead of its plugins: no quota is charged, and the object need not be valid.
    fn check_create(&self, ctx: &Ctx<'_>) -> Result<(), Status> {
        if self.terminating { Err(self.refused_while_terminating(ctx)) } else { Ok(()) }
    }

    /// The definition as it is now. Otherwise an object that waited for webhooks, or that was created at a server which did not know
    /// yet of the definition's end, would be stored after the others were removed, and stay.
    fn expected(&self, ctx: &Ctx<'_>) -> Result<Vec<ObjectVersion>, Status> {
        let (definitions, name) = (definitions(), self.resource.to_string());
        let Some(version) = ctx.api.object_version(&definitions, "", &name) else {
            return Err(Status::generic_not_found());
        };
        // It is decoded only when it is going: it may be large.
        let cleaning = |definition: &Value| object::finalizers(definition).any(|f| f == FINALIZER);
        if version.deleting && ctx.api.get(&definitions, "", &name).is_none_or(|found| cleaning(&found)) {
            return Err(self.refused_while_terminating(ctx));
        }
        Ok(vec![version])
    }

    fn normalizer(&self) -> Option<&dyn Normalizer> {
        Some(self)
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        if self.version(ctx.version).is_some_and(|v| v.status)
            && let Some(map) = object.as_object_mut()
        {
            map.remove("status");
        }
    }

    fn complete_created(&self, object: &mut Value) {
        let version = object::api_version(object).rsplit('/').next().unwrap_or_default();
        let Some(version) = self.version(version).filter(|v| v.status) else { return };
        let property = version.schema.get().property("status").map(|property| property.schema.get());
        if let Some(schema) = property
            && let Some(default) = &schema.default
            && object.get("status").is_none()
        {
            let mut status = Value::clone(default);
            let mut budget = SizeBudget::new(READ_BYTES);
            if let Err(error) = defaulting::fill(schema, &mut status, &mut budget) {
                tracing::warn!(name = object::name(object), %error, "defaults of a status are left out");
            }
            object::set_at(object, &["status"], status);
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
        self.version(ctx.version).map_or_else(ErrorList::new, |v| v.whole(object, None))
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        self.version(ctx.version).map_or_else(ErrorList::new, |v| match ctx.subresource {
            "status" => v.status(new, old),
            _ => v.whole(new, Some(old)),
        })
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        if ctx.subresource == "status" { vec![] } else { finalizers::warnings(new, old) }
    }

    fn reset_fields(&self, version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        match (subresource, self.version(version).is_some_and(|v| v.status)) {
            ("", true) => &[&["status"]],
            ("status", _) => &[&["metadata"], &["spec"]],
            _ => &[],
        }
    }
}

impl Normalizer for CustomHooks {
    fn normalize(&self, object: &mut Value) {
        let version = object::api_version(object).rsplit('/').next().unwrap_or_default();
        if let Some(version) = self.version(version) {
            prune_custom(version.schema.get(), object);
            embedded::own_metadata(object);
            if version.embeds {
                embedded::drop_malformed(version.schema.get(), object);
            }
            let mut budget = SizeBudget::new(READ_BYTES);
            if let Err(error) = defaulting::apply_defaults(version.schema.get(), object, &mut budget) {
                tracing::warn!(name = object::name(object), %error, "defaults of a stored object are left out");
            }
        }
    }
}
