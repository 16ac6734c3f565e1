//! A place inside a JSON value, kept on the stack while walking it, and printed only when there is something to report.

use std::fmt;

use kaji_meta::Path;

/// One step from a parent value.
#[derive(Clone, Copy)]
pub(crate) enum Step<'a> {
    /// The value where the walk began.
    Root,
    /// A named field: ".name".
    Field(&'a str),
    /// A key of a map: "[key]".
    Key(&'a str),
    /// An element of a list: "[0]".
    Index(usize),
}

/// A place: a step and where it was taken from.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    parent: Option<&'a At<'a>>,
    step: Step<'a>,
}

impl<'a> At<'a> {
    pub(crate) const ROOT: At<'static> = At { parent: None, step: Step::Root };

    /// A place below this one.
    pub(crate) fn then(&'a self, step: Step<'a>) -> At<'a> {
        At { parent: Some(self), step }
    }

    /// A field of the object here.
    pub(crate) fn field(&'a self, name: &'a str) -> At<'a> {
        self.then(Step::Field(name))
    }

    /// An element of the list here.
    pub(crate) fn index(&'a self, i: usize) -> At<'a> {
        self.then(Step::Index(i))
    }

    /// An entry of the map here.
    pub(crate) fn key(&'a self, name: &'a str) -> At<'a> {
        self.then(Step::Key(name))
    }

    /// The name of the field, if the last step was one.
    pub(crate) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// Field names only, joined by dots, as Go's JSON decoder reports them.
    pub(crate) fn go_fields(&self) -> String {
        let mut out = self.parent.map_or_else(String::new, At::go_fields);
        if let Step::Field(name) = self.step {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(name);
        }
        out
    }

    /// This place below `base`.
    pub(crate) fn path(&self, base: &Path) -> Path {
        let Some(parent) = self.parent else { return base.clone() };
        let parent = parent.path(base);
        match self.step {
            Step::Root => parent,
            Step::Field(name) => parent.child(name),
            Step::Key(name) => parent.key(name),
            Step::Index(i) => parent.index(i),
        }
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(p) = self.parent {
            p.fmt(f)?;
        }
        let first = self.parent.is_none_or(|p| p.is_root());
        match self.step {
            Step::Root => Ok(()),
            Step::Field(name) if first => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
            Step::Key(name) => write!(f, "[{name}]"),
            Step::Index(i) => write!(f, "[{i}]"),
        }
    }
}
