//! The options of writes, from query and body, validated with upstream's texts.

use crate::{decode, request::ApiRequest};
use kaji_meta::{GroupKind, Path, Query, Status, object, options as rules, text::is_printable};
use kaji_resource::{DeleteOptions, Verb};
use serde_json::{Map, Value, json};

/// `CreateOptions`, `UpdateOptions` and `PatchOptions` (meta/v1) in one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WriteOptions {
    /// `dryRun=All`
    pub dry_run: bool,
    /// `fieldManager` as sent.
    pub field_manager: String,
    /// `fieldValidation` as sent.
    pub field_validation: String,
    /// `force`, for apply.
    pub force: Option<bool>,
    /// The manager that the fields are recorded under: `field_manager`, else the first part of the user agent.
    pub manager: String,
}

/// The options of a request as admission sees them.
#[derive(Clone, Copy, Debug)]
pub enum OperationOptions<'a> {
    /// `CreateOptions`
    Create(&'a WriteOptions),
    /// `UpdateOptions`
    Update(&'a WriteOptions),
    /// `DeleteOptions`
    Delete(&'a DeleteOptions),
    /// Streams have none.
    None,
}

impl OperationOptions<'_> {
    /// As an object of `meta.k8s.io/v1`; null for streams.
    pub fn to_value(&self) -> Value {
        match self {
            OperationOptions::Create(o) => o.to_value("CreateOptions"),
            OperationOptions::Update(o) => o.to_value("UpdateOptions"),
            OperationOptions::Delete(o) => delete_value(o),
            OperationOptions::None => Value::Null,
        }
    }
}

impl WriteOptions {
    fn to_value(&self, kind: &str) -> Value {
        let mut map = Map::new();
        map.insert("kind".into(), kind.into());
        map.insert("apiVersion".into(), "meta.k8s.io/v1".into());
        if self.dry_run {
            map.insert("dryRun".into(), json!(["All"]));
        }
        for (key, value) in
            [("fieldManager", &self.field_manager), ("fieldValidation", &self.field_validation)]
        {
            if !value.is_empty() {
                map.insert(key.into(), value.as_str().into());
            }
        }
        Value::Object(map)
    }

    /// Reads the query of a create, update or patch. `apply` tells a server-side apply.
    ///
    /// # Errors
    /// 400 for what cannot be read, 422 for what is not allowed.
    pub(crate) fn of(req: &ApiRequest, apply: bool) -> Result<Self, Status> {
        let query = &req.query;
        let options = WriteOptions {
            dry_run: query.first("dryRun").is_some(),
            field_manager: query.text("fieldManager").to_owned(),
            field_validation: query.text("fieldValidation").to_owned(),
            force: query.flag("force").filter(|_| req.verb == Verb::Patch),
            manager: String::new(),
        };
        let mut errs = vec![];
        if req.verb == Verb::Patch {
            errs.extend(rules::validate_patch_options(
                apply,
                &options.field_manager,
                options.force.is_some(),
            ));
        }
        errs.extend(rules::validate_field_manager(&options.field_manager, &Path::new("fieldManager")));
        errs.extend(rules::validate_dry_run(query.all("dryRun"), &Path::new("dryRun")));
        errs.extend(rules::validate_field_validation(
            &options.field_validation,
            &Path::new("fieldValidation"),
        ));
        if !errs.is_empty() {
            let kind = match req.verb {
                Verb::Create => "CreateOptions",
                Verb::Patch => "PatchOptions",
                _ => "UpdateOptions",
            };
            return Err(Status::invalid(&GroupKind::new("meta.k8s.io", kind), "", &errs));
        }
        let manager = match options.field_manager.as_str() {
            "" => user_agent_prefix(&req.user_agent),
            named => named.to_owned(),
        };
        Ok(WriteOptions { manager, ..options })
    }

    /// What to do about unknown and duplicate fields.
    pub(crate) fn directive(&self) -> decode::Directive {
        match self.field_validation.as_str() {
            "Strict" => decode::Directive::Strict,
            "Ignore" => decode::Directive::Ignore,
            _ => decode::Directive::Warn,
        }
    }
}

/// What comes before the first `/` of a user agent, printable and bounded: the default field manager.
fn user_agent_prefix(user_agent: &str) -> String {
    let mut out = String::new();
    let first = user_agent.split('/').next().unwrap_or("");
    for c in first.chars().filter(|c| is_printable(*c)) {
        if out.len() + c.len_utf8() > rules::FIELD_MANAGER_MAX_LENGTH {
            break;
        }
        out.push(c);
    }
    out
}

/// The field of `DeleteOptions` for an object that cannot be read.
pub(crate) const UNREAD: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// Reads `DeleteOptions` from the body or, without one, from the query.
///
/// # Errors
/// 400 for what cannot be read, 422 for what is not allowed.
pub(crate) fn delete_options(req: &ApiRequest) -> Result<DeleteOptions, Status> {
    let value = if req.body.is_empty() {
        delete_query(&req.query).map_err(Status::bad_request)?
    } else {
        let body = delete_body(req)?;
        req.audit.iter().for_each(|t| t.object(&body));
        body
    };
    let errs = rules::validate_delete_options(&value);
    if !errs.is_empty() {
        return Err(Status::invalid(&GroupKind::new("meta.k8s.io", "DeleteOptions"), "", &errs));
    }
    Ok(parse_delete(&value))
}

fn delete_body(req: &ApiRequest) -> Result<Value, Status> {
    let schema = kaji_schema::types::lookup("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
    let mut value = match (decode::syntax(&req.content_type)?, &schema) {
        (decode::Syntax::Protobuf, Some(schema)) => {
            decode::protobuf::plain(schema, &req.body).map_err(Status::bad_request)?
        }
        (syntax, _) => {
            let doc = decode::document(&req.body, syntax).map_err(|e| {
                Status::bad_request(format!("couldn't get version/kind; json parse error: {e}"))
            })?;
            doc.value
        }
    };
    if value.is_null() {
        value = Value::Object(Map::new());
    }
    if !value.is_object() {
        let found = object::json_type(&value);
        return Err(Status::bad_request(format!(
            "json: cannot unmarshal {found} into Go value of type v1.DeleteOptions"
        )));
    }
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or("");
    if !matches!(kind, "" | "DeleteOptions") {
        return Err(Status::bad_request("decoded object cannot be converted to DeleteOptions"));
    }
    if let Some(schema) = schema {
        kaji_schema::prune::prune(schema.get(), &mut value, true);
        kaji_schema::decode::check_types(schema.get(), &mut value).map_err(Status::bad_request)?;
    }
    Ok(value)
}

/// Source: apimachinery's `Convert_url_Values_To_v1_DeleteOptions`.
fn delete_query(query: &Query) -> Result<Value, String> {
    let mut map = Map::new();
    if let Some(seconds) = query.number("gracePeriodSeconds")? {
        map.insert("gracePeriodSeconds".into(), seconds.into());
    }
    for flag in ["orphanDependents", UNREAD] {
        if let Some(given) = query.flag(flag) {
            map.insert(flag.into(), given.into());
        }
    }
    if let Some(policy) = query.first("propagationPolicy") {
        map.insert("propagationPolicy".into(), policy.into());
    }
    let dry_run: Vec<&str> = query.all("dryRun").collect();
    if !dry_run.is_empty() {
        map.insert("dryRun".into(), dry_run.into());
    }
    let preconditions = ["uid", "resourceVersion"].map(|key| (key, query.text(key)));
    let preconditions = preconditions.into_iter().filter(|(_, value)| !value.is_empty());
    let preconditions: Map<String, Value> = preconditions.map(|(k, v)| (k.into(), v.into())).collect();
    if !preconditions.is_empty() {
        map.insert("preconditions".into(), preconditions.into());
    }
    Ok(Value::Object(map))
}

/// `DeleteOptions` from its JSON form.
pub(crate) fn parse_delete(value: &Value) -> DeleteOptions {
    let text = |v: Option<&Value>| v.and_then(Value::as_str).map(str::to_owned);
    let preconditions = value.get("preconditions");
    DeleteOptions {
        grace_period_seconds: value.get("gracePeriodSeconds").and_then(Value::as_i64),
        uid: text(preconditions.and_then(|p| p.get("uid"))),
        resource_version: text(preconditions.and_then(|p| p.get("resourceVersion"))),
        propagation_policy: text(value.get("propagationPolicy")),
        orphan_dependents: value.get("orphanDependents").and_then(Value::as_bool),
        dry_run: value.get("dryRun").and_then(Value::as_array).is_some_and(|l| !l.is_empty()),
        ignore_store_read_error: value.get(UNREAD).and_then(Value::as_bool).unwrap_or(false),
        of_collection: false,
    }
}

fn delete_value(o: &DeleteOptions) -> Value {
    let mut map = Map::new();
    map.insert("kind".into(), "DeleteOptions".into());
    map.insert("apiVersion".into(), "meta.k8s.io/v1".into());
    if let Some(n) = o.grace_period_seconds {
        map.insert("gracePeriodSeconds".into(), n.into());
    }
    let mut preconditions = Map::new();
    for (key, value) in [("uid", &o.uid), ("resourceVersion", &o.resource_version)] {
        if let Some(value) = value {
            preconditions.insert(key.into(), value.as_str().into());
        }
    }
    if !preconditions.is_empty() {
        map.insert("preconditions".into(), Value::Object(preconditions));
    }
    if let Some(b) = o.orphan_dependents {
        map.insert("orphanDependents".into(), b.into());
    }
    if let Some(policy) = &o.propagation_policy {
        map.insert("propagationPolicy".into(), policy.as_str().into());
    }
    if o.dry_run {
        map.insert("dryRun".into(), json!(["All"]));
    }
    if o.ignore_store_read_error {
        map.insert(UNREAD.into(), true.into());
    }
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn derives_the_field_manager_from_the_user_agent() {
        assert_eq!(user_agent_prefix("kubectl/v1.37 (linux)"), "kubectl");
        assert_eq!(user_agent_prefix("a\u{7}b"), "ab");
        assert_eq!(user_agent_prefix(&"é".repeat(100)).len(), 128);
        assert_eq!(user_agent_prefix(""), "");
    }

    #[test]
    fn delete_options_round_trip() {
        let value = json!({
            "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 5, "dryRun": ["All"],
            "preconditions": {"uid": "u", "resourceVersion": "7"}, "propagationPolicy": "Foreground"
        });
        let options = parse_delete(&value);
        expect![[r#"
            DeleteOptions {
                grace_period_seconds: Some(
                    5,
                ),
                uid: Some(
                    "u",
                ),
                resource_version: Some(
                    "7",
                ),
                propagation_policy: Some(
                    "Foreground",
                ),
                orphan_dependents: None,
                dry_run: true,
                ignore_store_read_error: false,
                of_collection: false,
            }
        "#]]
        .assert_debug_eq(&options);
        assert_eq!(delete_value(&options), value);
    }
}
