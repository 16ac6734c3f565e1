//! The selectors of an access review's attributes, as the authorizer receives them.
//!
//! What cannot be understood is left out: the rest is wider, so that nothing is allowed which should not be. That it was
//! left out is reported. Source: KEP-4601; upstream's `authorizationutil.ResourceAttributesFrom`.

use crate::shared::value::Fields;
use kaji_meta::{fields, labels};
use serde_json::Value;

/// One selector.
pub struct Selector<T> {
    /// As the query of a request has it once it is parsed; `None` without one.
    pub parsed: Option<T>,
    /// Something was left out.
    broken: bool,
}

/// Both.
pub struct Selectors {
    /// By fields.
    pub field: Selector<fields::Selector>,
    /// By labels.
    pub label: Selector<labels::Selector>,
}

fn selector<T, E>(
    given: &Value,
    parse: impl Fn(&str) -> Result<T, E>,
    requirement: impl Fn(&Value, &[String]) -> Option<String>,
) -> Selector<T> {
    let raw = given.text("rawSelector");
    if !raw.is_empty() {
        let parsed = parse(raw).ok();
        return Selector { broken: parsed.is_none(), parsed };
    }
    let mut broken = false;
    let mut texts = vec![];
    for r in given.list("requirements") {
        let values: Vec<String> = r.strings("values").map(str::to_owned).collect();
        match requirement(r, &values) {
            Some(text) => texts.push(text),
            None => broken = true,
        }
    }
    let parsed = (!texts.is_empty()).then(|| parse(&texts.join(",")).ok()).flatten();
    broken |= parsed.is_none() && !texts.is_empty();
    Selector { parsed, broken }
}

fn field(r: &Value, values: &[String]) -> Option<String> {
    let sign = match r.text("operator") {
        "In" => "=",
        "NotIn" => "!=",
        _ => return None,
    };
    match values {
        [one] => Some(format!("{}{sign}{}", r.text("key"), fields::escape_value(one))),
        _ => None,
    }
}

fn label(r: &Value, values: &[String]) -> Option<String> {
    let key = r.text("key");
    let listed = values.join(",");
    let (operator, text) = match r.text("operator") {
        "In" => (labels::Operator::In, format!("{key} in ({listed})")),
        "NotIn" => (labels::Operator::NotIn, format!("{key} notin ({listed})")),
        "Exists" => (labels::Operator::Exists, key.to_owned()),
        "DoesNotExist" => (labels::Operator::DoesNotExist, format!("!{key}")),
        _ => return None,
    };
    labels::Requirement::new(key, operator, values.to_vec()).ok().map(|_| text)
}

impl Selectors {
    /// Those of resource attributes.
    pub fn of(attributes: &Value) -> Selectors {
        Selectors {
            field: selector(attributes.at("fieldSelector"), fields::Selector::parse, field),
            label: selector(attributes.at("labelSelector"), labels::Selector::parse, label),
        }
    }

    /// An authorizer's error together with what was left out here.
    pub fn evaluation_error(&self, error: Option<String>) -> Option<String> {
        let note = |name: &str, broken: bool, some: bool| {
            let how = if some { "partially " } else { "" };
            broken.then(|| format!("spec.resourceAttributes.{name} {how}ignored due to parse error"))
        };
        let fields = note("fieldSelector", self.field.broken, self.field.parsed.is_some());
        let labels = note("labelSelector", self.label.broken, self.label.parsed.is_some());
        let all = [error, fields, labels];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}
