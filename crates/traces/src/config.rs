//! The configuration of tracing: `TracingConfiguration` of apiserver.config.k8s.io, and the same two fields of a kubelet's
//! configuration. Source: `ReadTracingConfiguration` of apiserver, `ValidateTracingConfiguration` of component-base, and gRPC's
//! names of targets.
//!
//! Invariant: what upstream refuses is refused with its text; what it would take and could not connect to is refused, too.

use kaji_meta::{Path, TypeMeta, field, field::Error};
use serde_json::{Map, Value};

/// OTLP's over gRPC.
pub const DEFAULT_ENDPOINT: &str = "localhost:4317";
/// gRPC's, of a target without one.
const DEFAULT_PORT: u16 = 443;
const KIND: &str = "TracingConfiguration";
const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];
const ENDPOINT: &str = "endpoint";
const RATE: &str = "samplingRatePerMillion";

/// Why a configuration cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a `TracingConfiguration`.
    #[error("failed to read tracing config: unable to decode tracing configuration data: {0}")]
    Undecodable(String),
    /// Its fields.
    #[error("failed to validate tracing configuration: {0}")]
    Invalid(String),
}

/// Where spans go, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The collector.
    pub endpoint: Endpoint,
    /// How many of a million traces that begin here are sampled.
    pub per_million: u32,
}

/// Where the collector listens. Connections are not encrypted, as upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host's port.
    Tcp {
        /// Its name or address.
        host: String,
        /// The port.
        port: u16,
    },
    /// A socket; its path begins with a zero byte if it is an abstract one.
    Unix(String),
}

impl Config {
    /// Reads a file with a `TracingConfiguration`; an empty one has upstream's defaults.
    ///
    /// # Errors
    /// Upstream's.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let document: Value =
            kaji_files::yaml::decode(text).map_err(|e| ConfigError::Undecodable(e.to_string()))?;
        let fields = decode(&document).map_err(ConfigError::Undecodable)?;
        Config::of_fields(fields, &Path::root())
            .map_err(|errors| ConfigError::Invalid(field::aggregate(&errors)))
    }

    /// The configuration of these fields, which have the right types; `at` is where they are.
    ///
    /// # Errors
    /// What is wrong with each of them.
    pub fn of_fields(fields: Fields<'_>, at: &Path) -> Result<Config, Vec<Error>> {
        let mut errors = vec![];
        let rate = fields.rate.unwrap_or_default();
        if rate < 0 {
            errors.push(Error::invalid(&at.child(RATE), rate, "sampling rate must be positive"));
        }
        if rate > 1_000_000 {
            let text = "sampling rate per million must be less than or equal to one million";
            errors.push(Error::invalid(&at.child(RATE), rate, text));
        }
        let given = fields.endpoint.unwrap_or(DEFAULT_ENDPOINT);
        let endpoint = match checked(given) {
            Ok(()) => target(given).map_err(|why| (given.to_owned(), why)),
            Err(wrong) => Err(wrong),
        };
        match (endpoint, u32::try_from(rate)) {
            (Ok(endpoint), Ok(per_million)) if errors.is_empty() => Ok(Config { endpoint, per_million }),
            (endpoint, _) => {
                let wrong = endpoint.err();
                errors.extend(wrong.map(|(value, why)| Error::invalid(&at.child(ENDPOINT), value, why)));
                Err(errors)
            }
        }
    }
}

/// The two fields, as they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields<'a> {
    /// `endpoint`
    pub endpoint: Option<&'a str>,
    /// `samplingRatePerMillion`
    pub rate: Option<i32>,
}

