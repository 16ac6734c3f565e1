//! Method, path and query of a request.
//!
//! Law: what is forwarded to an extension server asks for the same as what was authorized.

#![no_main]

use http::Method;
use kaji_meta::{Query, query::unescape};
use kaji_server::RequestInfo;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (u8, &str, &str)| {
    let methods = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ];
    let method = &methods[usize::from(data.0) % methods.len()];
    let path = unescape(data.1, false);
    let query = Query::parse(data.2);
    let _ = query.list_options();
    let forwarded = Query::parse(&query.encode(true));
    assert_eq!(forwarded.watches(), query.watches());
    assert!(forwarded.all("dryRun").eq(query.all("dryRun")));
    if let Ok(info) = RequestInfo::parse(method, &path, query) {
        let _ = info.long_running();
        let again = RequestInfo::parse(method, &path, forwarded).expect("the path is the same");
        assert_eq!((again.verb, again.selected_name), (info.verb, info.selected_name));
    }
});
