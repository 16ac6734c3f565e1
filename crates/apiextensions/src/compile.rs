//! From a CustomResourceDefinition object to a `ResourceDef`.
//!
//! Invariant: compiling is a function of the object alone. The definition has passed validation when it was written, so
//! an error here means a damaged store, and says what is wrong.

use crate::{
    conditions,
    conversion::{self, Conversions},
    hooks::CustomHooks,
    structure,
};
use kaji_meta::{
    GroupResource,
    gvk::compare_versions,
    object::{arr_at, bool_at, str_at, strs_at},
};
use kaji_resource::{
    Column, ColumnSource, GarbageCollectionPolicy, Generation, MetadataCheck, MetadataChecks, ResourceDef,
    ScaleDef, Scope, SelectableField, SubresourceDef, SubresourceKind, Verb, VersionDef,
};
use kaji_schema::{Schema, SchemaRef, jsonpath::JsonPath, structural};
use serde_json::Value;
use std::{borrow::Cow, sync::Arc};

/// What custom resources answer to, in the order in which upstream's discovery names it.
const VERBS: &[Verb] = &[
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Create,
    Verb::Update,
    Verb::Watch,
];

/// Why a definition cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError(pub String);

impl std::fmt::Display for CompileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CompileError {}

type Str = Cow<'static, str>;

fn owned(text: &str) -> Str {
    Cow::Owned(text.to_owned())
}

/// Compiles. Names are those accepted (`status.acceptedNames`).
pub fn compile(definition: &Value, with: &Conversions) -> Result<ResourceDef, CompileError> {
    let group = str_at(definition, &["spec", "group"]);
    let names = |field: &str| str_at(definition, &["status", "acceptedNames", field]);
    let versions = arr_at(definition, &["spec", "versions"])
        .iter()
        .map(|v| version(definition, v))
        .collect::<Result<Vec<_>, _>>()?;
    let storage = arr_at(definition, &["spec", "versions"])
        .iter()
        .position(|v| v["storage"] == true)
        .ok_or_else(|| CompileError("no version is marked as the storage version".into()))?;
    let kind = names("kind");
    if names("plural").is_empty() || kind.is_empty() {
        return Err(CompileError("its names have not been accepted".into()));
    }
    let list = |field: &str| strs_at(definition, &["status", "acceptedNames", field]).map(owned).collect();
    let terminating = conditions::is_true(definition, "Terminating");
    let schemas: Vec<Option<&Value>> = arr_at(definition, &["spec", "versions"])
        .iter()
        .map(|v| v.pointer("/schema/openAPIV3Schema"))
        .collect();
    let resource = GroupResource::new(group, names("plural"));
    let conversion = conversion::of(definition, &versions, with);
    let hooks = CustomHooks::new(resource, &versions, &schemas, terminating);
    Ok(ResourceDef {
        group: owned(group),
        plural: owned(names("plural")),
        singular: owned(names("singular")),
        kind: owned(kind),
        list_kind: match names("listKind") {
            "" => owned(&format!("{kind}List")),
            name => owned(name),
        },
        short_names: list("shortNames"),
        categories: list("categories"),
        scope: if str_at(definition, &["spec", "scope"]) == "Cluster" {
            Scope::Cluster
        } else {
            Scope::Namespaced
        },
        versions,
        storage,
        verbs: VERBS,
        stored: true,
        generation: Generation::Spec,
        shares_storage_of: None,
        ttl: None,
        validate_name: kaji_meta::validation::name_is_dns_subdomain,
        metadata_checks: METADATA_CHECKS,
        pod_template: None,
        storage_prefix: format!("{group}/{}", names("plural")).into(),
        allow_create_on_update: false,
        allow_unconditional_update: false,
        returns_deleted_object: false,
        garbage_collection: GarbageCollectionPolicy::DeleteDependents,
        writes_wait_for_caches: false,
        required_to_start: false,
        acknowledged_when_stored: true,
        is_own_namespace: false,
        undiscovered_verbs: if terminating { &[Verb::Create, Verb::Patch, Verb::Update] } else { &[] },
        conversion,
        hooks: Arc::new(hooks),
    })
}

