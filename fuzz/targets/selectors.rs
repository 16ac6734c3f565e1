//! Label and field selectors, and the small values of objects: what parses prints, and reads back as the same.

#![no_main]

use kaji_meta::{Quantity, fields, labels};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(selector) = labels::Selector::parse(text) {
        let printed = selector.to_string();
        let again = labels::Selector::parse(&printed).expect("what was printed parses");
        assert_eq!(printed, again.to_string());
        selector.matches(|key| (key.len() % 2 == 0).then_some("a"));
    }
    if let Ok(selector) = fields::Selector::parse(text) {
        let printed = selector.to_string();
        // Terms are sorted as they are spelled, and spelling differs in escapes.
        let again = fields::Selector::parse(&printed).expect("what was printed parses");
        assert!(again.terms().len() == selector.terms().len());
        assert!(again.terms().iter().all(|term| selector.terms().contains(term)));
        selector.matches(|_| "");
    }
    if let Ok(quantity) = Quantity::parse(text) {
        let printed = quantity.to_string();
        assert_eq!(Quantity::parse(&printed).expect("what was printed parses"), quantity);
    }
    let _ = kaji_meta::Time::parse(text);
    let _ = kaji_meta::MicroTime::parse(text);
    let _ = kaji_schema::jsonpath::compile(text);
});
