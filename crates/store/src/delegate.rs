//! For stores around other stores: what they do not change is passed on.
//!
//! Invariant: what is passed on answers as the inner store does, and costs nothing more.

/// Passes methods of [`Store`](crate::Store) on to the store in a field; stands in an `impl Store`.
///
/// `delegate_store!(FIELD: METHOD, METHOD…)` is for stores that change the other methods; `delegate_store!(FIELD)` passes on all of
/// them. A method that is neither listed nor written does not compile, but for `stale`, `write_failure` and `scrub`, which have defaults.
///
/// ```
/// use kaji_store::{BoxFuture, Revision, Store, StoreError, Txn, TxnOutcome, memory::MemoryStore};
///
/// /// Nothing can be written.
/// struct ReadOnly {
///     inner: MemoryStore,
/// }
///
/// impl Store for ReadOnly {
///     fn txn(&self, _: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>> {
///         Box::pin(std::future::ready(Err(StoreError::Unavailable("read only".into()))))
///     }
///
///     kaji_store::delegate_store!(inner: range, watch, stale, revision, current_revision_hint, request_progress);
///     kaji_store::delegate_store!(inner: grant_lease, keep_alive, revoke, compact, compacted, close);
/// }
/// ```
#[macro_export]
macro_rules! delegate_store {
    ($field:tt) => {
        $crate::delegate_store!(
            $field: txn, range, keys, remove_unread, watch, stale, revision, current_revision_hint, write_failure, request_progress,
            grant_lease, keep_alive, revoke, compact, scrub, compacted, close
        );
    };
    ($field:tt: $($method:ident),+ $(,)?) => {
        $($crate::delegate_store!(@ $field $method);)+
    };
    (@ $field:tt txn) => {
        fn txn(&self, txn: $crate::Txn) -> $crate::BoxFuture<'_, Result<$crate::TxnOutcome, $crate::StoreError>> {
            self.$field.txn(txn)
        }
    };
    (@ $field:tt range) => {
        fn range(
            &self,
            range: $crate::Range,
        ) -> $crate::BoxFuture<'_, Result<$crate::RangeResult, $crate::StoreError>> {
            self.$field.range(range)
        }
    };
    (@ $field:tt keys) => {
        fn keys(
            &self,
            range: $crate::Range,
        ) -> $crate::BoxFuture<'_, Result<::std::vec::Vec<(String, $crate::Revision)>, $crate::StoreError>> {
            self.$field.keys(range)
        }
    };
    (@ $field:tt remove_unread) => {
        fn remove_unread(
            &self,
            key: &str,
            mod_revision: $crate::Revision,
        ) -> $crate::BoxFuture<'_, Result<Option<$crate::Revision>, $crate::StoreError>> {
            self.$field.remove_unread(key, mod_revision)
        }
    };
    (@ $field:tt watch) => {
        fn watch(
            &self,
            prefix: &str,
            from: $crate::Revision,
        ) -> $crate::BoxFuture<'_, Result<$crate::WatchStream, $crate::StoreError>> {
            self.$field.watch(prefix, from)
        }
    };
    (@ $field:tt stale) => {
        fn stale(&self, key: &str) -> $crate::BoxFuture<'_, Result<bool, $crate::StoreError>> {
            self.$field.stale(key)
        }
    };
    (@ $field:tt revision) => {
        fn revision(&self) -> $crate::BoxFuture<'_, Result<$crate::Revision, $crate::StoreError>> {
            self.$field.revision()
        }
    };
    (@ $field:tt current_revision_hint) => {
        fn current_revision_hint(&self) -> Option<$crate::Revision> {
            self.$field.current_revision_hint()
        }
    };
    (@ $field:tt write_failure) => {
        fn write_failure(&self) -> Option<$crate::StoreError> {
            self.$field.write_failure()
        }
    };
    (@ $field:tt request_progress) => {
        fn request_progress(&self) {
            self.$field.request_progress();
        }
    };
    (@ $field:tt grant_lease) => {
        fn grant_lease(
            &self,
            ttl: ::std::time::Duration,
        ) -> $crate::BoxFuture<'_, Result<$crate::LeaseId, $crate::StoreError>> {
            self.$field.grant_lease(ttl)
        }
    };
    (@ $field:tt keep_alive) => {
        fn keep_alive(
            &self,
            lease: $crate::LeaseId,
        ) -> $crate::BoxFuture<'_, Result<::std::time::Duration, $crate::StoreError>> {
            self.$field.keep_alive(lease)
        }
    };
    (@ $field:tt revoke) => {
        fn revoke(&self, lease: $crate::LeaseId) -> $crate::BoxFuture<'_, Result<(), $crate::StoreError>> {
            self.$field.revoke(lease)
        }
    };
    (@ $field:tt compact) => {
        fn compact(&self, to: $crate::Revision) -> $crate::BoxFuture<'_, Result<(), $crate::StoreError>> {
            self.$field.compact(to)
        }
    };
    (@ $field:tt scrub) => {
        fn scrub(&self) -> $crate::BoxFuture<'_, Result<(), $crate::StoreError>> {
            self.$field.scrub()
        }
    };
    (@ $field:tt compacted) => {
        fn compacted(&self) -> $crate::Revision {
            self.$field.compacted()
        }
    };
    (@ $field:tt close) => {
        fn close(&self) -> $crate::BoxFuture<'_, ()> {
            self.$field.close()
        }
    };
}
