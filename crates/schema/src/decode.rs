//! Reading objects as Kubernetes' Go decoders do: JSON types are checked against the schema, with Go's error texts, and
//! values take the form that Go would write them in.
//!
//! Three steps, for built-in types: [`parse`] (JSON with duplicate keys reported), [`crate::prune::prune`] (unknown
//! fields) and [`check_types`] or [`typed`]; [`conform`] does the middle one together with the checks. Custom resources need only the first two: their types are checked by
//! validation. Laws: both are idempotent, and an error leaves the value partly changed but never larger.

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use kaji_meta::{MicroTime, Quantity, Time, object};
use serde_json::{Map, Value};
use std::cell::RefCell;

use crate::at::At;
use crate::prune::Pruner;
use crate::schema::{Format, Omit, Property, Schema, SchemaRef, Type};

mod gotype;
mod json;
mod restore;

pub use json::{Parsed, parse};

/// Checks the JSON types in `value` and converts quantities, times and base64 to canonical form; nulls that Go reads as
/// "absent" go. What Go would add or leave out when writing stays as it is, so that this fits apply configurations.
///
/// The error is what Go's decoder says: "json: cannot unmarshal string into Go struct field ...".
pub fn check_types(schema: &Schema, value: &mut Value) -> Result<(), String> {
    Decoder { rewrite: false, pruned: None, restores: false }.root(schema, value)
}

/// [`crate::prune::prune`] and [`check_types`] of a whole object of a built-in type in one pass. Returns the unknown
/// fields' paths, sorted.
///
/// # Errors
/// Those of [`check_types`].
pub fn conform(schema: &Schema, value: &mut Value) -> Result<Vec<String>, String> {
    conforming(schema, value, false)
}

/// [`conform`] of the outcome of a strategic merge patch or an apply: Go fills the typed object from a tree of values, not from
/// JSON, and says of a value of the wrong type what kinds of values these are ("cannot restore map from string"). There a whole
/// number is an integer however it was written (`80.0`, `8e1`).
///
/// # Errors
/// For the first value of a wrong type.
pub fn restore(schema: &Schema, value: &mut Value) -> Result<Vec<String>, String> {
    conforming(schema, value, true)
}

fn conforming(schema: &Schema, value: &mut Value, restores: bool) -> Result<Vec<String>, String> {
    let pruned = RefCell::default();
    Decoder { rewrite: false, pruned: Some(&pruned), restores }.root(schema, value)?;
    Ok(pruned.into_inner().finish())
}

/// [`check_types`], and then the form in which Go writes the typed object: empty values of `omitempty` fields go, fields
/// that Go always writes appear (`status: {}`). Meant for whole objects of built-in types.
pub fn typed(schema: &Schema, value: &mut Value) -> Result<(), String> {
    Decoder { rewrite: true, pruned: None, restores: false }.root(schema, value)
}

/// Brings `metadata` of a custom resource into the form that Go's `ObjectMeta` gives it: types are checked, nulls and empty
/// values go. Unknown fields are [`crate::prune::prune`]'s business and stay.
pub fn object_meta(object: &mut Value) -> Result<(), String> {
    match object.get_mut("metadata") {
        None => Ok(()),
        Some(Value::Null) => {
            if let Value::Object(o) = object {
                o.remove("metadata");
            }
            Ok(())
        }
        Some(meta) => typed(crate::prune::object_meta(), meta),
    }
}

/// Standard base64; Go does not mind stray trailing bits.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

#[derive(Clone, Copy)]
struct Decoder<'u> {
    rewrite: bool,
    /// Set while unknown fields go.
    pruned: Option<&'u RefCell<Pruner>>,
    /// Whether the values are a tree in Go, not JSON.
    restores: bool,
}

/// Where a value is: its place and the full name of the struct that it is a field of.
#[derive(Clone, Copy)]
struct Ctx<'a> {
    at: &'a At<'a>,
    owner: &'a str,
}

