//! What the paths of a version's scale subresource must hold in its objects.
//! Source: apiextensions-apiserver, `registry/customresource/validator.go`.

use kaji_meta::field::{Error, ErrorList, Path};
use kaji_resource::{
    ScaleDef,
    nested::{self, dotted},
};
use serde_json::Value;
use std::borrow::Cow;

/// The replicas that are wanted.
pub(crate) fn check_spec(scale: &ScaleDef, object: &Value) -> ErrorList {
    replicas(&scale.spec_replicas, object).into_iter().collect()
}

/// The replicas that there are, and what selects them.
pub(crate) fn check_status(scale: &ScaleDef, object: &Value) -> ErrorList {
    let mut errors: ErrorList = replicas(&scale.status_replicas, object).into_iter().collect();
    if let Some(path) = &scale.selector
        && let Err(why) = nested::string(object, path)
    {
        errors.push(Error::invalid(&Path::new(&dotted(path)), "", why));
    }
    errors
}

fn replicas(path: &[Cow<'static, str>], object: &Value) -> Option<Error> {
    let (found, why) = match nested::integer(object, path) {
        Err(why) => (0, why),
        Ok(Some(n)) if n < 0 => (n, "should be a non-negative integer".into()),
        Ok(Some(n)) if n > i64::from(i32::MAX) => {
            (n, format!("should be less than or equal to {}", i32::MAX))
        }
        Ok(_) => return None,
    };
    Some(Error::invalid(&Path::new(&dotted(path)), found, why))
}
