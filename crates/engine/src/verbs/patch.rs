//! PATCH: JSON patch, JSON merge patch, strategic merge patch and server-side apply.

use crate::{
    decode::{self, Directive, ExpectedKind},
    engine::Engine,
    options::WriteOptions,
    pipeline::{
        Op, State, Written, manage, metadata,
        update::{self, Plan, UpdatedObject},
    },
    registry::Resource,
    request::ApiRequest,
    response::ApiResponse,
};
use kaji_meta::{GroupKind, Path, Status, Work, field, json, object};
use kaji_schema::{
    Schema, SchemaRef, order,
    patch::{json_patch, merge_patch, strategic_merge},
    types,
};
use serde_json::{Map, Value};
use std::{borrow::Cow, sync::Arc};

/// The kinds of patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Json,
    Merge,
    Strategic,
    Apply,
}

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// A parsed patch.
pub(crate) struct Patch {
    pub kind: Kind,
    body: Value,
    /// Duplicate (and, in operations of a JSON patch, unknown) fields of the patch itself.
    strict: Vec<String>,
    directive: Directive,
}

impl Kind {
    /// The kind that a `Content-Type` names.
    ///
    /// # Errors
    /// 415 that lists what this resource accepts: custom resources know no strategic merge.
    pub fn of(content_type: &str, custom: bool) -> Result<Kind, Status> {
        let media = match content_type.find(';') {
            Some(at) if at > 0 => &content_type[..at],
            _ => content_type,
        };
        match media {
            JSON => Ok(Kind::Json),
            MERGE => Ok(Kind::Merge),
            STRATEGIC if !custom => Ok(Kind::Strategic),
            APPLY => Ok(Kind::Apply),
            _ if custom => Err(Status::unsupported_media_types(&[JSON, MERGE, APPLY])),
            // For built-in kinds upstream's router refuses, without a list.
            _ => Err(Status {
                details: Some(Box::default()),
                ..Status::unsupported_media_type("415: Unsupported Media Type")
            }),
        }
    }
}

