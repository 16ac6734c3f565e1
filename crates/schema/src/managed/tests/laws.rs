//! Laws that hold whatever is applied.

use super::*;

/// A configuration of the schema of [`everything`].
fn config() -> impl Strategy<Value = Value> {
    let word = || proptest::sample::select(&["a", "b", "c"][..]);
    let maybe = |s: BoxedStrategy<Value>| proptest::option::of(s);
    let string = word().prop_map(Value::from).boxed();
    let list =
        |item: BoxedStrategy<Value>| proptest::collection::vec(item, 0..4).prop_map(Value::from).boxed();
    let set = proptest::collection::btree_set(word(), 0..3).prop_shuffle_set().boxed();
    let item = (word(), word()).prop_map(|(n, v)| json!({"name": n, "value": v})).boxed();
    let items = list(item).prop_map(unique).boxed();
    let map = proptest::collection::btree_map(word(), word(), 0..3).prop_map(|m| json!(m)).boxed();
    let inner = (maybe(string.clone()), maybe(string.clone()))
        .prop_map(|(a, b)| object([("a", a), ("b", b)]))
        .boxed();
    (
        maybe(string.clone()),
        maybe(list(string)),
        maybe(set),
        maybe(items),
        maybe(map.clone()),
        maybe(map),
        maybe(inner),
    )
        .prop_map(|(s, l, set, items, m, am, inner)| {
            object([
                ("string", s),
                ("atomicList", l),
                ("set", set),
                ("list", items),
                ("map", m),
                ("atomicMap", am),
                ("struct", inner),
            ])
        })
}

/// Sets come out of their strategy sorted; their order should vary.
trait ShuffleSet {
    fn prop_shuffle_set(self) -> BoxedStrategy<Value>;
}

impl<S: Strategy<Value = std::collections::BTreeSet<&'static str>> + 'static> ShuffleSet for S {
    fn prop_shuffle_set(self) -> BoxedStrategy<Value> {
        self.prop_map(|s| s.into_iter().map(Value::from).collect::<Vec<_>>())
            .prop_shuffle()
            .prop_map(Value::Array)
            .boxed()
    }
}

fn unique(list: Value) -> Value {
    let mut seen = std::collections::BTreeSet::new();
    let list = list.as_array().cloned().unwrap_or_default();
    Value::Array(list.into_iter().filter(|v| seen.insert(v["name"].to_string())).collect())
}

fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let fields = fields.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?)));
    Value::Object(fields.collect())
}

fn without_meta(mut v: Value) -> Value {
    let map = v.as_object_mut().unwrap();
    for key in ["metadata", "apiVersion", "kind"] {
        map.remove(key);
    }
    v
}

proptest! {
    #[test]
    fn applying_again_changes_nothing(first in config(), second in config()) {
        let mut s = Server::custom();
        s.update("u", first).force("a", second.clone());
        prop_assume!(s.is_managed());
        let before = s.live.clone();
        prop_assert_eq!(s.try_apply("a", false, second), Ok(false));
        prop_assert_eq!(&s.live, &before);
    }

    #[test]
    fn what_is_applied_is_there(first in config(), second in config()) {
        let mut s = Server::custom();
        s.apply("a", first).force("b", second.clone());
        // Merging it into the result changes nothing.
        let config = s.whole(second);
        let again = merge::objects(s.schema.get(), &s.live, &config).unwrap();
        prop_assert!(value::equal_objects(&again, &s.live));
    }

    #[test]
    fn a_lone_applier_has_what_it_applied_last(first in config(), second in config()) {
        let mut s = Server::custom();
        s.apply("a", first).apply("a", second.clone());
        let fresh = FieldSet::from_value(s.schema.get(), &without_meta(second));
        let kept = FieldSet::from_value(s.schema.get(), &without_meta(s.live.clone()));
        prop_assert!(fresh.difference(&kept).is_empty(), "{} lacks {}", s.live, fresh.to_fields_v1());
    }

    #[test]
    fn nothing_is_owned_that_is_not_there(first in config(), second in config(), third in config()) {
        let mut s = Server::custom();
        s.update("u", first).force("a", second).update("v", third);
        let there = FieldSet::from_fields_v1(&Value::Object(
            crate::fieldset::from_value::added(crate::fieldset::Node::root(&s.schema), &without_meta(s.live.clone()))
                .unwrap(),
        )).unwrap();
        for entry in entries_of(&s.live).into_iter().flatten() {
            let owned = FieldSet::from_fields_v1(&entry["fieldsV1"]).unwrap();
            prop_assert!(owned.difference(&there).is_empty(), "{} owned in {}", owned.to_fields_v1(), s.live);
        }
    }

    #[test]
    fn an_update_without_change_changes_nothing(first in config(), second in config()) {
        let mut s = Server::custom();
        s.apply("a", first).update("u", second);
        let before = s.live.clone();
        s.update("w", before.clone());
        prop_assert_eq!(&s.live, &before);
    }

    #[test]
    fn conflicts_are_exactly_what_force_takes(first in config(), second in config()) {
        let mut s = Server::custom();
        s.apply("a", first);
        let before = s.managed();
        match s.try_apply("b", false, second.clone()) {
            Err(status) => {
                prop_assert_eq!(status.code, 409);
                s.force("b", second);
                prop_assert_ne!(s.managed(), before);
            }
            // Without conflict force makes no difference.
            Ok(_) => {
                prop_assume!(s.is_managed());
                let after = s.live.clone();
                s.force("b", second);
                prop_assert_eq!(&s.live, &after);
            }
        }
    }
}
