//! The filter of a list or a watch: namespace, name, labels and fields.
//!
//! Invariant: a [`SelectedEntry`] exists only for an entry that a request's filter, its namespace included, has accepted; only
//! such entries are encoded as elements of lists and as initial events. (For events it is `WatchEvent`.)

use super::{Fields, entry::Entry};
use kaji_meta::{fields, labels};
use kaji_resource::SelectableField;
use std::sync::Arc;

/// Where a field selector's value comes from.
#[derive(Clone, Debug, PartialEq)]
enum Source {
    Name,
    Namespace,
    /// Position among the cache's fields, and the value of an object that lacks it.
    Field(usize, &'static str),
}

#[derive(Clone, Debug)]
struct Term {
    source: Source,
    equal: bool,
    value: Box<str>,
}

/// A predicate over entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// `""` for all.
    pub namespace: Box<str>,
    /// From a `metadata.name` term or the request; also among the terms.
    pub name: Option<Box<str>>,
    labels: Option<labels::Selector>,
    terms: Vec<Term>,
}

/// An entry that a filter has accepted.
#[derive(Clone, Debug)]
pub(crate) struct SelectedEntry(Arc<Entry>);

impl SelectedEntry {
    /// The entry, to be converted; the outcome has to be accepted again.
    pub fn into_entry(self) -> Arc<Entry> {
        self.0
    }
}

impl std::ops::Deref for SelectedEntry {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        &self.0
    }
}

/// The one place where a watcher is looked up. Every entry that a filter matches is found under its interest.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Interest {
    All,
    Namespace(Box<str>),
    /// A storage key.
    Key(Box<str>),
    /// An indexed field's position and value.
    Field(usize, Box<str>),
    Label(Box<str>, Box<str>),
}

impl Filter {
    /// Everything in a namespace, or (`""`) everything.
    pub fn namespace(namespace: &str) -> Self {
        Filter { namespace: namespace.into(), ..Filter::default() }
    }

    /// Adds a label selector.
    pub fn with_labels(mut self, selector: Option<labels::Selector>) -> Self {
        self.labels = selector.filter(|s| !s.is_everything());
        self
    }

    /// Adds a term on `metadata.name`.
    pub fn with_name(mut self, name: &str) -> Self {
        self.push(Source::Name, true, name);
        self
    }

    /// Adds a field selector. `known` says whether the request's version has a field of that name;
    /// the error is the first field that it does not have.
    pub fn with_fields(
        mut self,
        selector: &fields::Selector,
        cached: &Fields,
        known: &[SelectableField],
        namespaced: bool,
    ) -> Result<Self, String> {
        for term in selector.terms() {
            let source = match term.field.as_str() {
                "metadata.name" => Source::Name,
                "metadata.namespace" if namespaced => Source::Namespace,
                name => {
                    let field = known.iter().find(|f| f.name == name).ok_or_else(|| name.to_owned())?;
                    match &*field.path {
                        [meta, name] if meta == "metadata" && name == "name" => Source::Name,
                        [meta, ns] if meta == "metadata" && ns == "namespace" => Source::Namespace,
                        _ => {
                            let position = cached.position(name).ok_or_else(|| name.to_owned())?;
                            Source::Field(position, field.missing)
                        }
                    }
                }
            };
            self.push(source, term.op == fields::Operator::Equals, &term.value);
        }
        Ok(self)
    }

    fn push(&mut self, source: Source, equal: bool, value: &str) {
        match source {
            Source::Name if equal => self.name = Some(value.into()),
            Source::Namespace if equal && self.namespace.is_empty() => self.namespace = value.into(),
            _ => {}
        }
        self.terms.push(Term { source, equal, value: value.into() });
    }

    /// Whether only the namespace decides.
    pub fn is_plain(&self) -> bool {
        self.labels.is_none() && self.terms.is_empty()
    }

    /// Whether it asks for more than where an object is: for its labels or fields.
    pub fn looks_inside(&self) -> bool {
        self.labels.is_some() || self.terms.iter().any(|t| matches!(t.source, Source::Field(..)))
    }

    /// What it asks about where an object is, which no conversion changes.
    pub fn place(&self) -> Filter {
        let terms = self.terms.iter().filter(|t| !matches!(t.source, Source::Field(..))).cloned().collect();
        Filter { labels: None, terms, ..self.clone() }
    }

    /// The entry, if the filter accepts it.
    pub fn accept(&self, entry: &Arc<Entry>) -> Option<SelectedEntry> {
        self.matches(entry).then(|| SelectedEntry(entry.clone()))
    }

    /// The same for an entry that nothing else holds.
    pub fn accept_owned(&self, entry: Entry) -> Option<SelectedEntry> {
        self.matches(&entry).then(|| SelectedEntry(Arc::new(entry)))
    }

    /// Whether it accepts an entry.
    pub fn matches(&self, entry: &Entry) -> bool {
        (self.namespace.is_empty() || *self.namespace == *entry.namespace()) && self.selects(entry)
    }

    /// Whether the selectors want an entry of the right namespace.
    fn selects(&self, entry: &Entry) -> bool {
        let terms = self.terms.iter().all(|term| {
            let value = match term.source {
                Source::Name => entry.name(),
                Source::Namespace => entry.namespace(),
                Source::Field(position, missing) => entry.field(position).unwrap_or(missing),
            };
            (value == &*term.value) == term.equal
        });
        terms && self.labels.as_ref().is_none_or(|s| s.matches(|key| entry.label(key)))
    }

    /// The most selective place to be looked up at.
    pub(super) fn interest(&self, prefix: &str, namespaced: bool, fields: &Fields) -> Interest {
        if let Some(name) = self.name.as_ref().filter(|_| !namespaced || !self.namespace.is_empty()) {
            let slash = if namespaced { "/" } else { "" };
            let namespace = if namespaced { &*self.namespace } else { "" };
            return Interest::Key(format!("{prefix}{namespace}{slash}{name}").into());
        }
        for term in self.terms.iter().filter(|t| t.equal) {
            if let Source::Field(position, _) = term.source
                && fields.list.get(position).is_some_and(|f| f.indexed)
            {
                return Interest::Field(position, term.value.clone());
            }
        }
        for requirement in self.labels.iter().flat_map(|s| s.requirements()) {
            use labels::Operator::{DoubleEquals, Equals, In};
            if let (Equals | DoubleEquals | In, [value]) = (requirement.operator(), requirement.values()) {
                return Interest::Label(requirement.key().into(), value.as_str().into());
            }
        }
        if self.namespace.is_empty() { Interest::All } else { Interest::Namespace(self.namespace.clone()) }
    }
}
