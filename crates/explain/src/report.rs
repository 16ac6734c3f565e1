//! The explanation: causes, each a chain of statements that ends in what to do.
//!
//! Invariant: the exit code depends on the first cause alone; causes are in the order of their weight, the most certain first.

use serde::Serialize;
use std::fmt::{self, Write as _};

/// How far a statement can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// An object, or an answer of the server, says so.
    Known,
    /// It follows from what is known, if nothing else is at work.
    Inferred,
}

/// One link of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statement {
    /// How far it can be relied on.
    pub certainty: Certainty,
    /// The statement.
    pub text: String,
}

/// The sorts of causes, each with its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Sort {
    /// The object waits for nothing; what it reports is said.
    Waiting,
    /// No node fits a pod.
    Scheduling,
    /// An image cannot be pulled.
    Image,
    /// A container cannot start, or does not stay up.
    Container,
    /// A pod runs and is not ready.
    Readiness,
    /// A volume or a claim.
    Volume,
    /// A deletion that does not end.
    Deletion,
    /// A service without endpoints.
    Endpoints,
    /// A quota or a limit.
    Quota,
    /// A workload that does not get on.
    Rollout,
    /// An autoscaler without metrics.
    Autoscaling,
    /// A certificate request.
    Certificate,
    /// A disruption budget.
    Disruption,
    /// A request without the right.
    Forbidden,
    /// An admission webhook, or an extension server.
    Webhook,
    /// A node.
    Node,
    /// Fields that another field manager holds.
    Conflict,
}

impl Sort {
    /// The exit code of `kaji why`, of the first cause: 0 without any; 1 and 2 are failures of the command itself.
    pub fn exit_code(self) -> u8 {
        10 + self as u8
    }
}

/// One reason why the object is not as it was asked to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// Its sort.
    pub sort: Sort,
    /// In one sentence.
    pub summary: String,
    /// The proof.
    pub chain: Vec<Statement>,
    /// What is nearly right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
    /// What is safe to do.
    pub fixes: Vec<String>,
}

impl Cause {
    /// With its summary alone.
    pub fn new(sort: Sort, summary: impl Into<String>) -> Self {
        Cause { sort, summary: summary.into(), chain: vec![], nearest: None, fixes: vec![] }
    }

    /// And a statement of an object or of the server.
    pub fn known(mut self, text: impl Into<String>) -> Self {
        self.chain.push(Statement { certainty: Certainty::Known, text: text.into() });
        self
    }

    /// And a conclusion.
    pub fn inferred(mut self, text: impl Into<String>) -> Self {
        self.chain.push(Statement { certainty: Certainty::Inferred, text: text.into() });
        self
    }

    /// And what is nearly right.
    pub fn nearest(mut self, text: impl Into<String>) -> Self {
        self.nearest = Some(text.into());
        self
    }

    /// And what is nearly right, if anything is.
    pub fn nearest_if(mut self, text: Option<String>) -> Self {
        self.nearest = text.or(self.nearest);
        self
    }

    /// And what is safe to do.
    pub fn fix(mut self, text: impl Into<String>) -> Self {
        self.fixes.push(text.into());
        self
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `Pod default/web`
    pub subject: String,
    /// The causes; none when nothing is wrong.
    pub causes: Vec<Cause>,
    /// What could not be read: the explanation may lack what it says.
    pub unknown: Vec<String>,
}

impl Report {
    /// 0 without a cause, else that of the first one.
    pub fn exit_code(&self) -> u8 {
        self.causes.first().map_or(0, |cause| cause.sort.exit_code())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.causes.is_empty() {
            writeln!(f, "{}: nothing is wrong with it", self.subject)?;
        }
        for cause in &self.causes {
            writeln!(f, "{}: {}", self.subject, cause.summary)?;
            for statement in &cause.chain {
                let word = match statement.certainty {
                    Certainty::Known => "known",
                    Certainty::Inferred => "inferred",
                };
                row(f, word, &statement.text)?;
            }
            cause.nearest.iter().try_for_each(|text| row(f, "nearest", text))?;
            cause.fixes.iter().try_for_each(|text| row(f, "fix", text))?;
        }
        self.unknown.iter().try_for_each(|text| row(f, "unknown", text))
    }
}

/// A word and a text; further lines of the text are indented like the first.
fn row(f: &mut fmt::Formatter<'_>, word: &str, text: &str) -> fmt::Result {
    for (i, line) in text.lines().enumerate() {
        writeln!(f, "  {:<9}{line}", if i == 0 { word } else { "" })?;
    }
    Ok(())
}

/// Names in a sentence: `a, b and 3 more`.
pub fn some<T: AsRef<str>>(names: &[T], most: usize) -> String {
    let mut text = String::new();
    for (i, name) in names.iter().take(most).enumerate() {
        if i > 0 {
            text += ", ";
        }
        text += name.as_ref();
    }
    if names.len() > most {
        // Writing to a string does not fail.
        let _ = write!(text, " and {} more", names.len() - most);
    }
    text
}
