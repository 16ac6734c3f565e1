//! The engine as hooks and admission plugins use it: reads from the caches, writes through the pipeline.

use crate::{
    cache::Entry,
    conversion,
    decode::{self, ExpectedKind},
    engine::Engine,
    options::WriteOptions,
    pipeline::{
        self, Op, State, manage, members, metadata,
        update::{self, Plan, UpdatedObject},
    },
    registry::Resource,
    request::ApiRequest,
    verbs,
};
use kaji_meta::{GroupResource, GroupVersion, GroupVersionKind, Status, labels::Selector, object};
use kaji_resource::{
    BoxFuture, Change, Conversion, DeleteOptions, FieldManagement, ObjectReader, ObjectVersion, ObjectWriter,
    ResourceDef, TypeRegistry, UpdateOptions,
};
use serde_json::Value;
use std::{ops::Bound, sync::Arc};

/// The field manager of writes by the server itself.
const MANAGER: &str = "kube-apiserver";

/// Of a resource with no more objects than this, lists are decoded once.
const FEW: usize = 64;

impl Engine {
    fn resource(&self, gr: &GroupResource) -> Option<Arc<Resource>> {
        self.registry().by_group_resource(gr).cloned()
    }

    /// An object in another version. `keep_unknown`: of custom resources that no webhook converts `apiVersion` alone changes.
    async fn convert(
        &self,
        mut object: Value,
        to: &GroupVersionKind,
        keep_unknown: bool,
    ) -> Result<Value, Status> {
        let registry = self.registry();
        let (from, to_resource) = conversion::between(&registry, &object, to)?;
        let api_version = to_resource.api_version(&to.version);
        match from.def.conversion {
            Conversion::Webhook(_) => return conversion::convert_to(from, object, &api_version).await,
            Conversion::Direct if keep_unknown => object::set_at(&mut object, &["apiVersion"], api_version),
            Conversion::Direct | Conversion::Hub => {
                conversion::convert_in(from, &mut object)?;
                conversion::convert_out(to_resource, &mut object, &to.version)?;
            }
        }
        Ok(object)
    }

    /// An object as a value, which other readers may share.
    fn decoded(&self, res: &Resource, entry: &Entry) -> Option<Arc<Value>> {
        if let Some(known) = self.decoded.get(res, entry) {
            return Some(known);
        }
        let value = conversion::stored_value(res, entry);
        let value = value.inspect_err(|error| cannot_convert(entry, error)).map(Arc::new).ok()?;
        self.decoded.insert(res, entry, &value);
        Some(value)
    }

    fn write<'a>(
        &'a self,
        res: &'a Arc<Resource>,
        place: (&'a str, &'a str),
        subresource: &str,
        dry_run: bool,
    ) -> Result<Op<'a>, Status> {
        let options = WriteOptions { dry_run, manager: MANAGER.into(), ..WriteOptions::default() };
        Op::internal(
            self,
            res,
            &res.def.storage_version().name,
            subresource,
            ApiRequest::server(),
            place,
            options,
        )
    }

    /// Changes an object with compare-and-set.
    async fn change(
        &self,
        resource: &GroupResource,
        place: (&str, &str),
        options: UpdateOptions<'_>,
        change: &Change<'_>,
    ) -> Result<Value, Status> {
        let res = self.resource(resource).ok_or_else(Status::generic_not_found)?;
        let (name, op) = (place.1, self.write(&res, place, options.subresource, options.dry_run)?);
        if let (Some(touched), FieldManagement::Skip) = (options.members, options.field_management)
            && let Some(updated) = members::update(&op, name, touched, change).await?
        {
            return Ok(updated);
        }
        let mut make = |state: Option<&State>| {
            let Some(state) = state else { return Err(op.target.not_found(name)) };
            let mut new = op.conversion.in_version(&state.object)?;
            change(&mut new)?;
            metadata::match_name(&new, name)?;
            if options.field_management == FieldManagement::Record {
                manage::record(&op, Some(&state.object), &mut new)?;
            }
            op.conversion.to_hub(&mut new)?;
            Ok(UpdatedObject::Object(new))
        };
        let written = update::update(&op, name, &Plan::default(), &mut make).await?;
        Ok(written.into_object())
    }
}

