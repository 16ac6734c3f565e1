//! Why an object is not as it was asked to be, how it came to be as it is, what hangs on it, what happens to it and what it uses: the
//! answers of `kaji why`, of `kaji history` and what goes with it, of `kaji tree`, `kaji events` and `kaji top`.
//!
//! - `api`: the requests that an explanation makes; `api_server`: the server of a connection that answers them; `reader` makes each once and keeps what was refused.
//! - `discovery`: which resource a name of the command line means.
//! - `report`: chains of statements with their certainty, as text and as JSON, and the exit code.
//! - `questions`: one file a question, one line each in the table of `questions.rs`.
//! - `rights`: why a request is forbidden, from the text of the refusal or from its attributes.
//! - `history`: revisions of an object; `tree`: its owners, dependents and references; `events`: what was observed of these.
//! - `top`: what nodes and pods use; `table`: columns of text.
//! - `names`: names that are nearly the same; `paths`: paths of objects, with names escaped.
//!
//! Invariants:
//! - Nothing is read but by requests with the caller's credentials, and nothing is written but what `history::Restoration` is asked to:
//!   an explanation contains nothing that the caller could not read. What could not be read is reported as unknown.
//! - A statement is `known` only if an object, or an answer of the server, says so. A conclusion is `inferred`.

mod api;
mod api_server;
mod case;
mod discovery;
pub mod events;
pub mod history;
mod names;
mod paths;
mod questions;
mod reader;
mod report;
mod rights;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod top;
mod tree;

pub use api::{Api, Refusal};
pub use api_server::ApiServer;
pub use discovery::Subject;
pub use report::{Cause, Certainty, Report, Sort, Statement};
pub use rights::Request;
pub use tree::{Branch, Mention, Owner, Presence, Tree, tree};

use case::Case;
use discovery::Discovery;
use reader::Reader;

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The subject is no resource and name, or no known resource.
    #[error("{0}")]
    Subject(String),
    /// The object is not there.
    #[error("{0}")]
    NotFound(String),
    /// The caller may not read the object, or the server did not answer.
    #[error("{0}")]
    Unreadable(String),
}

/// Explains the state of an object: `subject` is `KIND/NAME` as kubectl takes it, with `namespace` for namespaced kinds.
///
/// # Errors
/// When the object cannot be read.
pub async fn explain(
    api: &dyn Api,
    subject: &Subject,
    namespace: &str,
    now: jiff::Timestamp,
) -> Result<Report, ExplainError> {
    let reader = Reader::new(api);
    let discovery = Discovery::read(api).await?;
    let resource = discovery.resolve(&subject.kind)?;
    let namespace = if resource.namespaced { namespace } else { "" };
    let path = resource.path(namespace, &subject.name);
    let object = match api.get(&path).await {
        Ok(object) => object,
        Err(Refusal::Forbidden(message) | Refusal::Failed(message)) => {
            return Err(ExplainError::Unreadable(message));
        }
        Err(Refusal::NotFound(message)) => {
            let causes =
                questions::refusals::of_missing(&reader, &discovery, resource, namespace, &subject.name)
                    .await;
            if causes.is_empty() {
                return Err(ExplainError::NotFound(message));
            }
            return Ok(Report { subject: message, causes, unknown: reader.refused() });
        }
    };
    let case = Case::new(&reader, &discovery, resource, &object, now);
    let causes = questions::answer(&case).await;
    Ok(Report { subject: case.title(), causes, unknown: reader.refused() })
}

/// Explains why a request is forbidden, by the rules and bindings that the caller may read.
pub async fn explain_forbidden(api: &dyn Api, request: &Request) -> Report {
    let reader = Reader::new(api);
    let causes = rights::explain(&reader, request).await;
    Report { subject: request.to_string(), causes, unknown: reader.refused() }
}
