//! Rules for names, label keys and values, ports, variables and paths.

use super::{empty_error, inclusive_range_error, max_bytes_error, max_len_error, regex_error};
use crate::field::{Error, ErrorList, Path};

/// Longest DNS label, label value and name part of a label key, in bytes.
pub const DNS1123_LABEL_MAX_LENGTH: usize = 63;
/// Longest DNS subdomain, in bytes.
pub const DNS1123_SUBDOMAIN_MAX_LENGTH: usize = 253;
/// Longest label value, in bytes.
pub const LABEL_VALUE_MAX_LENGTH: usize = 63;

const DNS1123_LABEL_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS1123_LABEL_MSG: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const DNS1123_SUBDOMAIN_FMT: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1123_SUBDOMAIN_MSG: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const DNS1123_SUBDOMAIN_UNDERSCORE_FMT: &str =
    r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
const DNS1123_SUBDOMAIN_UNDERSCORE_MSG: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character";
const DNS1123_SUBDOMAIN_CASELESS_MSG: &str = "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const DNS1035_LABEL_FMT: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const DNS1035_LABEL_MSG: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
const WILDCARD_FMT: &str = r"\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const WILDCARD_MSG: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
const LABEL_KEY_FMT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_KEY_MSG: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const LABEL_VALUE_FMT: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const LABEL_VALUE_MSG: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const C_IDENTIFIER_FMT: &str = "[A-Za-z_][A-Za-z0-9_]*";
const C_IDENTIFIER_MSG: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'";
const ENV_VAR_FMT: &str = "[-._a-zA-Z][-._a-zA-Z0-9]*";
const ENV_VAR_MSG: &str = "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.', and must not start with a digit";
const RELAXED_ENV_VAR_MSG: &str =
    "a valid environment variable name must consist only of printable ASCII characters other than '='";
const CONFIG_MAP_KEY_MSG: &str =
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
const HTTP_PATH_FMT: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";

fn lower_or_digit(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// Non-empty, of `inner` bytes only, with an `edge` byte at both ends.
fn has_shape(s: &str, edge: fn(u8) -> bool, inner: fn(u8) -> bool) -> bool {
    match s.as_bytes() {
        [] => false,
        [one] => edge(*one),
        [first, middle @ .., last] => edge(*first) && edge(*last) && middle.iter().all(|b| inner(*b)),
    }
}

fn dns_label(s: &str) -> bool {
    has_shape(s, lower_or_digit, |b| lower_or_digit(b) || b == b'-')
}

fn dns_subdomain(s: &str) -> bool {
    s.split('.').all(dns_label)
}

fn too_long(value: &str, max: usize, errs: &mut Vec<String>) {
    if value.len() > max {
        errs.push(max_len_error(max));
    }
}

/// A DNS label (RFC 1123).
pub fn is_dns1123_label(value: &str) -> Vec<String> {
    let mut errs = Vec::new();
    too_long(value, DNS1123_LABEL_MAX_LENGTH, &mut errs);
    if !dns_label(value) {
        errs.push(if dns_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            regex_error(DNS1123_LABEL_MSG, DNS1123_LABEL_FMT, &["my-name", "123-abc"])
        });
    }
    errs
}

/// A DNS subdomain (RFC 1123).
pub fn is_dns1123_subdomain(value: &str) -> Vec<String> {
    let mut errs = Vec::new();
    too_long(value, DNS1123_SUBDOMAIN_MAX_LENGTH, &mut errs);
    if !dns_subdomain(value) {
        errs.push(regex_error(DNS1123_SUBDOMAIN_MSG, DNS1123_SUBDOMAIN_FMT, &["example.com"]));
    }
    errs
}

/// A DNS subdomain; its labels may start with or contain underscores.
pub fn is_dns1123_subdomain_with_underscore(value: &str) -> Vec<String> {
    let label = |s: &str| {
        let s = s.strip_prefix('_').unwrap_or(s);
        has_shape(s, lower_or_digit, |b| lower_or_digit(b) || b == b'-' || b == b'_')
    };
    let mut errs = Vec::new();
    too_long(value, DNS1123_SUBDOMAIN_MAX_LENGTH, &mut errs);
    if !value.split('.').all(label) {
        errs.push(regex_error(
            DNS1123_SUBDOMAIN_UNDERSCORE_MSG,
            DNS1123_SUBDOMAIN_UNDERSCORE_FMT,
            &["example.com"],
        ));
    }
    errs
}

