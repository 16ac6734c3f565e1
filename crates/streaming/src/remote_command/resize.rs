//! Sizes of a terminal: JSON objects, one after the other, cut anywhere.

use crate::transport::Incoming;
use kaji_containers::TerminalSize;
use serde_json::Value;
use tokio::sync::mpsc;

/// The most bytes of an object that is not complete.
const MAX_OBJECT: usize = 1024;

/// Takes sizes from bytes in any pieces.
#[derive(Default)]
struct Sizes(Vec<u8>);

impl Sizes {
    /// The sizes that these bytes complete; `None` when they are not sizes, after which no more are read.
    fn feed(&mut self, bytes: &[u8]) -> Option<Vec<TerminalSize>> {
        self.0.extend(bytes);
        let mut objects = serde_json::Deserializer::from_slice(&self.0).into_iter::<Value>();
        let mut sizes = vec![];
        let mut consumed = 0;
        for object in objects.by_ref() {
            match object {
                Ok(object) => sizes.push(size(&object)?),
                Err(error) if error.is_eof() => break,
                Err(_) => return None,
            }
        }
        consumed += objects.byte_offset();
        self.0.drain(..consumed.min(self.0.len()));
        (self.0.len() <= MAX_OBJECT).then_some(sizes)
    }
}

/// As Go decodes it: names without case, absent ones are zero.
fn size(object: &Value) -> Option<TerminalSize> {
    let mut size = TerminalSize::default();
    for (name, value) in object.as_object()? {
        let place = match name.to_ascii_lowercase().as_str() {
            "width" => &mut size.width,
            "height" => &mut size.height,
            _ => continue,
        };
        *place = u16::try_from(value.as_u64()?).ok()?;
    }
    Some(size)
}

/// Hands sizes to a session. What is not a size ends that, and the rest is dropped.
pub(super) async fn forward(from: Option<Incoming>, to: Option<mpsc::Sender<TerminalSize>>) {
    let Some(mut from) = from else { return };
    let mut sizes = Sizes::default();
    if let Some(to) = to {
        'chunks: while let Some(chunk) = from.next().await {
            let Some(found) = sizes.feed(chunk.bytes()) else {
                tracing::debug!("streaming: a terminal's size is not one");
                break;
            };
            // The newest counts.
            if let Some(size) = found.last()
                && to.send(*size).await.is_err()
            {
                break 'chunks;
            }
        }
    }
    from.drain().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_in_upstream_s_forms() {
        let mut sizes = Sizes::default();
        let size = |width, height| TerminalSize { width, height };
        assert_eq!(sizes.feed(b"{\"Width\":80,\"Height\":24}\n"), Some(vec![size(80, 24)]));
        assert_eq!(sizes.feed(b"{\"width\":1,\"x\":[2]}{\"Hei"), Some(vec![size(1, 0)]));
        assert_eq!(sizes.feed(b"ght\":3}"), Some(vec![size(0, 3)]));
        assert_eq!(sizes.feed(b"{\"Width\":65536}"), None);
        assert_eq!(Sizes::default().feed(b"[]"), None);
        assert_eq!(Sizes::default().feed(&[b'['; 2000]), None);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(list in prop::collection::vec(any::<(u16, u16)>(), 0..6), piece in 1usize..9) {
            let text: String =
                list.iter().map(|(width, height)| format!("{{\"Width\":{width},\"Height\":{height}}}\n")).collect();
            let mut sizes = Sizes::default();
            let found: Vec<TerminalSize> =
                text.as_bytes().chunks(piece).flat_map(|chunk| sizes.feed(chunk).unwrap()).collect();
            let all: Vec<TerminalSize> =
                list.into_iter().map(|(width, height)| TerminalSize { width, height }).collect();
            prop_assert_eq!(found, all);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            Sizes::default().feed(&bytes);
        }
    }
}
