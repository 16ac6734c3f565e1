//! Checks of names, labels and addresses, with upstream's texts.
//!
//! A function called `is_*` returns one message per broken rule and an empty list for a valid value (no allocation
//! then); a function called `validate_*` turns messages into field errors. The matchers are hand-written
//! equivalents of the regular expressions that the messages quote.

mod ip;
mod metadata;
mod name;
#[cfg(test)]
mod tests;

pub use ip::{
    is_valid_cidr, is_valid_ip, parse_cidr_sloppy, parse_ip_sloppy, validate_cidr, validate_cidr_legacy,
    validate_interface_address, validate_ip, validate_ip_legacy,
};
pub use metadata::{
    LabelSelectorOptions, TOTAL_ANNOTATION_SIZE_LIMIT, label_selector_has_invalid_label_value,
    validate_annotations, validate_conditions, validate_label_name, validate_label_selector,
    validate_label_selector_with, validate_labels,
};
pub use name::*;

/// `must be no more than N characters`.
pub fn max_len_error(length: usize) -> String {
    format!("must be no more than {length} characters")
}

/// `must be no more than N bytes`: the text of label keys, label values and DNS names since 1.34.
fn max_bytes_error(length: usize) -> String {
    format!("must be no more than {length} bytes")
}

/// `must be non-empty`.
pub fn empty_error() -> String {
    "must be non-empty".to_owned()
}

/// `must be between LO and HI, inclusive`.
pub fn inclusive_range_error(lo: i64, hi: i64) -> String {
    format!("must be between {lo} and {hi}, inclusive")
}

/// A message that quotes the regular expression and examples of what it accepts.
pub fn regex_error(msg: &str, fmt: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{msg} (regex used for validation is '{fmt}')");
    }
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{msg} (e.g. {}regex used for validation is '{fmt}')", examples.join(" or "))
}
