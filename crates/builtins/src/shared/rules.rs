//! Field rules beyond the general checks: resource names and amounts, taints, ports.
//!
//! Every rule appends to a list; texts are upstream's.

use super::{check, net::parse_ip_sloppy, value::Fields};
use kaji_meta::{
    Path, Quantity,
    field::{Error, ErrorList},
    validation,
};
use kaji_quota::names;
use serde_json::Value;

/// The host name of a point of a load balancer's ingress.
pub fn ingress_point_hostname(errs: &mut ErrorList, path: &Path, host: &str) {
    check::dns_subdomain(errs, path, host);
    if parse_ip_sloppy(host).is_some() {
        errs.push(Error::invalid(path, host, "must be a DNS name, not an IP address"));
    }
}

/// Rounds the quantities of a resource list up that are finer than 1/1000, as upstream's defaults do for compatibility
/// (`SetDefaults_ResourceList`).
pub fn round_quantities(holder: &mut Value, key: &str) {
    let Some(Value::Object(list)) = holder.get_mut(key) else { return };
    for q in list.values_mut() {
        if let Some(text) = q.as_str()
            && text.ends_with(['n', 'u'])
            && let Ok(parsed) = Quantity::parse(text)
        {
            *q = parsed.round_up(-3).0.to_string().into();
        }
    }
}

/// Go's zero value of any JSON type: absent, `""`, `0`, `false`, `[]`, `{}`.
pub fn is_zero(v: &Value) -> bool {
    match v {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(m) => m.is_empty(),
    }
}

/// Sets a boolean field when it is absent or null.
pub fn default_flag(v: &mut Value, key: &str, default: bool) {
    super::value::set_default(v, key, || default.into());
}

/// Sets a string field when it is absent or null; an empty string stays (Go's `*string`).
pub fn default_opt_text(v: &mut Value, key: &str, default: &str) {
    super::value::set_default(v, key, || default.into());
}

/// A quantity; zero where it is malformed (decoding refuses those).
pub fn quantity(value: &Value) -> Quantity {
    check::quantity(value).unwrap_or_default()
}

/// The number must be a port.
pub fn port_number(errs: &mut ErrorList, path: &Path, port: i64) {
    errs.extend(validation::is_valid_port_num(port).into_iter().map(|m| Error::invalid(path, port, m)));
}

/// The field may not change, reported as forbidden with a text.
pub fn frozen(errs: &mut ErrorList, path: &Path, same: bool, detail: &str) {
    if !same {
        errs.push(Error::forbidden(path, detail));
    }
}

/// `TCP`, `UDP` or `SCTP`; required.
pub fn protocol(errs: &mut ErrorList, path: &Path, value: &str) {
    check::required_one_of(errs, path, value, &["SCTP", "TCP", "UDP"]);
}

/// A resource name: qualified, or a defined one without a prefix. Returns whether it is valid.
pub fn resource_name(errs: &mut ErrorList, path: &Path, name: &str) -> bool {
    let before = errs.len();
    check::qualified_name(errs, path, name);
    if errs.len() == before && !name.contains('/') && !names::is_standard(name) {
        errs.push(Error::invalid(path, name, "must be a standard resource type or fully qualified"));
    }
    errs.len() == before
}

/// A resource name that containers may request.
pub fn container_resource_name(errs: &mut ErrorList, path: &Path, name: &str) {
    resource_name(errs, path, name);
    if !name.contains('/') {
        if !names::is_container_standard(name) && !names::is_hugepages(name) {
            errs.push(Error::invalid(path, name, "must be a standard resource for containers"));
        }
    } else if !names::is_native(name) && !names::is_extended(name) {
        errs.push(Error::invalid(path, name, "doesn't follow extended resource name standard"));
    }
}

/// The amount must not be negative, and whole for resources that are counted.
pub fn resource_amount(errs: &mut ErrorList, path: &Path, name: &str, value: &Value) {
    let amount = quantity(value);
    check::not_negative_quantity(errs, path, value);
    if names::is_integer(name) && amount.milli_value() % 1000 != 0 {
        errs.push(Error::invalid(path, amount.to_string(), "must be an integer"));
    }
}

/// The amount must be greater than zero.
pub fn positive_amount(errs: &mut ErrorList, path: &Path, value: &Value) {
    let amount = quantity(value);
    if amount.sign() <= 0 {
        errs.push(Error::invalid(path, amount.to_string(), check::NOT_POSITIVE));
    }
}