impl Engine {
    /// Deletes an object whatever plugins and converters say: its resource is going. Finalizers are respected.
    ///
    /// # Errors
    /// 404 when it is not there.
    pub fn discard<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let res = self.resource(resource).ok_or_else(Status::generic_not_found)?;
            let mut op = self.write(&res, (namespace, name), "", false)?;
            op.conversion.raw = true;
            pipeline::remove::remove(&op, name, &DeleteOptions::default()).await.map(drop)
        })
    }
}

impl ObjectReader for Engine {
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let res = self.resource(resource)?;
        let entry = res.cache.get(&res.key(namespace, name))?;
        self.decoded(&res, &entry)
    }

    fn object_version(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<ObjectVersion> {
        let res = self.resource(resource)?;
        let entry = res.cache.get(&res.key(namespace, name))?;
        Some(ObjectVersion {
            resource: resource.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            resource_version: entry.revision,
            deleting: entry.deleting(),
        })
    }

    fn list(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let Some(res) = self.resource(resource) else { return vec![] };
        let mut all = vec![];
        if res.cache.count() <= FEW {
            // Classes and the like, which plugins go through at every write.
            entries(&res, namespace, &mut |entry| {
                all.extend(self.decoded(&res, entry));
                false
            });
            return all;
        }
        each(&res, namespace, &mut |v| {
            all.push(Arc::new(v));
            false
        });
        all
    }

    fn selected(
        &self,
        resource: &GroupResource,
        namespace: Option<&str>,
        selector: &Selector,
    ) -> Vec<Arc<Value>> {
        let Some(res) = self.resource(resource) else { return vec![] };
        let mut all = vec![];
        entries(&res, namespace, &mut |entry| {
            if selector.matches(|key| entry.label(key)) {
                all.extend(self.decoded(&res, entry));
            }
            false
        });
        all
    }

    fn any(&self, resource: &GroupResource, namespace: Option<&str>, want: &dyn Fn(&Value) -> bool) -> bool {
        self.resource(resource).is_some_and(|res| each(&res, namespace, &mut |v| want(&v)))
    }

    fn changed(&self, resource: &GroupResource) -> u64 {
        self.registry.load().by_group_resource(resource).map_or(0, |res| res.cache.changed())
    }

    fn readable(&self, resource: &GroupResource) -> Result<(), Status> {
        self.resource(resource).map_or(Ok(()), |res| res.readable())
    }

    fn stored<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Value>>, Status>> {
        Box::pin(async move {
            let Some(res) = self.resource(resource) else { return Ok(None) };
            let op = self.write(&res, (namespace, name), "", false)?;
            let found = op.stored(&res.key(namespace, name)).await?;
            Ok(found.map(|state| Arc::new(state.object)))
        })
    }

    fn sync<'a>(&'a self) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(self.wait_consistent())
    }

    fn lags(&self) -> bool {
        self.store.current_revision_hint().is_some_and(|acknowledged| self.applied() < acknowledged)
    }

    fn has_other_writers(&self) -> bool {
        self.store.current_revision_hint().is_none()
    }
}

impl TypeRegistry for Engine {
    fn resource_of(&self, kind: &GroupVersionKind) -> Option<(GroupResource, bool)> {
        let registry = self.registry();
        let resource = registry.by_kind(&kind.group, &kind.version, &kind.kind)?;
        Some((resource.group_resource.clone(), resource.def.namespaced()))
    }

    fn sharing(&self, group: &str, resource: &str) -> Vec<Arc<ResourceDef>> {
        self.registry().sharing(group, resource)
    }

