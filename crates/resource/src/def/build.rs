//! Making definitions: of stored and of computed resources, refined step by step.
//!
//! Invariant: what a constructor does not say is what most built-in resources have.

use super::{
    ColumnSource, GarbageCollectionPolicy, Generation, MetadataCheck, MetadataChecks, ResourceDef, Scope,
    SelectableField, SubresourceDef, Verb, VersionDef,
};
use crate::{Column, Conversion, Hooks};
use kaji_schema::SchemaRef;
use std::{borrow::Cow, sync::Arc, time::Duration};

impl ResourceDef {
    /// A stored resource with one version and the usual verbs; refine with struct update or the builder methods.
    pub fn builtin(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        scope: Scope,
        columns: &'static [Column],
        hooks: impl Hooks,
    ) -> Self {
        let schema = kaji_schema::types::for_gvk(group, version, kind)
            .unwrap_or_else(|| panic!("no type in the built-in table for {group}/{version} {kind}"));
        Self::with_schema((group, version, kind, plural), scope, schema, columns, Arc::new(hooks))
    }

    /// A resource that is computed at each GET and LIST by [`CallHooks::call`](crate::CallHooks::call), and not stored.
    /// `of` is group, version, kind and plural.
    pub fn computed(
        of: (&'static str, &'static str, &'static str, &'static str),
        scope: Scope,
        schema: SchemaRef,
        columns: &'static [Column],
        hooks: impl Hooks,
    ) -> Self {
        let (group, _, _, plural) = of;
        ResourceDef {
            verbs: &[Verb::Get, Verb::List],
            stored: false,
            storage_prefix: format!("{group}/{plural}").into(),
            allow_unconditional_update: false,
            garbage_collection: GarbageCollectionPolicy::Unsupported,
            ..Self::with_schema(of, scope, schema, columns, Arc::new(hooks))
        }
    }

    fn with_schema(
        (group, version, kind, plural): (&'static str, &'static str, &'static str, &'static str),
        scope: Scope,
        schema: SchemaRef,
        columns: &'static [Column],
        hooks: Arc<dyn Hooks>,
    ) -> Self {
        ResourceDef {
            group: group.into(),
            plural: plural.into(),
            singular: kind.to_lowercase().into(),
            kind: kind.into(),
            list_kind: format!("{kind}List").into(),
            short_names: vec![],
            categories: vec![],
            scope,
            versions: vec![VersionDef {
                name: version.into(),
                served: true,
                deprecation: None,
                schema,
                columns: ColumnSource::Hooks(columns),
                selectable: vec![],
                subresources: vec![],
            }],
            storage: 0,
            verbs: Verb::ALL,
            stored: true,
            generation: Generation::None,
            shares_storage_of: None,
            ttl: None,
            validate_name: kaji_meta::validation::name_is_dns_subdomain,
            metadata_checks: MetadataChecks::default(),
            storage_prefix: plural.into(),
            pod_template: None,
            allow_create_on_update: false,
            allow_unconditional_update: true,
            returns_deleted_object: false,
            garbage_collection: GarbageCollectionPolicy::DeleteDependents,
            writes_wait_for_caches: false,
            required_to_start: true,
            acknowledged_when_stored: false,
            is_own_namespace: false,
            undiscovered_verbs: &[],
            conversion: Conversion::Hub,
            hooks,
        }
    }

