//! Why a pod does not fit a node, or could not be scheduled.
//!
//! Invariant: what becomes a pod's condition is upstream's text: that of a failure begins with the extension point, and that of a
//! rejection of the node that was chosen is as if there were no other. Filters that reject nodes make no text for it.

use std::{borrow::Cow, fmt};

/// What a status means for the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The pod does not fit; removing other pods may help.
    Unschedulable,
    /// The pod does not fit, whichever pods were removed.
    UnschedulableAndUnresolvable,
    /// The pod fits once something that the plugin waits for has happened.
    Pending,
    /// Something failed; the attempt is repeated.
    Error,
}

/// A rejection or a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What it means.
    pub code: Code,
    /// Upstream's texts.
    pub reasons: Reasons,
    /// The plugin that said so; filled in by the framework.
    pub plugin: &'static str,
}

/// Texts; mostly one, which takes no memory of its own: nodes are rejected by the thousand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reasons {
    /// One.
    One([Cow<'static, str>; 1]),
    /// Several, or none.
    Several(Vec<Cow<'static, str>>),
}

impl std::ops::Deref for Reasons {
    type Target = [Cow<'static, str>];

    fn deref(&self) -> &Self::Target {
        match self {
            Reasons::One(one) => one,
            Reasons::Several(several) => several,
        }
    }
}

impl From<Vec<Cow<'static, str>>> for Reasons {
    fn from(several: Vec<Cow<'static, str>>) -> Self {
        Reasons::Several(several)
    }
}

/// Success, or why not.
pub type Outcome<T = ()> = Result<T, Status>;

impl Status {
    /// With one reason.
    pub fn new(code: Code, reason: impl Into<Cow<'static, str>>) -> Self {
        Status { code, reasons: Reasons::One([reason.into()]), plugin: "" }
    }

    /// [`Code::Unschedulable`]
    pub fn unschedulable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Unschedulable, reason)
    }

    /// [`Code::UnschedulableAndUnresolvable`]
    pub fn unresolvable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::UnschedulableAndUnresolvable, reason)
    }

    /// [`Code::Error`]
    pub fn error(reason: impl fmt::Display) -> Self {
        Self::new(Code::Error, reason.to_string())
    }

    /// By a plugin, unless it says already by which.
    pub fn by(mut self, plugin: &'static str) -> Self {
        if self.plugin.is_empty() {
            self.plugin = plugin;
        }
        self
    }

    /// By a plugin at an extension point, which the text of a failure begins with.
    pub fn at(self, point: &str, plugin: &'static str) -> Self {
        self.by(plugin).failed(|| format!("running {point} plugin {plugin:?}: "))
    }

    /// The text of a failure begins with these words. A rejection stays as it is.
    pub fn failed(self, words: impl FnOnce() -> String) -> Self {
        if self.is_rejection() {
            return self;
        }
        let text = words() + &self.message();
        Status { reasons: Reasons::One([text.into()]), ..self }
    }

    /// Of the node that was chosen: a rejection has the text of one where there is no other node (`FitError`). A failure stays
    /// as it is.
    pub fn of_chosen_node(self) -> Self {
        if !self.is_rejection() {
            return self;
        }
        let (code, plugin) = (self.code, self.plugin);
        let text = NodeStatuses { named: vec![(0, self)], absent: None }.message(1);
        Status { plugin, ..Status::new(code, text) }
    }

    /// Whether the pod was rejected, rather than that something failed.
    pub fn is_rejection(&self) -> bool {
        self.code != Code::Error
    }

    /// The reasons as one text.
    pub fn message(&self) -> String {
        self.reasons.join(", ")
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

/// Which nodes were rejected, and why. Nodes that are not named have the status `absent`.
#[derive(Clone, Debug, Default)]
pub struct NodeStatuses {
    named: Vec<(usize, Status)>,
    /// Of all other nodes.
    pub absent: Option<Status>,
}

impl NodeStatuses {
    /// No node is named; all have this status.
    pub fn of_all(absent: Option<Status>) -> Self {
        NodeStatuses { named: vec![], absent }
    }

    /// Adds a node by its slot. A node is added once.
    pub fn set(&mut self, slot: usize, status: Status) {
        self.named.push((slot, status));
    }

    /// Sets the status of a node that may have one already.
    pub fn replace(&mut self, slot: usize, status: Status) {
        match self.named.iter_mut().find(|(known, _)| *known == slot) {
            Some((_, former)) => *former = status,
            None => self.named.push((slot, status)),
        }
    }

    /// The status of a node.
    pub fn get(&self, slot: usize) -> Option<&Status> {
        let named = self.named.iter().find(|(s, _)| *s == slot).map(|(_, status)| status);
        named.or(self.absent.as_ref())
    }

    /// The nodes that are named.
    pub fn named(&self) -> &[(usize, Status)] {
        &self.named
    }

    /// Upstream's sentence: `0/3 nodes are available: 1 …, 2 ….`
    pub fn message(&self, nodes: usize) -> String {
        let mut counts: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
        for reason in self.named.iter().flat_map(|(_, status)| status.reasons.iter()) {
            *counts.entry(reason).or_default() += 1;
        }
        if self.named.len() < nodes {
            for reason in self.absent.iter().flat_map(|status| status.reasons.iter()) {
                *counts.entry(reason).or_default() += nodes - self.named.len();
            }
        }
        let mut texts: Vec<String> =
            counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        texts.sort();
        if texts.is_empty() {
            return format!("0/{nodes} nodes are available:");
        }
        format!("0/{nodes} nodes are available: {}.", texts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_upstream() {
        let rejection =
            Status { reasons: vec!["b".into(), "a".into()].into(), ..Status::new(Code::Pending, "") };
        let show = |status: Status| format!("{:?} {status} by {:?}", status.code, status.plugin);
        let lines = [
            show(Status::error("no answer").at("Reserve", "Mine")),
            show(Status::error("no answer").by("Other").at("Reserve", "Mine")),
            show(rejection.clone().at("Reserve", "Mine")),
            show(rejection.clone().by("Mine").of_chosen_node()),
            show(Status::error("no answer").by("Mine").of_chosen_node()),
            show(Status::unschedulable("").failed(|| "waiting".to_owned())),
        ];
        expect_test::expect![[r#"
            Error running Reserve plugin "Mine": no answer by "Mine"
            Error running Reserve plugin "Mine": no answer by "Other"
            Pending b, a by "Mine"
            Pending 0/1 nodes are available: 1 a, 1 b. by "Mine"
            Error no answer by "Mine"
            Unschedulable  by """#]]
        .assert_eq(&lines.join("\n"));
    }
}
