//! What a client of SPDY/3.1 sends: decoding ends, does not panic, and does not depend on the pieces in which the bytes come.

#![no_main]

use bytes::BytesMut;
use kaji_streaming::spdy::{Decoder, Encoder, Frame};
use libfuzzer_sys::fuzz_target;

/// The frames, with the pieces of a DATA frame counted as one.
fn decode(bytes: &[u8], piece: usize) -> (Vec<Frame>, usize, bool) {
    let (mut decoder, mut frames, mut data) = (Decoder::default(), vec![], 0);
    for part in bytes.chunks(piece.max(1)) {
        decoder.buffer().extend_from_slice(part);
        loop {
            match decoder.decode() {
                Ok(Some(Frame::Data { data: piece, .. })) => data += piece.len(),
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, data, true),
            }
        }
    }
    (frames, data, false)
}

fuzz_target!(|input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else { return };
    let whole = decode(bytes, bytes.len());
    assert_eq!(decode(bytes, usize::from(*piece)), whole);
    let (Ok(mut encoder), mut out) = (Encoder::new(), BytesMut::new()) else { return };
    for frame in &whole.0 {
        if encoder.encode(frame, &mut out).is_err() {
            return;
        }
    }
    let (frames, _, failed) = decode(&out, out.len());
    assert!(frames == whole.0 && !failed);
});
