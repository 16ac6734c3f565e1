//! The verbs, one file each. Every one is `async fn verb(engine, resource, request) -> Result<ApiResponse, Status>`;
//! `dispatch` chooses among them.

mod body;
pub(crate) mod call;
pub(crate) mod connect;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod deletecollection;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod patch;
mod respond;
pub(crate) mod scale;
pub(crate) mod unreadable;
pub(crate) mod update;
pub(crate) mod watch;
