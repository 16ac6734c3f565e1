//! The representation that a request asks for: version, form and encoding of objects, list elements and watch events.
//!
//! Invariant: as long as the stored version is the one asked for, a view hands out the
//! cache's own bytes.

use super::{
    protobuf,
    table::{self, Include},
};
use crate::{
    cache::{Change, Entry, SelectedEntry, TAIL, WatchEvent},
    conversion, decode,
    engine::Engine,
    registry::Resource,
    request::{Accept, Encoding, Form},
    storage,
};
use bytes::{Buf, Bytes};
use kaji_meta::{Clock, Status, json::write};
use kaji_schema::{SchemaRef, order, types};
use kaji_store::Revision;
use serde_json::{Value, json, value::RawValue};
use std::{borrow::Borrow, sync::Arc};

/// A version and a form. `R` is a reference to the resource, or holds on to it.
pub(crate) struct View<R = Arc<Resource>> {
    res: R,
    version: String,
    api_version: String,
    form: Form,
    include: Include,
    meta_version: &'static str,
    /// How objects of a built-in kind begin. Elements of their lists begin after it, with `metadata`: upstream encodes
    /// those from typed structs, which say nothing of their kind.
    head: Option<Box<[u8]>>,
    /// Objects are of a custom kind: upstream encodes them, and lists of them, from maps.
    custom: bool,
    /// Events are in protobuf.
    protobuf: bool,
    /// Objects and events are pieces of the body by themselves.
    separate: bool,
    /// `columnDefinitions` in JSON.
    columns: Vec<u8>,
    clock: Arc<dyn Clock>,
    /// Tells this view's encodings of an event from those of others.
    key: Arc<str>,
}

