//! Transactions that a kernel carries out.

use kaji_netfilter::{
    Batch, Chain, ChainType, Compare, Element, ElementData, Expr, Family, Field, Hook, Nftables, Reg,
    SetData, SetSpec, Verdict,
    expr::{LOCAL, STATE_ESTABLISHED, STATUS_DNAT, any_bit, concatenation, interface_name, set_mark_bit},
    set::{DataType, Key},
};
use kaji_testing::netns::Netns;
use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

fn address(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 96, 0, last].into(),
        Family::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into(),
    }
}

/// A table with every kind of set and expression that this crate has.
fn everything(family: Family) -> Batch {
    let ip = DataType::address(family);
    let mut batch = Batch::new(family, "all");
    batch.add_table();
    for (name, kind, hook, priority) in [
        ("forward", ChainType::Filter, Hook::Forward, 0),
        ("input", ChainType::Filter, Hook::Input, 0),
        ("prerouting", ChainType::Nat, Hook::Prerouting, -100),
        ("output", ChainType::Nat, Hook::Output, -100),
        ("postrouting", ChainType::Nat, Hook::Postrouting, 100),
    ] {
        batch.add_chain(&Chain::base(name, kind, hook, priority));
    }
    batch.add_chain(&Chain::regular("target"));
    let vips = SetSpec::new("vips", &[ip, DataType::Protocol, DataType::Port], SetData::Verdict);
    let endpoints = SetSpec::new(
        "endpoints",
        &[ip, DataType::Protocol, DataType::Port, DataType::Integer],
        SetData::Value(vec![ip, DataType::Port]),
    );
    let ranges =
        SetSpec::new("ranges", &[ip, DataType::Protocol, DataType::Port, ip], SetData::None).with_intervals();
    let prefixes = SetSpec::new("prefixes", &[ip], SetData::None).with_intervals();
    let mut affinity = SetSpec::new(
        "affinity",
        &[ip, ip, DataType::Protocol, DataType::Port],
        SetData::Value(vec![ip, DataType::Port]),
    );
    affinity.dynamic = Some(1000);
    for spec in [&vips, &endpoints, &ranges, &prefixes, &affinity] {
        batch.add_set(spec);
    }
    let vip = Key::new().address(address(family, 1)).protocol(6).port(80);
    batch.add_elements(
        &vips,
        &[Element::new(vip.clone().bytes(), ElementData::Verdict(Verdict::Goto("target".into())))],
    );
    let endpoint = Key::new().address(address(family, 9)).port(8080).bytes();
    batch.add_elements(
        &endpoints,
        &[Element::new(vip.clone().integer(0).bytes(), ElementData::Value(endpoint))],
    );
    let range = Element {
        last: Some(vip.clone().address(address(family, 200)).bytes()),
        ..Element::new(vip.address(address(family, 100)).bytes(), ElementData::None)
    };
    batch.add_elements(&ranges, &[range]);
    let prefix = Element {
        last: Some(Key::new().address(address(family, 255)).bytes()),
        ..Element::new(Key::new().address(address(family, 128)).bytes(), ElementData::None)
    };
    batch.add_elements(&prefixes, &[prefix]);
    rules(&mut batch, family);
    batch
}

fn rules(batch: &mut Batch, family: Family) {
    let vip = [Field::Destination(family), Field::Protocol, Field::DestinationPort];
    let mut rule = concatenation(&vip);
    rule.push(Expr::VerdictMap(Reg(0), "vips".into()));
    batch.add_rule("prerouting", &rule);
    batch.add_rule("output", &rule);
    let words = family.address_len() as u8 / 4;
    let mut rule = concatenation(&[Field::Source(family), vip[0], Field::Protocol, Field::DestinationPort]);
    rule.extend([
        Expr::Random(Reg(2 * words + 2), 1),
        Expr::Map { key: Reg(words), map: "endpoints".into(), to: Reg(2 * words + 2) },
        Expr::Remember {
            map: "affinity".into(),
            key: Reg(0),
            data: Reg(2 * words + 2),
            timeout: Duration::from_secs(60),
        },
        Expr::Dnat { family, address: Reg(2 * words + 2), port: Reg(3 * words + 2) },
    ]);
    batch.add_rule("target", &rule);
    let mut rule = any_bit(Field::ConnectionStatus, STATUS_DNAT);
    rule.push(Expr::Masquerade);
    batch.add_rule("postrouting", &rule);
    batch.add_rule("postrouting", &set_mark_bit(0x4000));
    let mut rule = concatenation(&[vip[0], Field::Protocol, Field::DestinationPort, Field::Source(family)]);
    rule.extend([Expr::Lacks(Reg(0), "ranges".into()), Expr::Decide(Verdict::Drop)]);
    batch.add_rule("forward", &rule);
    let mut rule = any_bit(Field::ConnectionState, STATE_ESTABLISHED);
    rule.extend([Expr::Counter, Expr::Decide(Verdict::Accept)]);
    batch.add_rule("forward", &rule);
    batch.add_rule(
        "input",
        &[
            Expr::Load(Field::InputInterface, Reg(0)),
            Expr::Compare(Reg(0), Compare::NotEqual, interface_name("eth0")),
            Expr::Load(Field::SourceKind, Reg(0)),
            Expr::Compare(Reg(0), Compare::Equal, LOCAL.to_ne_bytes().into()),
            Expr::Load(Field::DestinationPort, Reg(0)),
            Expr::Compare(Reg(0), Compare::AtLeast, vec![0, 80]),
            Expr::Compare(Reg(0), Compare::AtMost, vec![0, 90]),
            Expr::Load(Field::Source(family), Reg(0)),
            Expr::Contains(Reg(0), "prefixes".into()),
            Expr::Reject(family),
        ],
    );
}

