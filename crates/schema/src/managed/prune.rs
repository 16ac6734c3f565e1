//! Removing what an applier no longer applies.
//!
//! A field or item is removed if the applier applied it last time, does not apply it now, and no other manager owns it.

use std::collections::HashMap;

use kaji_meta::{Status, Work};
use serde_json::Value;

use super::entry::Entry;
use super::{Versions, failure, remove, schema_at};
use crate::fieldset::from_value::applied;
use crate::fieldset::{Node, Tree, ops};
use crate::schema::{Schema, SchemaRef};

/// The inputs of pruning.
pub(crate) struct Prune<'a> {
    pub schema: &'a SchemaRef,
    pub api_version: &'a str,
    pub versions: &'a dyn Versions,
    pub work: &'a Work<'a>,
    /// All entries, the applier's new one included.
    pub entries: &'a [Entry],
    /// What the applier applied last time, and at which version.
    pub last: &'a Tree,
    pub last_version: &'a str,
}

/// An object at some version, with that version's schema.
#[derive(Clone)]
struct At {
    version: String,
    schema: SchemaRef,
    object: Value,
}

impl At {
    fn schema(&self) -> &Schema {
        self.schema.get()
    }

    /// The members of the object, declared parents included.
    fn members(&self) -> Tree {
        self.complete(&applied(Node::root(self.schema()), &self.object))
    }

    fn complete(&self, set: &Tree) -> Tree {
        ops::with_named_fields(Some(Node::root(self.schema())), set)
    }

    fn without(&self, set: &Tree) -> Value {
        remove::items(self.schema(), self.object.clone(), set)
    }
}

impl Prune<'_> {
    /// `merged` without what is no longer applied.
    pub(crate) fn run(&self, merged: Value) -> Result<Value, Status> {
        if self.last.is_empty() || self.still_owned() {
            return Ok(merged);
        }
        let start = At { version: self.api_version.into(), schema: self.schema.clone(), object: merged };
        let Some(merged) =
            self.convert(&start, self.last_version, "merged object to last applied version")?
        else {
            return Ok(start.object);
        };
        let last = merged.complete(self.last);
        let pruned = At { object: merged.without(&last), ..merged.clone() };
        let pruned = self.add_back_owned(&merged, pruned)?;
        let Some(pruned) =
            self.convert(&pruned, self.last_version, "pruned object to last applied version")?
        else {
            return Ok(start.object);
        };
        // Only what was applied last time may go: not what no manager or only an updater owned.
        let mut gone = merged.members();
        ops::subtract(&mut gone, &pruned.members());
        let gone = ops::intersection(&gone, &last);
        let object = merged.without(&gone);
        let pruned = At { object, ..merged };
        match self.convert(&pruned, self.api_version, "pruned object")? {
            Some(pruned) => Ok(pruned.object),
            None => Ok(start.object),
        }
    }

    /// True if everything that was applied last time still has an owner, so that nothing can go.
    fn still_owned(&self) -> bool {
        let mut last = self.last.clone();
        for entry in self.entries.iter().filter(|e| e.api_version() == self.last_version) {
            ops::subtract(&mut last, entry.fields());
        }
        last.is_empty() && self.last_version == self.api_version
    }

    /// Restores what a manager (the applier's new configuration included) owns, version by version.
    fn add_back_owned(&self, merged: &At, pruned: At) -> Result<At, Status> {
        // The version last applied comes first: what it lacks could make conversion fail.
        let mut owned: Vec<(&str, Tree)> = vec![(self.last_version, Tree::new())];
        let mut places: HashMap<&str, usize> = HashMap::from([(self.last_version, 0)]);
        for entry in self.entries {
            self.work.step(1 + entry.fields().len())?;
            let at = *places.entry(entry.api_version()).or_insert(owned.len());
            if at == owned.len() {
                owned.push((entry.api_version(), Tree::new()));
            }
            ops::union(&mut owned[at].1, entry.fields());
        }
        let (mut merged, mut pruned) = (merged.clone(), pruned);
        for (version, owned) in owned {
            self.work.check()?;
            let (Some(m), Some(p)) = (
                self.convert(&merged, version, "merged object at version")?,
                self.convert(&pruned, version, "pruned object at version")?,
            ) else {
                continue;
            };
            let mut unowned = m.members();
            ops::subtract(&mut unowned, &p.members());
            ops::subtract(&mut unowned, &m.complete(&owned));
            pruned = At { object: m.without(&unowned), ..m.clone() };
            merged = m;
        }
        Ok(pruned)
    }

    fn convert(&self, from: &At, version: &str, what: &str) -> Result<Option<At>, Status> {
        if from.version == version {
            return Ok(Some(from.clone()));
        }
        let schema = if version == self.api_version {
            self.schema.clone()
        } else {
            schema_at(self.versions, &from.object, version, self.schema)
        };
        match self.versions.convert(&from.object, version) {
            Ok(object) => Ok(Some(At { version: version.into(), schema, object })),
            Err(status) if status.code == 404 => Ok(None),
            Err(status) => {
                Err(failure(format!("failed to prune fields: failed to convert {what}: {status}")))
            }
        }
    }
}
