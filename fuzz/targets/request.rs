//! Method, path and query of a request.

#![no_main]

use http::Method;
use kaji_server::{RequestInfo, query, unescape};
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
    let info = RequestInfo::parse(method, &path, &query(data.2));
    let _ = info.long_running();
    if let Some(target) = info.resource {
        assert!(!target.resource.is_empty());
    }
});
