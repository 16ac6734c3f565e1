//! The one schema type that every other module of this crate works on.
//!
//! A [`Schema`] describes one JSON value: a field of a built-in type (decoded lazily from the generated table, see
//! [`crate::types`]) or a node of a custom resource's structural schema (see [`crate::structural`]). It holds what
//! machines need (types, merge behaviour, constraints, protobuf numbers) and no prose: descriptions stay with their
//! source documents.
//!
//! Invariants: [`Props`] are sorted by name and unique; `properties` is only set when `ty` is [`Type::Object`] (or
//! [`Type::Any`] with unspecified type); `items` only for [`Type::Array`] and [`Type::SchemaOr`].

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::Value;

use crate::types;
pub use crate::validate::Constraints;

/// What a JSON value is, and how Kubernetes reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Type {
    /// A struct (`properties`) or a map (`additional`), or both absent: any object.
    Object,
    /// A list of `items`.
    Array,
    /// A string.
    String,
    /// A whole number; its width is in `format`.
    Integer,
    /// Any JSON number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// `x-kubernetes-int-or-string`: an integer or a string.
    IntOrString,
    /// A resource quantity; canonical as a string ("500m"), accepted as a number too.
    Quantity,
    /// RFC 3339, whole seconds.
    Time,
    /// RFC 3339, microseconds.
    MicroTime,
    /// A Go duration ("1m30s").
    Duration,
    /// Bytes, base64 in JSON.
    Bytes,
    /// One `JSONSchemaProps` (in `items`) or an array of it, a boolean, or an array of strings.
    SchemaOr,
    /// Anything at all (raw JSON); atomic for merging.
    #[default]
    Any,
}

/// Formats that carry meaning for decoding or validation. `None` also stands for formats that are not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Format {
    #[default]
    None,
    Int32,
    Int64,
    Float,
    Double,
    Byte,
    DateTime,
    Date,
    Duration,
    BsonObjectId,
    Uri,
    Email,
    Hostname,
    Ipv4,
    Ipv6,
    Cidr,
    Mac,
    Uuid,
    Uuid3,
    Uuid4,
    Uuid5,
    Isbn,
    Isbn10,
    Isbn13,
    CreditCard,
    Ssn,
    HexColor,
    RgbColor,
    Password,
    K8sShortName,
    K8sLongName,
}

/// How lists merge (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ListKind {
    /// Replaced as one value.
    #[default]
    Atomic,
    /// Unique scalars.
    Set,
    /// Unique objects, identified by the values of `keys`.
    Map {
        /// Property names, in the order declared.
        keys: Box<[Box<str>]>,
    },
}

/// How objects merge (`x-kubernetes-map-type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapKind {
    /// Field by field.
    #[default]
    Granular,
    /// Replaced as one value.
    Atomic,
}

/// `x-kubernetes-patch-strategy`, for strategic merge patch. All false: the default (maps merge, lists are replaced).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    /// Replace even though it is a map.
    pub replace: bool,
    /// Merge lists by `merge_key` (or as sets of scalars).
    pub merge: bool,
    /// Honour `$retainKeys` (unions).
    pub retain_keys: bool,
}

/// When Go leaves a field out of the JSON that it writes (built-in types only).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Omit {
    /// `omitempty`: left out when false, 0, "", or an empty list or map; a struct that is no pointer is always there.
    #[default]
    Empty,
    /// `omitzero`: left out when it is the zero value, structs included.
    Zero,
    /// Always written; nil pointers, lists and maps as `null`.
    Never,
}

/// One property of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Property {
    /// The JSON name.
    pub name: Box<str>,
    /// What it holds.
    pub schema: SchemaRef,
    /// The protobuf field number; 0 when there is none (custom resources, JSON-only types).
    pub number: u16,
    /// Where JSON inlines a struct that protobuf keeps as a separate message (`VolumeSource` in `Volume`): the field
    /// numbers to descend through, outermost first; `number` is the field's number in the innermost. 0 ends the path.
    pub outer: [u8; 2],
    /// Its place among the fields that Go declares, which is the order in which it writes them; 0 for custom resources,
    /// which have their members written by name.
    pub place: u16,
    /// When Go leaves the field out.
    pub omit: Omit,
    /// Go holds a pointer: an empty value differs from no value. True for custom resources.
    pub pointer: bool,
}

