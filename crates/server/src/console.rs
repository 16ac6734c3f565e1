//! The web console's files at `/console`, if the program has them (feature `console`).
//!
//! Invariant: they are served without authentication, and so before it: nothing of a cluster is in them. What the console shows comes by
//! requests to the API with the user's token.

use crate::body::ResponseBody;
use http::{Request, Response};
use kaji_meta::random::Random;

/// The answer to a request for one of the files.
#[cfg(feature = "console")]
pub fn serve<B>(request: &Request<B>, random: &dyn Random) -> Option<Response<ResponseBody>> {
    let nonce = || format!("{:016x}{:016x}", random.u64(), random.u64());
    let response = kaji_console::serve(request.method(), request.uri().path(), request.headers(), nonce)?;
    Some(response.map(ResponseBody::full))
}

/// There are none.
#[cfg(not(feature = "console"))]
pub fn serve<B>(_: &Request<B>, _: &dyn Random) -> Option<Response<ResponseBody>> {
    None
}
