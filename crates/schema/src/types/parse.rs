//! Decodes one line of the table. The grammar is described in `xtask/src/codegen/emit.rs`, which writes it.

use crate::schema::{Format, ListKind, MapKind, Omit, Property, Props, Schema, SchemaRef, Type};

use super::{Entry, full_name, resolve};

/// A union that a type declares: at most one of `fields` is set, and `discriminator` (if any) says which.
#[derive(Clone, Debug, PartialEq)]
pub struct Union {
    /// The property that names the chosen field.
    pub discriminator: Option<&'static str>,
    /// Property and the discriminator's value for it.
    pub fields: Vec<(&'static str, &'static str)>,
}

/// The unions in a type's line.
pub(super) fn unions(body: &'static str) -> Vec<Union> {
    body.split(' ')
        .filter_map(|w| w.strip_prefix("~u="))
        .filter_map(|w| w.split_once(';'))
        .map(|(d, fields)| Union {
            discriminator: (!d.is_empty()).then_some(d),
            fields: fields.split(',').filter_map(|f| f.split_once('=')).collect(),
        })
        .collect()
}

/// Decodes the type of `entry`. Errors name the word that does not parse.
pub(super) fn schema(entry: &'static Entry) -> Result<Schema, String> {
    let name = Some(entry.name());
    if let Some(form) = entry.special() {
        return special(entry, form);
    }
    let mut out = Schema { name, ty: Type::Object, ..Schema::default() };
    let mut properties = Vec::new();
    let mut required: Vec<Box<str>> = Vec::new();
    for word in entry.body.split(' ').filter(|w| !w.is_empty()) {
        match word {
            "^" => {
                let string = SchemaRef::owned(Schema::of(Type::String));
                for name in ["kind", "apiVersion"] {
                    properties.push(Property { pointer: false, ..Property::new(name, string.clone()) });
                }
            }
            "~ma" => out.map = MapKind::Atomic,
            w if w.starts_with("~u=") => {}
            w => {
                let (property, is_required) = field(entry.package, w).ok_or_else(|| w.to_string())?;
                if is_required {
                    required.push(property.name.clone());
                }
                properties.push(property);
            }
        }
    }
    for (place, property) in (0_u16..).zip(&mut properties) {
        property.place = place;
    }
    out.properties = Some(Props::new(properties));
    out.required = required.into();
    Ok(out)
}

fn special(entry: &'static Entry, form: &str) -> Result<Schema, String> {
    let (ty, items) = match form {
        "=Q" => (Type::Quantity, None),
        "=I" => (Type::IntOrString, None),
        "=T" => (Type::Time, None),
        "=M" => (Type::MicroTime, None),
        "=R" | "=A" => (Type::Any, None),
        "=S" => {
            let props = resolve(entry.package, "JSONSchemaProps").ok_or_else(|| form.to_string())?;
            (Type::SchemaOr, Some(SchemaRef::Named(props)))
        }
        _ => return Err(form.to_string()),
    };
    Ok(Schema { name: Some(entry.name()), ty, items, preserve_unknown: ty == Type::Any, ..Schema::default() })
}

/// Attributes that belong to the schema of a field rather than to the field.
fn field(package: usize, word: &'static str) -> Option<(Property, bool)> {
    let (name, rest) = word.split_once(':')?;
    let (code, attributes) = rest.split_once(':').unwrap_or((rest, ""));
    let digits = code.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (path, code) = code.split_at(digits);
    let mut outer = [0u8; 2];
    let mut number = 0;
    for (i, n) in path.split('.').enumerate() {
        if i > 0 {
            *outer.get_mut(i - 1)? = u8::try_from(number).ok()?;
        }
        number = n.parse::<u16>().ok()?;
    }
    let mut schema = ty(package, code)?;
    let mut property = Property { number, outer, pointer: false, ..Property::new(name, schema.clone()) };
    let mut required = false;
    for attribute in attributes.split(':').filter(|a| !a.is_empty()) {
        match attribute {
            "*" => property.pointer = true,
            "!" => property.omit = Omit::Never,
            "0" => property.omit = Omit::Zero,
            "r" => required = true,
            a => {
                // A type by reference with additional facts at this place: take a copy of the type's outermost level.
                let mut own = match schema {
                    SchemaRef::Owned(s) => std::sync::Arc::unwrap_or_clone(s),
                    SchemaRef::Named(e) => e.schema().clone(),
                };
                schema_attribute(&mut own, a)?;
                schema = SchemaRef::owned(own);
            }
        }
    }
    property.schema = schema;
    Some((property, required))
}

fn schema_attribute(s: &mut Schema, attribute: &'static str) -> Option<()> {
    s.list_declared |= attribute.starts_with('l');
    match attribute {
        "la" => s.list = ListKind::Atomic,
        "ls" => s.list = ListKind::Set,
        "ma" => s.map = MapKind::Atomic,
        "mg" => s.map = MapKind::Granular,
        a => match (a.split_once('='), a.strip_prefix('p')) {
            (Some(("lm", keys)), _) => {
                s.list = ListKind::Map { keys: keys.split(',').map(Box::from).collect() }
            }
            (Some(("k", key)), _) => s.merge_key = Some(key.into()),
            (Some(("d", json)), _) => s.default = Some(Box::new(serde_json::from_str(json).ok()?)),
            (None, Some(strategy)) => {
                s.patch_strategy.merge = strategy.contains('m');
                s.patch_strategy.replace = strategy.contains('r');
                s.patch_strategy.retain_keys = strategy.contains('k');
            }
            _ => return None,
        },
    }
    Some(())
}

/// Decodes a type code.
fn ty(package: usize, code: &'static str) -> Option<SchemaRef> {
    let scalar = |ty, format| {
        let name = match code.get(1..) {
            None | Some("") => None,
            // Bounded by the table: each field is decoded at most once.
            Some(n) => Some(&*full_name(package, n.strip_prefix('<')?.strip_suffix('>')?).leak()),
        };
        Some(SchemaRef::owned(Schema { ty, format, name, ..Schema::default() }))
    };
    match code.as_bytes().first()? {
        b's' => scalar(Type::String, Format::None),
        b'i' => scalar(Type::Integer, Format::Int32),
        b'l' => scalar(Type::Integer, Format::Int64),
        b'd' => scalar(Type::Number, Format::Double),
        b'b' => scalar(Type::Boolean, Format::None),
        b'y' => scalar(Type::Bytes, Format::Byte),
        b't' => scalar(Type::Time, Format::DateTime),
        b'a' => scalar(Type::Any, Format::None),
        b'&' => Some(SchemaRef::Named(resolve(package, code.get(1..)?)?)),
        b'[' => {
            let items = Some(ty(package, code.get(1..)?)?);
            Some(SchemaRef::owned(Schema { ty: Type::Array, items, ..Schema::default() }))
        }
        b'{' => {
            let additional = Some(Box::new(ty(package, code.get(1..)?)?));
            Some(SchemaRef::owned(Schema { ty: Type::Object, additional, ..Schema::default() }))
        }
        b'w' => {
            let items = Some(ty(package, code.get(2..)?)?);
            Some(SchemaRef::owned(Schema { ty: Type::Array, items, wrapped: true, ..Schema::default() }))
        }
        _ => None,
    }
}
