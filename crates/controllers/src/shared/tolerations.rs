//! Which taints a toleration tolerates (API reference, `Toleration`).

use kaji_runtime::objects::{Taint, Toleration};

/// Whether a toleration tolerates a taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let key = toleration.key.is_empty() || toleration.key == taint.key;
    let value = match toleration.operator.as_str() {
        "Exists" => true,
        "" | "Equal" => toleration.value == taint.value,
        _ => false,
    };
    effect && key && value
}
