//! Objects of every kind that decoding accepts, with values that fit together by chance only: no hook of a kind panics, which here, with
//! checks of arithmetic, includes numbers that overflow.

use super::all::defs;
use kaji_meta::{Random, SeededRandom};
use kaji_resource::{ResourceDef, VersionDef, testing::TestContext};
use kaji_schema::{Schema, Type, decode};
use serde_json::{Map, Value, json};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::Once,
};

/// Objects of each version of each kind. More: `KAJI_ODD_OBJECTS=100000 cargo test -p kaji-builtins --test it any::`
const OBJECTS: u64 = 60;
/// Below this depth there are no further objects and lists.
const DEEPEST: usize = 9;

/// What fields commonly have, and what they should not have.
const TEXTS: &[&str] = &[
    "",
    "a",
    "b",
    "x/y",
    "example.com/a",
    "kubernetes.io/x",
    "A_B",
    "-",
    ".",
    "..",
    "/",
    "*",
    "é\u{1f600}",
    "\u{0}",
    "\n",
    "100%",
    "25%",
    "-5%",
    "999999999999999999999%",
    "0",
    "1",
    "-1",
    "500m",
    "1Gi",
    "9223372036854775807",
    "99999999999999999999",
    "1e400",
    "0.1n",
    "1s",
    "1h",
    "true",
    "10.0.0.1",
    "10.0.0.0/8",
    "10.0.0.0/33",
    "::1",
    "fd00::/64",
    "::ffff:1.2.3.4",
    "0.0.0.0",
    "255.255.255.255",
    "2026-01-01T00:00:00Z",
    "* * * * *",
    "@every 1s",
    "TZ=UTC 0 0 * * *",
    "None",
    "TCP",
    "UDP",
    "SCTP",
    "HTTP",
    "HTTPS",
    "ClusterIP",
    "NodePort",
    "LoadBalancer",
    "ExternalName",
    "Local",
    "Cluster",
    "IPv4",
    "IPv6",
    "DualStack",
    "SingleStack",
    "ClientIP",
    "Always",
    "Never",
    "OnFailure",
    "IfNotPresent",
    "In",
    "NotIn",
    "Exists",
    "DoesNotExist",
    "Gt",
    "Lt",
    "Equal",
    "NoSchedule",
    "NoExecute",
    "RollingUpdate",
    "OnDelete",
    "Recreate",
    "OrderedReady",
    "Parallel",
    "Retain",
    "Delete",
    "Recycle",
    "Filesystem",
    "Block",
    "ReadWriteOnce",
    "ReadWriteOncePod",
    "Immediate",
    "WaitForFirstConsumer",
    "Pods",
    "Object",
    "Resource",
    "External",
    "Utilization",
    "AverageValue",
    "Value",
    "Percent",
    "Max",
    "Disabled",
    "Complete",
    "Failed",
    "True",
    "False",
    "Indexed",
    "NonIndexed",
    "FailJob",
    "Ignore",
    "Count",
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "PriorityClass",
    "Container",
    "Pod",
    "cpu",
    "memory",
    "ephemeral-storage",
    "hugepages-2Mi",
    "requests.cpu",
    "pods",
    "Deployment",
    "apps/v1",
    "v1",
    "v1beta1",
    "object.x",
    "!",
    "size(object)",
    "1 +",
    "metadata.name",
    "spec.nodeName",
    "Unconfined",
    "Localhost",
    "RuntimeDefault",
    "SYS_ADMIN",
    "ALL",
    "Approved",
    "Denied",
    "client auth",
    "ExactCount",
    "All",
    "Exempt",
    "Limited",
    "Queue",
    "Reject",
    "User",
    "Group",
    "ServiceAccount",
    "Namespaced",
    "OneOf",
    "string",
    "integer",
    "array",
    "kubernetes.io/tls",
    "kubernetes.io/dockerconfigjson",
    "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n",
    "0-3,8",
    "{}",
    "[]",
];
const NUMBERS: &[i64] = &[
    0,
    1,
    -1,
    2,
    3,
    80,
    100,
    101,
    443,
    65_535,
    65_536,
    30_000,
    1 << 31,
    -(1 << 31),
    (1 << 31) - 1,
    i64::MAX,
    i64::MIN,
    1_000_000_000,
];

struct Generator {
    random: SeededRandom,
}

impl Generator {
    fn below(&self, count: usize) -> usize {
        usize::try_from(self.random.u64() % count as u64).unwrap()
    }

