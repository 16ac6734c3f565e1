//! Helpers that many kinds share: reading fields, common checks, table cells, conditions.

pub mod check;
pub mod claim;
pub mod conditions;
pub mod connect;
pub mod created;
pub mod disabled;
pub mod metadata;
pub mod net;
pub mod replicas;
pub mod rules;
pub mod table;
#[cfg(test)]
pub mod testing;
pub mod value;

pub use value::Fields;
