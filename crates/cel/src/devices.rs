//! Selectors of devices (dynamic resource allocation): expressions over `device`, which result in a bool.
//! Source: upstream's `k8s.io/dynamic-resource-allocation/cel`, with the features that are on by default.
//!
//! Invariant: sizes of data are bounded as the API bounds devices, so that estimates of costs are upstream's.

use crate::{Decl, DeclKind, Env, Program, Type, admission::Refusal};
use std::sync::LazyLock;

/// The longest expression, in bytes (upstream's `CELSelectorExpressionMaxLength`).
pub const MAX_EXPRESSION: usize = 10 * 1024;
/// What one evaluation may cost (upstream's `CELSelectorExpressionMaxCost`).
pub const MAX_COST: u64 = 1_000_000;

const MAX_DOMAIN: u64 = 63;
const MAX_ID: u64 = 32;
const MAX_DRIVER: u64 = 63;
const MAX_ATTRIBUTE_VALUE: u64 = 64;
const MAX_ENTRIES: u64 = 32;

/// Attributes and capacity by domain and identifier.
fn by_domain(value: Decl) -> Decl {
    let by_id = Decl::map(value, Some(MAX_ENTRIES)).keys_up_to(MAX_ID);
    Decl::map(by_id, Some(MAX_ENTRIES)).keys_up_to(MAX_DOMAIN)
}

static ENV: LazyLock<Env> = LazyLock::new(|| {
    let driver = Decl { max_elements: MAX_DRIVER, ..Decl::string("", None, None) };
    let attribute = Decl { max_elements: MAX_ATTRIBUTE_VALUE, ..Decl::any() };
    let fields = [
        ("driver", driver),
        ("allowMultipleAllocations", Decl { max_elements: 1, ..Decl::bool() }),
        ("attributes", by_domain(attribute)),
        ("capacity", by_domain(Decl { kind: DeclKind::Quantity, ..Decl::any() })),
    ];
    let device = Decl::object(fields.map(|(name, decl)| (name.to_owned(), decl, true)));
    // Estimates give parts of what the expression made the size of the first variable; upstream has none for devices.
    Env::new().absent().variable("device", device.named("kubernetes.DRADevice")).with_bindings()
});

/// Compiles a selector.
///
/// # Errors
/// It is not well-formed, not well-typed, or results in something else than a bool or an attribute.
pub fn compile(text: &str) -> Result<Program, Refusal> {
    let program = ENV.compile(text).map_err(|e| Refusal::from(&e))?;
    match program.ty() {
        Type::Bool | Type::Dyn => Ok(program),
        other => Err(Refusal::invalid(format!(
            "must evaluate to bool or the unknown type, not {}",
            other.declared()
        ))),
    }
}

#[cfg(test)]
mod tests;