impl<'a> Fields<'a> {
    /// Takes the two fields out of an object; `also` names the other fields that it may have.
    ///
    /// # Errors
    /// For unknown fields and wrong types, as a strict decoder has it.
    pub fn of(map: &'a Map<String, Value>, also: &[&str]) -> Result<Fields<'a>, String> {
        let mistyped = |value: &Value, field: &str, wanted: &str| {
            let found = match value {
                Value::String(_) => "string".to_owned(),
                Value::Bool(_) => "bool".to_owned(),
                Value::Array(_) => "array".to_owned(),
                Value::Number(number) if wanted == "int32" => format!("number {number}"),
                Value::Number(_) => "number".to_owned(),
                _ => "object".to_owned(),
            };
            format!("json: cannot unmarshal {found} into Go struct field {KIND}.{field} of type {wanted}")
        };
        let text = |value: &'a Value| value.as_str().ok_or_else(|| mistyped(value, ENDPOINT, "string"));
        let number = |value: &Value| {
            let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
            number.ok_or_else(|| mistyped(value, RATE, "int32"))
        };
        let fields = Fields {
            endpoint: map.get(ENDPOINT).map(text).transpose()?,
            rate: map.get(RATE).map(number).transpose()?,
        };
        let known = |key: &str| key == ENDPOINT || key == RATE || also.contains(&key);
        match map.keys().find(|key| !known(key)) {
            Some(key) => Err(format!("strict decoding error: unknown field {key:?}")),
            None => Ok(fields),
        }
    }
}

/// The fields of a document that is a `TracingConfiguration`. One without kind or version has the default.
fn decode(document: &Value) -> Result<Fields<'_>, String> {
    let Some(map) = document.as_object() else {
        return Err("couldn't get version/kind; json parse error: expected an object".into());
    };
    let text = |field: &str, default: &'static str| match map.get(field) {
        None => Ok(default),
        Some(Value::String(text)) if text.is_empty() => Ok(default),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(format!("couldn't get version/kind; json parse error: {field} is no string")),
    };
    let meta = TypeMeta { api_version: text("apiVersion", VERSIONS[0])?, kind: text("kind", KIND)? };
    meta.expect(KIND, &VERSIONS).map_err(|e| format!("{e}: expected {KIND} of {}", VERSIONS[0]))?;
    Fields::of(map, &["apiVersion", "kind"])
}

/// Upstream's validation: the text that is found wrong, and why.
fn checked(endpoint: &str) -> Result<(), (String, String)> {
    let url = if endpoint.contains("//") { endpoint.to_owned() } else { format!("dns://{endpoint}") };
    match scheme(&url) {
        Ok("dns" | "unix" | "unix-abstract") => Ok(()),
        Ok(other) => {
            let text = format!(
                "unsupported scheme: {other}.  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md"
            );
            Err((url, text))
        }
        Err(why) => {
            let text = format!("parse {}: {why}", kaji_meta::text::quote(&url));
            Err((url, text))
        }
    }
}

/// The scheme of a URL, if Go's `url.Parse` takes that.
fn scheme(url: &str) -> Result<&str, String> {
    if url.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return Err("net/url: invalid control character in URL".into());
    }
    let end = url.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '-' | '.'));
    let letter = url.starts_with(|c: char| c.is_ascii_alphabetic());
    let (scheme, rest) = match end {
        Some(0) if url.starts_with(':') => return Err("missing protocol scheme".into()),
        Some(end) if letter && url[end..].starts_with(':') => (&url[..end], &url[end + 1..]),
        _ => ("", url),
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    if scheme.is_empty() && !rest.starts_with('/') {
        return match rest.split('/').next().is_some_and(|first| first.contains(':')) {
            true => Err("first path segment in URL cannot contain colon".into()),
            false => Ok(""),
        };
    }
    if let Some(authority) = rest.strip_prefix("//").and_then(|rest| rest.split('/').next()) {
        check_host(authority.rsplit('@').next().unwrap_or_default())?;
    }
    Ok(scheme)
}

