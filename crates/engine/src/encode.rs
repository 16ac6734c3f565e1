//! Encodes responses: objects, lists and watch events, in the requested version, form (object, table, partial metadata) and
//! encoding (JSON, YAML, protobuf).
//!
//! `View::event` gives the bytes of a watch event: those of the cache, which encodes each event once in JSON when it arrives
//! (`cache/entry.rs`), or another representation of them, which all watches that ask for it share.

mod computed;
mod list;
pub(crate) mod protobuf;
mod table;
mod view;

pub(crate) use computed::{read_response, scale_response};
pub(crate) use list::list;
pub(crate) use table::Include;
pub(crate) use view::{View, error_event, no_such_form};

use crate::{
    conversion,
    engine::Engine,
    registry::Resource,
    request::{Accept, Encoding, Form},
    response::{ApiResponse, Body},
    storage,
};
use bytes::Bytes;
use kaji_meta::{Status, json, object};
use kaji_schema::yaml;
use serde_json::Value;

/// The content type of answers in pieces of one object or event each; only requests with [`Accept::separate`] get it.
pub const SEPARATE_OBJECTS: &str = "application/json;pieces=objects";

/// Spaces a level of JSON that is indented for people.
pub const PRETTY: usize = 2;

/// The answer with one object, given in its storage version (for review kinds: as it is).
///
/// # Errors
/// 406 when it has no such form, and what a conversion says.
pub(crate) fn object_response(
    engine: &Engine,
    res: &Resource,
    version: &str,
    accept: &Accept,
    code: u16,
    object: Value,
) -> Result<ApiResponse, Status> {
    if accept.encoding == Encoding::Protobuf && accept.form == Form::Object && res.def.stored {
        let mut object = object;
        conversion::convert_out(res, &mut object, version)?;
        if let Some(bytes) = protobuf::whole(&object)? {
            return Ok(protobuf_response(code, bytes));
        }
        return finish(accept, code, Body::Full(storage::encode_object(&object)));
    }
    let view = View::new(engine, res, version, accept, Include::default())?;
    let bytes = storage::encode_object(&object);
    let metadata = view::raw_metadata(&bytes)?;
    finish(accept, code, Body::Full(view.single(bytes, &metadata, true)?))
}

/// The answer with something that is no object of a resource: a Status, the outcome of a review.
///
/// # Errors
/// 406 when it is requested as a table, unless it is a Status (which is never transformed).
pub(crate) fn value_response(accept: &Accept, code: u16, value: &Value) -> Result<ApiResponse, Status> {
    let json = match (accept.form, object::kind(value)) {
        (Form::Object, _) | (_, "Status") => storage::encode_object(value),
        _ => return Err(view::no_such_form()),
    };
    finish(accept, code, Body::Full(json))
}

fn protobuf_response(code: u16, bytes: Vec<u8>) -> ApiResponse {
    let body = Body::Full(bytes.into());
    ApiResponse { code, content_type: protobuf::CONTENT_TYPE, warnings: vec![], annotations: vec![], body }
}

/// An answer with a JSON body, in the encoding that was asked for.
///
/// # Errors
/// Only when the body is no JSON.
pub(crate) fn finish(accept: &Accept, code: u16, body: Body) -> Result<ApiResponse, Status> {
    let (content_type, body) = match accept.encoding {
        Encoding::Json if accept.pretty => ("application/json", indented(body)),
        Encoding::Json => ("application/json", ended(body)),
        Encoding::Yaml => {
            let json = body.into_bytes().unwrap_or_default();
            let value: Value = serde_json::from_slice(&json).map_err(|e| Status::internal(e.to_string()))?;
            ("application/yaml", Body::Full(Bytes::from(yaml::document(&value))))
        }
        Encoding::Protobuf => {
            let json = body.into_bytes().unwrap_or_default();
            let value: Value = serde_json::from_slice(&json).map_err(|e| Status::internal(e.to_string()))?;
            match protobuf::whole(&value)? {
                Some(bytes) => return Ok(protobuf_response(code, bytes)),
                // A kind without a protobuf form is sent as JSON, and the content type says so.
                None => ("application/json", Body::Full(json)),
            }
        }
    };
    Ok(ApiResponse { code, content_type, warnings: vec![], annotations: vec![], body })
}

/// Bodies this long are not copied for the sake of what comes after them.
const LARGE: usize = 16 << 10;

/// A body that ends its line, as what Go's encoder writes does. Lists do already.
pub(crate) fn ended(body: Body) -> Body {
    match body {
        Body::Full(bytes) if bytes.last() == Some(&b'\n') => Body::Full(bytes),
        Body::Full(bytes) if bytes.len() < LARGE => Body::Full([&bytes, &b"\n"[..]].concat().into()),
        Body::Full(bytes) => Body::Chunks(vec![bytes, Bytes::from_static(b"\n")]),
        other => other,
    }
}

/// The body with every value on a separate line. A streamed body stays streamed.
fn indented(body: Body) -> Body {
    let Body::Lazy(pieces) = body else {
        return Body::Full(json::indent(&body.into_bytes().unwrap_or_default(), PRETTY).into());
    };
    let mut indenter = json::Indenter::new(PRETTY);
    Body::Lazy(Box::new(pieces.map(move |piece| {
        let mut out = Vec::with_capacity(piece.len() * 3 / 2);
        indenter.push(&piece, &mut out);
        Bytes::from(out)
    })))
}
