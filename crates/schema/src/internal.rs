//! Values as `encoding/json` writes the server's internal Go types: the form in which messages of validation show a
//! struct. Internal types have no JSON tags, so that fields carry Go's names and all of them are written; types that they
//! share with the API (`LabelSelector`) are written as the API writes them.
//!
//! Go's names and order follow from the versioned types (`types/builtin.tbl`) but for what `types/internal.tbl` lists.
//!
//! Invariants: every field of a type is written or named there as not shown (a test compares the tables); depth is that of
//! the value.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use kaji_meta::json;
use serde_json::Value;

use crate::schema::{Omit, Property, Schema, Type};
use crate::types;

static TEXT: &str = include_str!("types/internal.tbl");

/// The lines of the table, by full name of the versioned type.
static LINES: LazyLock<HashMap<String, &'static str>> = LazyLock::new(|| {
    let lines = TEXT.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split_once(' '));
    lines.map(|(name, fields)| (types::aliased(name), fields)).collect()
});

/// First words of field names that Go writes in capitals ("fsType" is `FSType`).
const INITIALISMS: [&str; 31] = [
    "api", "aws", "ca", "cel", "cidr", "csi", "dns", "fc", "fs", "gce", "gmsa", "grpc", "http", "id", "ip",
    "iqn", "iscsi", "nfs", "os", "pd", "pid", "rbd", "se", "ssl", "tcp", "tls", "ttl", "tty", "uid", "uri",
    "url",
];

/// The text of a value of a built-in type, by the type's full name ("io.k8s.api.core.v1.PodSpec"), or
/// of a list of such values. Values of types that are not known are written as they are.
pub fn text(type_name: &str, value: &Value) -> String {
    let mut out = Vec::new();
    match types::lookup(type_name) {
        Some(schema) if value.is_array() => {
            let list = Schema { items: Some(schema), ..Schema::of(Type::Array) };
            write(&mut out, value, &list, true, None);
        }
        Some(schema) => write(&mut out, value, schema.get(), true, None),
        None => json::write(&mut out, value),
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// One field as it is written.
struct Field<'s> {
    name: Cow<'s, str>,
    property: &'s Property,
    pointer: bool,
    /// Read from the struct around this one.
    outer: bool,
    omit: Omit,
}

/// Go's name of a field, from its JSON name.
fn go_name(field: &str) -> String {
    let end = field.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(field.len());
    let (first, rest) = field.split_at(end);
    if INITIALISMS.contains(&first) {
        return first.to_ascii_uppercase() + rest;
    }
    let mut name = field.to_owned();
    if let Some(letter) = name.get_mut(..1) {
        letter.make_ascii_uppercase();
    }
    name
}

/// Whether a type has the JSON names of the API also inside of the server.
fn tagged(schema: &Schema) -> bool {
    schema.name.is_some_and(|n| n.starts_with("io.k8s.apimachinery."))
}

/// The fields that the versioned type declares, in its order.
fn declared(schema: &Schema) -> Vec<Field<'_>> {
    let tagged = tagged(schema);
    let kind = schema.name.and_then(types::entry).is_some_and(|e| e.gvk().is_some());
    let shown = |p: &&Property| !(kind && matches!(&*p.name, "kind" | "apiVersion"));
    let mut fields: Vec<&Property> = schema.properties.iter().flatten().filter(shown).collect();
    fields.sort_by_key(|p| p.place);
    let named = fields.into_iter().map(|property| {
        let (name, omit) = match tagged {
            true => (Cow::Borrowed(&*property.name), property.omit),
            false => (Cow::Owned(go_name(&property.name)), Omit::Never),
        };
        Field { name, property, pointer: property.pointer, outer: false, omit }
    });
    named.collect()
}

/// One word of a line of the table; none for what is not shown or not there.
fn listed<'s>(word: &'static str, schema: &'s Schema, outer: Option<&'s Schema>) -> Option<Field<'s>> {
    let (name, field) = word.split_once('=').unwrap_or((word, word));
    let (name, field) = (name.trim_end_matches('-'), field.trim_end_matches('-'));
    let (holder, field) = match field.strip_prefix('^') {
        Some(field) => (outer?, field),
        None => (schema, field),
    };
    let mut all = holder.properties.iter().flatten();
    let property = all.find(|p| p.name.eq_ignore_ascii_case(field))?;
    Some(Field {
        name: Cow::Borrowed(name),
        property,
        pointer: property.pointer && !word.ends_with('-'),
        outer: !std::ptr::eq(holder, schema),
        omit: Omit::Never,
    })
}