fn check_host(host: &str) -> Result<(), String> {
    let after_address = match host.strip_prefix('[') {
        Some(rest) => rest.rsplit_once(']').ok_or("missing ']' in host")?.1,
        None => host.find(':').map_or("", |colon| &host[colon..]),
    };
    let digits = after_address.strip_prefix(':').unwrap_or(after_address);
    let is_port = after_address.starts_with(':') && digits.bytes().all(|b| b.is_ascii_digit());
    if !after_address.is_empty() && !is_port {
        return Err(format!("invalid port {after_address:?} after host"));
    }
    match host.chars().find(|c| matches!(c, ' ' | '"' | '\\' | '^' | '`' | '{' | '|' | '}' | '%')) {
        Some('%') => Err("invalid URL escape in host name".into()),
        Some(c) => Err(format!("invalid character {:?} in host name", c.to_string())),
        None => Ok(()),
    }
}

/// What gRPC connects to for a name.
fn target(name: &str) -> Result<Endpoint, String> {
    if let Some(rest) = name.strip_prefix("unix-abstract:") {
        return Ok(Endpoint::Unix(format!("\0{}", local(rest)?.trim_start_matches('/'))));
    }
    if let Some(rest) = name.strip_prefix("unix:") {
        return Ok(Endpoint::Unix(local(rest)?.to_owned()));
    }
    let rest = name.strip_prefix("dns:").unwrap_or(name);
    let address = match rest.strip_prefix("//") {
        None => rest,
        Some(rest) => match rest.split_once('/') {
            None | Some((_, "")) => rest.trim_end_matches('/'),
            Some(("", address)) => address,
            Some((server, _)) => return Err(format!("a name server of its own ({server}) is not supported")),
        },
    };
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (address, None),
    };
    let port = match port {
        None | Some("") => DEFAULT_PORT,
        Some(port) => port.parse().map_err(|_| format!("invalid port {port:?}"))?,
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let host = if host.is_empty() { "localhost" } else { host };
    Ok(Endpoint::Tcp { host: host.to_owned(), port })
}