    /// Short names.
    pub fn short(mut self, names: &[&'static str]) -> Self {
        self.short_names = names.iter().map(|n| Cow::Borrowed(*n)).collect();
        self
    }

    /// Categories, such as `all`.
    pub fn category(mut self, names: &[&'static str]) -> Self {
        self.categories = names.iter().map(|n| Cow::Borrowed(*n)).collect();
        self
    }

    /// Subresources of every version.
    #[allow(clippy::should_implement_trait)]
    pub fn sub(mut self, subs: &[SubresourceDef]) -> Self {
        for v in &mut self.versions {
            v.subresources.extend(subs.iter().cloned());
        }
        self
    }

    /// Selectable fields of every version.
    pub fn select(mut self, fields: &[SelectableField]) -> Self {
        for v in &mut self.versions {
            v.selectable.extend(fields.iter().cloned());
        }
        self
    }

    /// `metadata.generation` follows the spec.
    pub fn with_generation(mut self) -> Self {
        self.generation = Generation::Spec;
        self
    }

    /// `metadata.generation` counts changes of the spec, and is the client's before there are any.
    pub fn with_generation_of_changes(mut self) -> Self {
        self.generation = Generation::Changes;
        self
    }

    /// The validators of metadata that the kind calls when an object is updated and when its status is.
    pub fn metadata_checks(
        mut self,
        update: &'static [MetadataCheck],
        status: &'static [MetadataCheck],
    ) -> Self {
        self.metadata_checks = MetadataChecks { update, status };
        self
    }

    /// Upstream's etcd has the objects below another prefix than the plural.
    pub fn storage_prefix(mut self, prefix: &'static str) -> Self {
        self.storage_prefix = prefix.into();
        self
    }

    /// The key of an object in upstream's etcd.
    pub fn storage_key(&self, namespace: &str, name: &str) -> String {
        let namespace = if self.namespaced() { format!("{namespace}/") } else { String::new() };
        format!("/registry/{}/{namespace}{name}", self.storage_prefix)
    }

    /// Objects hold a pod template at this path.
    pub fn pod_template(mut self, path: &'static [&'static str]) -> Self {
        self.pod_template = Some(path);
        self
    }

    /// Another name validation.
    pub fn named(mut self, f: fn(&str, bool) -> Vec<String>) -> Self {
        self.validate_name = f;
        self
    }

    /// PUT creates what is missing.
    pub fn create_on_update(mut self) -> Self {
        self.allow_create_on_update = true;
        self
    }

    /// Objects expire this long after they were last written.
    pub fn expire(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// PUT needs a resourceVersion.
    pub fn conditional_update_only(mut self) -> Self {
        self.allow_unconditional_update = false;
        self
    }

    /// DELETE answers with the deleted object.
    pub fn return_deleted_object(mut self) -> Self {
        self.returns_deleted_object = true;
        self
    }

    /// What deletion does with dependents by default.
    pub fn with_garbage_collection(mut self, policy: GarbageCollectionPolicy) -> Self {
        self.garbage_collection = policy;
        self
    }

    /// Writes are acknowledged when the caches have them.
    pub fn wait_for_caches(mut self) -> Self {
        self.writes_wait_for_caches = true;
        self
    }

    /// Writes to a store on other machines are acknowledged before the caches have them.
    pub fn acknowledge_when_stored(mut self) -> Self {
        self.acknowledged_when_stored = true;
        self
    }

    /// The server starts also when some of the objects cannot be read.
    pub fn optional_to_start(mut self) -> Self {
        self.required_to_start = false;
        self
    }

    /// Each object is the namespace that admission sees it in.
    pub fn own_namespace(mut self) -> Self {
        self.is_own_namespace = true;
        self
    }

    /// Adds a further served version of the same kind, after those present. Its columns, selectable fields and
    /// subresources are those of the first version; `Hooks::convert` translates.
    pub fn also_version(mut self, version: &'static str, deprecation: Option<&'static str>) -> Self {
        let schema = kaji_schema::types::for_gvk(&self.group, version, &self.kind).unwrap_or_else(|| {
            panic!("no type in the built-in table for {}/{version} {}", self.group, self.kind)
        });
        let mut v = self.versions[0].clone();
        v.name = version.into();
        v.schema = schema;
        v.deprecation = deprecation.map(Cow::Borrowed);
        self.versions.push(v);
        self
    }

    /// A kind that is only an answer to its own creation; `Hooks::call` computes it.
    pub fn review(mut self) -> Self {
        self.stored = false;
        self.verbs = Verb::CREATE_ONLY;
        self
    }
}