impl Property {
    /// The default that upstream's documents have for a scalar, and by which elements of lists get the keys that they lack: the
    /// declared one, or Go's zero value of a field that is always written.
    pub(crate) fn scalar_default(&self) -> Option<&Value> {
        static ZEROS: LazyLock<[Value; 3]> = LazyLock::new(|| ["".into(), 0.into(), false.into()]);
        if let Some(declared) = &self.schema.get().default {
            return Some(declared);
        }
        let [text, number, flag] = &*ZEROS;
        let zero = match self.schema.get().ty {
            Type::String if self.number != 0 => text,
            Type::Integer | Type::Number => number,
            Type::Boolean => flag,
            _ => return None,
        };
        (!self.pointer && self.omit == Omit::Never).then_some(zero)
    }

    /// A property of a custom resource.
    pub fn new(name: impl Into<Box<str>>, schema: SchemaRef) -> Property {
        Property {
            name: name.into(),
            schema,
            number: 0,
            outer: [0; 2],
            place: 0,
            omit: Omit::Empty,
            pointer: true,
        }
    }
}

/// The properties of an object, sorted by name.
#[derive(Clone, Default)]
pub struct Props {
    list: Box<[Property]>,
    /// Places by a hash of the name: 0 for none, else one more than the place. Empty for lists that are short, or too
    /// long for it.
    table: Box<[u8]>,
    /// What [`Props::selected`] has found.
    selected: OnceLock<Box<[u16]>>,
}

/// Below this many, comparing names is as quick as hashing them.
const HASHED_FROM: usize = 6;

/// A number made of a name. Field names of one object differ in length and letters enough for this.
fn hash(name: &[u8]) -> usize {
    let (Some(first), Some(last)) = (name.first(), name.last()) else { return 0 };
    let middle = name[name.len() / 2];
    let mix = |hash: usize, part: usize| hash.wrapping_mul(31).wrapping_add(part);
    mix(mix(mix(name.len(), usize::from(*first)), usize::from(middle)), usize::from(*last))
}

impl Props {
    /// Sorts `list`; of two properties with one name the first wins.
    pub fn new(mut list: Vec<Property>) -> Props {
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list.dedup_by(|b, a| a.name == b.name);
        let hashed = (HASHED_FROM..usize::from(u8::MAX)).contains(&list.len());
        let mut table = vec![0_u8; if hashed { (list.len() * 2).next_power_of_two() } else { 0 }];
        if hashed {
            for (place, property) in (1_u8..).zip(&list) {
                let mut at = hash(property.name.as_bytes());
                while table[at & (table.len() - 1)] != 0 {
                    at += 1;
                }
                let mask = table.len() - 1;
                table[at & mask] = place;
            }
        }
        Props { list: list.into(), table: table.into(), selected: OnceLock::new() }
    }

    /// Looks a property up by its JSON name.
    pub fn get(&self, name: &str) -> Option<&Property> {
        let Some(mask) = self.table.len().checked_sub(1) else {
            let same = |p: &&Property| p.name.len() == name.len() && *p.name == *name;
            return match self.list.len() {
                ..HASHED_FROM => self.list.iter().find(same),
                _ => self.list.binary_search_by(|p| (*p.name).cmp(name)).ok().map(|at| &self.list[at]),
            };
        };
        let mut at = hash(name.as_bytes());
        loop {
            // At least half of the table is empty, so this ends.
            let place = usize::from(self.table[at & mask]).checked_sub(1)?;
            let property = &self.list[place];
            if *property.name == *name {
                return Some(property);
            }
            at += 1;
        }
    }

    /// The property at a place of the order by name.
    pub(crate) fn at(&self, place: u16) -> Option<&Property> {
        self.list.get(usize::from(place))
    }

    /// The properties for which `wanted` holds. The predicate runs once: all callers pass the same one.
    pub(crate) fn selected(&self, wanted: impl Fn(&Property) -> bool) -> impl Iterator<Item = &Property> {
        let places = self.selected.get_or_init(|| {
            let places = (0_u16..).zip(&self.list).filter(|(_, p)| wanted(p)).map(|(place, _)| place);
            places.collect()
        });
        places.iter().filter_map(|place| self.at(*place))
    }

    /// All properties, by name.
    pub fn iter(&self) -> std::slice::Iter<'_, Property> {
        self.list.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True for `properties: {}`.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl PartialEq for Props {
    fn eq(&self, other: &Props) -> bool {
        self.list == other.list
    }
}

impl fmt::Debug for Props {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list.fmt(f)
    }
}

