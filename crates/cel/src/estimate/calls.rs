//! Estimated costs of calls, and sizes of their results.

use super::{Entries, Estimator, Origin, Range, Step, size_at};
use crate::{
    ast::{Expr, Kind, Literal},
    cost::{self, REGEX, TRAVERSAL},
    types::{Named, Type},
};

/// The longest regular expression that a named format stands for.
const FORMAT_REGEX: f64 = 128.0;
/// The longest name of a format.
const FORMAT: u64 = 64;

/// Cost, and the size of the result if it has one.
type Estimate = (Range, Option<Range>);

/// A call as the estimates see it.
struct Call<'c> {
    e: &'c Expr,
    name: &'c str,
    overload: &'static str,
    target: Option<&'c Expr>,
    args: &'c [Expr],
    costs: &'c [Range],
}

fn fixed(cost: u64) -> Estimate {
    (Range::exactly(cost), None)
}

fn sized(cost: Range, size: Range) -> Estimate {
    (cost, Some(size))
}

fn cost_only(cost: Range) -> Estimate {
    (cost, None)
}

/// A list is made in time that grows with `size`.
fn allocating(factor: f64, size: Range) -> Estimate {
    sized(size.scaled(factor).plus(Range::exactly(1 + cost::LIST)), size)
}

/// A whole number that stands in the expression; negative ones count as none.
fn written(e: &Expr) -> Option<u64> {
    match e.kind {
        Kind::Literal(Literal::Int(n)) => Some(u64::try_from(n).unwrap_or_default()),
        _ => None,
    }
}

impl<'c> Estimator<'c> {
    pub(super) fn call(
        &mut self,
        e: &'c Expr,
        target: Option<&'c Expr>,
        function: &'c str,
        args: &'c [Expr],
    ) -> Range {
        let namespaced = self.checked.functions.get(&e.id).copied();
        let target = if namespaced.is_some() { None } else { target };
        let name = namespaced.unwrap_or_else(|| function.strip_prefix('.').unwrap_or(function));
        if let ("dyn", [arg]) = (name, args) {
            let cost = self.cost(arg).plus(Range::ONE);
            self.copy_sizes(e, arg);
            return cost;
        }
        let costs: Vec<Range> = args.iter().map(|a| self.cost(a)).collect();
        let checked = self.checked;
        let Some(overloads) = checked.overloads.get(&e.id).filter(|o| !o.is_empty()) else {
            return Range::ZERO;
        };
        let target_cost = target.map_or(Range::ZERO, |t| self.cost(t));
        let (mut cost, mut size) = (Range::NONE, None::<Range>);
        for overload in overloads {
            let call = Call { e, name, overload, target, args, costs: &costs };
            let (of, result) = self.overload(&call);
            cost = cost.or(of);
            size = match (size, result) {
                (Some(a), Some(b)) => Some(a.or(b)),
                (a, b) => a.or(b),
            };
            if let ("index_list" | "index_map", [operand, ..]) = (*overload, args) {
                size = self.entries_of(operand).map(|e| e.value);
                let place = self.step(self.place(operand), Step::Element);
                self.places.insert(e.id, place);
            }
            size = size.or_else(|| self.known_size(e));
        }
        if let Some(size) = size {
            self.sizes.insert(e.id, size);
        }
        target_cost.plus(cost)
    }

    /// The cost of one way to call a function, arguments included, the target not.
    fn overload(&mut self, call: &Call<'_>) -> Estimate {
        let args = call.costs.iter().fold(Range::ZERO, |sum, c| sum.plus(*c));
        let with_args = |(cost, size): Estimate| (cost.plus(args), size);
        let library = self.list_library(call).or_else(|| self.library(call));
        if let Some(estimate) = library {
            return with_args(estimate);
        }
        match (call.overload, call.args) {
            ("logical_or" | "logical_and", [_, _]) => {
                cost_only(Range { min: call.costs[0].min, max: args.max })
            }
            ("conditional", [_, yes, no]) => {
                let size = self.size(yes).or(self.size(no));
                self.join_entries(call.e, yes, no);
                sized(call.costs[0].plus(call.costs[1].or(call.costs[2])), size)
            }
            ("add_string" | "add_bytes" | "add_list", [a, b]) => {
                let size = self.size(a).plus(self.size(b));
                self.join_entries(call.e, a, b);
                let cost = if call.overload == "add_list" { Range::ONE } else { size.scaled(TRAVERSAL) };
                with_args(sized(cost, size))
            }
            _ => with_args(self.standard(call).unwrap_or_else(|| fixed(1))),
        }
    }

    fn join_entries(&mut self, e: &Expr, a: &Expr, b: &Expr) {
        if let (Some(a), Some(b)) = (self.entries_of(a), self.entries_of(b)) {
            let both = Entries { list: a.list, key: a.key.or(b.key), value: a.value.or(b.value) };
            self.entries.insert(e.id, both);
        }
    }