/// The name of a CSI driver: a DNS subdomain in any case, of at most 63 bytes.
pub fn csi_driver_name(errs: &mut ErrorList, path: &Path, name: &str) {
    if name.is_empty() {
        errs.push(Error::required(path, ""));
        return;
    }
    if name.len() > 63 {
        errs.push(Error::too_long(path, "", 63));
    }
    check::each(errs, path, name, validation::is_dns1123_subdomain(&name.to_lowercase()));
}

/// Effects of taints, in upstream's order.
pub const TAINT_EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Taints of nodes: label keys and values, known effects, unique by key and effect.
pub fn taints(errs: &mut ErrorList, path: &Path, list: &[Value]) {
    let mut seen: Vec<(&str, &str)> = vec![];
    for (i, taint) in list.iter().enumerate() {
        let at = path.index(i);
        let (key, value, effect) = (taint.text("key"), taint.text("value"), taint.text("effect"));
        check::label_name(errs, &at.child("key"), key);
        let bad = validation::is_valid_label_value(value);
        if !bad.is_empty() {
            errs.push(Error::invalid(&at.child("value"), value, bad.join(";")));
        }
        check::required_one_of(errs, &at.child("effect"), effect, TAINT_EFFECTS);
        if seen.contains(&(effect, key)) {
            // Upstream prints its internal struct: the order of its fields is not JSON's.
            let added = taint.at("timeAdded");
            let mut error = Error::duplicate(&at, Value::Null).without_value();
            error.detail = format!(
                r#"{{"Key":{key:?},"Value":{value:?},"Effect":{effect:?},"TimeAdded":{added}}}: taints must be unique by key and effect pair"#
            );
            errs.push(error);
            continue;
        }
        seen.push((effect, key));
    }
}

/// The length in bytes of what a base64 text stands for.
pub fn base64_len(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|b| *b == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

/// The bytes that a base64 text stands for; none where it is malformed (decoding refuses those).
pub fn base64_bytes(text: &str) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default()
}

/// Puts back the metadata that a status update may not change: labels, annotations, finalizers, owners.
pub fn keep_meta_on_status(new: &mut Value, old: &Value) {
    let meta = super::value::ensure_object(new, "metadata");
    let fields =
        ["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp", "generation"];
    fields.iter().for_each(|f| super::value::copy_field(meta, old.at("metadata"), f));
}

/// The name of a certificate signer, `example.com/name`.
pub fn signer_name(errs: &mut ErrorList, path: &Path, name: &str) {
    if name.is_empty() {
        errs.push(Error::required(path, ""));
        return;
    }
    let Some((domain, rest)) = name.split_once('/').filter(|(_, rest)| !rest.contains('/')) else {
        let text = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errs.push(Error::invalid(path, name, text));
        return;
    };
    if domain.len() > 253 {
        errs.push(Error::too_long(path, "", 253));
    }
    labels(errs, path, domain, validation::is_dns1123_label);
    if !domain.contains('.') {
        let text = "should be a domain with at least two segments separated by dots";
        errs.push(Error::invalid(path, domain, text));
    }
    labels(errs, path, rest, validation::is_dns1123_subdomain);
    if name.len() > 253 + 253 + 63 + 2 {
        errs.push(Error::too_long(path, "", 253 + 253 + 63 + 2));
    }
}

/// Checks what the author of a pod tells the signer of its certificate: annotations with a domain each.
pub fn user_annotations(errs: &mut ErrorList, path: &Path, object: &Value, field: &str) {
    let (at, mut size) = (path.child(field), 0);
    for (key, value) in object.string_map(field) {
        errs.extend(validation::validate_domain_prefixed_key(&at, &key.to_lowercase()));
        size += key.len() + value.len();
    }
    if size > validation::TOTAL_ANNOTATION_SIZE_LIMIT {
        errs.push(Error::too_long(&at, "", validation::TOTAL_ANNOTATION_SIZE_LIMIT));
    }
}

/// Checks the dotted parts of a name up to the first bad one.
fn labels(errs: &mut ErrorList, path: &Path, whole: &str, rule: fn(&str) -> Vec<String>) {
    let bad = whole.split('.').map(|l| (l, rule(l))).find(|(_, bad)| !bad.is_empty());
    if let Some((label, messages)) = bad {
        for m in messages {
            errs.push(Error::invalid(path, whole, format!("validating label {label:?}: {m}")));
        }
    }
}

/// Fields that a strategy sets itself: status, and for writers of the status the spec and all metadata. Other kinds leave
/// the metadata to them.
pub fn resets_metadata(subresource: &str) -> &'static [&'static [&'static str]] {
    match subresource {
        "" => &[&["status"]],
        "status" => &[&["metadata"], &["spec"]],
        _ => &[],
    }
}