    fn one_in(&self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn text(&self) -> String {
        match self.below(12) {
            0 => TEXTS[self.below(TEXTS.len())].repeat(self.below(300)),
            1 => format!("{}{}", TEXTS[self.below(TEXTS.len())], TEXTS[self.below(TEXTS.len())]),
            _ => TEXTS[self.below(TEXTS.len())].to_owned(),
        }
    }

    fn number(&self) -> i64 {
        NUMBERS[self.below(NUMBERS.len())]
    }

    /// A value that decodes by the schema, or nearly so.
    fn value(&self, schema: &Schema, depth: usize) -> Value {
        match schema.ty {
            Type::Object => self.object(schema, depth),
            Type::Array => match &schema.items {
                Some(items) if depth < DEEPEST => {
                    (0..self.below(4)).map(|_| self.value(items, depth + 1)).collect()
                }
                _ => json!([]),
            },
            Type::String => self.text().into(),
            Type::Integer => match schema.format {
                kaji_schema::Format::Int32 => i32::try_from(self.number()).unwrap_or(i32::MAX).into(),
                _ => self.number().into(),
            },
            Type::Number => json!(0.5),
            Type::Boolean => self.one_in(2).into(),
            Type::IntOrString if self.one_in(2) => i32::try_from(self.number()).unwrap_or(i32::MIN).into(),
            Type::IntOrString => self.text().into(),
            Type::Quantity => [
                "0",
                "1",
                "-1",
                "500m",
                "1n",
                "0.1n",
                "1Ei",
                "9223372036854775807",
                "99999999999E",
                "1e30",
                "-9E",
            ][self.below(11)]
            .into(),
            Type::Time => {
                ["2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"][self.below(3)].into()
            }
            Type::MicroTime => {
                ["2026-01-01T00:00:00.000001Z", "9999-12-31T23:59:59.999999Z"][self.below(2)].into()
            }
            Type::Duration => ["1s", "-1s", "2562047h47m16.854775807s", "0s"][self.below(4)].into(),
            Type::Bytes => ["", "AA==", "e30=", "LS0tLS1CRUdJTg=="][self.below(4)].into(),
            Type::SchemaOr | Type::Any => match self.below(5) {
                0 => Value::Null,
                1 => json!({}),
                2 => json!({"a": [1, {"b": null}]}),
                3 => self.text().into(),
                _ => self.one_in(2).into(),
            },
        }
    }

    fn object(&self, schema: &Schema, depth: usize) -> Value {
        let mut object = Map::new();
        if let Some(properties) = &schema.properties {
            // Of wide objects few fields, so that objects stay small.
            let rarely = if depth > 2 { 1 + properties.len() / 4 } else { 2 };
            for property in properties {
                if depth < DEEPEST && (depth == 0 || self.one_in(rarely)) {
                    object.insert(property.name.to_string(), self.value(&property.schema, depth + 1));
                }
            }
        } else if let Some(values) = &schema.additional {
            for _ in 0..self.below(4) {
                object.insert(self.text(), self.value(values, depth + 1));
            }
        }
        Value::Object(object)
    }

    /// An object as the engine gives it to hooks, or why it would refuse it.
    fn decoded(&self, def: &ResourceDef, version: &VersionDef) -> Result<Value, String> {
        let mut object = self.value(&version.schema, 0);
        object["apiVersion"] = if def.group.is_empty() {
            version.name.as_ref().into()
        } else {
            format!("{}/{}", def.group, version.name).into()
        };
        object["kind"] = def.kind.as_ref().into();
        object["metadata"]["name"] = self.text().into();
        // The engine's own.
        object["metadata"]["generation"] = 1.into();
        decode::typed(&version.schema, &mut object)?;
        def.hooks.default(&version.name, &mut object);
        let stored = &def.storage_version().name;
        if version.name != *stored {
            def.hooks.convert(&mut object, &version.name, stored).map_err(|status| status.message)?;
        }
        Ok(object)
    }
}

/// What requests with these objects call.
fn exercise(def: &ResourceDef, version: &VersionDef, new: &Value, old: &Value) {
    let (test, stored) = (TestContext::default(), def.storage_version());
    let hooks = &def.hooks;
    let seen = new.clone();
    let ctx = test.ctx(&seen, "", &stored.name);
    let mut created = new.clone();
    hooks.prepare_create(&ctx, &mut created);
    drop(hooks.validate_create(&ctx, &created));
    drop(hooks.warnings(&ctx, &created, None));
    drop(hooks.warnings(&ctx, &created, Some(old)));
    hooks.deletion().deletion_waits(&created);
    for other in &def.versions {
        let mut converted = created.clone();
        if other.name == stored.name || hooks.convert(&mut converted, &stored.name, &other.name).is_ok() {
            drop(hooks.row(&other.name, &converted, test.now));
        }
    }
    let subresources = version.subresources.iter().map(|s| s.name.as_ref());
    for subresource in std::iter::once("").chain(subresources) {
        let ctx = test.ctx(&seen, subresource, &stored.name);
        let mut updated = new.clone();
        hooks.prepare_update(&ctx, &mut updated, old);
        drop(hooks.validate_update(&ctx, &updated, old));
    }
}

#[test]
fn no_object_makes_a_hook_panic() {
    let objects = std::env::var("KAJI_ODD_OBJECTS").ok().and_then(|n| n.parse().ok()).unwrap_or(OBJECTS);
    // By their places in the code, each with one pair of objects.
    let mut panics = BTreeMap::new();
    for def in defs() {
        for version in &def.versions {
            let (mut kept, mut refusals) = (0, BTreeSet::new());
            for seed in 0..objects {
                let generator = Generator { random: SeededRandom::new(seed) };
                let [new, old] = [(); 2].map(|()| generator.decoded(&def, version));
                let (new, old) = match (new, old) {
                    (Ok(new), Ok(old)) => (new, old),
                    (Err(refusal), _) | (_, Err(refusal)) => {
                        refusals.insert(refusal);
                        continue;
                    }
                };
                kept += 1;
                if let Some(place) = place_of_panic(|| exercise(&def, version, &new, &old)) {
                    panics.insert(
                        place,
                        format!("{} seed {seed}: {new:#}\nfrom {old:#}", def.group_resource()),
                    );
                }
            }
            let name = def.group_resource();
            assert!(
                kept > objects / 4,
                "{name} {}: {kept} of {objects} objects decode: {refusals:?}",
                version.name
            );
        }
    }
    let places: Vec<&String> = panics.keys().collect();
    assert!(panics.is_empty(), "{places:#?}\n{:#?}", panics.values().next());
}

/// Where it panics, if it does.
fn place_of_panic(run: impl FnOnce()) -> Option<String> {
    thread_local!(static PLACE: RefCell<Option<String>> = const { RefCell::new(None) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            usual(info);
            PLACE.set(Some(info.location().map_or_else(|| "?".into(), ToString::to_string)));
        }));
    });
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).err().and_then(|_| PLACE.take())
}
