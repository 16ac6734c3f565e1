//! What a registry or an archive sends: references, manifests, configurations, tar archives. Parsing ends, and does not panic.

#![no_main]

use kaji_images::manifest::{Configuration, Document};
use kaji_images::reference::Reference;
use kaji_images::tar::TarReader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 4 {
        0 => {
            if let Ok(text) = std::str::from_utf8(rest)
                && let Ok(reference) = Reference::parse(text)
            {
                assert_eq!(Reference::parse(&reference.to_string()).ok(), Some(reference));
            }
        }
        1 => drop(Document::parse(rest, "")),
        2 => drop(Configuration::parse(rest)),
        _ => {
            let mut reader = TarReader::new(rest);
            while let Ok(Some(entry)) = reader.next_entry() {
                assert!(entry.name.len() <= 1 << 20);
            }
        }
    }
});