impl Patch {
    /// Parses the body.
    ///
    /// # Errors
    /// 400 with upstream's texts.
    pub fn parse(op: &Op<'_>, kind: Kind, body: &[u8]) -> Result<Patch, Status> {
        let directive = op.options.directive();
        if kind == Kind::Apply {
            return Self::parse_apply(op, body, directive);
        }
        let frame = |e: String| match (kind, directive) {
            (Kind::Strategic, _) | (_, Directive::Ignore) => e,
            _ => format!("error decoding patch: {e}"),
        };
        let parsed = decode::json::parse(body).map_err(|e| Status::bad_request(frame(e)))?;
        let mut strict = parsed.duplicates;
        if kind == Kind::Json {
            if directive != Directive::Ignore {
                strict = decode::strict::reports_of_patch(&String::from_utf8_lossy(body));
                strict.iter_mut().for_each(|e| e.insert_str(0, "json patch "));
            }
        } else if !parsed.value.is_object() {
            if kind == Kind::Merge && directive == Directive::Ignore {
                return Err(Status::bad_request("Invalid JSON Patch"));
            }
            let found = object::json_type(&parsed.value);
            let error =
                format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}");
            return Err(Status::bad_request(frame(error)));
        }
        Ok(Patch { kind, body: parsed.value, strict, directive })
    }

    fn parse_apply(op: &Op<'_>, body: &[u8], directive: Directive) -> Result<Patch, Status> {
        // Most appliers send JSON, which is parsed faster as what it is.
        if body.first() == Some(&b'{')
            && let Ok(parsed) = decode::json::parse(body)
            && parsed.duplicates.is_empty()
        {
            return Ok(Patch { kind: Kind::Apply, body: parsed.value, strict: vec![], directive });
        }
        let parsed = decode::yaml::parse(body).map_err(|e| {
            Status::bad_request(format!("error decoding YAML: error converting YAML to JSON: {e}"))
        })?;
        if !parsed.value.is_object() {
            let found = object::json_type(&parsed.value);
            return Err(Status::bad_request(format!(
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            )));
        }
        match directive {
            Directive::Strict if !parsed.duplicates.is_empty() => {
                let list = parsed.duplicates.join("\n  ");
                return Err(Status::bad_request(format!(
                    "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {list}"
                )));
            }
            Directive::Warn => parsed.duplicates.into_iter().for_each(|w| op.output.warn(w)),
            _ => {}
        }
        Ok(Patch { kind: Kind::Apply, body: parsed.value, strict: vec![], directive })
    }

    /// The configuration of an apply.
    pub fn config(&self) -> &Value {
        &self.body
    }

    /// The patched object, pruned and type-checked. Not for apply.
    ///
    /// # Errors
    /// As the patch's kind has them; 422 about `patch` when the result is no object of the wanted kind.
    pub fn patched(&self, op: &Op<'_>, want: &ExpectedKind<'_>, base: Value) -> Result<Value, Status> {
        let mut new = match self.kind {
            Kind::Json => {
                let mut new = base;
                let over = || op.deadline.is_over();
                json_patch(&mut new, &self.body, &Work::new(&over))?;
                new
            }
            Kind::Merge => {
                let mut new = base;
                merge_patch(&mut new, &self.body);
                new
            }
            Kind::Strategic | Kind::Apply => strategic_merge(want.schema.get(), &base, &self.body)?,
        };
        if self.kind == Kind::Strategic {
            // It applies to an object of a known type: what it says of kinds is nothing to upstream.
            object::set_at(&mut new, &["apiVersion"], want.api_version());
            object::set_at(&mut new, &["kind"], want.kind);
        }
        self.check_kind(want, &new)?;
        // Shown in messages; the object is not kept for the case that it is needed.
        let before = (self.kind != Kind::Strategic && self.directive == Directive::Strict)
            .then(|| self.shown(want, &new));
        let unknown = match self.kind {
            Kind::Strategic => decode::restore(want, &mut new),
            _ => decode::conform(want, &mut new),
        };
        let unknown = unknown.map_err(|e| self.invalid(want, &before, &new, e))?;
        let (strict, warnings) = (self.strict.clone(), self.strict.clone());
        // Upstream lists what is wrong with the patch before what is wrong with its outcome.
        decode::apply_directive(strict, warnings, unknown, self.directive, &mut |w| op.output.warn(w))
            .map_err(|e| self.invalid(want, &before, &new, format!("strict decoding error: {e}")))?;
        Ok(new)
    }

    fn check_kind(&self, want: &ExpectedKind<'_>, new: &Value) -> Result<(), Status> {
        let (api_version, kind) = (object::api_version(new), object::kind(new));
        if kind == want.kind
            && kaji_meta::gvk::split_api_version(api_version) == Some((want.group, want.version))
        {
            return Ok(());
        }
        if want.custom() {
            let mut errs = vec![];
            if kind != want.kind {
                errs.push(field::Error::invalid(&Path::new("kind"), kind, format!("must be {}", want.kind)));
            }
            let expected = kaji_meta::GroupVersion::new(want.group, want.version).api_version();
            if api_version != expected {
                let detail = format!("must be {expected}");
                errs.push(field::Error::invalid(&Path::new("apiVersion"), api_version, detail));
            }
            let (group, _) = kaji_meta::gvk::split_api_version(api_version).unwrap_or((want.group, ""));
            return Err(Status::invalid(&GroupKind::new(group, kind), object::name(new), &errs));
        }
        let (group, version) = kaji_meta::gvk::split_api_version(api_version).unwrap_or(("", api_version));
        let registered = types::for_gvk(group, version, kind).is_some();
        let reason = decode::not_this_kind(want, (group, version, kind), registered);
        Err(self.invalid(want, &None, new, reason))
    }

    /// The patched object, for messages.
    fn shown(&self, want: &ExpectedKind<'_>, new: &Value) -> String {
        let mut out = Vec::new();
        let schema = (!want.custom()).then(|| want.schema.get());
        write_patched(&mut out, new, Some(&touched(self.kind, &self.body)), schema);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn invalid(
        &self,
        want: &ExpectedKind<'_>,
        before: &Option<String>,
        new: &Value,
        error: String,
    ) -> Status {
        let shown = match (self.kind, before) {
            (Kind::Strategic, _) => go_map(&self.body),
            (_, Some(text)) => text.clone(),
            (_, None) => self.shown(want, new),
        };
        let error = field::Error::invalid(&Path::new("patch"), shown, error);
        Status::invalid(&GroupKind::default(), "", &[error])
    }
}

