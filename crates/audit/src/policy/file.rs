//! A policy file as it is written, before anything is known to be right.
//!
//! Invariant: unknown and repeated fields are found, and told apart from what cannot be read at all.

use super::PolicyError;
use kaji_meta::{TypeMeta, object};
use serde_json::{Map, Value};

const GROUP: &str = "audit.k8s.io";

#[derive(Debug, Default)]
pub(super) struct RawPolicy {
    pub rules: Vec<RawRule>,
    pub omit_stages: Vec<String>,
    pub omit_managed_fields: bool,
}

#[derive(Debug, Default)]
pub(super) struct RawRule {
    pub level: String,
    pub users: Vec<String>,
    pub user_groups: Vec<String>,
    pub verbs: Vec<String>,
    pub resources: Vec<RawResources>,
    pub namespaces: Vec<String>,
    pub non_resource_urls: Vec<String>,
    pub omit_stages: Vec<String>,
    pub omit_managed_fields: Option<bool>,
}

#[derive(Debug, Default)]
pub(super) struct RawResources {
    pub group: String,
    pub resources: Vec<String>,
    pub resource_names: Vec<String>,
}

/// Reads a policy, and what a strict reader minds.
pub(super) fn read(text: &str) -> Result<(RawPolicy, Option<String>), PolicyError> {
    let (value, repeated) = document(text)?;
    let empty = Map::new();
    let map = match &value {
        Value::Null => &empty,
        Value::Object(map) => map,
        _ => return Err(PolicyError::Decode("couldn't get version/kind; the file is no object".into())),
    };
    check_kind(map)?;
    let mut reader = Reader { strict: repeated.into_iter().collect() };
    let policy = reader.policy(map)?;
    let strict =
        (!reader.strict.is_empty()).then(|| format!("strict decoding error: {}", reader.strict.join(", ")));
    Ok((policy, strict))
}

/// The document; if it only repeats keys, the last of each and what the strict parser said.
fn document(text: &str) -> Result<(Value, Option<String>), PolicyError> {
    let strict = match serde_saphyr::from_str(text) {
        Ok(value) => return Ok((value, None)),
        Err(error) => error,
    };
    let lenient = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
    match serde_saphyr::from_str_with_options(text, lenient) {
        Ok(value) => Ok((value, Some(first_line(&strict.to_string())))),
        Err(error) => {
            let error = first_line(&error.to_string());
            Err(PolicyError::Decode(format!("couldn't get version/kind; yaml: {error}")))
        }
    }
}

/// Parsers show the text around an error below its first line.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// What is not given is as for the kind that is expected, except that no file has the internal version.
fn check_kind(map: &Map<String, Value>) -> Result<(), PolicyError> {
    let text_at = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    match (text_at("apiVersion"), text_at("kind")) {
        ("audit.k8s.io/v1", "" | "Policy") => Ok(()),
        ("", "" | "Policy") => Err(PolicyError::Version(format!("{GROUP}/__internal, Kind=Policy"))),
        ("", _) => Err(PolicyError::Decode("Object 'apiVersion' is missing".into())),
        (api_version, kind) => {
            let kind = if kind.is_empty() { "Policy" } else { kind };
            Err(PolicyError::Decode(TypeMeta { api_version, kind }.unregistered().to_string()))
        }
    }
}

/// Where a field is: as strict readers and as Go's decoder say it.
#[derive(Clone, Copy)]
struct At<'a> {
    path: &'a str,
    go: &'a str,
    object: &'a str,
}

struct Reader {
    strict: Vec<String>,
}

impl Reader {
    fn policy(&mut self, map: &Map<String, Value>) -> Result<RawPolicy, PolicyError> {
        let at = At { path: "", go: "", object: "Policy" };
        let known = ["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"];
        self.unknown(map, at, &known);
        let mut rules = vec![];
        for (i, item) in items(map, "rules", at, "[]v1.PolicyRule")?.iter().enumerate() {
            let path = format!("rules[{i}]");
            rules.push(self.rule(item, At { path: &path, go: "rules.", object: "PolicyRule" })?);
        }
        Ok(RawPolicy {
            rules,
            omit_stages: strings(map, "omitStages", at, "v1.Stage")?,
            omit_managed_fields: flag(map, "omitManagedFields", at)?.unwrap_or(false),
        })
    }

