//! What the kinds of storage.k8s.io share.

use crate::shared::{check, value::Fields};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object,
};
use serde_json::Value;

/// The API group.
pub const GROUP: &str = "storage.k8s.io";
const MAX_PARAMETERS: usize = 512;
/// How many bytes parameters and attachment metadata may have.
pub const MAX_BYTES: usize = 256 * 1024;

/// The name of a volume provisioner.
pub fn provisioner(errs: &mut ErrorList, path: &Path, name: &str) {
    if name.is_empty() {
        errs.push(Error::required(path, ""));
    } else {
        check::qualified_name(errs, path, &name.to_lowercase());
    }
}

/// Parameters of classes: how many, and how large.
pub fn parameters(errs: &mut ErrorList, object: &Value, may_be_empty: bool) {
    let path = Path::new("parameters");
    let count = object.map("parameters").map_or(0, |m| m.len());
    if count > MAX_PARAMETERS {
        errs.push(Error::too_long(&path, "", MAX_PARAMETERS));
        return;
    }
    let mut size = 0;
    for (k, v) in object.string_map("parameters") {
        if k.is_empty() {
            errs.push(Error::invalid(&path, k, "field can not be empty."));
        }
        size += k.len() + v.len();
    }
    if size > MAX_BYTES {
        errs.push(Error::too_long(&path, "", MAX_BYTES));
    }
    if !may_be_empty && count == 0 {
        errs.push(Error::required(&path, "must contain at least one key/value pair"));
    }
}

/// The audiences of the tokens that a CSI driver requests.
pub fn token_requests(errs: &mut ErrorList, path: &Path, list: &[Value]) {
    for (i, r) in list.iter().enumerate() {
        let (at, audience) = (path.index(i), r.text("audience"));
        if list[..i].iter().any(|o| o.text("audience") == audience) {
            errs.push(Error::duplicate(&at.child("audience"), audience));
            continue;
        }
        let at = at.child("expirationSeconds");
        match r.opt_int("expirationSeconds") {
            Some(s) if s < 600 => {
                errs.push(Error::invalid(&at, s, "may not specify a duration less than 10 minutes"));
            }
            Some(s) if s > 1 << 32 => {
                errs.push(Error::invalid(&at, s, "may not specify a duration larger than 2^32 seconds"));
            }
            _ => {}
        }
    }
}

/// Whether a storage class is marked as the default one.
pub fn is_default_class(object: &Value) -> bool {
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
        .iter()
        .any(|key| object::annotation(object, key) == Some("true"))
}
