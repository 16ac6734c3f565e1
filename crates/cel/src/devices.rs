//! Selectors of devices (dynamic resource allocation): expressions over `device`, which result in a bool.
//! Source: upstream's `k8s.io/dynamic-resource-allocation/cel`, with the features that are on by default.
//!
//! Invariant: sizes of data are bounded as the API bounds devices, so that estimates of costs are upstream's.

use crate::{
    Decl, DeclKind, Env, Error, Ext, Map, Program, Type, Value, admission::ExpressionError,
    functions::semver::Semver, value::Constructed,
};
use kaji_meta::Quantity;
use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

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
pub fn compile(text: &str) -> Result<Program, ExpressionError> {
    let program = ENV.compile(text).map_err(|e| ExpressionError::from(&e))?;
    match program.ty() {
        Type::Bool | Type::Dyn => Ok(program),
        other => Err(ExpressionError::invalid(format!(
            "must evaluate to bool or the unknown type, not {}",
            other.declared()
        ))),
    }
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug)]
pub enum Attribute<'a> {
    /// A number.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// Text.
    String(&'a str),
    /// A semantic version.
    Version(&'a str),
}

impl Attribute<'_> {
    fn value(self) -> Result<Value<'static>, Error> {
        Ok(match self {
            Attribute::Int(i) => Value::Int(i),
            Attribute::Bool(b) => Value::Bool(b),
            Attribute::String(s) => Value::text(s),
            Attribute::Version(v) => {
                let parsed = Semver::parse(v);
                let parsed = parsed.map_err(|e| Error::eval(format!("parse semantic version: {e}")))?;
                Value::Ext(Ext::Semver(parsed.into()))
            }
        })
    }
}

/// A device as the variable `device`. Made once, looked at by every selector.
#[derive(Clone, Debug)]
pub struct DeviceValue(Value<'static>);

impl DeviceValue {
    /// Of a driver's device: names of attributes and capacities have a domain, or stand for one of the driver's.
    ///
    /// # Errors
    /// A version cannot be parsed.
    pub fn new<'d>(
        driver: &str,
        allow_multiple_allocations: bool,
        attributes: impl IntoIterator<Item = (&'d str, Attribute<'d>)>,
        capacity: impl IntoIterator<Item = (&'d str, &'d Quantity)>,
    ) -> Result<Self, Error> {
        let attributes = attributes.into_iter().map(|(name, attribute)| {
            let value = attribute.value().map_err(|e| Error::eval(format!("attribute {name}: {e}")))?;
            Ok((name, value))
        });
        let amount = |q: &Quantity| Value::Ext(Ext::Quantity(q.clone().into()));
        let capacity = capacity.into_iter().map(|(name, q)| Ok((name, amount(q))));
        let (attributes, capacity) = (domains(driver, attributes)?, domains(driver, capacity)?);
        let mut device = Constructed::default();
        for (field, value) in [
            ("driver", Value::text(driver)),
            ("allowMultipleAllocations", Value::Bool(allow_multiple_allocations)),
            ("attributes", attributes),
            ("capacity", capacity),
        ] {
            device.insert(Value::text(field), value)?;
        }
        Ok(DeviceValue(Value::Map(Map::Constructed(Arc::new(device)))))
    }

    /// Whether a selector accepts the device.
    ///
    /// # Errors
    /// The evaluation fails, costs too much, or results in something else than a bool. Texts are upstream's.
    pub fn matches(&self, selector: &Program) -> Result<bool, Error> {
        // The first place is that of the absent variable.
        match selector.eval(&[None, Some(self.0.clone())], MAX_COST).0? {
            Value::Bool(result) => Ok(result),
            other => {
                let name = other.ty().name();
                let text = format!("type conversion error from '{name}' to 'bool'");
                Err(Error::eval(format!("CEL result of type {name} could not be converted to bool: {text}")))
            }
        }
    }
}

/// Values by domain and identifier; a domain that is absent is empty.
fn domains<'d>(
    driver: &str,
    values: impl Iterator<Item = Result<(&'d str, Value<'static>), Error>>,
) -> Result<Value<'static>, Error> {
    let mut domains: BTreeMap<&str, Constructed<'static>> = BTreeMap::new();
    for value in values {
        let (name, value) = value?;
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        domains.entry(domain).or_default().insert(Value::text(id), value)?;
    }
    let map = |map: Constructed<'static>| Value::Map(Map::Constructed(Arc::new(map)));
    let mut all = Constructed::default().or_default(map(Constructed::default()));
    for (domain, values) in domains {
        all.insert(Value::text(domain), map(values))?;
    }
    Ok(map(all))
}

#[cfg(test)]
mod tests;