impl<'a> IntoIterator for &'a Props {
    type Item = &'a Property;
    type IntoIter = std::slice::Iter<'a, Property>;
    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

/// The schema of one value. See the module text for its invariants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// The type.
    pub ty: Type,
    /// `format`.
    pub format: Format,
    /// `null` is a distinct value (custom resources only; built-ins drop nulls).
    pub nullable: bool,
    /// `x-kubernetes-preserve-unknown-fields: true`.
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource: true`.
    pub embedded_resource: bool,
    /// Strategic merge patch behaviour of the field that holds this value.
    pub patch_strategy: PatchStrategy,
    /// `x-kubernetes-map-type`.
    pub map: MapKind,
    /// `x-kubernetes-list-type` and `-list-map-keys`.
    pub list: ListKind,
    /// `x-kubernetes-patch-merge-key`.
    pub merge_key: Option<Box<str>>,
    /// Named fields of an object.
    pub properties: Option<Props>,
    /// The values of a map.
    pub additional: Option<Box<SchemaRef>>,
    /// The elements of a list.
    pub items: Option<SchemaRef>,
    /// The default: of custom resources (already pruned), and the few declared ones of built-ins (list keys need them).
    pub default: Option<Box<Value>>,
    /// Properties that must be there.
    pub required: Box<[Box<str>]>,
    /// Value validation (custom resources).
    pub constraints: Option<Box<Constraints>>,
    /// The full type name of a built-in type ("io.k8s.api.apps.v1.DeploymentSpec"), or Go's name of a named scalar
    /// ("v1.RestartPolicy"); none for other inline schemas.
    pub name: Option<&'static str>,
    /// Protobuf wraps this list in a message with one repeated field 1 (`ExtraValue`, `Verbs`).
    pub wrapped: bool,
    /// `list` was declared; upstream's documents tell "atomic" from nothing, merging does not.
    pub list_declared: bool,
}

impl Schema {
    /// A schema of type `ty` and nothing more.
    pub fn of(ty: Type) -> Schema {
        Schema { ty, ..Schema::default() }
    }

    /// The property `name`, if it is declared.
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties.as_ref()?.get(name)
    }

    /// What the member `name` of an object holds: its property, else the map's value schema.
    pub fn child(&self, name: &str) -> Option<&SchemaRef> {
        match self.property(name) {
            Some(p) => Some(&p.schema),
            None => self.additional.as_deref(),
        }
    }

    /// Go's short name of a built-in type ("DeploymentSpec"); "" for inline schemas.
    pub fn short_name(&self) -> &'static str {
        self.name.map_or("", |n| n.rsplit('.').next().unwrap_or(n))
    }
}

/// A schema by value (shared) or by reference into the built-in table. References make recursive types possible.
#[derive(Clone)]
pub enum SchemaRef {
    /// Part of the schema that holds it.
    Owned(Arc<Schema>),
    /// A built-in type, decoded at its first use.
    Named(&'static types::Entry),
}

impl SchemaRef {
    /// Wraps `schema`.
    pub fn owned(schema: Schema) -> SchemaRef {
        SchemaRef::Owned(Arc::new(schema))
    }

    /// The schema itself.
    pub fn get(&self) -> &Schema {
        match self {
            SchemaRef::Owned(s) => s,
            SchemaRef::Named(e) => e.schema(),
        }
    }
}

impl std::ops::Deref for SchemaRef {
    type Target = Schema;
    fn deref(&self) -> &Schema {
        self.get()
    }
}

impl From<Schema> for SchemaRef {
    fn from(s: Schema) -> SchemaRef {
        SchemaRef::owned(s)
    }
}

impl fmt::Debug for SchemaRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SchemaRef::Owned(s) => s.fmt(f),
            SchemaRef::Named(e) => write!(f, "&{}", e.name()),
        }
    }
}

impl PartialEq for SchemaRef {
    fn eq(&self, other: &SchemaRef) -> bool {
        match (self, other) {
            (SchemaRef::Owned(a), SchemaRef::Owned(b)) => Arc::ptr_eq(a, b) || a == b,
            (SchemaRef::Named(a), SchemaRef::Named(b)) => std::ptr::eq(*a, *b),
            _ => false,
        }
    }
}
