//! What expressions may cost at most. The numbers are those of kube-apiserver 1.36.

use crate::{Decl, Env, ListKind};
use expect_test::expect;

fn env() -> Env {
    let text = |max: u64| Decl::string("", Some(max), None);
    let list = |elem: Decl, max: Option<u64>| Decl::list(elem, ListKind::Atomic, max);
    let object = Decl::object([
        ("n".to_owned(), Decl::int(), false),
        ("s".to_owned(), Decl::string("", None, None), false),
        ("short".to_owned(), text(10), false),
        ("choice".to_owned(), Decl::string("", None, Some(3)), false),
        ("list".to_owned(), list(text(8), Some(5)), false),
        ("long".to_owned(), list(Decl::int(), None), false),
        ("map".to_owned(), Decl::map(text(3), Some(4)), false),
    ]);
    Env::new().variable("self", object.clone()).variable("oldSelf", object)
}

fn costs(expressions: &[&str]) -> String {
    let cost = |e: &&str| match env().compile(e).unwrap().max_cost() {
        u64::MAX => format!("{e}: unbounded\n"),
        cost => format!("{e}: {cost}\n"),
    };
    expressions.iter().map(cost).collect()
}

#[test]
fn expressions_cost_what_their_data_may_make_them_cost() {
    expect![[r#"
        self.n == oldSelf.n: 4
        self.s == oldSelf.s: 314577
        self.short == 'abc': 3
        self.choice == self.s: 5
        self.s.contains(self.short): 1258296
        self.short.matches('^[a-z]+$'): 12
        self.list.all(x, x.startsWith('a')): 28
        self.list.map(x, x + '!').join(',').size() < 10: 1844674407370955364
        self.list.all(x, self.list.exists(y, x == y)): 283
        self.long.all(x, x > 0): 7864318
        self.long.exists(x, self.long.all(y, x == y)): 12369501093889
        self.map.all(k, self.map[k].size() < 3): 39
        self.map.transformList(k, v, k + v).size() > 1: 79
        self.short.split(',').filter(x, x != '').size() > 1: 583
        self.short.replace('a', 'bb').lowerAscii() == 'x': 19
        '%d'.format([self.n]) == 'a': 14
        'a' + string(self.n) == 'b': 1844674407370955268
        has(self.n) ? self.n > 1 : self.short.size() > 2: 5
        self.?short.orValue('abc').size() > 2: 5
        sets.contains(self.list, ['a', 'b']): 23
        self.list.sort() == self.list && self.list.isSorted(): 96
        quantity(self.short).isGreaterThan(quantity('1Gi')): 8
        cidr('10.0.0.0/8').containsIP(self.short): 11
        format.dns1123Label().validate(self.short).hasValue(): 132
        self.n in [1, 2, 3] || self.list.max() == 'a': 43
    "#]]
    .assert_eq(&costs(&[
        "self.n == oldSelf.n",
        "self.s == oldSelf.s",
        "self.short == 'abc'",
        "self.choice == self.s",
        "self.s.contains(self.short)",
        "self.short.matches('^[a-z]+$')",
        "self.list.all(x, x.startsWith('a'))",
        "self.list.map(x, x + '!').join(',').size() < 10",
        "self.list.all(x, self.list.exists(y, x == y))",
        "self.long.all(x, x > 0)",
        "self.long.exists(x, self.long.all(y, x == y))",
        "self.map.all(k, self.map[k].size() < 3)",
        "self.map.transformList(k, v, k + v).size() > 1",
        "self.short.split(',').filter(x, x != '').size() > 1",
        "self.short.replace('a', 'bb').lowerAscii() == 'x'",
        "'%d'.format([self.n]) == 'a'",
        "'a' + string(self.n) == 'b'",
        "has(self.n) ? self.n > 1 : self.short.size() > 2",
        "self.?short.orValue('abc').size() > 2",
        "sets.contains(self.list, ['a', 'b'])",
        "self.list.sort() == self.list && self.list.isSorted()",
        "quantity(self.short).isGreaterThan(quantity('1Gi'))",
        "cidr('10.0.0.0/8').containsIP(self.short)",
        "format.dns1123Label().validate(self.short).hasValue()",
        "self.n in [1, 2, 3] || self.list.max() == 'a'",
    ]));
}
