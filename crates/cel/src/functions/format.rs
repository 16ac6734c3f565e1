//! Named formats: `format.dns1123Label().validate(self.name)` answers what is wrong, or none.

use super::{Called, Native, no_overload, time, urls};
use crate::value::{Ext, Value};
use base64::Engine;
use kaji_meta::validation;

pub(super) const DECLARATIONS: &str = "\
validate format-validate .format,string optional(list(string))
format.named format-named string optional(format)
format.dns1123Label format.dns1123Label () format
format.dns1123Subdomain format.dns1123Subdomain () format
format.dns1035Label format.dns1035Label () format
format.qualifiedName format.qualifiedName () format
format.dns1123LabelPrefix format.dns1123LabelPrefix () format
format.dns1123SubdomainPrefix format.dns1123SubdomainPrefix () format
format.dns1035LabelPrefix format.dns1035LabelPrefix () format
format.labelValue format.labelValue () format
format.uri format.uri () format
format.uuid format.uuid () format
format.byte format.byte () format
format.date format.date () format
format.datetime format.datetime () format
";

/// A format that values can be held against.
#[derive(Debug)]
pub struct NamedFormat {
    /// The name that equality goes by.
    pub name: &'static str,
    key: &'static str,
    check: fn(&str) -> Vec<String>,
    /// The length of a regular expression that does the same, for costs.
    pub(crate) regex_size: u64,
}

fn one(message: &str) -> Vec<String> {
    vec![message.to_owned()]
}

/// A prefix may end in a dash; whatever is appended will follow it.
fn prefix(s: &str) -> String {
    match s.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => format!("{rest}a"),
        _ => s.to_owned(),
    }
}

fn is_uuid(s: &str) -> bool {
    let hex = s.bytes().filter(|b| *b != b'-').count() == 32;
    let dashes: Vec<usize> = s.bytes().enumerate().filter(|(_, b)| *b == b'-').map(|(i, _)| i).collect();
    hex && s.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
        && (dashes.is_empty() || dashes == [8, 13, 18, 23])
}

static FORMATS: [NamedFormat; 13] = [
    NamedFormat {
        name: "DNS1123Label",
        key: "dns1123Label",
        check: validation::is_dns1123_label,
        regex_size: 30,
    },
    NamedFormat {
        name: "DNS1123Subdomain",
        key: "dns1123Subdomain",
        check: validation::is_dns1123_subdomain,
        regex_size: 60,
    },
    NamedFormat {
        name: "DNS1035Label",
        key: "dns1035Label",
        check: validation::is_dns1035_label,
        regex_size: 30,
    },
    NamedFormat {
        name: "QualifiedName",
        key: "qualifiedName",
        check: validation::is_qualified_name,
        regex_size: 60,
    },
    NamedFormat {
        name: "DNS1123LabelPrefix",
        key: "dns1123LabelPrefix",
        check: |s| validation::is_dns1123_label(&prefix(s)),
        regex_size: 30,
    },
    NamedFormat {
        name: "DNS1123SubdomainPrefix",
        key: "dns1123SubdomainPrefix",
        check: |s| validation::is_dns1123_subdomain(&prefix(s)),
        regex_size: 60,
    },
    NamedFormat {
        name: "DNS1035LabelPrefix",
        key: "dns1035LabelPrefix",
        check: |s| validation::is_dns1035_label(&prefix(s)),
        regex_size: 30,
    },
    NamedFormat {
        name: "LabelValue",
        key: "labelValue",
        check: validation::is_valid_label_value,
        regex_size: 40,
    },
    NamedFormat {
        name: "URI",
        key: "uri",
        check: |s| urls::Url::parse(s).err().into_iter().collect(),
        regex_size: 1_103,
    },
    NamedFormat {
        name: "uuid",
        key: "uuid",
        check: |s| if is_uuid(s) { vec![] } else { one("does not match the UUID format") },
        regex_size: 70,
    },
    NamedFormat {
        name: "byte",
        key: "byte",
        check: |s| match base64::engine::general_purpose::STANDARD.decode(s) {
            Ok(_) if !s.is_empty() => vec![],
            _ => one("invalid base64"),
        },
        regex_size: 84,
    },
    NamedFormat {
        name: "date",
        key: "date",
        check: |s| if time::parse_date(s).is_some() { vec![] } else { one("invalid date") },
        regex_size: 71,
    },
    NamedFormat {
        name: "datetime",
        key: "datetime",
        check: |s| if time::parse_date_time(s).is_some() { vec![] } else { one("invalid datetime") },
        regex_size: 71,
    },
];

fn named(key: &str) -> Option<&'static NamedFormat> {
    FORMATS.iter().find(|f| f.key == key)
}

fn constant<'a, const N: usize>(_: &[Value<'a>]) -> Called<'a> {
    FORMATS.get(N).map_or_else(no_overload, |f| Ok(Value::Ext(Ext::Format(f))))
}

pub(super) fn native(name: &str) -> Option<Native> {
    match name {
        "validate" => return Some(validate),
        "format.named" => {
            return Some(|args| match args {
                [Value::String(key)] => {
                    Ok(Value::Optional(named(key).map(|f| Value::Ext(Ext::Format(f)).into())))
                }
                _ => no_overload(),
            });
        }
        _ => {}
    }
    let key = name.strip_prefix("format.")?;
    let constants: [Native; 13] = [
        constant::<0>,
        constant::<1>,
        constant::<2>,
        constant::<3>,
        constant::<4>,
        constant::<5>,
        constant::<6>,
        constant::<7>,
        constant::<8>,
        constant::<9>,
        constant::<10>,
        constant::<11>,
        constant::<12>,
    ];
    constants.get(FORMATS.iter().position(|f| f.key == key)?).copied()
}

fn validate<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::Ext(Ext::Format(format)), Value::String(s)] = args else { return no_overload() };
    let problems = (format.check)(s);
    if problems.is_empty() {
        return Ok(Value::Optional(None));
    }
    Ok(Value::some(Value::list(problems.into_iter().map(Value::text).collect())))
}