/// Custom resources' metadata is looked at once more when they, or their status, change.
const METADATA_CHECKS: MetadataChecks = MetadataChecks {
    update: &[MetadataCheck::Update { finalizers: false }],
    status: &[MetadataCheck::Update { finalizers: false }],
};

fn version(definition: &Value, version: &Value) -> Result<VersionDef, CompileError> {
    let name = str_at(version, &["name"]);
    let schema = match version.pointer("/schema/openAPIV3Schema") {
        Some(schema) if structure::preserves(definition) => structural::build_preserving(schema),
        Some(schema) => structural::build(schema),
        // Before v1 a definition could do without.
        None => {
            Schema { preserve_unknown: true, ..structural::build(&serde_json::json!({"type": "object"})) }
        }
    };
    let deprecation = (bool_at(version, &["deprecated"]) == Some(true)).then(|| {
        match version.get("deprecationWarning").and_then(Value::as_str) {
            Some(text) => owned(text),
            None => Cow::Owned(deprecated(definition, name)),
        }
    });
    Ok(VersionDef {
        name: owned(name),
        served: version["served"] == true,
        deprecation,
        schema: SchemaRef::Owned(Arc::new(schema)),
        columns: columns(version)?,
        selectable: selectable(version),
        subresources: subresources(version),
    })
}

/// What is said about the use of a deprecated version: which served one is newest of those that are better.
fn deprecated(definition: &Value, name: &str) -> String {
    let group = str_at(definition, &["spec", "group"]);
    let kind = str_at(definition, &["spec", "names", "kind"]);
    let better = arr_at(definition, &["spec", "versions"])
        .iter()
        .filter(|v| v["served"] == true && v["deprecated"] != true)
        .map(|v| str_at(v, &["name"]))
        .filter(|other| compare_versions(name, other).is_lt())
        .max_by(|a, b| compare_versions(a, b));
    let instead = better.map_or_else(String::new, |v| format!("; use {group}/{v} {kind}"));
    format!("{group}/{name} {kind} is deprecated{instead}")
}

/// `additionalPrinterColumns`, or the age when there are none.
fn columns(version: &Value) -> Result<ColumnSource, CompileError> {
    let path = |text: &str| {
        JsonPath::compile(text).map_err(|e| CompileError(format!("printer column path {text:?}: {e}")))
    };
    let list = arr_at(version, &["additionalPrinterColumns"]);
    if list.is_empty() {
        let mut age = kaji_resource::age_column();
        age.ty = "date".into();
        return Ok(ColumnSource::Paths(vec![(age, path(".metadata.creationTimestamp")?)]));
    }
    let columns = list.iter().map(|c| {
        let text = |field: &str| owned(str_at(c, &[field]));
        let column = Column {
            name: text("name"),
            ty: text("type"),
            format: text("format"),
            description: match str_at(c, &["description"]) {
                "" => owned(&format!(
                    "Custom resource definition column (in JSONPath format): {}",
                    str_at(c, &["jsonPath"])
                )),
                given => owned(given),
            },
            priority: c["priority"].as_i64().and_then(|p| i32::try_from(p).ok()).unwrap_or_default(),
        };
        Ok((column, path(str_at(c, &["jsonPath"]))?))
    });
    Ok(ColumnSource::Paths(columns.collect::<Result<_, _>>()?))
}

/// `.spec.a.b` as segments.
fn segments(path: &str) -> Vec<Str> {
    path.trim_start_matches('.').split('.').map(owned).collect()
}

fn selectable(version: &Value) -> Vec<SelectableField> {
    arr_at(version, &["selectableFields"])
        .iter()
        .map(|field| {
            let path = segments(str_at(field, &["jsonPath"]));
            SelectableField { name: Cow::Owned(path.join(".")), path, missing: "", or: None, indexed: false }
        })
        .collect()
}