/// The path behind the scheme of a socket, which has no host.
fn local(rest: &str) -> Result<&str, String> {
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(rest) => match rest.find('/') {
            Some(0) => rest,
            None if rest.is_empty() => "",
            _ => {
                let authority = rest.split('/').next().unwrap_or_default();
                return Err(format!("invalid (non-empty) authority: {authority}"));
            }
        },
    };
    if path.is_empty() { Err("there is no path".into()) } else { Ok(path) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use proptest::prelude::*;
    use std::fmt::Write as _;

    fn shown(text: &str) -> String {
        match Config::parse(text) {
            Ok(Config { endpoint: Endpoint::Tcp { host, port }, per_million }) => {
                format!("tcp {host} {port}, {per_million}")
            }
            Ok(Config { endpoint: Endpoint::Unix(path), per_million }) => {
                format!("unix {}, {per_million}", path.replace('\0', "@"))
            }
            Err(error) => error.to_string(),
        }
    }

    /// Files of every shape: good ones first.
    const FILES: &[&str] = &[
        "",
        "{}",
        "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: otel:4317\nsamplingRatePerMillion: 12345",
        "{\"apiVersion\": \"apiserver.config.k8s.io/v1beta1\", \"kind\": \"TracingConfiguration\", \"endpoint\": null}",
        "apiVersion: apiserver.config.k8s.io/v1alpha1\nkind: TracingConfiguration",
        "apiVersion: apps/v1\nkind: DaemonSet\nspec: {}",
        "apiVersion: apiserver.config.k8s.io/v2\nkind: TracingConfiguration",
        "kind: [a]",
        "endpoints: localhost:4317",
        "endpoint: 5",
        "samplingRatePerMillion: many",
        "samplingRatePerMillion: 1.5",
        "samplingRatePerMillion: 5000000000",
        "samplingRatePerMillion: -1\nendpoint: http://localhost:4317",
        "samplingRatePerMillion: 1000001",
        "- a",
        "a: b: c",
        "endpoint: a\nendpoint: b",
        "\u{0}\u{1}",
    ];

    #[test]
    fn reads_and_rejects_files() {
        let mut out = String::new();
        for text in FILES {
            let _ = writeln!(out, "{text:?}\n  {}", shown(text).replace('\n', "\n  "));
        }
        expect![[r#"
            ""
              tcp localhost 4317, 0
            "{}"
              tcp localhost 4317, 0
            "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: otel:4317\nsamplingRatePerMillion: 12345"
              tcp otel 4317, 12345
            "{\"apiVersion\": \"apiserver.config.k8s.io/v1beta1\", \"kind\": \"TracingConfiguration\", \"endpoint\": null}"
              tcp localhost 4317, 0
            "apiVersion: apiserver.config.k8s.io/v1alpha1\nkind: TracingConfiguration"
              tcp localhost 4317, 0
            "apiVersion: apps/v1\nkind: DaemonSet\nspec: {}"
              failed to read tracing config: unable to decode tracing configuration data: no kind "DaemonSet" is registered for version "apps/v1": expected TracingConfiguration of apiserver.config.k8s.io/v1
            "apiVersion: apiserver.config.k8s.io/v2\nkind: TracingConfiguration"
              failed to read tracing config: unable to decode tracing configuration data: no kind "TracingConfiguration" is registered for version "apiserver.config.k8s.io/v2": expected TracingConfiguration of apiserver.config.k8s.io/v1
            "kind: [a]"
              failed to read tracing config: unable to decode tracing configuration data: couldn't get version/kind; json parse error: kind is no string
            "endpoints: localhost:4317"
              failed to read tracing config: unable to decode tracing configuration data: strict decoding error: unknown field "endpoints"
            "endpoint: 5"
              failed to read tracing config: unable to decode tracing configuration data: json: cannot unmarshal number into Go struct field TracingConfiguration.endpoint of type string
            "samplingRatePerMillion: many"
              failed to read tracing config: unable to decode tracing configuration data: json: cannot unmarshal string into Go struct field TracingConfiguration.samplingRatePerMillion of type int32
            "samplingRatePerMillion: 1.5"
              failed to read tracing config: unable to decode tracing configuration data: json: cannot unmarshal number 1.5 into Go struct field TracingConfiguration.samplingRatePerMillion of type int32
            "samplingRatePerMillion: 5000000000"
              failed to read tracing config: unable to decode tracing configuration data: json: cannot unmarshal number 5000000000 into Go struct field TracingConfiguration.samplingRatePerMillion of type int32
            "samplingRatePerMillion: -1\nendpoint: http://localhost:4317"
              failed to validate tracing configuration: [samplingRatePerMillion: Invalid value: -1: sampling rate must be positive, endpoint: Invalid value: "http://localhost:4317": unsupported scheme: http.  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md]
            "samplingRatePerMillion: 1000001"
              failed to validate tracing configuration: samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or equal to one million
            "- a"
              failed to read tracing config: unable to decode tracing configuration data: couldn't get version/kind; json parse error: expected an object
            "a: b: c"
              failed to read tracing config: unable to decode tracing configuration data: error: line 1 column 5: mapping values are not allowed in this context
               --> <input>:1:5
                |
              1 | a: b: c
                |     ^ mapping values are not allowed in this context
            "endpoint: a\nendpoint: b"
              failed to read tracing config: unable to decode tracing configuration data: error: line 2 column 1: duplicate mapping key: endpoint, set DuplicateKeyPolicy in Options if acceptable
               --> <input>:2:1
                |
              1 | endpoint: a
              2 | endpoint: b
                | ^ duplicate mapping key: endpoint, set DuplicateKeyPolicy in Options if acceptable
            "\0\u{1}"
              failed to read tracing config: unable to decode tracing configuration data: error: line 1 column 1: unexpected character: `\u{0}'
               --> <input>:1:1
                |
              1 |   
                | ^ unexpected character: `\u{0}'
        "#]].assert_eq(&out);
    }

    /// Endpoints in every form that gRPC names, then refused ones.
    const ENDPOINTS: &[&str] = &[
        "localhost:4317",
        "127.0.0.1:4317",
        "[::1]:4317",
        "otel",
        ":4317",
        "dns:///otel.monitoring:4317",
        "dns://google.com:4317",
        "dns://8.8.8.8/otel:4317",
        "unix:///run/otel.sock",
        "unix:/run/otel.sock",
        "unix://path/to/socket",
        "unix://",
        "unix-abstract:///otel",
        "http://localhost:4317",
        "https://localhost:4317",
        "dn%2s://localhost:4317",
        "://a",
        "a//b",
        "localhost:port",
        "localhost:70000",
        "dns://a b:1",
        "[::1",
        "a\u{7}",
    ];

    #[test]
    fn reads_and_rejects_endpoints() {
        let mut out = String::new();
        for endpoint in ENDPOINTS {
            let text = serde_json::json!({ "endpoint": endpoint }).to_string();
            let _ = writeln!(out, "{endpoint:?}\n  {}", shown(&text));
        }
        expect![[r#"
            "localhost:4317"
              tcp localhost 4317, 0
            "127.0.0.1:4317"
              tcp 127.0.0.1 4317, 0
            "[::1]:4317"
              tcp ::1 4317, 0
            "otel"
              tcp otel 443, 0
            ":4317"
              tcp localhost 4317, 0
            "dns:///otel.monitoring:4317"
              tcp otel.monitoring 4317, 0
            "dns://google.com:4317"
              tcp google.com 4317, 0
            "dns://8.8.8.8/otel:4317"
              failed to validate tracing configuration: endpoint: Invalid value: "dns://8.8.8.8/otel:4317": a name server of its own (8.8.8.8) is not supported
            "unix:///run/otel.sock"
              unix /run/otel.sock, 0
            "unix:/run/otel.sock"
              unix /run/otel.sock, 0
            "unix://path/to/socket"
              failed to validate tracing configuration: endpoint: Invalid value: "unix://path/to/socket": invalid (non-empty) authority: path
            "unix://"
              failed to validate tracing configuration: endpoint: Invalid value: "unix://": there is no path
            "unix-abstract:///otel"
              unix @otel, 0
            "http://localhost:4317"
              failed to validate tracing configuration: endpoint: Invalid value: "http://localhost:4317": unsupported scheme: http.  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md
            "https://localhost:4317"
              failed to validate tracing configuration: endpoint: Invalid value: "https://localhost:4317": unsupported scheme: https.  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md
            "dn%2s://localhost:4317"
              failed to validate tracing configuration: endpoint: Invalid value: "dn%2s://localhost:4317": parse "dn%2s://localhost:4317": first path segment in URL cannot contain colon
            "://a"
              failed to validate tracing configuration: endpoint: Invalid value: "://a": parse "://a": missing protocol scheme
            "a//b"
              failed to validate tracing configuration: endpoint: Invalid value: "a//b": unsupported scheme: .  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md
            "localhost:port"
              failed to validate tracing configuration: endpoint: Invalid value: "dns://localhost:port": parse "dns://localhost:port": invalid port ":port" after host
            "localhost:70000"
              failed to validate tracing configuration: endpoint: Invalid value: "localhost:70000": invalid port "70000"
            "dns://a b:1"
              failed to validate tracing configuration: endpoint: Invalid value: "dns://a b:1": parse "dns://a b:1": invalid character " " in host name
            "[::1"
              failed to validate tracing configuration: endpoint: Invalid value: "dns://[::1": parse "dns://[::1": missing ']' in host
            "a\u{7}"
              failed to validate tracing configuration: endpoint: Invalid value: "dns://a\a": parse "dns://a\a": net/url: invalid control character in URL
        "#]].assert_eq(&out);
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in ".{0,60}", endpoint in "[ -~]{0,40}") {
            let _ = shown(&text);
            let _ = shown(&serde_json::json!({ "endpoint": endpoint }).to_string());
        }
    }
}
