//! Label selectors: the string form of `labelSelector=`, the `LabelSelector` of objects, and matching.
//!
//! A selector is a conjunction of requirements sorted by key, or the selector that matches nothing. Parse errors and
//! the printed form are those of apimachinery's `labels` package.

mod parser;
#[cfg(test)]
mod tests;

use crate::field::{self, Error, ErrorList, Path};
use crate::object::{arr_at, str_at, strs_at};
use crate::text::quote;
use crate::validation::{is_qualified_name, is_valid_label_value};
use serde_json::Value;
use std::fmt;

/// How a requirement compares the label with its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// `key=value`
    Equals,
    /// `key==value`
    DoubleEquals,
    /// `key!=value`; true if the label is absent.
    NotEquals,
    /// `key in (a,b)`
    In,
    /// `key notin (a,b)`; true if the label is absent.
    NotIn,
    /// `key`
    Exists,
    /// `!key`
    DoesNotExist,
    /// `key>1`; both sides integers.
    GreaterThan,
    /// `key<1`; both sides integers.
    LessThan,
}

/// One condition on one label. Values are in the order they were given (sorted when parsed from text).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

/// A conjunction of requirements, or nothing at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

fn check_label_key(key: &str, path: &Path) -> Option<Error> {
    let errs = is_qualified_name(key);
    (!errs.is_empty()).then(|| Error::invalid(path, key, errs.join("; ")))
}

fn shape_error(operator: Operator, values: &[String]) -> Option<&'static str> {
    use Operator as O;
    match operator {
        O::In | O::NotIn if values.is_empty() => {
            Some("for 'in', 'notin' operators, values set can't be empty")
        }
        O::Equals | O::DoubleEquals | O::NotEquals if values.len() != 1 => {
            Some("exact-match compatibility requires one single value")
        }
        O::Exists | O::DoesNotExist if !values.is_empty() => {
            Some("values set must be empty for exists and does not exist")
        }
        O::GreaterThan | O::LessThan if values.len() != 1 => {
            Some("for 'Gt', 'Lt' operators, exactly one value is required")
        }
        _ => None,
    }
}

/// What is wrong with a requirement at a path. `shown` are its values as they were given.
pub fn check_requirement(
    path: &Path,
    key: &str,
    operator: Operator,
    values: &[String],
    shown: impl FnOnce() -> Value,
) -> ErrorList {
    let mut errs = ErrorList::new();
    errs.extend(check_label_key(key, &path.child("key")));
    let path = path.child("values");
    if let Some(msg) = shape_error(operator, values) {
        errs.push(Error::invalid(&path, shown(), msg));
    }
    if matches!(operator, Operator::GreaterThan | Operator::LessThan) {
        for (i, value) in values.iter().enumerate().filter(|(_, v)| v.parse::<i64>().is_err()) {
            let msg = "for 'Gt', 'Lt' operators, the value must be an integer";
            errs.push(Error::invalid(&path.index(i), value.as_str(), msg));
        }
    }
    for (i, value) in values.iter().enumerate() {
        let messages = is_valid_label_value(value);
        if !messages.is_empty() {
            errs.push(Error::invalid(&path.index(i).key(key), value.as_str(), messages.join("; ")));
        }
    }
    errs
}

