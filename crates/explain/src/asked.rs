//! Questions as the parameters of a URL, with their answers as JSON: `/kaji/why` of an API server and of `kaji console`.
//!
//! - `subject=KIND/NAME`, with `namespace=N`: why the object is not as it was asked to be.
//! - `refusal=TEXT`, with or without a subject: why the request was refused.
//!
//! Invariant: both servers read the parameters by this function, from the query that their request was routed by.

use crate::{Api, ExplainError, Report, Subject, explain, explain_text};
use kaji_meta::Query;

/// The parameters.
pub const PARAMETERS: &[&str] = &["subject", "namespace", "refusal"];
/// The longest parameter, in bytes. The text of a refusal names the fields that conflict.
const LONGEST: usize = 16 << 10;

/// The explanation that a query is for; `namespace` where it names none.
///
/// # Errors
/// When nothing, or no object, is named, and when the object cannot be read.
pub async fn answer(
    api: &dyn Api,
    query: &Query,
    namespace: &str,
    now: jiff::Timestamp,
) -> Result<Report, ExplainError> {
    if let Some(name) = PARAMETERS.iter().find(|name| query.text(name).len() > LONGEST) {
        return Err(ExplainError::Subject(format!("{name} has more than {LONGEST} bytes")));
    }
    let namespace = query.first("namespace").filter(|name| !name.is_empty()).unwrap_or(namespace);
    let subject = Subject::parse(&[query.text("subject").to_owned()]);
    let Some(text) = query.first("refusal") else { return explain(api, &subject?, namespace, now).await };
    let report = explain_text(api, text, subject.as_ref().ok(), namespace, now).await?;
    report.ok_or_else(|| ExplainError::Subject("this is no refusal of the API server".to_owned()))
}

#[cfg(test)]
mod tests;
