//! Request bodies: from bytes to an object of the kind that the path asks for.
//!
//! Invariants: a body is parsed once; what comes out has `apiVersion` and `kind` of the request's version, holds no field
//! that the schema does not know, and is as well typed as Go's decoder would make sure; error texts are upstream's.

mod gojson;
pub(crate) mod json;
pub(crate) mod protobuf;
mod scalar;
pub(crate) mod strict;
pub(crate) mod yaml;

use crate::registry::Registry;
use kaji_meta::{
    GroupKind, GroupVersion, OverBudget, Path, Status,
    budget::{BODY_BYTES, MOST_PER_BYTE, footprint_of_json},
    field,
    gvk::split_api_version,
    object, text,
};
use kaji_schema::{
    SchemaRef,
    decode::check_types,
    prune::{object_meta, prune},
    types,
};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// Media types of request bodies, as upstream lists them in its refusal. The last is for built-in kinds only.
const ACCEPTED: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
/// Upstream's name of its scheme; part of a message.
const SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";

/// The syntax of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

/// What to do about unknown and duplicate fields (`fieldValidation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Directive {
    /// Drop them silently.
    Ignore,
    /// Drop them, and say so in `Warning` headers.
    #[default]
    Warn,
    /// Refuse the request.
    Strict,
}

/// The kind that is wanted.
#[derive(Clone, Copy)]
pub(crate) struct ExpectedKind<'a> {
    /// `""` for core.
    pub group: &'a str,
    /// `v1`
    pub version: &'a str,
    /// `Deployment`
    pub kind: &'a str,
    /// Its shape.
    pub schema: &'a SchemaRef,
}

impl ExpectedKind<'_> {
    /// A custom resource: its schema was compiled at run time, and upstream treats it as unstructured.
    pub fn custom(&self) -> bool {
        is_custom(self.schema)
    }

    pub(crate) fn api_version(&self) -> String {
        GroupVersion::new(self.group, self.version).api_version()
    }
}

/// Brings an object of a built-in kind into the form in which Go writes it: empty values of optional fields are dropped, fields
/// that Go always writes appear. So a stored object, a changed one and one that a client sends back compare as upstream's
/// do. Custom resources are as their clients write them.
pub(crate) fn canonicalize(schema: &SchemaRef, object: &mut Value) {
    if !is_custom(schema)
        && let Err(error) = kaji_schema::decode::typed(schema.get(), object)
    {
        // Clients' types were checked when the body was decoded.
        tracing::error!(%error, kind = object::kind(object), "an object has a value of a wrong type");
    }
}

/// Removes nulls and empty collections, which in metadata mean the same as absent fields.
pub(crate) fn prune_empty_metadata(meta: &mut Map<String, Value>) {
    meta.retain(|key, value| match key.as_str() {
        "labels" | "annotations" => value.as_object().is_some_and(|m| !m.is_empty()),
        "finalizers" | "ownerReferences" => value.as_array().is_some_and(|l| !l.is_empty()),
        _ => !value.is_null(),
    });
}

/// Whether a schema is that of a custom resource rather than of a built-in type.
pub fn is_custom(schema: &SchemaRef) -> bool {
    matches!(schema, SchemaRef::Owned(_))
}

/// The syntax that a `Content-Type` names; none at all means JSON.
///
/// # Errors
/// 415, with upstream's text.
pub(crate) fn syntax(content_type: &str) -> Result<Syntax, Status> {
    let media = content_type.split(';').next().unwrap_or("").trim();
    if media.is_empty() || media.eq_ignore_ascii_case("application/json") {
        Ok(Syntax::Json)
    } else if media.eq_ignore_ascii_case("application/yaml") {
        Ok(Syntax::Yaml)
    } else if media.eq_ignore_ascii_case(ACCEPTED[2]) {
        Ok(Syntax::Protobuf)
    } else {
        Err(unsupported(true))
    }
}

/// 415. `protobuf`: it is among what would have been accepted.
fn unsupported(protobuf: bool) -> Status {
    Status::unsupported_media_types(if protobuf { &ACCEPTED } else { &ACCEPTED[..2] })
}

