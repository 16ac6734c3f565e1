//! Batches as bytes.

use expect_test::expect;
use kaji_netfilter::{
    Batch, Chain, ChainType, Element, ElementData, Expr, Family, Hook, Reg, SetData, SetSpec, Verdict,
    netlink,
    set::{DataType, Key, prefix_bounds},
};

/// Messages with their attributes, as text.
fn shown(bytes: &[u8]) -> String {
    let mut out = String::new();
    for message in netlink::messages(bytes) {
        out += &format!("type {:#x} seq {}", message.kind, message.sequence);
        for chunk in message.payload.chunks(4) {
            out += " ";
            chunk.iter().for_each(|byte| out += &format!("{byte:02x}"));
        }
        out += "\n";
    }
    out
}

#[test]
#[cfg(target_endian = "little")]
fn encodes_tables_chains_rules_and_elements() {
    let mut batch = Batch::new(Family::V4, "t");
    batch.add_table();
    batch.add_chain(&Chain::base("out", ChainType::Nat, Hook::Output, -100));
    batch.add_rule("out", &[Expr::Random(Reg(1), 3), Expr::Decide(Verdict::Goto("x".into()))]);
    let spec = SetSpec::new("m", &[DataType::Ipv4, DataType::Port], SetData::Verdict);
    batch.add_set(&spec);
    let key = Key::new().address([10, 0, 0, 1].into()).port(80).bytes();
    batch.add_elements(&spec, &[Element::new(key, ElementData::Verdict(Verdict::Drop))]);
    expect![[r#"
        type 0x10 seq 0 0000000a
        type 0xa00 seq 1 02000000 06000100 74000000
        type 0xa03 seq 2 02000000 06000100 74000000 08000300 6f757400 14000480 08000100 00000003 08000200 ffffff9c 08000500 00000001 08000700 6e617400
        type 0xa06 seq 3 02000000 06000100 74000000 08000200 6f757400 70000480 34000180 0b000100 6e756d67 656e0000 24000280 08000100 00000009 08000200 00000003 08000300 00000001 08000400 00000000 38000180 0e000100 696d6d65 64696174 65000000 24000280 08000100 00000000 18000280 14000280 08000100 fffffffc 06000200 78000000
        type 0xa09 seq 4 02000000 06000100 74000000 06000200 6d000000 08000300 00000008 08000400 000001cd 08000500 00000008 08000600 ffffff00 08000700 00000004 08000a00 00000004
        type 0xa0c seq 5 02000000 06000100 74000000 06000200 6d000000 28000380 24000180 10000180 0c000100 0a000001 00500000 10000280 0c000280 08000100 00000000
        type 0x11 seq 6 0000000a
    "#]]
    .assert_eq(&shown(&batch.encode()));
}

#[test]
fn splits_long_lists_of_elements() {
    let spec = SetSpec::new("s", &[DataType::Ipv6, DataType::Protocol, DataType::Port], SetData::None);
    let elements: Vec<Element> = (0..5000_u32)
        .map(|n| {
            Element::new(Key::new().field(&[0; 12]).integer(n).protocol(6).port(1).bytes(), ElementData::None)
        })
        .collect();
    let mut batch = Batch::new(Family::V6, "t");
    batch.add_elements(&spec, &elements);
    let bytes = batch.encode();
    let lists: Vec<usize> = netlink::messages(&bytes)
        .filter_map(|m| netlink::attribute(m.payload.get(4..)?, 3))
        .map(|list| netlink::attributes(list).count())
        .collect();
    assert_eq!(lists.iter().sum::<usize>(), elements.len());
    assert!(lists.len() > 1);
}

#[test]
fn reads_no_further_than_a_malformed_message() {
    for bytes in [&[][..], &[1, 0, 0, 0], &[255; 40], &[16, 0, 0, 0]] {
        assert_eq!(netlink::messages(bytes).count(), 0);
        assert_eq!(netlink::attributes(bytes).count(), 0);
    }
    assert_eq!(netlink::attributes(&[4, 0, 1, 0, 3, 0, 1, 0]).count(), 1);
}

#[test]
fn bounds_of_prefixes() {
    let bounds = |text: &str, length| {
        let (first, last) = prefix_bounds(text.parse().unwrap(), length);
        format!("{first} {last}")
    };
    assert_eq!(bounds("10.1.2.3", 16), "10.1.0.0 10.1.255.255");
    assert_eq!(bounds("10.1.2.3", 0), "0.0.0.0 255.255.255.255");
    assert_eq!(bounds("10.1.2.3", 32), "10.1.2.3 10.1.2.3");
    assert_eq!(bounds("fd00::1", 127), "fd00:: fd00::1");
}