impl Decoder<'_> {
    fn root(&self, schema: &Schema, value: &mut Value) -> Result<(), String> {
        if !value.is_object() {
            return Err(self.mismatch(value, schema, Ctx { at: &At::ROOT, owner: "" }));
        }
        self.value(schema, value, Ctx { at: &At::ROOT, owner: "" })
    }

    /// `value` is not null.
    fn value(&self, schema: &Schema, value: &mut Value, ctx: Ctx<'_>) -> Result<(), String> {
        if let Some(pruned) = self.pruned
            && (value.is_object() || value.is_array())
            && !plain(schema)
        {
            pruned.borrow_mut().value(schema, value, ctx.at, schema.embedded_resource);
            return Decoder { pruned: None, ..*self }.value(schema, value, ctx);
        }
        if self.restores {
            restore::whole_number(schema, value);
        }
        match (schema.ty, &mut *value) {
            (Type::Any, _) | (Type::String, Value::String(_)) | (Type::Boolean, Value::Bool(_)) => Ok(()),
            (Type::Number, Value::Number(_)) => Ok(()),
            (Type::Duration, Value::String(_)) => Ok(()),
            (Type::Integer, Value::Number(n)) => {
                let fits =
                    n.as_i64().is_some_and(|n| schema.format != Format::Int32 || i32::try_from(n).is_ok());
                if fits { Ok(()) } else { Err(self.mismatch(value, schema, ctx)) }
            }
            (Type::Object, Value::Object(map)) => match &schema.properties {
                Some(_) => self.object(schema, map, ctx),
                None => self.map(schema, map, ctx),
            },
            (Type::Array, Value::Array(list)) => self.list(schema, list, ctx),
            (Type::SchemaOr, v) => self.schema_or(schema, v, ctx),
            (Type::Quantity, v) => quantity(v),
            (Type::Time | Type::MicroTime, v) => time(schema.ty, v),
            (Type::Bytes, Value::String(s)) => bytes(s).map_err(|e| match self.restores {
                true => restore::bytes(&e),
                false => e,
            }),
            (Type::IntOrString, v) => int_or_string(v),
            _ => Err(self.mismatch(value, schema, ctx)),
        }
    }

    fn mismatch(&self, value: &Value, schema: &Schema, ctx: Ctx<'_>) -> String {
        if self.restores { restore::mismatch(value, schema) } else { mismatch(value, schema, ctx) }
    }

    fn object(&self, schema: &Schema, map: &mut Map<String, Value>, ctx: Ctx<'_>) -> Result<(), String> {
        let Some(props) = &schema.properties else { return Ok(()) };
        let owner = schema.name.unwrap_or("");
        let mut drop = false;
        let known = |name: &str| ctx.at.is_root() && matches!(name, "apiVersion" | "kind" | "metadata");
        for (name, value) in map.iter_mut() {
            let Some(p) = props.get(name) else {
                if let Some(pruned) = self.pruned.filter(|_| !known(name)) {
                    pruned.borrow_mut().report(&ctx.at.field(name));
                    drop = true;
                }
                continue;
            };
            if !value.is_null() {
                self.value(&p.schema, value, Ctx { at: &ctx.at.field(name), owner })?;
            }
            drop |= self.goes(p, value);
        }
        if drop {
            map.retain(|name, value| match props.get(name) {
                Some(p) => !self.goes(p, value),
                None => self.pruned.is_none() || known(name),
            });
        }
        if self.rewrite {
            for p in props.selected(appears) {
                if !map.contains_key(&*p.name) {
                    map.insert(p.name.to_string(), zero(&p.schema, p.pointer));
                }
            }
        }
        Ok(())
    }

    /// Whether Go would not write this value of a field.
    fn goes(&self, p: &Property, value: &Value) -> bool {
        if value.is_null() {
            return !(self.rewrite && p.omit == Omit::Never && zero(&p.schema, p.pointer).is_null());
        }
        self.rewrite && p.omit != Omit::Never && !p.pointer && is_empty(&p.schema, value)
    }

    fn map(&self, schema: &Schema, map: &mut Map<String, Value>, ctx: Ctx<'_>) -> Result<(), String> {
        let Some(values) = &schema.additional else { return Ok(()) };
        for value in map.values_mut() {
            self.element(values, value, ctx)?;
        }
        Ok(())
    }

    fn list(&self, schema: &Schema, list: &mut [Value], ctx: Ctx<'_>) -> Result<(), String> {
        let Some(items) = &schema.items else { return Ok(()) };
        for (i, value) in list.iter_mut().enumerate() {
            self.element(items, value, Ctx { at: &ctx.at.index(i), ..ctx })?;
        }
        Ok(())
    }

    /// A null among the values of a map or list is the zero value.
    fn element(&self, schema: &SchemaRef, value: &mut Value, ctx: Ctx<'_>) -> Result<(), String> {
        if value.is_null() {
            *value = zero(schema, false);
        }
        if value.is_null() { Ok(()) } else { self.value(schema, value, ctx) }
    }

    fn schema_or(&self, schema: &Schema, value: &mut Value, ctx: Ctx<'_>) -> Result<(), String> {
        let Some(props) = &schema.items else { return Ok(()) };
        match value {
            Value::Object(_) => self.value(props, value, ctx),
            Value::Array(list) => {
                list.iter_mut().filter(|v| v.is_object()).try_for_each(|v| self.value(props, v, ctx))
            }
            _ => Ok(()),
        }
    }
}

