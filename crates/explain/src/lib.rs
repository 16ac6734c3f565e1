//! Why an object is not as it was asked to be, how it came to be as it is, what hangs on it, what happens to it and what it uses: the
//! answers of `kaji why`, of `kaji history` and what goes with it, of `kaji tree`, `kaji events` and `kaji top`.
//!
//! - `asked`: questions as the parameters of a URL, for servers.
//! - `api`: the requests that an explanation makes; `api_server`: the server of a connection that answers them; `reader` makes each once and keeps what was refused.
//! - `discovery`: which resource a name of the command line means.
//! - `report`: chains of statements with their certainty, as text and as JSON, and the exit code.
//! - `questions`: one file a question, one line each in the table of `questions.rs`.
//! - `rights`: why a request is forbidden, from the text of the refusal or from its attributes; `conflicts`: the text of a refused apply;
//!   `managed_fields`: the manager that holds a field.
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
mod asked;
mod case;
mod conflicts;
mod discovery;
pub mod events;
pub mod history;
mod managed_fields;
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

pub use api::{Api, RequestError};
pub use api_server::ApiServer;
pub use asked::{PARAMETERS, answer};
pub use conflicts::{ApplyConflicts, Holder};
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
        Err(RequestError::Forbidden(message) | RequestError::Failed(message)) => {
            return Err(ExplainError::Unreadable(message));
        }
        Err(RequestError::NotFound(message)) => {
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

/// Explains the text of a refusal, with the object that it is about if that is known: a request that is forbidden, an apply that
/// conflicts, or a webhook that could not be called. `None` for any other text.
///
/// # Errors
/// When the object cannot be read.
pub async fn explain_text(
    api: &dyn Api,
    text: &str,
    subject: Option<&Subject>,
    namespace: &str,
    now: jiff::Timestamp,
) -> Result<Option<Report>, ExplainError> {
    if let Some(conflicts) = ApplyConflicts::parse(text) {
        return explain_conflicts(api, &conflicts, subject, namespace, now).await.map(Some);
    }
    if let Some(request) = Request::parse(text) {
        return Ok(Some(explain_forbidden(api, &request).await));
    }
    let Some(called) = questions::webhook::Called::of(text) else { return Ok(None) };
    let reader = Reader::new(api);
    let cause = Cause::new(Sort::Webhook, called.summary());
    let causes = vec![match called.find(&reader).await {
        Some(found) => found.described(cause),
        None => cause,
    }];
    Ok(Some(Report { subject: "Write".to_owned(), causes, unknown: reader.refused() }))
}

/// Explains an apply that was refused. Without its object, that is the one that the server remembers a refusal with these conflicts of.
async fn explain_conflicts(
    api: &dyn Api,
    conflicts: &ApplyConflicts,
    subject: Option<&Subject>,
    namespace: &str,
    now: jiff::Timestamp,
) -> Result<Report, ExplainError> {
    let reader = Reader::new(api);
    let discovery = Discovery::read(api).await?;
    let found = match subject {
        Some(subject) => {
            let resource = discovery.resolve(&subject.kind)?;
            let namespace = if resource.namespaced { namespace } else { "" };
            Some((resource, namespace.to_owned(), subject.name.clone(), None))
        }
        None => questions::refusals::of_conflicts(&reader, &discovery, conflicts, namespace).await,
    };
    let of_text = |unknown| {
        let causes = vec![questions::conflict::of_text(conflicts)];
        Report { subject: "Apply".to_owned(), causes, unknown }
    };
    let Some((resource, namespace, name, refused)) = found else { return Ok(of_text(reader.refused())) };
    let object = match reader.get(&resource.path(&namespace, &name)).await {
        reader::Found::Object(object) => object,
        reader::Found::Absent => {
            return Err(ExplainError::NotFound(format!("{} \"{name}\" not found", resource.argument())));
        }
        reader::Found::Unreadable => return Ok(of_text(reader.refused())),
    };
    let case = Case::new(&reader, &discovery, resource, &object, now);
    let mut cause = Cause::new(Sort::Conflict, questions::conflict::summary(conflicts));
    if let Some(refused) = refused {
        cause = cause.known(refused);
    }
    let causes = vec![questions::conflict::explained(&case, conflicts, cause).await];
    Ok(Report { subject: case.title(), causes, unknown: reader.refused() })
}

/// Explains why a request is forbidden, by the rules and bindings that the caller may read.
pub async fn explain_forbidden(api: &dyn Api, request: &Request) -> Report {
    let reader = Reader::new(api);
    let causes = rights::explain(&reader, request).await;
    Report { subject: request.to_string(), causes, unknown: reader.refused() }
}