/// Refuses a body in JSON that would take too much memory when it is decoded. Other syntaxes are bounded as they are read.
///
/// # Errors
/// 413, or 400 for one that is malformed besides.
pub(crate) fn check_footprint(content_type: &str, body: &[u8]) -> Result<(), Status> {
    // Most bodies are too small for that, whatever is in them.
    if body.len() <= BODY_BYTES / MOST_PER_BYTE {
        return Ok(());
    }
    let json = matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
    let other = matches!(syntax(content_type), Ok(Syntax::Yaml | Syntax::Protobuf));
    if !json || other || footprint_of_json(body) <= BODY_BYTES {
        return Ok(());
    }
    // Malformed bodies are refused as such, without being decoded up to there.
    match serde_json::from_slice::<IgnoredAny>(body) {
        Ok(_) => Err(OverBudget { limit: BODY_BYTES }.into()),
        Err(error) => Err(Status::bad_request(json::explain(body, &error))),
    }
}

/// Any JSON, read as Go reads it.
///
/// # Errors
/// Go's text.
pub fn json(body: &[u8]) -> Result<Value, String> {
    json::parse(body).map(|parsed| parsed.value)
}

/// A parsed body before anything is known about its kind.
pub(crate) struct Document {
    /// The document.
    pub value: Value,
    /// Strictness errors, as they appear in the text of a refusal.
    pub strict: Vec<String>,
    /// The same as single warnings.
    pub warnings: Vec<String>,
}

/// Parses bytes without looking at what they hold.
///
/// # Errors
/// The parser's text, without any frame. Protobuf cannot be decoded without the kind's schema.
pub(crate) fn document(body: &[u8], syntax: Syntax) -> Result<Document, String> {
    match syntax {
        Syntax::Json => {
            let parsed = json::parse(body)?;
            Ok(Document {
                value: parsed.value,
                strict: parsed.duplicates.clone(),
                warnings: parsed.duplicates,
            })
        }
        Syntax::Yaml => {
            let parsed = yaml::parse(body)?;
            let mut strict = vec![];
            if !parsed.duplicates.is_empty() {
                strict.push(format!("yaml: unmarshal errors:\n  {}", parsed.duplicates.join("\n  ")));
            }
            Ok(Document { value: parsed.value, strict, warnings: parsed.duplicates })
        }
        Syntax::Protobuf => Err("a protobuf body cannot be read without its type".into()),
    }
}

/// Decodes an object of the wanted kind.
///
/// # Errors
/// 400 with upstream's texts for what is malformed, of another kind or, under `Strict`, has unknown or duplicate
/// fields; 415 for a custom resource in protobuf; 422 for a custom resource that names another kind.
pub(crate) fn object(
    registry: &Registry,
    want: &ExpectedKind<'_>,
    syntax: Syntax,
    body: &[u8],
    directive: Directive,
    warn: &mut dyn FnMut(String),
) -> Result<Value, Status> {
    if syntax == Syntax::Protobuf {
        return protobuf::object(registry, want, body);
    }
    let unrecognized = |error: &str| {
        let summary = summarize(body);
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error} ({summary})",
            want.kind
        ))
    };
    let mut doc = document(body, syntax).map_err(|e| match syntax {
        Syntax::Json => unrecognized(&format!("couldn't get version/kind; json parse error: {e}")),
        Syntax::Yaml | Syntax::Protobuf => unrecognized(&e),
    })?;
    let (api_version, kind) = type_of(&doc.value)
        .map_err(|e| unrecognized(&format!("couldn't get version/kind; json parse error: {e}")))?;
    let Some((group, version)) = split_api_version(&api_version) else {
        return Err(unrecognized(&format!("unexpected GroupVersion string: {api_version}")));
    };
    check_kind(registry, want, body, &doc.value, (group, version, &kind), &unrecognized)?;
    let cannot = |error: &str| {
        let version = text::quote(want.version);
        Status::bad_request(format!(
            "{0} in version {version} cannot be handled as a {0}: {error}",
            want.kind
        ))
    };
    let mut unknown = conform(want, &mut doc.value).map_err(|e| cannot(&e))?;
    let unusual = !(doc.strict.is_empty() && unknown.is_empty());
    if unusual && syntax == Syntax::Json && !want.custom() && directive != Directive::Ignore {
        // Upstream reports what a body of a built-in kind has in the order in which it has it.
        doc.strict = strict::reports(want.schema.get(), &String::from_utf8_lossy(body));
        doc.warnings.clone_from(&doc.strict);
        unknown.clear();
    }
    apply_directive(doc.strict, doc.warnings, unknown, directive, warn)
        .map_err(|e| cannot(&format!("strict decoding error: {e}")))?;
    if let Value::Object(map) = &mut doc.value {
        map.insert("apiVersion".into(), want.api_version().into());
        map.insert("kind".into(), want.kind.into());
    }
    Ok(doc.value)
}