impl Requirement {
    /// A checked requirement.
    ///
    /// # Errors
    /// An invalid key or value, or the wrong number of values; the text is that of the field errors.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, String> {
        let errs = check_requirement(&Path::root(), key, operator, &values, || values.clone().into());
        if !errs.is_empty() {
            return Err(field::aggregate(&errs));
        }
        Ok(Self { key: key.to_owned(), operator, values })
    }

    /// The label's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The comparison.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// What the label is compared with.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Whether a label with this value (or its absence) fulfils the requirement.
    pub fn matches(&self, value: Option<&str>) -> bool {
        use Operator as O;
        let listed = |v: &str| self.values.iter().any(|x| x == v);
        match self.operator {
            O::In | O::Equals | O::DoubleEquals => value.is_some_and(listed),
            O::NotIn | O::NotEquals => !value.is_some_and(listed),
            O::Exists => value.is_some(),
            O::DoesNotExist => value.is_none(),
            O::GreaterThan => self.integers(value).is_some_and(|(label, bound)| label > bound),
            O::LessThan => self.integers(value).is_some_and(|(label, bound)| label < bound),
        }
    }

    fn integers(&self, value: Option<&str>) -> Option<(i64, i64)> {
        match self.values.as_slice() {
            [bound] => Some((value?.parse().ok()?, bound.parse().ok()?)),
            _ => None,
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Operator as O;
        let (before, infix, after) = match self.operator {
            O::Equals => ("", "=", ""),
            O::DoubleEquals => ("", "==", ""),
            O::NotEquals => ("", "!=", ""),
            O::In => ("", " in (", ")"),
            O::NotIn => ("", " notin (", ")"),
            O::GreaterThan => ("", ">", ""),
            O::LessThan => ("", "<", ""),
            O::Exists => ("", "", ""),
            O::DoesNotExist => ("!", "", ""),
        };
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        write!(f, "{before}{}{infix}{}{after}", self.key, values.join(","))
    }
}

impl Selector {
    /// Matches every set of labels. Prints as the empty string.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Matches no set of labels. Prints as the empty string.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// A selector of the given requirements.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements, nothing: false }
    }

    /// Parses the string form, e.g. `x in (foo,,baz),y,z notin ()`.
    ///
    /// # Errors
    /// Upstream's text for what was found and what was expected.
    pub fn parse(s: &str) -> Result<Self, String> {
        if s.is_empty() {
            return Ok(Self::everything());
        }
        parser::parse(s).map(Self::new)
    }

    /// From a `LabelSelector`: null or absent selects nothing, the empty selector selects everything.
    ///
    /// # Errors
    /// An unknown operator, or an invalid requirement.
    pub fn from_label_selector(selector: &Value) -> Result<Self, String> {
        if selector.is_null() {
            return Ok(Self::nothing());
        }
        let mut requirements = Vec::new();
        for (key, value) in crate::object::str_map_at(selector, &["matchLabels"]) {
            requirements.push(Requirement::new(key, Operator::Equals, vec![value.to_owned()])?);
        }
        for expression in arr_at(selector, &["matchExpressions"]) {
            let operator = match str_at(expression, &["operator"]) {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(format!("{} is not a valid label selector operator", quote(other))),
            };
            let values = strs_at(expression, &["values"]).map(str::to_owned).collect();
            requirements.push(Requirement::new(str_at(expression, &["key"]), operator, values)?);
        }
        Ok(Self::new(requirements))
    }

    /// Labels that must all be present with these values. Nothing is checked; no labels select everything.
    pub fn from_map<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let equals = |(key, value): (&str, &str)| Requirement {
            key: key.to_owned(),
            operator: Operator::Equals,
            values: vec![value.to_owned()],
        };
        Self::new(labels.into_iter().map(equals).collect())
    }

    /// Whether the labels that `get` looks up fulfil every requirement.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(get(&r.key)))
    }

    /// As [`Selector::matches`], for a JSON map of labels. Anything that is not a map has no labels.
    pub fn matches_value(&self, labels: &Value) -> bool {
        self.matches(|key| labels.get(key).and_then(Value::as_str))
    }

    /// As [`Selector::matches`], for the labels of an object.
    pub fn matches_object(&self, object: &Value) -> bool {
        self.matches(|key| crate::object::label(object, key))
    }

    /// The requirements, sorted by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether every set of labels matches.
    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// Whether this is the selector that matches nothing.
    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    /// The one value that the label must have to match, if the first requirement on it says so.
    pub fn requires_exact(&self, key: &str) -> Option<&str> {
        use Operator as O;
        let r = self.requirements.iter().find(|r| r.key == key)?;
        match (r.operator, r.values.as_slice()) {
            (O::Equals | O::DoubleEquals | O::In, [one]) => Some(one),
            _ => None,
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}
