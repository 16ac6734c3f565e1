//! How large a stored object may be.
//!
//! Upstream's objects are bounded by what etcd takes, and by what its client sends; clients know both answers. Built-in
//! kinds are stored in protobuf there, and measured by it here: JSON may take several times as much.

use super::Op;
use crate::encode;
use kaji_meta::{Reason, Status};
use serde_json::Value;

/// Bytes of a request that etcd takes. Source: etcd `embed.DefaultMaxRequestBytes`.
const REQUEST_BYTES: usize = 3 << 19;
/// Bytes of a message that its client sends. Source: etcd `clientv3`, `defaultMaxCallSendMsgSize`.
const MESSAGE_BYTES: usize = 2 << 20;
/// What surrounds a value in such a request: tags, lengths, a revision, the request's id.
const AROUND: usize = 48;

/// Checks the size of an object that is to be stored under `key`, and takes `bytes` of JSON.
///
/// # Errors
/// 500, as upstream has it, for an object that is too large.
pub(super) fn check(op: &Op<'_>, key: &str, object: &Value, bytes: usize) -> Result<(), Status> {
    // The key is there twice: what is expected of it, and what it is to be.
    let around = 2 * key.len() + AROUND;
    if bytes + around <= REQUEST_BYTES {
        return Ok(());
    }
    let size = around + in_protobuf(op, object).unwrap_or(bytes);
    if size <= REQUEST_BYTES {
        return Ok(());
    }
    let text = if size <= MESSAGE_BYTES {
        "etcdserver: request is too large".to_owned()
    } else {
        format!(
            "rpc error: code = ResourceExhausted desc = trying to send message larger than max ({size} vs. {MESSAGE_BYTES})"
        )
    };
    Err(Status::new(500, Reason::Unknown, text))
}

/// The length of an object in protobuf, if upstream stores its kind so.
fn in_protobuf(op: &Op<'_>, object: &Value) -> Option<usize> {
    // These two are stored in JSON.
    if matches!(&*op.target.res.def.group, "apiextensions.k8s.io" | "apiregistration.k8s.io") {
        return None;
    }
    encode::protobuf::whole(object).ok().flatten().map(|bytes| bytes.len())
}