/// A DNS subdomain in any case.
pub fn is_dns1123_subdomain_caseless(value: &str) -> Vec<String> {
    let label =
        |s: &str| has_shape(s, |b| b.is_ascii_alphanumeric(), |b| b.is_ascii_alphanumeric() || b == b'-');
    let mut errs = Vec::new();
    if value.len() > DNS1123_SUBDOMAIN_MAX_LENGTH {
        errs.push(max_bytes_error(DNS1123_SUBDOMAIN_MAX_LENGTH));
    }
    if !value.split('.').all(label) {
        errs.push(regex_error(DNS1123_SUBDOMAIN_CASELESS_MSG, DNS1123_SUBDOMAIN_FMT, &["Example.com"]));
    }
    errs
}

/// A DNS label (RFC 1035): starts with a letter.
pub fn is_dns1035_label(value: &str) -> Vec<String> {
    let mut errs = Vec::new();
    too_long(value, DNS1123_LABEL_MAX_LENGTH, &mut errs);
    if !(dns_label(value) && value.starts_with(|c: char| c.is_ascii_lowercase())) {
        errs.push(regex_error(DNS1035_LABEL_MSG, DNS1035_LABEL_FMT, &["my-name", "abc-123"]));
    }
    errs
}

/// `*.` and a DNS subdomain (RFC 1034 section 4.3.3).
pub fn is_wildcard_dns1123_subdomain(value: &str) -> Vec<String> {
    let mut errs = Vec::new();
    too_long(value, DNS1123_SUBDOMAIN_MAX_LENGTH, &mut errs);
    if !value.strip_prefix("*.").is_some_and(dns_subdomain) {
        errs.push(regex_error(WILDCARD_MSG, WILDCARD_FMT, &["*.example.com"]));
    }
    errs
}

fn label_text(s: &str) -> bool {
    has_shape(
        s,
        |b| b.is_ascii_alphanumeric(),
        |b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'),
    )
}

/// A label key (also called a qualified name): `[DNS subdomain/]name`.
pub fn is_qualified_name(value: &str) -> Vec<String> {
    let examples = ["MyName", "my.name", "123-abc"];
    let mut errs = Vec::new();
    let name = match value.split_once('/') {
        None => value,
        Some((_, name)) if name.contains('/') => {
            let rule = regex_error(LABEL_KEY_MSG, LABEL_KEY_FMT, &examples);
            return vec![format!(
                "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                errs.push(format!("prefix part {}", empty_error()));
            } else {
                if prefix.len() > DNS1123_SUBDOMAIN_MAX_LENGTH {
                    errs.push(format!("prefix part {}", max_bytes_error(DNS1123_SUBDOMAIN_MAX_LENGTH)));
                }
                if !dns_subdomain(prefix) {
                    let rule = regex_error(DNS1123_SUBDOMAIN_MSG, DNS1123_SUBDOMAIN_FMT, &["example.com"]);
                    errs.push(format!("prefix part {rule}"));
                }
            }
            name
        }
    };
    if name.is_empty() {
        errs.push(format!("name part {}", empty_error()));
    } else if name.len() > LABEL_VALUE_MAX_LENGTH {
        errs.push(format!("name part {}", max_bytes_error(LABEL_VALUE_MAX_LENGTH)));
    }
    if !label_text(name) {
        errs.push(format!("name part {}", regex_error(LABEL_KEY_MSG, LABEL_KEY_FMT, &examples)));
    }
    errs
}

/// A label value; the empty string is one.
pub fn is_valid_label_value(value: &str) -> Vec<String> {
    let mut errs = Vec::new();
    if value.len() > LABEL_VALUE_MAX_LENGTH {
        errs.push(max_bytes_error(LABEL_VALUE_MAX_LENGTH));
    }
    if !value.is_empty() && !label_text(value) {
        errs.push(regex_error(LABEL_VALUE_MSG, LABEL_VALUE_FMT, &["MyValue", "my_value", "12345"]));
    }
    errs
}

/// An inclusive range.
pub fn is_in_range(value: i64, min: i64, max: i64) -> Vec<String> {
    if (min..=max).contains(&value) { Vec::new() } else { vec![inclusive_range_error(min, max)] }
}

/// A port number, 1 to 65535.
pub fn is_valid_port_num(port: i64) -> Vec<String> {
    is_in_range(port, 1, 65535)
}

/// A user id of Linux, 0 to 2^31-1.
pub fn is_valid_user_id(uid: i64) -> Vec<String> {
    is_in_range(uid, 0, i64::from(i32::MAX))
}

/// A group id of Linux, 0 to 2^31-1.
pub fn is_valid_group_id(gid: i64) -> Vec<String> {
    is_in_range(gid, 0, i64::from(i32::MAX))
}

/// A port name (RFC 6335, lower case only).
pub fn is_valid_port_name(port: &str) -> Vec<String> {
    let mut errs = Vec::new();
    too_long(port, 15, &mut errs);
    if port.is_empty() || !port.bytes().all(|b| lower_or_digit(b) || b == b'-') {
        errs.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !port.bytes().any(|b| b.is_ascii_lowercase()) {
        errs.push("must contain at least one letter (a-z)".to_owned());
    }
    if port.contains("--") {
        errs.push("must not contain consecutive hyphens".to_owned());
    }
    if port.starts_with('-') || port.ends_with('-') {
        errs.push("must not begin or end with a hyphen".to_owned());
    }
    errs
}

/// Digits and a percent sign.
pub fn is_valid_percent(percent: &str) -> Vec<String> {
    match percent.strip_suffix('%') {
        Some(n) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => Vec::new(),
        _ => {
            let msg = "a valid percent string must be a numeric string followed by an ending '%'";
            vec![regex_error(msg, "[0-9]+%", &["1%", "93%"])]
        }
    }
}

/// The name of an HTTP header.
pub fn is_http_header_name(value: &str) -> Vec<String> {
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Vec::new();
    }
    let msg = "a valid HTTP header must consist of alphanumeric characters or '-'";
    vec![regex_error(msg, "[-A-Za-z0-9]+", &["X-Header-Name"])]
}

/// An identifier of C.
pub fn is_cidentifier(value: &str) -> Vec<String> {
    let ok = value.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if ok {
        return Vec::new();
    }
    vec![regex_error(C_IDENTIFIER_MSG, C_IDENTIFIER_FMT, &["my_name", "MY_NAME", "MyName"])]
}

fn chdir_prefix(value: &str, errs: &mut Vec<String>) {
    if value == "." {
        errs.push("must not be '.'".to_owned());
    } else if value == ".." {
        errs.push("must not be '..'".to_owned());
    } else if value.starts_with("..") {
        errs.push("must not start with '..'".to_owned());
    }
}

fn config_key_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_')
}

