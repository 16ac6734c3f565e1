//! The span that the present task works for, so that what is far from a request's handler (a webhook's call, a transaction)
//! can begin children of its span.
//!
//! Invariant: a task without one, as all are when nothing is configured, pays for a look at a variable of the thread.

use crate::span::{Kind, Parent, Span};
use std::{
    future::{Future, poll_fn},
    pin::Pin,
};

tokio::task_local! {
    static PARENT: Parent;
}

/// Carries work out for a span, if there is one. The work is boxed, as futures of requests are anyway: a second place for it
/// in the future of the caller would be copied with that.
pub fn within<F: Future + Unpin>(parent: Option<Parent>, mut work: F) -> impl Future<Output = F::Output> {
    poll_fn(move |cx| match &parent {
        None => Pin::new(&mut work).poll(cx),
        Some(parent) => PARENT.sync_scope(parent.clone(), || Pin::new(&mut work).poll(cx)),
    })
}

/// The span that the present task works for.
#[must_use]
pub fn current() -> Option<Parent> {
    PARENT.try_with(Parent::clone).ok()
}

/// Begins a child of the span that the present task works for.
#[must_use]
pub fn child(name: &str) -> Option<Span> {
    PARENT.try_with(|parent| parent.child(name, Kind::Internal)).ok()
}

/// Begins the client's span of an HTTP request, which is named in the request's headers. Source: `Transport` of `otelhttp`.
#[must_use]
pub fn client(method: &http::Method) -> Option<Span> {
    PARENT.try_with(|parent| parent.child(&format!("HTTP {method}"), Kind::Client)).ok()
}
