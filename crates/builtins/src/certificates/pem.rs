//! PEM blocks, as Go's decoder finds them: text around blocks is ignored.

use x509_parser::pem::Pem;

/// The well-formed blocks of a text, in order.
pub fn blocks(text: &[u8]) -> Vec<Pem> {
    Pem::iter_from_buffer(text).filter_map(Result::ok).collect()
}