/// Whether pruning goes by this schema's properties alone, or by what is in its values.
fn plain(s: &Schema) -> bool {
    let inside = match s.ty {
        Type::Object => s.properties.is_some() != s.additional.is_some(),
        Type::Array => s.items.is_some(),
        Type::Any | Type::SchemaOr => false,
        // A mistake for any content.
        _ => true,
    };
    inside && !s.preserve_unknown && !s.embedded_resource
}

/// Whether Go writes the field even when nothing was given for it.
fn appears(p: &Property) -> bool {
    match p.omit {
        Omit::Never => true,
        Omit::Zero => false,
        // `omitempty` does nothing for a struct by value.
        Omit::Empty => !p.pointer && is_struct(&p.schema),
    }
}

fn is_struct(s: &Schema) -> bool {
    match s.ty {
        Type::Object => s.properties.is_some(),
        Type::Quantity | Type::Time | Type::MicroTime | Type::IntOrString | Type::Duration => true,
        // RawExtension by value.
        Type::Any => s.short_name() == "RawExtension",
        _ => false,
    }
}

/// The zero value as Go writes it.
fn zero(s: &Schema, pointer: bool) -> Value {
    if pointer {
        return Value::Null;
    }
    match s.ty {
        Type::Object => match &s.properties {
            Some(props) => {
                let fields = props.iter().filter(|p| appears(p));
                Value::Object(fields.map(|p| (p.name.to_string(), zero(&p.schema, p.pointer))).collect())
            }
            None => Value::Null,
        },
        Type::String => Value::String(String::new()),
        Type::Integer | Type::Number | Type::IntOrString => Value::from(0),
        Type::Boolean => Value::Bool(false),
        Type::Quantity => Value::from("0"),
        Type::Duration => Value::from("0s"),
        Type::Array | Type::Time | Type::MicroTime | Type::Bytes | Type::SchemaOr | Type::Any => Value::Null,
    }
}

/// What `omitempty` leaves out.
fn is_empty(s: &Schema, value: &Value) -> bool {
    match value {
        Value::Bool(b) => !b,
        Value::Number(n) => s.ty != Type::IntOrString && n.as_f64() == Some(0.0),
        Value::String(v) => v.is_empty() && matches!(s.ty, Type::String | Type::Bytes),
        Value::Array(v) => v.is_empty(),
        Value::Object(v) => v.is_empty() && s.ty == Type::Object && s.properties.is_none(),
        Value::Null => true,
    }
}

