//! Amounts of resources as pods carry them: quantities as text, requests and limits.

use crate::intern::share;
use serde::{Deserialize, Deserializer, de};
use std::fmt;

share!(Amounts, Demand);

/// Quantities by resource name, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Amounts(Box<[(Box<str>, Box<str>)]>);

impl Amounts {
    /// Names and quantities.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, amount)| (&**name, &**amount))
    }
}

/// A quantity: text, or a number that stands for its text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Amount {
    Text(Box<str>),
    Number(serde_json::Number),
}

impl<'de> Deserialize<'de> for Amounts {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> de::Visitor<'de> for Pairs {
            type Value = Amounts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("quantities by resource name")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Amounts, E> {
                Ok(Amounts::default())
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Amounts, A::Error> {
                let mut pairs = vec![];
                while let Some((name, amount)) = map.next_entry()? {
                    let text = match amount {
                        Amount::Text(text) => text,
                        Amount::Number(number) => number.to_string().into(),
                    };
                    pairs.push((name, text));
                }
                Ok(Amounts(pairs.into()))
            }
        }
        d.deserialize_any(Pairs)
    }
}

/// The resource requests and limits of a container or of a whole pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Demand {
    /// Requests.
    pub requests: Amounts,
    /// Limits.
    pub limits: Amounts,
}