    fn rule(&mut self, value: &Value, at: At<'_>) -> Result<RawRule, PolicyError> {
        let empty = Map::new();
        let map = object(value, &empty, at, "v1.PolicyRule")?;
        let known = [
            "level",
            "users",
            "userGroups",
            "verbs",
            "resources",
            "namespaces",
            "nonResourceURLs",
            "omitStages",
            "omitManagedFields",
        ];
        self.unknown(map, at, &known);
        let mut resources = vec![];
        for (i, item) in items(map, "resources", at, "[]v1.GroupResources")?.iter().enumerate() {
            let path = format!("{}.resources[{i}]", at.path);
            let at = At { path: &path, go: "rules.resources.", object: "GroupResources" };
            let map = object(item, &empty, at, "v1.GroupResources")?;
            self.unknown(map, at, &["group", "resources", "resourceNames"]);
            resources.push(RawResources {
                group: text(map, "group", at, "string")?,
                resources: strings(map, "resources", at, "string")?,
                resource_names: strings(map, "resourceNames", at, "string")?,
            });
        }
        Ok(RawRule {
            level: text(map, "level", at, "v1.Level")?,
            users: strings(map, "users", at, "string")?,
            user_groups: strings(map, "userGroups", at, "string")?,
            verbs: strings(map, "verbs", at, "string")?,
            resources,
            namespaces: strings(map, "namespaces", at, "string")?,
            non_resource_urls: strings(map, "nonResourceURLs", at, "string")?,
            omit_stages: strings(map, "omitStages", at, "v1.Stage")?,
            omit_managed_fields: flag(map, "omitManagedFields", at)?,
        })
    }

    fn unknown(&mut self, map: &Map<String, Value>, at: At<'_>, known: &[&str]) {
        let dot = if at.path.is_empty() { "" } else { "." };
        let unknown = map.keys().filter(|k| !known.contains(&k.as_str()));
        self.strict.extend(unknown.map(|k| format!("unknown field \"{}{dot}{k}\"", at.path)));
    }
}

/// What Go's decoder says about a value of another type.
fn wrong(value: &Value, at: At<'_>, field: &str, wanted: &str) -> PolicyError {
    let found = object::json_type(value);
    let (object, go) = (at.object, at.go);
    PolicyError::Decode(format!(
        "json: cannot unmarshal {found} into Go struct field {object}.{go}{field} of type {wanted}"
    ))
}

fn given<'a>(map: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    map.get(field).filter(|v| !v.is_null())
}

fn object<'a>(
    value: &'a Value,
    empty: &'a Map<String, Value>,
    at: At<'_>,
    wanted: &str,
) -> Result<&'a Map<String, Value>, PolicyError> {
    match value {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(empty),
        other => {
            let field = at.go.trim_end_matches('.');
            let outer = if at.object == "PolicyRule" { "Policy" } else { "PolicyRule" };
            Err(wrong(other, At { go: "", object: outer, ..at }, field, wanted))
        }
    }
}

fn items<'a>(
    map: &'a Map<String, Value>,
    field: &str,
    at: At<'_>,
    wanted: &str,
) -> Result<&'a [Value], PolicyError> {
    match given(map, field) {
        None => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(other) => Err(wrong(other, at, field, wanted)),
    }
}

fn text(map: &Map<String, Value>, field: &str, at: At<'_>, wanted: &str) -> Result<String, PolicyError> {
    match given(map, field) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(wrong(other, at, field, wanted)),
    }
}

fn strings(
    map: &Map<String, Value>,
    field: &str,
    at: At<'_>,
    wanted: &str,
) -> Result<Vec<String>, PolicyError> {
    let list = items(map, field, at, &format!("[]{wanted}"))?.iter();
    list.map(|item| match item {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Ok(String::new()),
        other => Err(wrong(other, at, field, wanted)),
    })
    .collect()
}

fn flag(map: &Map<String, Value>, field: &str, at: At<'_>) -> Result<Option<bool>, PolicyError> {
    match given(map, field) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(wrong(other, at, field, "bool")),
    }
}
