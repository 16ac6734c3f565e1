//! Deltas give back what they were made of, whatever that is, and small ones are made where there is a template.

use super::*;
use proptest::prelude::*;

fn rebuilt(delta: &Delta) -> String {
    let mut out = Vec::new();
    delta.write(&mut out);
    assert_eq!(out.len(), delta.len());
    String::from_utf8(out).unwrap()
}

fn pod(i: usize, bound: bool) -> String {
    let node = if bound { format!(r#""nodeName":"node-{}","#, i % 7) } else { String::new() };
    let env: String = (0..20).map(|n| format!(r#"{{"name":"V{n}","value":"some value {n}"}},"#)).collect();
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"web-{}","namespace":"n","uid":"{:032x}","resourceVersion":"{}","labels":{{"app":"web"}}}},"spec":{{{node}"containers":[{{"name":"c","env":[{env}{{"name":"L","value":"x"}}]}}]}},"status":{{"podIP":"10.0.{}.{}"}}}}"#,
        i * 7919,
        i.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        1000 + i * 3,
        i / 250,
        i % 250,
    )
}

#[test]
fn objects_of_a_template_take_a_fraction_and_come_back_whole() {
    let mut bases = Bases::default();
    assert!(bases.delta("a", pod(0, true).as_bytes()).is_none(), "a single object is kept whole");
    for i in 1..500 {
        let object = pod(i, i % 3 > 0);
        let delta = bases.delta("a", object.as_bytes()).unwrap();
        assert_eq!(rebuilt(&delta), object);
        assert!(delta.size() * 4 < object.len(), "{} of {}", delta.size(), object.len());
        assert!(
            delta.beginning().starts_with(br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-"#)
        );
        let at = object.find("\"web\"").unwrap() + 1;
        assert_eq!(delta.text(at, 3), Some("web"));
    }
}

#[test]
fn an_object_unlike_its_base_is_kept_whole_until_there_are_many() {
    let mut bases = Bases::default();
    let (a, other) = (pod(1, true), "0123456789abcdef,".repeat(100));
    assert!(bases.delta("a", a.as_bytes()).is_none());
    let kept = bases.delta("a", a.as_bytes());
    assert!(kept.is_some());
    let found: Vec<bool> =
        (0..10).map(|i| bases.delta("a", format!("{i}{other}").as_bytes()).is_some()).collect();
    // The eighth becomes the base, to which the later ones have much in common.
    assert_eq!(found, [false, false, false, false, false, false, false, true, true, true]);
}

#[test]
fn objects_that_have_nothing_in_common_are_not_compared_for_ever() {
    let mut bases = Bases::default();
    let object = |i: u64| {
        let words = (0..60_u64).map(|n| format!("{:016x}", (i * 61 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        words.collect::<Vec<_>>().join(",")
    };
    let deltas: Vec<_> = (0..100).map(|i| bases.delta("a", object(i).as_bytes())).collect();
    let found: Vec<usize> = (0..100).filter(|i| deltas[*i].is_some()).collect();
    // The bases themselves: the second object, and each eighth that had nothing in common with the one before.
    assert_eq!(found, [1, 9, 17, 25]);
}

#[test]
fn templates_are_bounded() {
    let mut bases = Bases::default();
    for i in 0..3 * Bases::MOST {
        assert!(bases.delta(&i.to_string(), pod(i, true).as_bytes()).is_none());
        assert!(bases.0.len() <= Bases::MOST);
    }
}

/// A text and another that was made of it by replacing, inserting and removing.
fn texts() -> impl Strategy<Value = (String, String)> {
    let words = prop::collection::vec("[a-z\"{},:é]{0,12}", 1..200);
    let edits = prop::collection::vec((any::<prop::sample::Index>(), "[a-z\",é]{0,40}", 0..4_usize), 0..12);
    (words, edits).prop_map(|(words, edits)| {
        let mut changed = words.clone();
        for (at, text, removed) in edits {
            let at = at.index(changed.len() + 1);
            let end = (at + removed).min(changed.len());
            changed.splice(at..end, [text]);
        }
        (words.concat(), changed.concat())
    })
}

proptest! {
    #[test]
    fn a_delta_is_its_object((base, object) in texts(), at in any::<prop::sample::Index>(), len in 0..30_usize) {
        let base = Arc::new(Base(base.into_bytes().into()));
        if let Some(delta) = Delta::new(&base, object.as_bytes()) {
            prop_assert_eq!(rebuilt(&delta), object.as_str());
            prop_assert!(delta.size() <= object.len() / 2);
            let at = if object.is_empty() { 0 } else { at.index(object.len()) };
            if let Some(text) = delta.text(at, len) {
                prop_assert_eq!(text.as_bytes(), &object.as_bytes()[at..at + len]);
            }
        }
    }
}
