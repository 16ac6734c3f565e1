//! Makes a directory for the test that opens those of all formats: `format_fixture DIR`. With `killed` as a second argument it ends
//! without closing the store, as a process does that is killed.

#![allow(clippy::expect_used, reason = "an example")]

#[path = "../tests/it/format_content.rs"]
mod content;

use kaji_store::disk::{DiskOptions, DiskStore};

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect("format_fixture DIR [killed]");
    let store = DiskStore::open(dir, DiskOptions::default()).expect("a store");
    content::write(&store).await;
    if args.next().is_some() {
        std::process::exit(0);
    }
}