fn quantity(value: &mut Value) -> Result<(), String> {
    if value.as_str().is_some_and(plainly_canonical) {
        return Ok(());
    }
    let canonical = match &*value {
        Value::String(s) => Quantity::parse(s.trim()),
        other => Quantity::parse(&other.to_string()),
    };
    let canonical = canonical.map_err(|e| e.to_string())?.to_string();
    if value.as_str() != Some(&canonical) {
        *value = Value::String(canonical);
    }
    Ok(())
}

/// Whether a quantity is canonical beyond doubt: below 1000 of a unit, so that no larger unit fits. Most are.
fn plainly_canonical(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (1..=3).contains(&digits)
        && !text.starts_with('0')
        && matches!(&text[digits..], "" | "m" | "k" | "M" | "G" | "T" | "Ki" | "Mi" | "Gi" | "Ti")
}

fn time(ty: Type, value: &mut Value) -> Result<(), String> {
    let Value::String(s) = value else {
        return Err(format!(
            "json: cannot unmarshal {} into Go value of type string",
            object::json_type(value)
        ));
    };
    let (canonical, layout) = match ty {
        Type::MicroTime => {
            (MicroTime::parse(s).map(|t| t.to_string()).ok(), "2006-01-02T15:04:05.000000Z07:00")
        }
        _ => (Time::parse(s).map(|t| t.to_string()).ok(), "2006-01-02T15:04:05Z07:00"),
    };
    match canonical {
        Some(c) => {
            if *s != c {
                *s = c;
            }
            Ok(())
        }
        None => Err(format!("parsing time {s:?} as {layout:?}: cannot parse {s:?} as \"2006\"")),
    }
}

fn bytes(s: &mut String) -> Result<(), String> {
    // Go skips line breaks inside base64.
    if s.contains(['\r', '\n']) {
        s.retain(|c| c != '\r' && c != '\n');
    }
    let decoded = BASE64
        .decode(s.as_bytes())
        .map_err(|_| format!("illegal base64 data at input byte {}", illegal(s)))?;
    let canonical = BASE64.encode(decoded);
    if *s != canonical {
        *s = canonical;
    }
    Ok(())
}

/// Where Go's decoder stops at text that is no base64: at the first byte that does not belong, or at the group of four
/// that is not complete.
fn illegal(s: &str) -> usize {
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let bytes = s.as_bytes();
    let Some(at) = bytes.iter().position(|b| !letter(*b)) else { return bytes.len() / 4 * 4 };
    match (bytes[at], at % 4) {
        (b'=', 2) => match bytes.get(at + 1) {
            Some(b'=') => at + 2,
            Some(_) => at,
            None => bytes.len(),
        },
        (b'=', 3) => at + 1,
        _ => at,
    }
}

fn int_or_string(value: &Value) -> Result<(), String> {
    match value {
        Value::String(_) => Ok(()),
        Value::Number(n) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(()),
        Value::Number(n) => Err(format!("json: cannot unmarshal number {n} into Go value of type int32")),
        other => {
            Err(format!("json: cannot unmarshal {} into Go value of type int32", object::json_type(other)))
        }
    }
}