    /// Functions of the language with a cost that depends on sizes.
    fn standard(&self, call: &Call<'_>) -> Option<Estimate> {
        let size = |e: &Expr| self.size(e);
        Some(match (call.overload, call.target, call.args) {
            ("string_format", Some(target), _) => cost_only(size(target).scaled(TRAVERSAL)),
            ("string_to_bytes", _, [arg]) => {
                let of = size(arg);
                sized(of.scaled(TRAVERSAL), Range { min: of.min, max: of.max.wrapping_mul(4) })
            }
            ("bytes_to_string", _, [arg]) => {
                let of = size(arg);
                sized(of.scaled(TRAVERSAL), Range { min: of.min / 4, max: of.max })
            }
            ("strings_quote", _, [arg]) => {
                let of = size(arg);
                let max = of.max.wrapping_mul(2).wrapping_add(2);
                sized(of.scaled(TRAVERSAL), Range { min: of.min + 2, max })
            }
            ("starts_with_string" | "ends_with_string", _, [arg]) => cost_only(size(arg).scaled(TRAVERSAL)),
            ("in_list", _, [_, list]) => cost_only(size(list).scaled(1.0)),
            ("matches_string", Some(target), [pattern]) => self.matching(size(target), pattern),
            ("contains_string", Some(target), [part]) => {
                cost_only(size(target).scaled(TRAVERSAL).times(size(part).scaled(TRAVERSAL)))
            }
            (
                "equals"
                | "not_equals"
                | "less_string"
                | "less_bytes"
                | "less_equals_string"
                | "less_equals_bytes"
                | "greater_string"
                | "greater_bytes"
                | "greater_equals_string"
                | "greater_equals_bytes",
                _,
                [a, b],
            ) => {
                let most = size(a).max.min(size(b).max);
                cost_only(Range { min: most.min(1), max: most }.scaled(TRAVERSAL))
            }
            _ => return None,
        })
    }

    /// Text of one more character than there is, so that patterns cost on empty text, too.
    fn matching(&self, text: Range, pattern: &Expr) -> Estimate {
        let text = text.plus(Range::ONE).scaled(TRAVERSAL);
        cost_only(text.times(self.size(pattern).scaled(REGEX)))
    }

    /// cel-go's libraries of lists and sets.
    fn list_library(&self, call: &Call<'_>) -> Option<Estimate> {
        let size = |e: &Expr| self.size(e);
        Some(match (call.overload, call.target, call.args) {
            ("list_sets_contains_list" | "list_sets_intersects_list", _, [a, b]) => {
                cost_only(size(a).times(size(b)).scaled(1.0).plus(Range::ONE))
            }
            ("list_sets_equivalent_list", _, [a, b]) => {
                cost_only(size(a).times(size(b)).scaled(2.0).plus(Range::ONE))
            }
            ("list_slice", Some(list), [from, to]) => {
                let end = written(to).unwrap_or(size(list).max);
                let length = end.wrapping_sub(written(from).unwrap_or_default());
                allocating(1.0, Range::exactly(length))
            }
            ("lists_range", None, [n]) => allocating(1.0, Range::exactly(written(n).unwrap_or(u64::MAX))),
            ("list_reverse", Some(list), []) => allocating(1.0, size(list)),
            #[allow(clippy::cast_precision_loss, reason = "upstream's arithmetic")]
            ("list_flatten" | "list_flatten_int", Some(list), args) => {
                let depth = args.first().map_or(1, |d| written(d).unwrap_or(u64::MAX));
                allocating(depth as f64, size(list))
            }
            ("list_distinct", Some(list), []) => allocating(2.0, size(list).times(size(list))),
            (id, Some(list), []) if id.ends_with("_sort") => sort(id, size(list)),
            (id, Some(_), [keys]) if id.ends_with("_sortByAssociatedKeys") => sort(id, size(keys)),
            _ => return None,
        })
    }

