//! The chain of admission plugins, and which of them may act on the writes of a resource.
//!
//! Invariants:
//! - Plugins keep their order.
//! - What cannot act on a resource and operation is left out once, at the first such write: a write looks its plugins up in
//!   a table and visits no others.

use super::{Admission, AdmissionSteps, Attributes, Operation};
use arc_swap::ArcSwap;
use std::{collections::HashMap, sync::Arc};

/// More resources than any server has; definitions that come and go do not grow the table without bound.
const MOST_RESOURCES: usize = 16_384;

/// In which phases a plugin may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases {
    /// It may change or refuse the write.
    pub mutating: bool,
    /// It may refuse what will be stored.
    pub validating: bool,
}

impl Phases {
    /// None: it never acts.
    pub const NONE: Phases = Phases { mutating: false, validating: false };
    /// The mutating phase alone.
    pub const MUTATING: Phases = Phases { mutating: true, validating: false };
    /// The validating phase alone.
    pub const VALIDATING: Phases = Phases { mutating: false, validating: true };
    /// Both phases.
    pub const BOTH: Phases = Phases { mutating: true, validating: true };

    /// These phases if a condition holds, else none.
    pub fn when(self, condition: bool) -> Phases {
        if condition { self } else { Phases::NONE }
    }
}

/// Plugins in order.
pub(crate) type Plugins = Vec<Arc<dyn Admission>>;

/// The plugins that may act on one operation on one resource.
#[derive(Default)]
pub(crate) struct Selection {
    /// In the mutating phase.
    pub mutating: Plugins,
    /// In the validating phase.
    pub validating: Plugins,
}

impl Selection {
    /// Those of both phases; a plugin of both comes twice.
    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Admission>> {
        self.mutating.iter().chain(&self.validating)
    }
}

/// By operation.
type Selections = [Selection; 4];
/// By resource and group.
type Table = HashMap<Box<str>, Vec<(Box<str>, Arc<Selections>)>>;

/// All plugins, and the table of those that may act.
pub(crate) struct Chain {
    plugins: Plugins,
    table: ArcSwap<Table>,
    /// Observes how long phases take.
    pub steps: Option<Arc<dyn AdmissionSteps>>,
}

impl Chain {
    pub fn new(plugins: Plugins) -> Chain {
        Chain { plugins, table: ArcSwap::default(), steps: None }
    }

    /// With an observer of the durations of phases.
    pub fn with_steps(mut self, steps: Arc<dyn AdmissionSteps>) -> Chain {
        self.steps = Some(steps);
        self
    }

    /// Whether there are no plugins.
    pub fn is_empty(&self) -> bool {
        self.plugins.is_empty()
    }

    /// The plugins that may act on the writes of a resource, for each operation.
    fn selections(&self, group: &str, resource: &str) -> Arc<Selections> {
        let known = |table: &Table| {
            let groups = table.get(resource)?;
            groups.iter().find(|(of, _)| **of == *group).map(|(_, selections)| selections.clone())
        };
        if let Some(selections) = known(&self.table.load()) {
            return selections;
        }
        let operations = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];
        let selections = Arc::new(operations.map(|operation| self.select(group, resource, operation)));
        self.table.rcu(|old| {
            let mut table = if old.len() < MOST_RESOURCES { Table::clone(old) } else { Table::new() };
            if known(&table).is_none() {
                table.entry(resource.into()).or_default().push((group.into(), selections.clone()));
            }
            table
        });
        selections
    }

    fn select(&self, group: &str, resource: &str, operation: Operation) -> Selection {
        let mut selection = Selection::default();
        for plugin in &self.plugins {
            let phases = plugin.phases(group, resource, operation);
            if phases.mutating {
                selection.mutating.push(plugin.clone());
            }
            if phases.validating {
                selection.validating.push(plugin.clone());
            }
        }
        selection
    }

    /// The plugins that may act on a write.
    pub fn of(&self, a: &Attributes<'_>) -> Selected {
        let at = match a.operation {
            Operation::Create => 0,
            Operation::Update => 1,
            Operation::Delete => 2,
            Operation::Connect => 3,
        };
        Selected { selections: self.selections(&a.resource.group, &a.resource.resource), at }
    }
}

/// The plugins that may act on a write.
pub(crate) struct Selected {
    selections: Arc<Selections>,
    at: usize,
}

impl std::ops::Deref for Selected {
    type Target = Selection;

    fn deref(&self) -> &Selection {
        // One of four, by `Chain::of`.
        &self.selections[self.at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Plugin(&'static str, fn(&str, Operation) -> Phases);

    impl Admission for Plugin {
        fn name(&self) -> &'static str {
            self.0
        }

        fn phases(&self, _: &str, resource: &str, operation: Operation) -> Phases {
            self.1(resource, operation)
        }

        fn handles(&self, _: &Attributes<'_>) -> bool {
            true
        }
    }

    fn names(plugins: &[Arc<dyn Admission>]) -> Vec<&'static str> {
        plugins.iter().map(|plugin| plugin.name()).collect()
    }

    #[test]
    fn selects_by_resource_operation_and_phase_in_order() {
        let chain = Chain::new(vec![
            Arc::new(Plugin("pods", |resource, _| Phases::BOTH.when(resource == "pods"))),
            Arc::new(Plugin("all", |_, _| Phases::VALIDATING)),
            Arc::new(Plugin("creates", |_, operation| Phases::MUTATING.when(operation == Operation::Create))),
            Arc::new(Plugin("never", |_, _| Phases::NONE)),
        ]);
        for _ in 0..2 {
            let pods = chain.selections("", "pods");
            assert_eq!(names(&pods[0].mutating), ["pods", "creates"]);
            assert_eq!(names(&pods[0].validating), ["pods", "all"]);
            assert_eq!(names(&pods[1].mutating), ["pods"]);
            let other = chain.selections("example.com", "pods2");
            assert_eq!(names(&other[2].mutating), Vec::<&str>::new());
            assert_eq!(names(&other[2].validating), ["all"]);
        }
        assert!(Arc::ptr_eq(&chain.selections("", "pods"), &chain.selections("", "pods")));
        assert!(!Arc::ptr_eq(&chain.selections("", "pods"), &chain.selections("metrics.k8s.io", "pods")));
    }
}