fn mismatch(value: &Value, schema: &Schema, ctx: Ctx<'_>) -> String {
    let mut kind = object::json_type(value).to_string();
    if let (Value::Number(n), Type::Integer) = (value, schema.ty) {
        kind = format!("number {n}");
    }
    let ty = gotype::name(schema);
    let field = ctx.at.go_fields();
    if ctx.owner.is_empty() && field.is_empty() {
        return format!("json: cannot unmarshal {kind} into Go value of type {ty}");
    }
    let owner = ctx.owner.rsplit('.').next().unwrap_or_default();
    format!("json: cannot unmarshal {kind} into Go struct field {owner}.{field} of type {ty}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types;
    use expect_test::expect;
    use proptest::prelude::*;
    use serde_json::json;

    fn error(kind: (&str, &str, &str), mut value: Value) -> String {
        let schema = types::for_gvk(kind.0, kind.1, kind.2).unwrap();
        check_types(&schema, &mut value).unwrap_err()
    }

    #[test]
    fn rejects_values_of_wrong_types() {
        let deployment = ("apps", "v1", "Deployment");
        let pod = ("", "v1", "Pod");
        let all = [
            error(deployment, json!({"spec": {"replicas": "3"}})),
            error(deployment, json!({"spec": {"replicas": 99999999999u64}})),
            error(deployment, json!({"spec": []})),
            error(deployment, json!([])),
            error(deployment, json!({"metadata": {"labels": {"a": 1}}})),
            error(pod, json!({"spec": {"containers": {"name": "x"}}})),
            error(pod, json!({"spec": {"containers": [{"name": 1}]}})),
            error(pod, json!({"spec": {"restartPolicy": true}})),
            error(pod, json!({"spec": {"containers": [{"resources": {"limits": {"cpu": "x"}}}]}})),
            error(pod, json!({"spec": {"containers": [{"resources": {"limits": []}}]}})),
            error(pod, json!({"spec": {"volumes": [{"hostPath": "x"}]}})),
            error(("", "v1", "Secret"), json!({"data": {"a": "!!"}})),
            error(("", "v1", "Service"), json!({"spec": {"ports": [{"targetPort": 1.5}]}})),
            error(pod, json!({"metadata": {"creationTimestamp": "yesterday"}})),
        ];
        expect![[r#"
            json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32
            json: cannot unmarshal number 99999999999 into Go struct field DeploymentSpec.spec.replicas of type int32
            json: cannot unmarshal array into Go struct field Deployment.spec of type v1.DeploymentSpec
            json: cannot unmarshal array into Go value of type v1.Deployment
            json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string
            json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container
            json: cannot unmarshal number into Go struct field Container.spec.containers.name of type string
            json: cannot unmarshal bool into Go struct field PodSpec.spec.restartPolicy of type v1.RestartPolicy
            quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'
            json: cannot unmarshal array into Go struct field ResourceRequirements.spec.containers.resources.limits of type v1.ResourceList
            json: cannot unmarshal string into Go struct field Volume.spec.volumes.hostPath of type v1.HostPathVolumeSource
            illegal base64 data at input byte 0
            json: cannot unmarshal number 1.5 into Go value of type int32
            parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006""#]]
        .assert_eq(&all.join("\n"));
    }

    #[test]
    fn reports_illegal_base64_at_the_offset_of_go() {
        for (text, at) in [
            ("Bad_Name!", 3),
            ("abc", 0),
            ("abcde", 4),
            ("a=", 1),
            ("ab=", 3),
            ("ab=c", 2),
            ("ab==c", 4),
            ("abc=d", 4),
        ] {
            let error = error(("", "v1", "Secret"), json!({"data": {"a": text}}));
            assert_eq!(error, format!("illegal base64 data at input byte {at}"), "{text}");
        }
    }

    #[test]
    fn decodes_to_canonical_forms() {
        let pod = types::for_gvk("", "v1", "Pod").unwrap();
        let mut v = json!({"metadata": {"creationTimestamp": null, "labels": {"a": null}, "deletionTimestamp": "2024-01-01T01:00:00+01:00"},
            "spec": {"nodeName": null, "containers": [{"name": "c", "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}}}]}});
        check_types(&pod, &mut v).unwrap();
        expect![[r#"{"metadata":{"deletionTimestamp":"2024-01-01T00:00:00Z","labels":{"a":""}},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"500m","memory":"1Gi"}}}]}}"#]]
            .assert_eq(&v.to_string());
    }

    #[test]
    fn plain_quantities_are_canonical() {
        for n in 0..1100 {
            for unit in ["", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "n", "e", "Pi"] {
                let text = format!("{n}{unit}");
                let canonical = Quantity::parse(&text).map(|q| q.to_string());
                assert!(
                    !plainly_canonical(&text) || canonical.as_deref() == Ok(&text),
                    "{text} {canonical:?}"
                );
            }
        }
        assert!(plainly_canonical("128Mi") && !plainly_canonical("1024Mi") && !plainly_canonical("0"));
    }

    #[test]
    fn decodes_the_metadata_of_custom_resources() {
        let mut v = json!({"metadata": {"name": "x", "creationTimestamp": null, "labels": {}, "generation": 0}, "spec": null});
        object_meta(&mut v).unwrap();
        assert_eq!(v, json!({"metadata": {"name": "x"}, "spec": null}));
        let error = |mut v: Value| object_meta(&mut v).unwrap_err();
        assert_eq!(
            error(json!({"metadata": {"labels": {"a": 1}}})),
            "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"
        );
        assert_eq!(
            error(json!({"metadata": "x"})),
            "json: cannot unmarshal string into Go value of type v1.ObjectMeta"
        );
    }

    #[test]
    fn as_go_writes_it() {
        let deployment = types::for_gvk("apps", "v1", "Deployment").unwrap();
        let mut v = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "labels": {}},
            "spec": {"paused": false, "replicas": 0, "template": {"spec": {"containers": [{"name": "c", "tty": false, "env": []}]}}}});
        typed(&deployment, &mut v).unwrap();
        expect![[r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{"replicas":0,"selector":null,"strategy":{},"template":{"metadata":{},"spec":{"containers":[{"name":"c","resources":{}}]}}},"status":{}}"#]]
            .assert_eq(&v.to_string());
        let again = v.clone();
        typed(&deployment, &mut v).unwrap();
        assert_eq!(v, again);
        let mut role = json!({"kind": "ClusterRole"});
        typed(&types::for_gvk("rbac.authorization.k8s.io", "v1", "ClusterRole").unwrap(), &mut role).unwrap();
        assert_eq!(role.to_string(), r#"{"kind":"ClusterRole","metadata":{},"rules":null}"#);
        let mut service = json!({"spec": {"ports": [{"port": 80}]}});
        typed(&types::for_gvk("", "v1", "Service").unwrap(), &mut service).unwrap();
        assert_eq!(
            service.to_string(),
            r#"{"metadata":{},"spec":{"ports":[{"port":80,"targetPort":0}]},"status":{"loadBalancer":{}}}"#
        );
    }

    /// Fields, known and unknown, of which objects below are made.
    fn any_object() -> impl Strategy<Value = Value> {
        let key = prop::sample::select(vec![
            "apiVersion",
            "kind",
            "metadata",
            "spec",
            "status",
            "containers",
            "name",
            "labels",
            "resources",
            "limits",
            "cpu",
            "ports",
            "containerPort",
            "foo",
            "template",
            "selector",
            "data",
            "schema",
            "openAPIV3Schema",
            "properties",
            "items",
            "versions",
            "default",
            "managedFields",
            "fieldsV1",
            "volumes",
            "configMap",
        ]);
        let leaf = prop_oneof![
            Just(Value::Null),
            Just(json!("1")),
            Just(json!(1)),
            Just(json!(true)),
            Just(json!({})),
            Just(json!([])),
            Just(json!("2020-01-01T00:00:00Z")),
        ];
        leaf.prop_recursive(7, 64, 6, move |inner| {
            prop_oneof![
                1 => prop::collection::vec(inner.clone(), 1..3).prop_map(Value::from),
                3 => prop::collection::vec((key.clone(), inner), 1..6)
                    .prop_map(|m| Value::Object(m.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn one_pass_does_what_two_do(value in any_object(), kind in 0..5_usize) {
            let kinds = [
                ("", "v1", "Pod"),
                ("apps", "v1", "Deployment"),
                ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
                ("", "v1", "ConfigMap"),
                ("apps", "v1", "ControllerRevision"),
            ];
            let schema = types::for_gvk(kinds[kind].0, kinds[kind].1, kinds[kind].2).unwrap();
            let (mut once, mut twice) = (value.clone(), value);
            let unknown = crate::prune::prune(&schema, &mut twice, true);
            let want = check_types(&schema, &mut twice).map(|()| unknown);
            prop_assert_eq!(&conform(&schema, &mut once), &want);
            if want.is_ok() {
                prop_assert_eq!(once, twice);
            }
        }
    }
}