/// The line of the table for a type.
fn line(schema: &Schema) -> Option<&'static str> {
    LINES.get(schema.name?).copied()
}

/// Whether a type takes fields from the struct around it; Go then always makes one.
fn takes_from_outside(schema: &Schema) -> bool {
    line(schema).is_some_and(|l| l.contains("=^"))
}

/// The fields as they are written.
fn fields<'s>(schema: &'s Schema, outer: Option<&'s Schema>) -> Vec<Field<'s>> {
    match line(schema) {
        Some(line) => line.split(' ').filter_map(|w| listed(w, schema, outer)).collect(),
        None => declared(schema),
    }
}

/// A struct and its type.
#[derive(Clone, Copy)]
struct Held<'s, 'v> {
    schema: &'s Schema,
    value: &'v Value,
}

fn is_struct(schema: &Schema) -> bool {
    schema.ty == Type::Object && schema.additional.is_none() && schema.name.is_some()
}

/// Appends a value, or what Go holds where there is none.
fn write(out: &mut Vec<u8>, value: &Value, schema: &Schema, pointer: bool, outer: Option<Held<'_, '_>>) {
    let absent = value.is_null();
    match schema.ty {
        _ if is_struct(schema) && (!absent || !pointer || takes_from_outside(schema)) => {
            out.push(b'{');
            write_fields(out, Held { schema, value }, outer);
            out.push(b'}');
        }
        Type::String if absent && !pointer => out.extend_from_slice(b"\"\""),
        Type::Integer | Type::Number | Type::IntOrString if absent && !pointer => out.push(b'0'),
        Type::Boolean if absent && !pointer => out.extend_from_slice(b"false"),
        Type::Quantity if absent && !pointer => out.extend_from_slice(b"\"0\""),
        _ => write_parts(out, value, schema),
    }
}

/// Appends a list, a map, or a value without parts.
fn write_parts(out: &mut Vec<u8>, value: &Value, schema: &Schema) {
    match (value, &schema.items, &schema.additional) {
        (Value::Array(list), Some(items), _) => {
            out.push(b'[');
            for (i, item) in list.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write(out, item, items, false, None);
            }
            out.push(b']');
        }
        (Value::Object(map), _, Some(values)) => {
            out.push(b'{');
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                json::write_string(out, key);
                out.push(b':');
                write(out, value, values, false, None);
            }
            out.push(b'}');
        }
        _ => json::write(out, value),
    }
}

/// What Go holds where there is nothing.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) => false,
    }
}

