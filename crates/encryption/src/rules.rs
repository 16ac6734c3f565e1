//! Selection of the rule for a storage key: exact resource first, then all of its group, then all of all groups.
//!
//! Invariant: a rule that an earlier, wider one masks is refused when it is added.

use crate::ConfigError;
use kaji_meta::GroupResource;

const ANY: &str = "*";

/// Things by resource. A handful at most: they are searched in turn.
pub struct Rules<T>(Vec<(GroupResource, T)>);

impl<T> Default for Rules<T> {
    fn default() -> Self {
        Rules(vec![])
    }
}

impl<T> Rules<T> {
    /// Adds the rule for `secrets`, `deployments.apps`, `*.`, `*.apps` or `*.*`; a second one for the same name is
    /// merged into the first.
    pub fn add(&mut self, name: &str, rule: T, merge: impl FnOnce(&mut T, T)) -> Result<(), ConfigError> {
        let gr = GroupResource::parse(name);
        for wider in [GroupResource::new(gr.group.as_str(), ANY), GroupResource::new(ANY, ANY)] {
            if self.0.iter().any(|(other, _)| *other == wider) {
                let text = format!("resource {:?} is masked by earlier rule {:?}", shown(&gr), shown(&wider));
                return Err(ConfigError::Build(text));
            }
        }
        match self.0.iter_mut().find(|(other, _)| *other == gr) {
            Some((_, former)) => merge(former, rule),
            None => self.0.push((gr, rule)),
        }
        Ok(())
    }

    /// The rule for a storage key, `/registry/<group or core>/<plural>/…`. Keys of another form are no resource's; only
    /// `*.*` covers them.
    pub fn of(&self, key: &str) -> Option<&T> {
        if self.0.is_empty() {
            return None;
        }
        let (group, resource) = resource_of(key).unwrap_or((ANY, ANY));
        [(group, resource), (group, ANY), (ANY, ANY)].into_iter().find_map(|(group, resource)| {
            self.0.iter().find(|(gr, _)| gr.group == group && gr.resource == resource).map(|(_, rule)| rule)
        })
    }
}

fn resource_of(key: &str) -> Option<(&str, &str)> {
    let mut parts = key.strip_prefix("/registry/")?.splitn(3, '/');
    let (group, resource) = (parts.next()?, parts.next()?);
    parts.next()?;
    Some((if group == "core" { "" } else { group }, resource))
}

/// What the keys of a key's resource begin with; `/` for a key of another form.
pub(crate) fn prefix(key: &str) -> &str {
    // "/registry/core/secrets/" has four of them.
    let end = resource_of(key).and_then(|_| key.match_indices('/').nth(3));
    end.map_or("/", |(at, _)| &key[..=at])
}

/// The resource of a storage key as configuration and metrics write it: `secrets`, `deployments.apps`; `""` for a key of another form.
pub(crate) fn resource(key: &str) -> String {
    match resource_of(key) {
        Some(("", resource)) => resource.into(),
        Some((group, resource)) => format!("{resource}.{group}"),
        None => String::new(),
    }
}

fn shown(gr: &GroupResource) -> String {
    if gr.group.is_empty() && gr.resource == ANY { "*.".into() } else { gr.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(names: &[&'static str]) -> Result<Rules<&'static str>, ConfigError> {
        let mut rules = Rules::default();
        for name in names {
            rules.add(name, *name, |_, _| {})?;
        }
        Ok(rules)
    }

    #[test]
    fn the_narrowest_rule_counts() {
        let rules = rules(&["secrets", "deployments.apps", "*.", "*.apps", "*.*"]).unwrap();
        for (key, rule) in [
            ("/registry/core/secrets/ns/a", "secrets"),
            ("/registry/core/configmaps/ns/a", "*."),
            ("/registry/apps/deployments/ns/a", "deployments.apps"),
            ("/registry/apps/daemonsets/ns/a", "*.apps"),
            ("/registry/example.com/secrets/ns/a", "*.*"),
            ("/other", "*.*"),
            ("/registry/core/secrets", "*.*"),
        ] {
            assert_eq!(rules.of(key), Some(&rule), "{key}");
        }
    }

    #[test]
    fn others_are_not_covered() {
        let rules = rules(&["secrets", "*.apps"]).unwrap();
        for key in ["/registry/core/configmaps/a", "/registry/batch/jobs/a", "/secrets"] {
            assert_eq!(rules.of(key), None, "{key}");
        }
    }

    #[test]
    fn masked_rules_are_refused() {
        let error = |names| rules(names).err().map(|e| e.to_string()).unwrap_or_default();
        let head = "error while building transformers: ";
        assert_eq!(
            error(&["*.", "secrets"]),
            format!("{head}resource \"secrets\" is masked by earlier rule \"*.\"")
        );
        assert_eq!(
            error(&["*.*", "*.apps"]),
            format!("{head}resource \"*.apps\" is masked by earlier rule \"*.*\"")
        );
        assert_eq!(error(&["secrets", "*.", "secrets.x"]), "");
    }
}