#[test]
fn a_kernel_takes_every_expression_and_shows_what_was_put_in() {
    let Some(namespace) = Netns::new("a_kernel_takes_every_expression") else { return };
    namespace.run(|| {
        let mut nft = Nftables::open().unwrap();
        for family in [Family::V4, Family::V6] {
            nft.apply(&everything(family)).unwrap();
            let contents = nft.contents(family, "all").unwrap();
            assert_eq!(contents.chains["target"], 1);
            assert_eq!(contents.chains["forward"], 2);
            assert_eq!(contents.sets.len(), 5);
            let ip = DataType::address(family);
            let spec = SetSpec::new("endpoints", &[ip], SetData::None);
            let elements = nft.elements(family, "all", &spec).unwrap();
            let key = Key::new().address(address(family, 1)).protocol(6).port(80).integer(0).bytes();
            let value = Key::new().address(address(family, 9)).port(8080).bytes();
            assert_eq!(elements, [Element::new(key, ElementData::Value(value))]);
            let mut delete = Batch::new(family, "all");
            delete.delete_table();
            nft.apply(&delete).unwrap();
            assert_eq!(nft.tables(family).unwrap(), [""; 0]);
        }
    });
}

#[test]
fn a_batch_with_a_mistake_changes_nothing_and_says_where() {
    let Some(namespace) = Netns::new("a_batch_with_a_mistake") else { return };
    namespace.run(|| {
        let mut nft = Nftables::open().unwrap();
        let mut batch = Batch::new(Family::V4, "t");
        batch.add_table();
        batch.add_chain(&Chain::regular("a"));
        batch.add_rule("b", &[Expr::Decide(Verdict::Drop)]);
        let error = nft.apply(&batch).unwrap_err();
        assert_eq!(error.to_string(), "nftables: add rule to b: No such file or directory (os error 2)");
        assert_eq!(nft.tables(Family::V4).unwrap(), [""; 0]);
    });
}

/// Chains that lead new flows to `vip` to one of `endpoints`.
fn spread(vip: SocketAddr, endpoints: &[SocketAddr]) -> Batch {
    let family = Family::V4;
    let mut batch = Batch::new(family, "spread");
    let map = SetSpec::new(
        "endpoints",
        &[DataType::Ipv4, DataType::Protocol, DataType::Port, DataType::Integer],
        SetData::Value(vec![DataType::Ipv4, DataType::Port]),
    );
    batch.add_table();
    batch.add_chain(&Chain::base("output", ChainType::Nat, Hook::Output, -100));
    batch.add_set(&map);
    let key = Key::new().address(vip.ip()).protocol(17).port(vip.port());
    let elements: Vec<Element> = endpoints
        .iter()
        .zip(0..)
        .map(|(endpoint, index)| {
            let value = Key::new().address(endpoint.ip()).port(endpoint.port()).bytes();
            Element::new(key.clone().integer(index).bytes(), ElementData::Value(value))
        })
        .collect();
    batch.add_elements(&map, &elements);
    let mut rule = concatenation(&[Field::Destination(family), Field::Protocol, Field::DestinationPort]);
    rule.extend([
        Expr::Random(Reg(3), endpoints.len() as u32),
        Expr::Map { key: Reg(0), map: "endpoints".into(), to: Reg(4) },
        Expr::Dnat { family, address: Reg(4), port: Reg(5) },
    ]);
    batch.add_rule("output", &rule);
    batch
}

#[test]
fn a_random_number_and_a_map_give_each_endpoint_an_even_share() {
    let Some(namespace) = Netns::new("an_even_share") else { return };
    namespace.ip("addr add 10.96.0.1/32 dev lo");
    namespace.run(|| {
        let servers: Vec<UdpSocket> = (0..3).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let endpoints: Vec<SocketAddr> = servers.iter().map(|s| s.local_addr().unwrap()).collect();
        let vip: SocketAddr = "10.96.0.1:53".parse().unwrap();
        Nftables::open().unwrap().apply(&spread(vip, &endpoints)).unwrap();
        let mut shares = [0_u32; 3];
        for _ in 0..900 {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.send_to(b"x", vip).unwrap();
            for (server, share) in servers.iter().zip(&mut shares) {
                // Delivery on the loopback interface is over when the call returns.
                server.set_nonblocking(true).unwrap();
                *share += u32::from(server.recv(&mut [0; 4]).is_ok());
            }
        }
        assert_eq!(shares.iter().sum::<u32>(), 900, "{shares:?}");
        // Six standard deviations.
        assert!(shares.iter().all(|share| share.abs_diff(300) < 85), "{shares:?}");
    });
}