    /// Kubernetes' own libraries.
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn library(&self, call: &Call<'_>) -> Option<Estimate> {
        let size = |e: &Expr| self.size(e);
        let first = || call.args.first().map(size);
        let target = || call.target.map(size);
        Some(match call.name {
            "check" => fixed(cost::CHECK),
            "serviceAccount"
            | "path"
            | "group"
            | "resource"
            | "subresource"
            | "namespace"
            | "name"
            | "allowed"
            | "reason"
            | "error"
            | "errored"
            | "masked"
            | "prefixLength"
            | "family"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "format.named"
            | "sign"
            | "asInteger"
            | "isInteger"
            | "asApproximateFloat"
            | "isGreaterThan"
            | "isLessThan"
            | "compareTo"
            | "add"
            | "sub"
            | "major"
            | "minor"
            | "patch"
            | "getScheme"
            | "getHostname"
            | "getHost"
            | "getPort"
            | "getEscapedPath"
            | "getQuery" => fixed(1),
            "fieldSelector" | "labelSelector" => cost_only(cost::selector(first()?)),
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => self.scan(call.target?),
            "url" | "jsonpatch.escapeKey" => sized(first()?.scaled(TRAVERSAL), first()?),
            "lowerAscii" | "upperAscii" | "substring" | "trim" => {
                sized(target()?.scaled(TRAVERSAL), target()?)
            }
            "replace" => {
                let [from, to, ..] = call.args else { return None };
                sized(target()?.scaled(2.0 * TRAVERSAL), replaced(target()?, size(from), size(to)))
            }
            "split" => {
                let of = target()?;
                #[allow(clippy::cast_sign_loss, reason = "a negative limit is none")]
                let most = match call.args.get(1).map(|e| &e.kind) {
                    Some(Kind::Literal(Literal::Int(n))) => *n as u64,
                    _ => of.max,
                };
                sized(of.scaled(2.0 * TRAVERSAL), Range::at_most(most))
            }
            "join" => self.join(call.target?, call.args.first()),
            "find" | "findAll" => {
                let pattern = call.args.first()?;
                (self.matching(target()?, pattern).0, Some(Range::at_most(target()?.max)))
            }
            "ip" if call.overload == "cidr_ip" => fixed(1),
            "ip" | "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
                cost_only(first()?.scaled(TRAVERSAL))
            }
            "ip.isCanonical" => cost_only(first()?.scaled(2.0 * TRAVERSAL)),
            "containsIP" | "containsCIDR" => containment(call.overload, first()?),
            "validate" => cost_only(first()?.scaled(TRAVERSAL).scaled(FORMAT_REGEX * REGEX)),
            "_==_" => {
                let [a, b] = call.args else { return None };
                return self.equality(a, b);
            }
            _ => return None,
        })
    }

    /// Equality of values of libraries.
    fn equality(&self, a: &Expr, b: &Expr) -> Option<Estimate> {
        let Type::Named(named) = self.ty(a) else { return None };
        if self.ty(b) != self.ty(a) {
            return None;
        }
        let most = match named {
            Named::Format => FORMAT,
            Named::Url => self.known_size(b).map_or(1, |s| s.max),
            _ => return Some(fixed(1)),
        };
        Some(cost_only(Range { min: 1, max: most }.scaled(TRAVERSAL)))
    }

    /// Every element is looked at once, text in it, too.
    fn scan(&self, target: &Expr) -> Estimate {
        let Some(element) = self.element(target) else {
            return cost_only(self.size(target).scaled(TRAVERSAL));
        };
        let each = match element {
            (Type::String | Type::Bytes, size) => Range::ONE.plus(size.scaled(TRAVERSAL)),
            _ => Range::ONE,
        };
        cost_only(self.size(target).times(each))
    }

    fn join(&self, list: &Expr, separator: Option<&Expr>) -> Estimate {
        let count = self.size(list);
        let mut size = self.element(list).map_or(Range::ZERO, |(_, of)| count.times(of));
        if let Some(separator) = separator {
            let gaps = Range { min: count.min.saturating_sub(1), max: count.max.saturating_sub(1) };
            size = size.plus(self.size(separator).times(gaps));
        }
        sized(size.scaled(TRAVERSAL), size)
    }

    /// Type and size of the elements of a list.
    fn element(&self, list: &Expr) -> Option<(&'c Type, Range)> {
        let ty = match self.ty(list) {
            Type::List(of) | Type::Optional(of) => of,
            Type::Map(of) => &of.0,
            _ => return None,
        };
        let place = match self.place(list) {
            Origin::Constructed => Origin::Constructed,
            place => self.step(place, Step::Element),
        };
        Some((ty, size_at(place).unwrap_or(Range::ANY)))
    }
}

fn sort(overload: &str, size: Range) -> Estimate {
    let textual = overload.starts_with("list_string_") || overload.starts_with("list_bytes_");
    allocating(if textual { 2.0 + TRAVERSAL } else { 2.0 }, size.times(size))
}

/// The network part is compared, four or sixteen bytes; text is parsed first.
fn containment(overload: &str, arg: Range) -> Estimate {
    let bytes = Range { min: 4, max: 16 };
    let mut cost = bytes.plus(bytes).scaled(TRAVERSAL);
    if overload.starts_with("cidr_contains_cidr") {
        cost = cost.plus(bytes.scaled(TRAVERSAL)).plus(Range::ONE);
    }
    if overload.ends_with("_string") {
        cost = cost.plus(arg.scaled(TRAVERSAL));
    }
    cost_only(cost)
}

/// How long text is when `from` in it has become `to`.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "upstream's arithmetic"
)]
fn replaced(text: Range, from: Range, to: Range) -> Range {
    let parts = |text: u64, part: u64| (text as f64 / part as f64).ceil() as u64;
    // How often, and how much of the text stays.
    let most = if from.min == 0 {
        (text.max.saturating_add(1), text.max)
    } else if to.max <= from.min {
        (0, text.max)
    } else {
        (parts(text.max, from.min), 0)
    };
    let least = if from.max == 0 {
        (text.min.saturating_add(1), text.min)
    } else if from.max <= to.min {
        (0, text.min)
    } else {
        (parts(text.min, from.max), 0)
    };
    Range { min: least.0, max: most.0 }.times(to).plus(Range { min: least.1, max: most.1 })
}
