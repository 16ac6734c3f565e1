//! Which pods count: namespaces and label selectors, as spreading and affinity between pods combine them.

use kaji_meta::labels::Selector;
use kaji_runtime::objects::Pod;
use std::collections::BTreeSet;

/// A set of namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Namespaces {
    /// Every one.
    All,
    /// These.
    Some(BTreeSet<String>),
}

impl Namespaces {
    /// Whether a namespace is among them.
    pub fn contains(&self, namespace: &str) -> bool {
        match self {
            Namespaces::All => true,
            Namespaces::Some(names) => names.contains(namespace),
        }
    }
}

/// A set of pods: those that all terms select.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodMatcher {
    /// Namespaces and labels; without a term no pod matches.
    pub terms: Vec<(Namespaces, Selector)>,
    /// Pods that are being deleted count too.
    pub terminating: bool,
}

impl PodMatcher {
    /// Whether a pod is in the set.
    pub fn matches(&self, pod: &Pod) -> bool {
        (self.terminating || !pod.metadata.deleting())
            && !self.terms.is_empty()
            && self.terms.iter().all(|(namespaces, selector)| {
                namespaces.contains(&pod.metadata.namespace)
                    && selector.matches(|key| pod.metadata.labels.get(key).map(String::as_str))
            })
    }

    /// The namespaces outside of which no pod matches; `None` if there may be some everywhere.
    pub fn namespaces(&self) -> Option<BTreeSet<String>> {
        let some = self.terms.iter().filter_map(|(namespaces, _)| match namespaces {
            Namespaces::All => None,
            Namespaces::Some(names) => Some(names.clone()),
        });
        some.reduce(|a, b| a.intersection(&b).cloned().collect())
    }
}