/// Sorts out strictness errors by the directive: nothing, warnings, or the text of a refusal. What was found in the
/// document goes before what its type does not know.
pub(crate) fn apply_directive(
    strict: Vec<String>,
    warnings: Vec<String>,
    unknown: Vec<String>,
    directive: Directive,
    warn: &mut dyn FnMut(String),
) -> Result<(), String> {
    if directive == Directive::Ignore || (strict.is_empty() && unknown.is_empty()) {
        return Ok(());
    }
    let unknown =
        unknown.iter().map(|p| format!("unknown field {}", text::quote(p))).take(json::MAX_STRICT_ERRORS);
    let list = if directive == Directive::Warn { warnings } else { strict };
    let mut all = list.into_iter().chain(unknown);
    if directive == Directive::Warn {
        all.for_each(warn);
        return Ok(());
    }
    let first = all.next().unwrap_or_default();
    Err(all.fold(first, |text, next| text + ", " + &next))
}

/// Drops what the schema does not know and checks types as Go's decoder would. Returns the unknown fields' paths.
///
/// # Errors
/// Go's text for the first value of a wrong type.
pub(crate) fn conform(want: &ExpectedKind<'_>, value: &mut Value) -> Result<Vec<String>, String> {
    let unknown = conform_types(want, value)?;
    finish_metadata(want, value);
    Ok(unknown)
}

/// [`conform`] of the outcome of a strategic merge patch or of an apply, of a built-in kind.
///
/// # Errors
/// Go's text for the first value of a wrong type.
pub(crate) fn restore(want: &ExpectedKind<'_>, value: &mut Value) -> Result<Vec<String>, String> {
    let unknown = kaji_schema::decode::restore(want.schema.get(), value)?;
    finish_metadata(want, value);
    Ok(unknown)
}

fn finish_metadata(want: &ExpectedKind<'_>, value: &mut Value) {
    if let Some(Value::Object(meta)) = value.get_mut("metadata") {
        prune_empty_metadata(meta);
        keep_reset(meta, want.custom());
    }
}

/// An empty list of managed fields asks for their reset. It is spelled as the list of one empty entry, which asks for the
/// same, and which does not get lost on the way to field management. In custom resources upstream reads it as no list.
fn keep_reset(meta: &mut serde_json::Map<String, Value>, custom: bool) {
    let Some(Value::Array(entries)) = meta.get_mut("managedFields") else { return };
    if !entries.is_empty() {
        return;
    }
    if custom {
        meta.remove("managedFields");
    } else {
        entries.push(Value::Object(serde_json::Map::new()));
    }
}

fn conform_types(want: &ExpectedKind<'_>, value: &mut Value) -> Result<Vec<String>, String> {
    if !want.custom() {
        return kaji_schema::decode::conform(want.schema.get(), value);
    }
    // A custom resource's metadata is that of any object, whatever its schema says about it.
    let metadata = value.as_object_mut().and_then(|m| m.remove("metadata"));
    let mut unknown = prune(want.schema.get(), value, true);
    let Some(metadata) = metadata else { return Ok(unknown) };
    let (found, checked) = put_metadata(value, metadata);
    unknown.splice(..0, found);
    checked.map(|()| unknown)
}

/// Gives an object metadata of which unknown fields are dropped and types are checked; also where it is refused, since the object
/// is shown then. Returns the unknown fields' paths, too.
fn put_metadata(object: &mut Value, mut metadata: Value) -> (Vec<String>, Result<(), String>) {
    let (mut unknown, mut checked) = (vec![], Ok(()));
    if !metadata.is_null() {
        let schema = object_meta();
        unknown = prune(schema, &mut metadata, false).into_iter().map(|p| format!("metadata.{p}")).collect();
        checked = check_types(schema, &mut metadata);
    }
    if let Value::Object(map) = object
        && metadata.is_object()
    {
        map.insert("metadata".into(), metadata);
    }
    (unknown, checked)
}

