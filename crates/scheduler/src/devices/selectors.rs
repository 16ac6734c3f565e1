//! CEL selectors of devices: each text is compiled once, and its verdict on a device is kept with the device.
//!
//! Invariants:
//! - At most [`PROGRAMS`] programs are kept, and [`VERDICTS`] verdicts a device.
//! - A verdict is that of the device's present state: a device that changes is another entry of the inventory.

use kaji_cel::{
    Program,
    devices::{Attribute, DeviceValue, compile},
};
use kaji_runtime::objects::{Device, DeviceAttribute};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

const PROGRAMS: usize = 1000;
const VERDICTS: usize = 64;

/// A compiled selector.
pub struct Selector {
    /// Never used for another text.
    number: u64,
    program: Program,
}

impl std::fmt::Debug for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Selector({})", self.number)
    }
}

/// A selector, or why it is none.
pub type Compiled = Result<Arc<Selector>, Arc<str>>;

#[derive(Default)]
struct Programs {
    by_text: HashMap<Box<str>, Compiled>,
    last: u64,
}

/// The compiled selectors.
#[derive(Default)]
pub struct Selectors(Mutex<Programs>);

impl Selectors {
    /// The selector of a text.
    pub fn get(&self, text: &str) -> Compiled {
        let mut programs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = programs.by_text.get(text) {
            return known.clone();
        }
        if programs.by_text.len() >= PROGRAMS {
            programs.by_text.clear();
        }
        programs.last += 1;
        let number = programs.last;
        let compiled = match compile(text) {
            Ok(program) => Ok(Arc::new(Selector { number, program })),
            Err(refusal) => Err(refusal.to_string().into()),
        };
        programs.by_text.insert(text.into(), compiled.clone());
        compiled
    }
}

/// What selectors have said of one device.
#[derive(Debug, Default)]
pub struct Verdicts {
    value: OnceLock<Result<DeviceValue, String>>,
    known: Mutex<Vec<(u64, bool)>>,
}

impl Verdicts {
    /// Whether a selector accepts a driver's device.
    ///
    /// # Errors
    /// Upstream's text of what failed in the evaluation.
    pub fn matches(&self, selector: &Selector, driver: &str, device: &Device) -> Result<bool, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, verdict)) = known.iter().find(|(number, _)| *number == selector.number) {
            return Ok(*verdict);
        }
        let value = self.value.get_or_init(|| value_of(driver, device));
        let value = value.as_ref().map_err(Clone::clone)?;
        let verdict = value.matches(&selector.program).map_err(|error| error.to_string())?;
        if known.len() >= VERDICTS {
            known.clear();
        }
        known.push((selector.number, verdict));
        Ok(verdict)
    }
}

fn value_of(driver: &str, device: &Device) -> Result<DeviceValue, String> {
    let mut attributes = vec![];
    for (name, attribute) in &device.attributes {
        let value = match attribute {
            DeviceAttribute { int: Some(int), .. } => Attribute::Int(*int),
            DeviceAttribute { bool: Some(bool), .. } => Attribute::Bool(*bool),
            DeviceAttribute { string: Some(text), .. } => Attribute::String(text),
            DeviceAttribute { version: Some(version), .. } => Attribute::Version(version),
            _ => return Err(format!("attribute {name}: unsupported attribute value")),
        };
        attributes.push((&**name, value));
    }
    let capacity = device.capacity.iter().map(|(name, capacity)| (&**name, &capacity.value));
    DeviceValue::new(driver, device.allow_multiple_allocations, attributes, capacity)
        .map_err(|error| error.to_string())
}