fn subresources(version: &Value) -> Vec<SubresourceDef> {
    let mut list = vec![];
    if version.pointer("/subresources/status").is_some() {
        list.push(SubresourceDef::status());
    }
    if let Some(scale) = version.pointer("/subresources/scale") {
        let path = |field: &str| segments(str_at(scale, &[field]));
        list.push(SubresourceDef {
            name: "scale".into(),
            kind: SubresourceKind::Scale(ScaleDef {
                spec_replicas: path("specReplicasPath"),
                status_replicas: path("statusReplicasPath"),
                selector: (!str_at(scale, &["labelSelectorPath"]).is_empty())
                    .then(|| path("labelSelectorPath")),
            }),
            verbs: &[Verb::Get, Verb::Patch, Verb::Update],
        });
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crontab() -> Value {
        json!({
            "spec": {
                "group": "stable.example.com",
                "names": {"plural": "crontabs", "kind": "CronTab"},
                "scope": "Namespaced",
                "versions": [
                    {
                        "name": "v1", "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}},
                        "selectableFields": [{"jsonPath": ".spec.color"}],
                        "additionalPrinterColumns": [{"name": "Spec", "type": "string", "jsonPath": ".spec.cronSpec"}],
                        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                    },
                    {"name": "v1beta1", "served": false, "storage": false, "deprecated": true},
                ],
            },
            "status": {"acceptedNames": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab", "shortNames": ["ct"]}},
        })
    }

    #[test]
    fn a_definition_becomes_a_resource() {
        let def = compile(&crontab(), &Conversions::default()).unwrap();
        assert_eq!(def.group_resource().to_string(), "crontabs.stable.example.com");
        assert_eq!((def.list_kind.as_ref(), def.singular.as_ref()), ("CronTabList", "crontab"));
        let v1 = def.version("v1").unwrap();
        assert_eq!(v1.selectable[0].name, "spec.color");
        let subs: Vec<&str> = v1.subresources.iter().map(|s| s.name.as_ref()).collect();
        assert_eq!(subs, ["status", "scale"]);
        assert!(matches!(&v1.columns, ColumnSource::Paths(c) if c.len() == 1 && c[0].0.name == "Spec"));
        let old = def.version("v1beta1").unwrap();
        assert_eq!(
            old.deprecation.as_deref(),
            Some("stable.example.com/v1beta1 CronTab is deprecated; use stable.example.com/v1 CronTab")
        );
        assert!(!old.served);
    }

    #[test]
    fn definitions_of_before_v1_may_preserve_unknown_fields() {
        let object = json!({"kind": "CronTab", "spec": {"unknown": 1}, "other": 1});
        let kept = |preserve: bool| {
            let mut definition = crontab();
            definition["spec"]["preserveUnknownFields"] = preserve.into();
            let def = compile(&definition, &Conversions::default()).unwrap();
            let mut kept = object.clone();
            kaji_schema::prune::prune(def.version("v1").unwrap().schema.get(), &mut kept, true);
            kept
        };
        assert_eq!(kept(true), object);
        assert_eq!(kept(false), json!({"kind": "CronTab", "spec": {}}));
    }

    #[test]
    fn names_what_cannot_be_compiled() {
        let mut broken = crontab();
        broken["spec"]["versions"][0]["storage"] = false.into();
        assert_eq!(
            compile(&broken, &Conversions::default()).unwrap_err().0,
            "no version is marked as the storage version"
        );
        let mut unnamed = crontab();
        unnamed["status"] = json!({});
        assert_eq!(
            compile(&unnamed, &Conversions::default()).unwrap_err().0,
            "its names have not been accepted"
        );
        let mut column = crontab();
        column["spec"]["versions"][0]["additionalPrinterColumns"][0]["jsonPath"] = "{".into();
        assert!(compile(&column, &Conversions::default()).unwrap_err().0.starts_with("printer column path"));
    }
}