/// The parts of an object that a patch has changed, as a tree of their members; for a merge patch, that is the patch.
fn touched(kind: Kind, patch: &Value) -> Cow<'_, Value> {
    if kind != Kind::Json {
        return Cow::Borrowed(patch);
    }
    let mut tree = Value::Object(Map::new());
    let text = |operation: &Value, key: &str| Some(operation.get(key)?.as_str()?.to_owned());
    for operation in patch.as_array().into_iter().flatten() {
        let from = text(operation, "from").filter(|_| text(operation, "op").is_some_and(|op| op == "move"));
        for path in text(operation, "path").into_iter().chain(from) {
            let mut at = &mut tree;
            for step in path.split('/').skip(1) {
                if !at.is_object() {
                    *at = Value::Object(Map::new());
                }
                let Some(members) = at.as_object_mut() else { break };
                let step = step.replace("~1", "/").replace("~0", "~");
                at = members.entry(step).or_insert(Value::Null);
            }
        }
    }
    Cow::Owned(tree)
}

/// A patched object as upstream shows it: what the patch has touched by name, the rest in the order of its type.
fn write_patched(out: &mut Vec<u8>, value: &Value, touched: Option<&Value>, schema: Option<&Schema>) {
    let within = |key: &str| touched.and_then(|t| t.get(key));
    match (value, touched) {
        (Value::Object(map), Some(Value::Object(_))) => {
            out.push(b'{');
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                json::write_string(out, key);
                out.push(b':');
                let child = schema.and_then(|s| s.child(key)).map(SchemaRef::get);
                write_patched(out, value, within(key), child);
            }
            out.push(b'}');
        }
        (Value::Array(list), Some(Value::Object(_))) => {
            out.push(b'[');
            let items = schema.and_then(|s| s.items.as_ref()).map(SchemaRef::get);
            for (i, value) in list.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_patched(out, value, within(&i.to_string()), items);
            }
            out.push(b']');
        }
        _ => order::write(out, value, schema),
    }
}

/// A value as Go's `%+v` prints it.
fn go_map(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(s) => s.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(go_map).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let pairs: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go_map(v))).collect();
            format!("map[{}]", pairs.join(" "))
        }
        other => other.to_string(),
    }
}

/// Patches the object, or one of its subresources that is the whole object.
pub(crate) async fn patch(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let version = res.def.version(&req.version).ok_or_else(Status::generic_not_found)?;
    let kind = Kind::of(&req.content_type, decode::is_custom(&version.schema))?;
    let op = Op::new(engine, res, req, WriteOptions::of(req, kind == Kind::Apply)?)?;
    let result = run(&op, kind, req).await;
    op.answer(&req.accept, result)
}

async fn run(op: &Op<'_>, kind: Kind, req: &ApiRequest) -> Result<Written, Status> {
    let patch = Patch::parse(op, kind, &req.body);
    patch.iter().for_each(|patch| req.audit.iter().for_each(|t| t.patch(&patch.body)));
    let apply = kind == Kind::Apply;
    let creates = (apply || op.target.res.def.allow_create_on_update) && op.target.sub.is_none();
    let plan = Plan { create: creates.then_some(req), keep_managed_fields: apply, ..Plan::default() };
    let patch = if apply { Ok(patch?) } else { patch };
    let mut make = |state: Option<&State>| match &patch {
        Ok(patch) if apply => applied(op, patch, state),
        _ => patched(op, &patch, state),
    };
    update::update(op, op.target.name, &plan, &mut make).await
}

