//! The built-in resources and group versions, which a CustomResourceDefinition of the same name does not replace.
//!
//! Invariant: a request for a resource or a group version of the server's own never reaches a definition's objects.

use kaji_meta::GroupResource;
use kaji_resource::ResourceDef;
use std::collections::HashSet;

/// The resources and group versions that are served without definitions.
#[derive(Debug, Default)]
pub(crate) struct BuiltIn {
    resources: HashSet<GroupResource>,
    /// Groups with their versions.
    versions: HashSet<(Box<str>, Box<str>)>,
}

impl BuiltIn {
    pub fn of<'d>(defs: impl IntoIterator<Item = &'d ResourceDef>) -> BuiltIn {
        let mut all = BuiltIn::default();
        for def in defs {
            for version in def.versions.iter().filter(|version| version.served) {
                all.versions.insert((def.group.as_ref().into(), version.name.as_ref().into()));
                all.resources.insert(def.group_resource());
            }
        }
        all
    }

    /// Whether a resource is the server's own.
    pub fn has(&self, resource: &GroupResource) -> bool {
        self.resources.contains(resource)
    }

    /// What remains to be served of a definition: upstream, too, routes the paths of its own group versions past all
    /// definitions. `None` for a resource of the server's own name: its objects would have the keys of the server's.
    pub fn leave(&self, mut def: ResourceDef) -> Option<ResourceDef> {
        if self.has(&def.group_resource()) {
            return None;
        }
        for version in &mut def.versions {
            let own: (Box<str>, Box<str>) = (def.group.as_ref().into(), version.name.as_ref().into());
            version.served &= !self.versions.contains(&own);
        }
        Some(def)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{compile::compile, conversion::Conversions};
    use serde_json::json;

    fn def(plural: &str, versions: &[(&str, bool)]) -> ResourceDef {
        let versions: Vec<_> = versions
            .iter()
            .enumerate()
            .map(|(i, (name, served))| json!({"name": name, "served": served, "storage": i == 0}))
            .collect();
        let definition = json!({
            "spec": {"group": "net.k8s.io", "scope": "Namespaced", "versions": versions},
            "status": {"acceptedNames": {"plural": plural, "singular": "x", "kind": "X"}},
        });
        compile(&definition, &Conversions::default()).unwrap()
    }

    #[test]
    fn definitions_get_what_is_left() {
        let own =
            [def("policies", &[("v1", true), ("v1beta1", false)]), def("routes", &[("v1alpha1", false)])];
        let built_in = BuiltIn::of(&own);
        let shown = |plural, versions: &[(&str, bool)]| {
            let left = built_in.leave(def(plural, versions))?;
            Some(left.versions.iter().filter(|v| v.served).map(|v| v.name.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(shown("policies", &[("v9", true)]), None);
        let all = [("v1", true), ("v1beta1", true), ("v1alpha1", true), ("v2", true), ("v3", false)];
        assert_eq!(shown("bars", &all), Some(vec!["v1beta1".to_owned(), "v1alpha1".into(), "v2".into()]));
        assert_eq!(shown("routes", &[("v1alpha1", true)]), Some(vec!["v1alpha1".to_owned()]));
        assert_eq!(shown("bars", &[("v1", true)]), Some(vec![]));
    }
}
