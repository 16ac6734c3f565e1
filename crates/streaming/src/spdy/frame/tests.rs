//! Fixtures, and the laws of the codec: what is encoded is decoded, in whatever pieces it comes, and no bytes panic.

use super::*;
use expect_test::expect;
use proptest::prelude::*;

fn encode(frames: &[Frame]) -> BytesMut {
    let (mut encoder, mut out) = (Encoder::new().unwrap(), BytesMut::new());
    for frame in frames {
        encoder.encode(frame, &mut out).unwrap();
    }
    out
}

/// The frames of these bytes, fed in pieces of the given sizes, and how it ended.
fn decode(bytes: &[u8], pieces: &[usize]) -> (Vec<Frame>, Option<SpdyError>) {
    let mut decoder = Decoder::default();
    let (mut frames, mut rest, mut sizes) = (vec![], bytes, pieces.iter().cycle());
    while !rest.is_empty() {
        let size = sizes.next().map_or(rest.len(), |n| (*n).clamp(1, rest.len()));
        decoder.buffer().extend_from_slice(&rest[..size]);
        rest = &rest[size..];
        loop {
            match decoder.decode() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

/// Pieces of DATA frames put together, as far as their frames went.
fn whole(frames: Vec<Frame>) -> Vec<(u32, bool, Vec<u8>)> {
    let mut streams: Vec<(u32, bool, Vec<u8>)> = vec![];
    for frame in frames {
        let Frame::Data { stream, fin, data } = frame else { continue };
        match streams.last_mut() {
            Some(last) if last.0 == stream && !last.1 => {
                last.1 = fin;
                last.2.extend(data);
            }
            _ => streams.push((stream, fin, data.to_vec())),
        }
    }
    streams
}

#[test]
fn bytes_are_those_of_the_protocol() {
    let frames = [
        Frame::Ping(1),
        Frame::RstStream { stream: 3, status: 5 },
        Frame::GoAway { last: 7, status: 0 },
        Frame::WindowUpdate { stream: 1, delta: 65536 },
        Frame::Settings(vec![(4, 100)]),
        Frame::Data { stream: 5, fin: true, data: Bytes::from_static(b"hi") },
    ];
    let text =
        frames.each_ref().map(|frame| kaji_meta::text::hex(&encode(std::slice::from_ref(frame))) + "\n");
    expect![[r#"
        800300060000000400000001
        80030003000000080000000300000005
        80030007000000080000000700000000
        80030009000000080000000100010000
        800300040000000c000000010000000400000064
        00000005010000026869
    "#]]
    .assert_eq(&text.concat());
    assert_eq!(decode(&encode(&frames), &[]), (frames.to_vec(), None));
}

/// What upstream's `spdystream` sends for two streams, the end of one, a ping, a reset and the end.
#[test]
fn frames_of_upstream_are_read() {
    let bytes = hex("80030001000000290000000100000000000078f9e3c6a7c26260606004a7b392a2d4c45c6851c29a0a0a6800000000
                     ffff800300010000001900000003000000000000c22ac5565c92925f5a02000000ffff0000000301000000800300060000
                     00040000000180030003000000080000000100000005800300070000000800000000000 00000");
    let (frames, error) = decode(&bytes, &[5]);
    assert_eq!(error, None);
    let text: Vec<String> = frames.iter().map(|frame| format!("{frame:?}")).collect();
    expect![[r#"
        SynStream { stream: 1, associated: 0, priority: 0, fin: false, unidirectional: false, headers: Headers([("streamtype", "error")]) }
        SynStream { stream: 3, associated: 0, priority: 0, fin: false, unidirectional: false, headers: Headers([("streamtype", "stdout")]) }
        Data { stream: 3, fin: true, data: b"" }
        Ping(1)
        RstStream { stream: 1, status: 5 }
        GoAway { last: 0, status: 0 }"#]].assert_eq(&text.join("\n"));
}

fn hex(text: &str) -> Vec<u8> {
    kaji_meta::text::from_hex(&text.replace(|c: char| !c.is_ascii_hexdigit(), "")).unwrap()
}

#[test]
fn what_is_not_the_protocol_is_an_error() {
    let error = |bytes: &str| decode(&hex(bytes), &[]).1.map(|e| e.to_string()).unwrap_or_default();
    let errors = [
        error("0000000000000000"),
        error("8002000600000004 00000001"),
        error("8003000500000000"),
        error("8003000600000004 00000000"),
        error("8003000600000005 0000000100"),
        error("8003000300000008 0000000000000001"),
        error("8003000100ffffff"),
        error("8003000400000004 ffffffff"),
        error("8003000100000002 0000"),
        error("800300010000000c 00000001000000000000 abcd"),
    ];
    expect![[r#"
        stream id zero is disallowed
        unsupported version 2
        unknown frame type 5
        invalid control frame of type 6
        invalid control frame of type 6
        invalid control frame of type 3
        control frame of 16777215 bytes is too large
        invalid control frame of type 4
        invalid control frame of type 1
        invalid header block"#]]
    .assert_eq(&errors.join("\n"));
}

fn headers() -> impl Strategy<Value = Headers> {
    let pairs = prop::collection::btree_map("[a-z:-]{1,12}", ".{0,40}", 0..6);
    pairs.prop_map(|pairs| Headers(pairs.into_iter().collect()))
}

fn frame() -> impl Strategy<Value = Frame> {
    let stream = 1u32..=STREAM_MASK;
    prop_oneof![
        (stream.clone(), 0..=STREAM_MASK, 0u8..8, any::<(bool, bool)>(), headers()).prop_map(
            |(stream, associated, priority, (fin, unidirectional), headers)| Frame::SynStream {
                stream,
                associated,
                priority,
                fin,
                unidirectional,
                headers
            }
        ),
        (stream.clone(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| Frame::SynReply {
            stream,
            fin,
            headers
        }),
        (stream.clone(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| Frame::Headers {
            stream,
            fin,
            headers
        }),
        (stream.clone(), any::<u32>()).prop_map(|(stream, status)| Frame::RstStream { stream, status }),
        prop::collection::vec(any::<(u32, u32)>(), 0..5).prop_map(Frame::Settings),
        (1..=u32::MAX).prop_map(Frame::Ping),
        (0..=STREAM_MASK, any::<u32>()).prop_map(|(last, status)| Frame::GoAway { last, status }),
        (stream.clone(), 0..=STREAM_MASK).prop_map(|(stream, delta)| Frame::WindowUpdate { stream, delta }),
        (stream, any::<bool>(), prop::collection::vec(any::<u8>(), 0..200))
            .prop_map(|(stream, fin, data)| Frame::Data { stream, fin, data: data.into() }),
    ]
}

proptest! {
    #[test]
    fn decodes_what_was_encoded(frames in prop::collection::vec(frame(), 0..12)) {
        prop_assert_eq!(decode(&encode(&frames), &[]), (frames, None));
    }

    #[test]
    fn pieces_make_no_difference(
        frames in prop::collection::vec(frame(), 0..12),
        pieces in prop::collection::vec(1usize..40, 1..8),
    ) {
        let bytes = encode(&frames);
        let (pieced, error) = decode(&bytes, &pieces);
        prop_assert_eq!(error, None);
        let control = |frames: &[Frame]| -> Vec<Frame> {
            frames.iter().filter(|f| !matches!(f, Frame::Data { .. })).cloned().collect()
        };
        prop_assert_eq!(control(&pieced), control(&frames));
        let flat = |frames| whole(frames).into_iter().filter(|(_, fin, data)| *fin || !data.is_empty()).collect::<Vec<_>>();
        prop_assert_eq!(flat(pieced), flat(frames));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..12, length in 0u8..64) {
        decode(&bytes, &[]);
        let head = [0x80, 3, 0, kind, 0, 0, 0, length];
        decode(&[&head[..], &bytes].concat(), &[7]);
    }
}