/// The strict rule for names of environment variables.
pub fn is_env_var_name(value: &str) -> Vec<String> {
    let mut errs = Vec::new();
    let starts_well = value.bytes().next().is_some_and(|b| !b.is_ascii_digit());
    if !(starts_well && value.bytes().all(config_key_byte)) {
        errs.push(regex_error(ENV_VAR_MSG, ENV_VAR_FMT, &["my.env-name", "MY_ENV.NAME", "MyEnvName1"]));
    }
    chdir_prefix(value, &mut errs);
    errs
}

/// The relaxed rule for names of environment variables (KEP-4369, general since 1.34).
pub fn is_relaxed_env_var_name(value: &str) -> Vec<String> {
    let mut errs = Vec::new();
    if value.is_empty() {
        errs.push(format!("environment variable name {}", empty_error()));
    }
    if value.bytes().any(|b| !matches!(b, b' '..=b'~') || b == b'=') {
        errs.push(RELAXED_ENV_VAR_MSG.to_owned());
    }
    errs
}

/// A key of a ConfigMap or Secret.
pub fn is_config_map_key(value: &str) -> Vec<String> {
    let mut errs = Vec::new();
    too_long(value, DNS1123_SUBDOMAIN_MAX_LENGTH, &mut errs);
    if value.is_empty() || !value.bytes().all(config_key_byte) {
        errs.push(regex_error(CONFIG_MAP_KEY_MSG, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"]));
    }
    chdir_prefix(value, &mut errs);
    errs
}

/// A decimal integer in canonical form.
pub fn is_decimal_integer(value: &str) -> Vec<String> {
    if value.is_empty() {
        return vec![empty_error()];
    }
    let digits = value.strip_prefix('-').unwrap_or(value);
    let canonical =
        digits.starts_with(|c: char| matches!(c, '1'..='9')) && digits.bytes().all(|b| b.is_ascii_digit());
    if canonical || value == "0" {
        return Vec::new();
    }
    vec!["must be a valid decimal integer in canonical form".to_owned()]
}

/// The path part of an HTTP URL (RFC 3986).
pub fn is_http_path(value: &str) -> Vec<String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !value.is_empty() && value.bytes().all(allowed) {
        return Vec::new();
    }
    vec![regex_error("Invalid path", HTTP_PATH_FMT, &[])]
}

/// The messages of a list of field errors.
fn messages(errors: ErrorList) -> Vec<String> {
    errors.into_iter().map(|e| if e.detail.is_empty() { e.ty.title().to_owned() } else { e.detail }).collect()
}

/// A domain and an HTTP path, e.g. `acme.io/foo`.
pub fn validate_domain_prefixed_path(path: &Path, value: &str) -> ErrorList {
    if value.is_empty() {
        return vec![Error::required(path, "")];
    }
    match value.split_once('/') {
        Some((host, rest)) if !host.is_empty() && !rest.is_empty() => {
            let hosts = is_dns1123_subdomain(host).into_iter().map(|m| Error::invalid(path, host, m));
            let paths = is_http_path(rest).into_iter().map(|m| Error::invalid(path, rest, m));
            hosts.chain(paths).collect()
        }
        _ => vec![Error::invalid(path, value, "must be a domain-prefixed path (such as \"acme.io/foo\")")],
    }
}

/// As [`validate_domain_prefixed_path`], only the messages.
pub fn is_domain_prefixed_path(value: &str) -> Vec<String> {
    messages(validate_domain_prefixed_path(&Path::root(), value))
}

/// A label key that has a prefix.
pub fn validate_domain_prefixed_key(path: &Path, key: &str) -> ErrorList {
    if key.is_empty() {
        return vec![Error::required(path, "")];
    }
    let errs: ErrorList = is_qualified_name(key).into_iter().map(|m| Error::invalid(path, key, m)).collect();
    if !errs.is_empty() || key.contains('/') {
        return errs;
    }
    vec![Error::invalid(path, key, "must be a domain-prefixed key (such as \"acme.io/foo\")")]
}

/// A DNS subdomain of at least three labels.
pub fn validate_fully_qualified_name(path: &Path, name: &str) -> ErrorList {
    if name.is_empty() {
        return vec![Error::required(path, "")];
    }
    let errs = is_dns1123_subdomain(name);
    if !errs.is_empty() {
        return vec![Error::invalid(path, name, errs.join(","))];
    }
    if name.split('.').count() < 3 {
        let msg = "should be a domain with at least three segments separated by dots";
        return vec![Error::invalid(path, name, msg)];
    }
    Vec::new()
}

/// As [`validate_fully_qualified_name`], only the messages.
pub fn is_fully_qualified_name(name: &str) -> Vec<String> {
    messages(validate_fully_qualified_name(&Path::root(), name))
}

/// A DNS name of at least two labels; a trailing dot is allowed.
pub fn validate_fully_qualified_domain_name(path: &Path, name: &str) -> ErrorList {
    if name.is_empty() {
        return vec![Error::required(path, "")];
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let errs = is_dns1123_subdomain(name);
    if !errs.is_empty() {
        return vec![Error::invalid(path, name, errs.join(","))];
    }
    if name.split('.').count() < 2 {
        let msg = "should be a domain with at least two segments separated by dots";
        return vec![Error::invalid(path, name, msg)];
    }
    let bad = name.split('.').map(|l| (l, is_dns1123_label(l))).find(|(_, errs)| !errs.is_empty());
    bad.map(|(label, errs)| Error::invalid(path, label, errs.join(","))).into_iter().collect()
}

/// For a generated name's base, the trailing dash stands for what will follow it. Upstream puts its replacement
/// one byte too early; names are checked the same way here, because the outcome is visible.
fn with_prefix(name: &str, prefix: bool, check: fn(&str) -> Vec<String>) -> Vec<String> {
    match name.strip_suffix('-') {
        Some(rest) if prefix && !rest.is_empty() => {
            let mut chars = rest.chars();
            chars.next_back();
            check(&format!("{}a", chars.as_str()))
        }
        _ => check(name),
    }
}

/// Name rule: DNS subdomain. With `prefix`, the name will have more appended to it.
pub fn name_is_dns_subdomain(name: &str, prefix: bool) -> Vec<String> {
    with_prefix(name, prefix, is_dns1123_subdomain)
}

/// Name rule: DNS label (RFC 1123).
pub fn name_is_dns_label(name: &str, prefix: bool) -> Vec<String> {
    with_prefix(name, prefix, is_dns1123_label)
}

/// Name rule: DNS label (RFC 1035).
pub fn name_is_dns1035_label(name: &str, prefix: bool) -> Vec<String> {
    with_prefix(name, prefix, is_dns1035_label)
}

/// Name rule: anything that can be one segment of a URL path.
pub fn path_segment_name(name: &str, prefix: bool) -> Vec<String> {
    if !prefix && matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"].into_iter().filter(|c| name.contains(c)).map(|c| format!("may not contain '{c}'")).collect()
}
