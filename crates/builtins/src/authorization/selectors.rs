//! The selectors of an access review's attributes, as the authorizer takes them: one text each.
//!
//! What cannot be understood is left out: the rest is wider, so that nothing is allowed which should not be. That it was
//! left out is told. Source: KEP-4601; upstream's `authorizationutil.ResourceAttributesFrom`.

use crate::shared::value::Fields;
use kaji_meta::{fields, labels};
use serde_json::Value;

/// One selector.
#[derive(Default)]
pub struct Selector {
    /// As a request has it in its query.
    pub text: String,
    /// Something was left out.
    broken: bool,
}

/// Both.
pub struct Selectors {
    /// By fields.
    pub field: Selector,
    /// By labels.
    pub label: Selector,
}

fn selector(
    given: &Value,
    parses: impl Fn(&str) -> bool,
    requirement: impl Fn(&Value, &[String]) -> Option<String>,
) -> Selector {
    let raw = given.text("rawSelector");
    if !raw.is_empty() {
        return match parses(raw) {
            true => Selector { text: raw.to_owned(), broken: false },
            false => Selector { text: String::new(), broken: true },
        };
    }
    let mut found = Selector::default();
    for r in given.list("requirements") {
        let values: Vec<String> = r.strings("values").map(str::to_owned).collect();
        match requirement(r, &values) {
            Some(text) if found.text.is_empty() => found.text = text,
            Some(text) => found.text += &format!(",{text}"),
            None => found.broken = true,
        }
    }
    found
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
            field: selector(
                attributes.at("fieldSelector"),
                |raw| fields::Selector::parse(raw).is_ok(),
                field,
            ),
            label: selector(
                attributes.at("labelSelector"),
                |raw| labels::Selector::parse(raw).is_ok(),
                label,
            ),
        }
    }

    /// An authorizer's error together with what was left out here.
    pub fn evaluation_error(&self, error: Option<String>) -> Option<String> {
        let note = |name: &str, s: &Selector| {
            let how = if s.text.is_empty() { "" } else { "partially " };
            s.broken.then(|| format!("spec.resourceAttributes.{name} {how}ignored due to parse error"))
        };
        let all = [error, note("fieldSelector", &self.field), note("labelSelector", &self.label)];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}