/// Appends the members of a struct, without braces. Internal types embed their metadata: its members become their own.
fn write_fields(out: &mut Vec<u8>, held: Held<'_, '_>, outer: Option<Held<'_, '_>>) {
    for field in fields(held.schema, outer.map(|o| o.schema)) {
        let holder = if field.outer { outer.map_or(&Value::Null, |o| o.value) } else { held.value };
        let value = holder.get(&*field.property.name).unwrap_or(&Value::Null);
        let schema = field.property.schema.get();
        if matches!(schema.short_name(), "ObjectMeta" | "ListMeta") && tagged(schema) {
            write_fields(out, Held { schema, value }, None);
            continue;
        }
        let left_out = match field.omit {
            Omit::Never => false,
            Omit::Zero => is_empty(value),
            Omit::Empty if field.pointer => value.is_null(),
            Omit::Empty => is_empty(value) && !is_struct(schema),
        };
        if left_out {
            continue;
        }
        if out.last() != Some(&b'{') {
            out.push(b',');
        }
        json::write_string(out, &field.name);
        out.push(b':');
        write(out, value, schema, field.pointer, Some(held));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn every_field_of_a_listed_type_is_shown_or_named_as_not_shown() {
        let mut wrong = vec![];
        for (name, line) in LINES.iter() {
            let schema = types::lookup(name).unwrap_or_else(|| panic!("{name}"));
            let (hidden, shown): (Vec<_>, Vec<_>) = line.split(' ').partition(|w| w.starts_with('!'));
            let own: Vec<&str> = shown.into_iter().filter(|w| !w.contains("=^")).collect();
            let found: Vec<Field<'_>> = own.iter().filter_map(|w| listed(w, &schema, None)).collect();
            assert_eq!(found.len(), own.len(), "{name}");
            for p in schema.properties.iter().flatten() {
                let named = hidden.iter().any(|h| h[1..] == *p.name);
                let times = found.iter().filter(|f| f.property.name == p.name).count() + usize::from(named);
                if times != 1 {
                    wrong.push(format!("{name} {}: {times} times", p.name));
                }
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
    }

    #[test]
    fn structs_have_all_fields_in_gos_order() {
        let text = |short: &str, value| text(&format!("io.k8s.api.{short}"), &value);
        expect![[r#"{"Exec":null,"HTTPGet":{"Path":"","Port":"web","Host":"","Scheme":"","HTTPHeaders":null,"Protocol":null},"TCPSocket":null,"GRPC":null,"InitialDelaySeconds":0,"TimeoutSeconds":1,"PeriodSeconds":0,"SuccessThreshold":0,"FailureThreshold":0,"TerminationGracePeriodSeconds":null}"#]].assert_eq(&text("core.v1.Probe", json!({"httpGet": {"port": "web"}, "timeoutSeconds": 1})));
        expect!["null"].assert_eq(&text("core.v1.Toleration", Value::Null));
        expect![[r#"{"GMSACredentialSpecName":null,"GMSACredentialSpec":"\u003ca\u003e","RunAsUserName":null,"HostProcess":null}"#]].assert_eq(&text("core.v1.WindowsSecurityContextOptions", json!({"gmsaCredentialSpec": "<a>"})));
        expect![[r#"{"Sources":[{"Secret":null,"DownwardAPI":null,"ConfigMap":null,"ServiceAccountToken":{"Audience":"","ExpirationSeconds":0,"Path":"p","User":null},"ClusterTrustBundle":null,"PodCertificate":null}],"DefaultMode":null,"DefaultUser":null}"#]].assert_eq(&text("core.v1.ProjectedVolumeSource", json!({"sources": [{"serviceAccountToken": {"path": "p"}}]})));
        expect![[r#"{"Medium":"","SizeLimit":"1Gi","Mode":null}"#]]
            .assert_eq(&text("core.v1.EmptyDirVolumeSource", json!({"sizeLimit": "1Gi"})));
    }

    #[test]
    fn metadata_and_what_the_pod_holds_for_its_security_context_are_embedded() {
        let template = json!({
            "metadata": {"labels": {"b": "2", "a": "1"}, "creationTimestamp": null, "name": "n"},
            "spec": {"hostNetwork": true, "nodeSelector": {}, "containers": []},
        });
        expect![[r#"{"name":"n","labels":{"a":"1","b":"2"},"Spec":{"Volumes":null,"InitContainers":null,"Containers":[],"EphemeralContainers":null,"RestartPolicy":"","TerminationGracePeriodSeconds":null,"ActiveDeadlineSeconds":null,"DNSPolicy":"","NodeSelector":{},"ServiceAccountName":"","AutomountServiceAccountToken":null,"NodeName":"","SecurityContext":{"HostNetwork":true,"HostPID":false,"HostIPC":false,"ShareProcessNamespace":null,"HostUsers":null,"SELinuxOptions":null,"WindowsOptions":null,"RunAsUser":null,"RunAsGroup":null,"RunAsNonRoot":null,"SupplementalGroups":null,"SupplementalGroupsPolicy":null,"FSGroup":null,"FSGroupChangePolicy":null,"Sysctls":null,"SeccompProfile":null,"AppArmorProfile":null,"SELinuxChangePolicy":null},"ImagePullSecrets":null,"Hostname":"","Subdomain":"","SetHostnameAsFQDN":null,"Affinity":null,"SchedulerName":"","Tolerations":null,"HostAliases":null,"PriorityClassName":"","Priority":null,"PreemptionPolicy":null,"DNSConfig":null,"ReadinessGates":null,"RuntimeClassName":null,"Overhead":null,"EnableServiceLinks":null,"TopologySpreadConstraints":null,"OS":null,"SchedulingGates":null,"ResourceClaims":null,"Resources":null,"HostnameOverride":null,"SchedulingGroup":null,"EvictionResponders":null}}"#]].assert_eq(&text("io.k8s.api.core.v1.PodTemplateSpec", &template));
    }

    #[test]
    fn types_shared_with_the_api_keep_its_form() {
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"values": ["b"], "operator": "In", "key": "a"}]});
        let text = |value| text("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", value);
        expect![[
            r#"{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}"#
        ]]
        .assert_eq(&text(&selector));
        expect!["null"].assert_eq(&text(&Value::Null));
        expect![[r#"{"b":1}"#]].assert_eq(&super::text("not.a.Type", &json!({"b": 1})));
    }
}