    fn converted<'a>(
        &'a self,
        object: Value,
        to: &'a GroupVersionKind,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(self.convert(object, to, false))
    }

    fn versioned<'a>(
        &'a self,
        object: Value,
        to: &'a GroupVersionKind,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(self.convert(object, to, true))
    }

    fn received(&self, mut object: Value, kind: &GroupVersionKind, strict: bool) -> Result<Value, String> {
        let (api_version, named) = (object::api_version(&object), object::kind(&object));
        let wanted = GroupVersion::new(kind.group.as_str(), kind.version.as_str()).api_version();
        if api_version != wanted || named != kind.kind {
            return Err(format!("no kind {named:?} of version {api_version:?} can be taken for a {kind}"));
        }
        let registry = self.registry();
        let res = registry.by_kind(&kind.group, &kind.version, &kind.kind);
        let version = res.and_then(|res| res.def.version(&kind.version));
        let schema = match version {
            Some(version) => Some(version.schema.clone()),
            // Bodies of subresources.
            None => kaji_schema::types::for_gvk(&kind.group, &kind.version, &kind.kind),
        };
        let unknown = match &schema {
            Some(schema) => {
                let (group, version, kind) = (&*kind.group, &*kind.version, &*kind.kind);
                let want = ExpectedKind { group, version, kind, schema };
                if decode::is_custom(schema) {
                    decode::conform_metadata(&want, &mut object)?;
                    vec![]
                } else {
                    decode::conform(&want, &mut object)?
                }
            }
            None => verbs::connect::conform(kind, &mut object)
                .unwrap_or_else(|| Err(format!("no kind {kind} is known")))?,
        };
        if strict && !unknown.is_empty() {
            let quoted = |path: &String| format!("unknown field {}", kaji_meta::text::quote(path));
            let list: Vec<String> = unknown.iter().map(quoted).collect();
            return Err(format!("strict decoding error: {}", list.join(", ")));
        }
        if let (Some(res), Some(version)) = (res, version) {
            pipeline::default(res, version, &mut object).map_err(|e| e.to_string())?;
        }
        Ok(object)
    }

    fn prune(&self, object: &mut Value) {
        let Ok(GroupVersion { group, version }) = GroupVersion::parse(object::api_version(object)) else {
            return;
        };
        let registry = self.registry();
        let res = registry.by_kind(&group, &version, object::kind(object));
        if let Some(version) = res.and_then(|res| res.def.version(&version))
            && decode::is_custom(&version.schema)
        {
            kaji_schema::prune::prune_custom(version.schema.get(), object);
        }
    }
}

impl ObjectWriter for Engine {
    fn create<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        mut object: Value,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let res = self.resource(resource).ok_or_else(Status::generic_not_found)?;
            let op = self.write(&res, (namespace, ""), "", dry_run)?;
            object::set_at(&mut object, &["apiVersion"], res.api_version(&op.target.version.name));
            object::set_at(&mut object, &["kind"], res.def.kind.as_ref());
            op.default(&mut object)?;
            Ok(pipeline::create::create(&op, object).await?.into_object())
        })
    }

    fn update<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        options: UpdateOptions<'a>,
        change: &'a Change<'a>,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(self.change(resource, (namespace, name), options, change))
    }

    fn delete<'a>(
        &'a self,
        resource: &'a GroupResource,
        namespace: &'a str,
        name: &'a str,
        options: DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move {
            let res = self.resource(resource).ok_or_else(Status::generic_not_found)?;
            let op = self.write(&res, (namespace, name), "", options.dry_run)?;
            Ok(pipeline::remove::remove(&op, name, &options).await?.object)
        })
    }
}

fn cannot_convert(entry: &Entry, error: &Status) {
    tracing::warn!(key = &*entry.key, %error, "an object cannot be converted");
}

/// Visits the entries of a resource until `stop` says so, and says whether it did.
fn entries(res: &Resource, namespace: Option<&str>, stop: &mut dyn FnMut(&Entry) -> bool) -> bool {
    let snapshot = res.cache.snapshot();
    let prefix = res.key_prefix(namespace.unwrap_or(""));
    let from = snapshot.objects.range::<_, str>((Bound::Included(&*prefix), Bound::Unbounded));
    from.take_while(|(key, _)| key.starts_with(&prefix)).any(|(_, entry)| stop(entry))
}

/// The same with the objects decoded.
fn each(res: &Resource, namespace: Option<&str>, stop: &mut dyn FnMut(Value) -> bool) -> bool {
    entries(res, namespace, &mut |entry| match conversion::stored_value(res, entry) {
        Ok(value) => stop(value),
        Err(error) => {
            cannot_convert(entry, &error);
            false
        }
    })
}