/// What a patch makes of the object. As upstream, a patch that is none is refused after the object was found.
fn patched(
    op: &Op<'_>,
    patch: &Result<Patch, Status>,
    state: Option<&State>,
) -> Result<UpdatedObject, Status> {
    let Some(state) = state else { return Err(op.target.not_found(op.target.name)) };
    let patch = patch.as_ref().map_err(Status::clone)?;
    let mut new = patch.patched(op, &op.target.want(), op.conversion.in_version(&state.object)?)?;
    op.default(&mut new)?;
    metadata::match_namespace(op, &mut new)?;
    metadata::match_name(&new, op.target.name)?;
    manage::record(op, Some(&state.object), &mut new)?;
    op.conversion.to_hub(&mut new)?;
    Ok(UpdatedObject::Object(new))
}

fn applied(op: &Op<'_>, patch: &Patch, state: Option<&State>) -> Result<UpdatedObject, Status> {
    let live = match state {
        Some(state) => op.conversion.in_version(&state.object)?,
        None => Value::Null,
    };
    let Some(mut new) = manage::apply(op, &live, patch.config())? else {
        return Ok(UpdatedObject::Unchanged);
    };
    let want = op.target.want();
    // Not JSON any more: upstream fills the typed object from the merged tree, as after a strategic merge patch.
    match want.custom() {
        true => decode::conform(&want, &mut new).map_err(Status::bad_request)?,
        false => decode::restore(&want, &mut new)
            .map_err(|reason| kaji_schema::managed::not_of_type(patch.config(), &reason))?,
    };
    op.default_applied(&mut new)?;
    metadata::match_namespace(op, &mut new)?;
    metadata::match_name(&new, op.target.name)?;
    op.conversion.to_hub(&mut new)?;
    Ok(UpdatedObject::Object(new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selects_the_kind_of_patch_by_media_type() {
        assert_eq!(Kind::of("application/merge-patch+json; charset=utf-8", true).unwrap(), Kind::Merge);
        assert_eq!(Kind::of(STRATEGIC, false).unwrap(), Kind::Strategic);
        let status = Kind::of("application/json", false).unwrap_err();
        assert_eq!((status.code, status.message.as_str()), (415, "415: Unsupported Media Type"));
        let status = Kind::of(STRATEGIC, true).unwrap_err();
        assert_eq!(status.code, 415);
        assert_eq!(
            status.message,
            "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
        );
    }

    #[test]
    fn shows_what_a_patch_touched_by_name() {
        let schema = types::for_gvk("", "v1", "Pod").unwrap();
        let shown = |kind, patch: Value, object: &Value| {
            let mut out = Vec::new();
            write_patched(&mut out, object, Some(&touched(kind, &patch)), Some(&schema));
            String::from_utf8(out).unwrap()
        };
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {}}, "x": "<",
            "spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]}});
        assert_eq!(
            shown(Kind::Merge, json!({"x": "<"}), &pod),
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{}},"spec":{"containers":[{"name":"a","image":"i"},{"name":"b","image":"j"}]},"x":"\u003c"}"#
        );
        let patch = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "i"}, {"op": "move", "path": "/x", "from": "/metadata/y"}]);
        assert_eq!(
            shown(Kind::Json, patch, &pod),
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{},"name":"p"},"spec":{"containers":[{"image":"i","name":"a"},{"name":"b","image":"j"}]},"x":"\u003c"}"#
        );
    }

    #[test]
    fn printed_as_go_does() {
        assert_eq!(
            go_map(&json!({"a": {"b": [1, "x", null]}, "c": true})),
            "map[a:map[b:[1 x <nil>]] c:true]"
        );
    }
}