/// [`conform`] of the metadata of a custom resource alone.
///
/// # Errors
/// Go's text for the first value of a wrong type.
pub(crate) fn conform_metadata(want: &ExpectedKind<'_>, value: &mut Value) -> Result<(), String> {
    if let Some(metadata) = value.as_object_mut().and_then(|m| m.remove("metadata")) {
        put_metadata(value, metadata).1?;
    }
    finish_metadata(want, value);
    Ok(())
}

/// `apiVersion` and `kind` of a document, `""` where absent.
fn type_of(value: &Value) -> Result<(String, String), String> {
    let Value::Object(map) = value else {
        if value.is_null() {
            return Ok((String::new(), String::new()));
        }
        return Err(format!(
            "json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            object::json_type(value)
        ));
    };
    let text = |key: &str| match map.get(key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(s)) => Ok(s.clone()),
        Some(other) => Err(format!(
            "json: cannot unmarshal {} into Go struct field .{key} of type string",
            object::json_type(other)
        )),
    };
    Ok((text("apiVersion")?, text("kind")?))
}

fn check_kind(
    registry: &Registry,
    want: &ExpectedKind<'_>,
    body: &[u8],
    value: &Value,
    (group, version, kind): (&str, &str, &str),
    unrecognized: &dyn Fn(&str) -> Status,
) -> Result<(), Status> {
    let mismatch = |group: &str, version: &str| {
        Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({})",
            GroupVersion::new(group, version),
            want.api_version()
        ))
    };
    if want.custom() {
        if kind.is_empty() {
            let data = String::from_utf8_lossy(body);
            return Err(unrecognized(&format!("Object 'Kind' is missing in '{data}'")));
        }
        if (group, version) != (want.group, want.version) {
            return Err(mismatch(group, version));
        }
        if kind != want.kind {
            let error = field::Error::invalid(&Path::new("kind"), kind, format!("must be {}", want.kind));
            return Err(Status::invalid(&GroupKind::new(group, kind), object::name(value), &[error]));
        }
        return Ok(());
    }
    let kind = if kind.is_empty() { want.kind } else { kind };
    let (group, version) = match (group, version) {
        ("", "") => (want.group, want.version),
        (g, "") if g == want.group => (g, want.version),
        other => other,
    };
    if (group, version, kind) == (want.group, want.version, want.kind) {
        return Ok(());
    }
    let registered =
        types::for_gvk(group, version, kind).is_some() || registry.by_kind(group, version, kind).is_some();
    if registered && kind == want.kind {
        return Err(mismatch(group, version));
    }
    let reason = not_this_kind(want, (group, version, kind), registered);
    Err(Status::bad_request(format!(
        "{kind} in version {} cannot be handled as a {}: {reason}",
        text::quote(version),
        want.kind
    )))
}

/// Why an object of one built-in kind cannot be taken for one of another.
pub(crate) fn not_this_kind(
    want: &ExpectedKind<'_>,
    (group, version, kind): (&str, &str, &str),
    registered: bool,
) -> String {
    if registered {
        let internal = want.group.split('.').next().filter(|g| !g.is_empty()).unwrap_or("core");
        return format!("converting ({version}.{kind}) to ({internal}.{}): unknown conversion", want.kind);
    }
    let gv = GroupVersion::new(group, version).api_version();
    let [kind, gv, scheme] = [kind, &gv, SCHEME].map(text::quote);
    format!("no kind {kind} is registered for version {gv} in scheme {scheme}")
}

/// The beginning of a body, for messages: text if it looks like JSON, else hexadecimal.
fn summarize(body: &[u8]) -> String {
    const MAX: usize = 30;
    let Some(first) = body.first() else { return "<empty>".into() };
    let head = &body[..body.len().min(MAX)];
    let mut out =
        if *first == b'{' { String::from_utf8_lossy(head).into_owned() } else { kaji_meta::text::hex(head) };
    if body.len() > MAX {
        out.push_str(" ...");
    }
    out
}

#[cfg(test)]
mod tests;