impl<R: Borrow<Resource>> View<R> {
    /// A view.
    ///
    /// # Errors
    /// 406 when objects of this resource have no such form.
    pub fn new(
        engine: &Engine,
        resource: R,
        version: &str,
        accept: &Accept,
        include: Include,
    ) -> Result<Self, Status> {
        let res: &Resource = resource.borrow();
        if !res.def.stored && accept.form != Form::Object {
            return Err(no_such_form());
        }
        let api_version = res.api_version(version);
        let custom = res.def.version(version).is_none_or(|v| decode::is_custom(&v.schema));
        let head = (accept.form == Form::Object && !custom)
            .then(|| storage::head(&api_version, &res.def.kind).into_boxed_slice());
        let columns = match accept.form {
            Form::Table => table::column_definitions(&table::columns(res, version)),
            _ => Vec::new(),
        };
        Ok(View {
            version: version.to_owned(),
            api_version,
            form: accept.form,
            include,
            meta_version: if accept.meta_v1beta1 { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" },
            head,
            custom,
            protobuf: accept.encoding == Encoding::Protobuf,
            separate: accept.separate && accept.encoding == Encoding::Json && accept.form != Form::Table,
            columns,
            clock: engine.clock.clone(),
            key: Arc::default(),
            res: resource,
        })
    }

    /// The same view, for events: its encodings are cached with the events under a separate key.
    pub fn for_events(mut self) -> Self {
        // With the definition's address: a new definition may have other columns.
        let def = Arc::as_ptr(&self.res.borrow().def);
        let (version, form, include, meta) = (&self.version, self.form, self.include, self.meta_version);
        let encoding = if self.protobuf { "protobuf" } else { "json" };
        self.key = format!("{version} {encoding} {form:?} {include:?} {meta} {def:p}").into();
        self
    }

    /// Whether making the form of an object cannot fail: no conversion is in the way.
    pub fn infallible(&self) -> bool {
        let def = &self.res.borrow().def;
        // Between versions of a custom resource, fields are dropped and defaults added, which always works.
        if def.conversion.direct() && def.conversion.webhook().is_none() {
            return true;
        }
        let conversion = self.form != Form::PartialMetadata && def.versions.len() > 1;
        !conversion && self.api_version == self.res.borrow().storage_api_version
    }

    /// Whether objects and events are pieces of the body by themselves.
    pub fn separate(&self) -> bool {
        self.separate
    }

    fn is_direct(&self, object: &[u8]) -> bool {
        storage::peek_api_version(object) == Some(self.api_version.as_str())
    }

    /// The object in this view's version.
    fn whole(&self, object: Bytes) -> Result<Bytes, Status> {
        if self.is_direct(&object) {
            return Ok(object);
        }
        self.value(&object).map(|v| storage::encode_object(&v))
    }

    fn value(&self, object: &[u8]) -> Result<Value, Status> {
        let mut value = serde_json::from_slice(object).map_err(|e| Status::internal(e.to_string()))?;
        conversion::convert_out(self.res.borrow(), &mut value, &self.version)?;
        Ok(value)
    }

    fn partial(&self, out: &mut Vec<u8>, metadata: &[u8]) -> Result<(), Status> {
        out.extend_from_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":""#);
        out.extend_from_slice(self.meta_version.as_bytes());
        out.extend_from_slice(br#"","metadata":"#);
        if self.custom {
            let text = std::str::from_utf8(metadata).map_err(|e| Status::internal(e.to_string()))?;
            let schema = types::lookup("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
            order::rewrite(out, text, schema.as_deref()).map_err(|e| Status::internal(e.to_string()))?;
        } else {
            out.extend_from_slice(metadata);
        }
        out.push(b'}');
        Ok(())
    }

    fn row(&self, out: &mut Vec<u8>, object: Bytes, metadata: &[u8]) -> Result<(), Status> {
        let value = self.value(&object)?;
        let cells = table::cells(self.res.borrow(), &self.version, &value, self.clock.now());
        out.extend_from_slice(br#"{"cells":"#);
        write(out, &Value::Array(cells));
        out.extend_from_slice(br#","object":"#);
        match self.include {
            Include::Nothing => out.extend_from_slice(b"null"),
            Include::Metadata => self.partial(out, metadata)?,
            Include::Object if self.is_direct(&object) => out.extend_from_slice(&object),
            Include::Object => out.extend_from_slice(&storage::encode_object(&value)),
        }
        out.push(b'}');
        Ok(())
    }

    /// An object as an element of a list (of a table: a row).
    pub fn element(&self, entry: &SelectedEntry) -> Result<Bytes, Status> {
        let object = entry.object();
        match self.form {
            Form::Object => self.whole(object),
            Form::PartialMetadata => {
                let metadata = entry.metadata();
                let mut out = Vec::with_capacity(metadata.len() + 96);
                self.partial(&mut out, &metadata)?;
                Ok(out.into())
            }
            Form::Table => {
                let mut out = Vec::with_capacity(1024);
                self.row(&mut out, object, &entry.metadata())?;
                Ok(out.into())
            }
        }
    }

    /// How each element of a JSON list opens, before what [`View::listed`] gives.
    pub fn opening(&self) -> &'static [u8] {
        if self.head.is_some() { b"{" } else { b"" }
    }

    /// An object as an element of a JSON list, after [`View::opening`].
    ///
    /// # Errors
    /// What a conversion says.
    pub fn listed(&self, entry: &SelectedEntry) -> Result<Bytes, Status> {
        let Some(head) = &self.head else { return self.element(entry) };
        let direct = entry.beginning().starts_with(head);
        let mut object = if direct { entry.object() } else { self.whole(entry.object())? };
        let begun = if direct || object.starts_with(head) { head.len() } else { self.opening().len() };
        object.advance(begun.min(object.len()));
        Ok(object)
    }

    /// An object as a whole answer. `headers`: a table says what its columns are.
    pub fn single(&self, object: Bytes, metadata: &[u8], headers: bool) -> Result<Bytes, Status> {
        let mut out = Vec::new();
        match self.form {
            Form::Object => return self.whole(object),
            Form::PartialMetadata => self.partial(&mut out, metadata)?,
            Form::Table => {
                let revision = resource_version(metadata);
                self.table_head(&mut out, &json!({"resourceVersion": revision}), headers);
                self.row(&mut out, object, metadata)?;
                out.extend_from_slice(b"]}");
            }
        }
        Ok(out.into())
    }

    /// An entry as a whole answer.
    pub fn entry(&self, entry: &Entry) -> Result<Bytes, Status> {
        match self.form {
            Form::Object => self.whole(entry.object()),
            _ => self.single(entry.object(), &entry.metadata(), true),
        }
    }

    fn table_head(&self, out: &mut Vec<u8>, metadata: &Value, headers: bool) {
        let columns = if headers { self.columns.as_slice() } else { b"null" };
        table::head(out, self.meta_version, metadata, columns);
    }

    /// `apiVersion` and `kind` of a list (of partial metadata, or of objects).
    pub fn list_names(&self) -> (&str, &str) {
        match self.form {
            Form::PartialMetadata => (self.meta_version, "PartialObjectMetadataList"),
            _ => (&self.api_version, &self.res.borrow().def.list_kind),
        }
    }

    /// The type of a list's elements, if they are of a built-in type.
    pub fn element_schema(&self) -> Option<SchemaRef> {
        match self.form {
            Form::PartialMetadata => {
                types::lookup("io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata")
            }
            _ => self.res.borrow().def.version(&self.version).map(|v| v.schema.clone()),
        }
    }

    /// The field of a list that its elements are in.
    pub fn list_field(&self) -> &'static str {
        if self.form == Form::Table { "rows" } else { "items" }
    }

    /// The beginning of a list, up to its first element.
    pub fn list_head(&self, metadata: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        if self.form == Form::Table {
            self.table_head(&mut out, metadata, true);
            return out;
        }
        let (api_version, kind) = self.list_names();
        if self.by_name() {
            return format!(r#"{{"apiVersion":"{api_version}","items":["#).into_bytes();
        }
        out.extend_from_slice(
            format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":"#).as_bytes(),
        );
        table::list_metadata(&mut out, metadata);
        out.extend_from_slice(br#","items":["#);
        out
    }

    /// The end of a list, after its last element.
    pub fn list_tail(&self, metadata: &Value) -> Vec<u8> {
        if !self.by_name() {
            return b"]}\n".to_vec();
        }
        let (_, kind) = self.list_names();
        let mut out = format!(r#"],"kind":"{kind}","metadata":"#).into_bytes();
        let mut metadata = metadata.clone();
        if let Some(metadata) = metadata.as_object_mut() {
            // A map has the members that were set, and that there is nothing to go on with is set.
            metadata.entry("continue").or_insert_with(|| "".into());
        }
        write(&mut out, &metadata);
        out.extend_from_slice(b"}\n");
        out
    }

    /// Whether the members of this view's objects, and of a list of them, come by name.
    fn by_name(&self) -> bool {
        self.custom && self.form == Form::Object
    }

    /// Whether watch events of this view begin with a table's column definitions.
    pub fn has_headers(&self) -> bool {
        self.form == Form::Table
    }

    /// A whole watch event. `headers`: it is the first of a table's.
    ///
    /// # Errors
    /// What a conversion says.
    pub fn event(&self, event: &WatchEvent, headers: bool) -> Result<Bytes, Status> {
        if self.form == Form::Object
            && !self.protobuf
            && let Some(frame) = event.frame()
            && self.is_direct(&frame[event.change().head().len()..])
        {
            return Ok(frame);
        }
        if headers {
            return self.make_event(event, true);
        }
        event.form(&self.key, || self.make_event(event, false))
    }

    fn make_event(&self, event: &WatchEvent, headers: bool) -> Result<Bytes, Status> {
        let object = event.object();
        let metadata = if event.is_gone() && self.form != Form::Object {
            raw_metadata(&object)?
        } else {
            event.metadata()
        };
        self.framed(event.change(), &self.single(object, &metadata, headers)?)
    }

    /// A watch event around an object in JSON.
    fn framed(&self, change: Change, object: &[u8]) -> Result<Bytes, Status> {
        if self.protobuf {
            return protobuf::event(change.as_str(), object);
        }
        let head = change.head();
        let mut out = Vec::with_capacity(head.len() + object.len() + TAIL.len());
        out.extend_from_slice(head);
        out.extend_from_slice(object);
        out.extend_from_slice(TAIL);
        Ok(out.into())
    }

    /// An ADDED event for an object that was there before the watch.
    pub fn added(&self, entry: &SelectedEntry, headers: bool) -> Result<Bytes, Status> {
        let plain = self.form == Form::Object && !self.protobuf && self.is_direct(entry.beginning());
        if plain && entry.change() == Change::Added {
            return Ok(entry.frame());
        }
        let object = match self.form {
            Form::Object => self.whole(entry.object())?,
            _ => self.single(entry.object(), &entry.metadata(), headers)?,
        };
        self.framed(Change::Added, &object)
    }

    /// A BOOKMARK event.
    ///
    /// # Errors
    /// None that a client could cause.
    pub fn bookmark(
        &self,
        revision: Revision,
        initial_events_end: bool,
        headers: bool,
    ) -> Result<Bytes, Status> {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        const HEAD: &[u8] = br#"{"type":"BOOKMARK","object":"#;
        let mut out = HEAD.to_vec();
        match self.form {
            Form::Object => {
                let res = self.res.borrow();
                let mut object = json!({
                    "kind": res.def.kind,
                    "apiVersion": self.api_version,
                    "metadata": metadata,
                });
                if let Some(version) = res.def.version(&self.version) {
                    decode::canonicalize(&version.schema, &mut object);
                }
                out.extend_from_slice(&storage::encode_object(&object));
            }
            Form::PartialMetadata => self.partial(&mut out, &metadata_bytes(&metadata))?,
            Form::Table => {
                let of_table = json!({"resourceVersion": revision.to_string()});
                self.table_head(&mut out, &of_table, headers);
                out.extend_from_slice(br#"{"cells":[],"object":"#);
                self.partial(&mut out, &metadata_bytes(&metadata))?;
                out.extend_from_slice(b"}]}");
            }
        }
        if self.protobuf {
            return protobuf::event("BOOKMARK", out.get(HEAD.len()..).unwrap_or_default());
        }
        out.extend_from_slice(TAIL);
        Ok(out.into())
    }

    /// An ERROR event.
    pub fn error(&self, status: &Status) -> Bytes {
        error_event(self.protobuf, status)
    }
}

/// `metadata` in the order of its type.
fn metadata_bytes(metadata: &Value) -> Vec<u8> {
    let schema = types::lookup("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
    let mut out = Vec::new();
    order::write(&mut out, metadata, schema.as_deref());
    out
}

/// 406: no table, no partial metadata.
pub(crate) fn no_such_form() -> Status {
    Status::not_acceptable(
        "only the following media types are accepted: application/json, application/yaml, \
         application/vnd.kubernetes.protobuf",
    )
}

/// An ERROR event.
pub(crate) fn error_event(protobuf: bool, status: &Status) -> Bytes {
    if protobuf {
        return protobuf::error_event(status);
    }
    let mut out = br#"{"type":"ERROR","object":"#.to_vec();
    order::write_document(&mut out, &status.to_value());
    out.extend_from_slice(TAIL);
    out.into()
}

/// `metadata` of an encoded object.
pub(super) fn raw_metadata(object: &[u8]) -> Result<Bytes, Status> {
    #[derive(serde::Deserialize)]
    struct Meta<'a> {
        #[serde(borrow)]
        metadata: Option<&'a RawValue>,
    }
    let meta: Meta<'_> = serde_json::from_slice(object).map_err(|e| Status::internal(e.to_string()))?;
    Ok(meta
        .metadata
        .map_or_else(|| Bytes::from_static(b"{}"), |raw| Bytes::copy_from_slice(raw.get().as_bytes())))
}

fn resource_version(metadata: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Meta {
        #[serde(default, rename = "resourceVersion")]
        resource_version: String,
    }
    serde_json::from_slice::<Meta>(metadata).map(|m| m.resource_version).unwrap_or_default()
}
